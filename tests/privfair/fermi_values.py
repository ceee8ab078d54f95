"""The values whose gradients FERMI and the penalties on unequal rates compute: psi, its maximum, and the penalties."""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor

from privfair.fairness import fermi
from privfair.fairness.constraints import FairnessPenalty


def psi(w: Tensor, probabilities: Tensor, s: Tensor, block: Tensor, frequencies: Tensor) -> Tensor:
    """psi of each record; zero for a record outside all blocks."""
    inside = block != fermi.OUTSIDE
    at = block.clamp_min(0)
    slope = fermi.attribute_slopes(w, frequencies)[at, s] + fermi.common_slopes(w)[at]
    return torch.where(inside, (slope * probabilities).sum(dim=1) - 1.0, 0.0)


def optimal_w(joint: Tensor, frequencies: Tensor) -> Tensor:
    """The W that maximises the sum of psi: P^(-1/2) joint diag(predicted)^(-1)."""
    predicted = joint.sum(dim=1, keepdim=True)
    return joint / (frequencies.sqrt()[:, :, None] * predicted)


def chi_square(joint: Tensor) -> Tensor:
    """sum over blocks of mass(block) chi^2(joint in the block || product of its marginals)."""
    mass = joint.sum(dim=(1, 2), keepdim=True)
    of_group, of_class = joint.sum(dim=2, keepdim=True), joint.sum(dim=1, keepdim=True)
    return (mass * (joint.square() / (of_group * of_class)).sum(dim=(1, 2), keepdim=True) - mass).sum()


def penalty_value(penalty: FairnessPenalty, joint: Tensor, floor: float) -> Tensor:
    """The penalty of a joint distribution; group masses below `floor` (of their block) count as `floor`."""
    mass = joint.sum(dim=(1, 2), keepdim=True)
    masses = torch.maximum(joint.sum(dim=2, keepdim=True), floor * mass)
    match penalty:
        case FairnessPenalty.SQUARED_GAP:
            rates = joint / masses
            return (rates[:, :, None, :] - rates[:, None, :, :]).square().sum() / 4
        case FairnessPenalty.FERMI:
            of_class = joint.sum(dim=1, keepdim=True).clamp_min(1e-9)
            return (mass * (joint.square() / (masses * of_class)).sum(dim=(1, 2), keepdim=True) - mass).sum()
        case _:
            assert_never(penalty)
