"""Undoing randomised response on average: responses with known error rates become unbiased group memberships.

k-ary randomised response answers the true group with probability `keep` and each other one with (1 - keep)/(k - 1).
Its matrix is M = (keep - other) I + other 11^T, and M^(-1) e_r = (e_r - other 1) / (keep - other) is a membership whose
expectation is the one-hot vector of the true group. Its entries may be negative or above one; they always sum to 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from calibrate.errors import InvalidInput
from calibrate.validation import count, positive


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
