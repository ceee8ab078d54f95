"""The records' gradients of one back-propagation, measured and summed with weights, mostly without being stored.

A fully connected layer's gradient of one record is an outer product of what went in and what came back, so its norm
is the product of two norms and the weighted sum is one matrix product. Everything here is float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from calibrate.errors import CheckFailed
from privfair.models.model import WeightedGradient
from privfair.models.scores import EXACT
from privfair.models.weighing import Weigh


class Parts(Protocol):
    """grad_1 .. grad_n of something, one per record."""

    def norms(self) -> Tensor:
        """The norm of each record's gradient."""
        ...

    def weighted(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i grad_i as a flat vector."""
        ...


@dataclass(frozen=True, eq=False)
class OuterProducts:
    """Records' gradients right_i left_i^T of a layer without positions, with or without an intercept."""

    left: Tensor
    """What went in, (records, inputs)."""
    right: Tensor
    """What came back, (records, outputs)."""
    intercept: bool = True

    @classmethod
    def of(cls, left: Tensor, right: Tensor, intercept: bool = True) -> OuterProducts:
        return cls(left.to(EXACT), right.to(EXACT), intercept)

    def squared_norms(self) -> Tensor:
        went_in = torch.linalg.vector_norm(self.left, dim=1).square_()
        came_back = torch.linalg.vector_norm(self.right, dim=1).square_().add_(underflow(self.right))
        return came_back * (went_in.add_(1.0) if self.intercept else went_in)

    def weighted(self, coefficients: Tensor) -> tuple[Tensor, ...]:
        """The weighted sums for the weight (outputs, inputs) and the intercept."""
        right = self.right * coefficients[:, None]
        weight = right.T @ self.left
        return (weight, right.sum(dim=0)) if self.intercept else (weight,)

    @property
    def values_held(self) -> int:
        """How many numbers are kept in memory."""
        return self.left.numel() + self.right.numel()


def underflow(values: Tensor) -> float:
    """What squares of one record's values may have lost near zero, added back: a large factor could bring it up again.

    2^-1022 a value, twice; also where a library flushes subnormal numbers to zero.
    """
    return values.shape[-1] * 2.0**-1021


def weigh_parts(parts: Parts, losses: Tensor, weigh: Weigh) -> WeightedGradient:
    """Measure, weigh, sum."""
    norms = parts.norms()
    exact_losses = losses.to(EXACT)
    coefficients = weighed(weigh, norms, exact_losses)
    return WeightedGradient(parts.weighted(coefficients), norms, exact_losses, coefficients)


def weighed(weigh: Weigh, norms: Tensor, losses: Tensor) -> Tensor:
    """The coefficients; norms, their squares and the coefficients are finite, or training stops here."""
    coefficients = weigh(norms, losses).to(EXACT)
    # A NaN or an infinity in either makes its sum of squares infinite or NaN; squares can't cancel.
    if not (math.isfinite(float(norms.dot(norms))) and math.isfinite(float(coefficients.dot(coefficients)))):
        refuse_the_infinite(norms, coefficients)
    return coefficients


def refuse_the_infinite(norms: Tensor, coefficients: Tensor) -> NoReturn:
    """Stop before a NaN, an infinity or an overflow can pass for a clipped gradient."""
    what, values = (
        ("gradient norm", norms) if not torch.isfinite(norms.dot(norms)) else ("coefficient", coefficients)
    )
    bad = int((~torch.isfinite(values.square())).sum())
    raise CheckFailed(
        f"the {what} of {bad or 'each'} of {values.numel()} records is infinite, no number, or too large to be "
        "squared, so it can't be clipped; bring the features to the range of their schema, or lower the step size"
    )
