"""Penalties on unequal rates, as slopes: how much the penalty grows with each entry of the joint distribution.

`joint[b, a, j]` is the mean over all records of 1[block b] membership(a) F_j. A record with membership q in block b
then adds sum_a q(a) slopes[b, a, :] to the gradient in its class probabilities. Since sum_j F_j = 1, the group masses
sum_j joint[b, a, j] do not depend on the model, and are held fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import assert_never, final

import torch
from torch import Tensor

from calibrate.errors import InvalidInput, count, positive

# What a fairness penalty makes small.


class FairnessPenalty(Enum):
    SQUARED_GAP = "squared-gap"
    """The squared differences of the groups' mean class probabilities; with two groups and classes the gap squared."""
    FERMI = "fermi"
    """The chi-square divergence of groups and predictions, at its own best W."""


# Undoing randomised response on average: responses with known error rates become unbiased group memberships.
#
# k-ary randomised response answers the true group with probability `keep` and each other one with (1 - keep)/(k - 1).
# Its matrix is M = (keep - other) I + other 11^T, and M^(-1) e_r = (e_r - other 1) / (keep - other) is a
# membership whose
# expectation is the one-hot vector of the true group. Its entries may be negative or above one; they always sum to 1.


@final
@dataclass(frozen=True)
class ResponseChannel:
    """The public law of the responses; `keep` = 1 means that they are the true groups."""

    groups: int
    keep: float

    def __post_init__(self) -> None:
        count("groups", self.groups, least=2)
        if not 1.0 / self.groups < self.keep <= 1.0:
            raise InvalidInput(
                "keep",
                self.keep,
                f"must lie in (1/{self.groups}, 1], else the responses say nothing",
                "spend a larger epsilon",
            )

    @classmethod
    def of_epsilon(cls, groups: int, epsilon: float | None) -> ResponseChannel:
        """The channel that costs this epsilon; None for a run that promises nothing and sends the truth."""
        if epsilon is None:
            return cls(groups, 1.0)
        return cls(groups, 1.0 / (1.0 + (groups - 1) * math.exp(-positive("epsilon", epsilon))))

    @property
    def other(self) -> float:
        """The probability of each single wrong answer."""
        return (1.0 - self.keep) / (self.groups - 1)

    def memberships(self, responses: Tensor) -> Tensor:
        """(records, groups), unbiased: E[memberships | true group] is one-hot."""
        one_hot = torch.nn.functional.one_hot(responses, self.groups).to(torch.float64)
        return (one_hot - self.other) / (self.keep - self.other)


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
