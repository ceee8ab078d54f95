"""The law of the sum of squared shifts of many revealed rounds, with nothing lost in the tails.

Given the batches, revealed rounds are one Gaussian mechanism whose squared mu is the sum of the rounds' squared
shifts. Those shifts are whole multiples of one unit (a record is drawn 0, 1, 2, .. times), so the sum lives
on a lattice and its law is an n-fold convolution. It is done by direct convolution of non-negative numbers,
not by FFT: every weight, down to 1e-60, keeps its relative accuracy, which a delta of 1e-30 needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibrate.accountants.dominating_pairs import MixedGaussianPair
from calibrate.arrays import Floats
from calibrate.errors import NotCertified

_DROPPED = 1e-60
"""Weights below this are cut off both ends; the lost mass is counted, and added to every upper delta."""
_LARGEST_LATTICE = 200_000
_ROUNDOFF = 2.0**-52
LATTICE_ERROR = 1e-12
"""How far, relatively, a squared shift may lie from its lattice point; the caller widens by it."""


@dataclass(frozen=True)
class SquaredShifts:
    """Sum of squared shifts = unit * (start + index), with probability weights[index].

    `lost` bounds the probability that was cut off; `relative_error` bounds the error of each weight.
    """

    unit: float
    start: int
    weights: Floats
    lost: float
    relative_error: float

    @property
    def values(self) -> Floats:
        return np.asarray(self.unit * np.arange(self.start, self.start + len(self.weights)), dtype=float)


def squared_shifts(pair: MixedGaussianPair, times: int) -> SquaredShifts:
    """The law of the sum of squared shifts of `times` independent rounds of one pair."""
    unit = min((mu for _, mu in pair.components if mu > 0), default=1.0) ** 2
    steps = [round(mu**2 / unit) for _, mu in pair.components]
    for (_, mu), step in zip(pair.components, steps, strict=True):
        if abs(mu**2 / unit - step) > LATTICE_ERROR * max(1, step):
            raise NotCertified(
                f"the squared shift {mu**2} is not a whole multiple of {unit}: only draws of one record "
                "with one multiplier can be counted"
            )
    if steps[-1] > _LARGEST_LATTICE:
        raise NotCertified(f"a record may be drawn {steps[-1]} ** 0.5 times in a round: price it with pld")
    once = np.zeros(steps[-1] + 1)
    once[steps] = [weight for weight, _ in pair.components]
    return _power(SquaredShifts(unit, 0, once, 0.0, 16 * _ROUNDOFF), times)


def _power(law: SquaredShifts, times: int) -> SquaredShifts:
    """The times-fold convolution by repeated squaring."""
    result: SquaredShifts | None = None
    square = _trimmed(law)
    while True:
        if times & 1:
            result = square if result is None else _convolved(result, square)
        times >>= 1
        if not times:
            return result if result is not None else square
        square = _convolved(square, square)


def _convolved(first: SquaredShifts, second: SquaredShifts) -> SquaredShifts:
    if len(first.weights) + len(second.weights) > _LARGEST_LATTICE:
        raise NotCertified(
            f"more than {_LARGEST_LATTICE} different sums of squared shifts: price it with pld"
        )
    weights = np.convolve(first.weights, second.weights)
    terms = min(len(first.weights), len(second.weights))
    error = first.relative_error + second.relative_error + (terms + 2) * _ROUNDOFF
    lost = first.lost + second.lost
    return _trimmed(SquaredShifts(first.unit, first.start + second.start, weights, lost, error))


def _trimmed(law: SquaredShifts) -> SquaredShifts:
    """Cut negligible weights off both ends and count them as lost."""
    kept = np.flatnonzero(law.weights > _DROPPED)
    first, last = int(kept[0]), int(kept[-1]) + 1
    lost = math.fsum(law.weights[:first]) + math.fsum(law.weights[last:])
    return SquaredShifts(
        law.unit, law.start + first, law.weights[first:last], law.lost + 2 * lost, law.relative_error
    )
