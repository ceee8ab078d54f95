"""Penalties on unequal rates, as slopes: how much the penalty grows with each entry of the joint distribution.

`joint[b, a, j]` is the mean over all records of 1[block b] membership(a) F_j. A record with membership q in block b
then adds sum_a q(a) slopes[b, a, :] to the gradient in its class probabilities. Since sum_j F_j = 1, the group masses
sum_j joint[b, a, j] do not depend on the model, and are held fixed.
"""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor

from calibrate.validation import positive
from privfair.fairness.penalty_kinds import FairnessPenalty

_LEAST_CLASS_MASS = 1e-9


def penalty_value(penalty: FairnessPenalty, joint: Tensor, floor: float) -> Tensor:
    """The penalty of a joint distribution; group masses below `floor` (of their block) count as `floor`."""
    masses, mass = _masses(joint, floor)
    match penalty:
        case FairnessPenalty.SQUARED_GAP:
            rates = joint / masses
            return (rates[:, :, None, :] - rates[:, None, :, :]).square().sum() / 4
        case FairnessPenalty.FERMI:
            of_class = joint.sum(dim=1, keepdim=True).clamp_min(_LEAST_CLASS_MASS)
            return (mass * (joint.square() / (masses * of_class)).sum(dim=(1, 2), keepdim=True) - mass).sum()
        case _:
            assert_never(penalty)


def penalty_slopes(penalty: FairnessPenalty, joint: Tensor, floor: float) -> Tensor:
    """The derivative of `penalty_value` by the entries of `joint`, with the masses held fixed."""
    masses, mass = _masses(joint, floor)
    match penalty:
        case FairnessPenalty.SQUARED_GAP:
            rates = joint / masses
            groups = joint.shape[1]
            return (groups * rates - rates.sum(dim=1, keepdim=True)) / masses
        case FairnessPenalty.FERMI:
            of_class = joint.sum(dim=1, keepdim=True).clamp_min(_LEAST_CLASS_MASS)
            common = (joint.square() / masses).sum(dim=1, keepdim=True) / of_class.square()
            return mass * (2.0 * joint / (masses * of_class) - common)
        case _:
            assert_never(penalty)


def _masses(joint: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    positive("floor", floor)
    mass = joint.sum(dim=(1, 2), keepdim=True)
    least = torch.clamp_min(floor * mass, torch.finfo(joint.dtype).tiny)
    return torch.maximum(joint.sum(dim=2, keepdim=True), least), mass
