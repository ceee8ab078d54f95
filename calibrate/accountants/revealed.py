"""Revealed batches: an exact mixture of Gaussian mechanisms over how often the unit took part.

An observer who knows the batches sees, given them, one Gaussian mechanism with mu^2 = sum of the squared
shifts of the rounds. Hence delta(eps) = sum over s of weight(s) * gaussian_delta(sqrt(s), eps): binomial
weights for Poisson and fixed-size batches, multiplicities for draws with replacement, a single s for shuffled
epochs and for plain Gaussian releases beside them (docs/theorems/accountants.md, equation A2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from scipy.optimize import brentq

from calibrate.accountants.gaussian import gaussian_log_delta, log_delta_error
from calibrate.accountants.pairs import GaussianPair, MixedGaussianPair
from calibrate.accountants.support import CountingAccountant, PairCounts
from calibrate.arrays import Floats
from calibrate.errors import NotCertified
from calibrate.privacy_unit import EpsilonInterval

# The law of the sum of squared shifts of many revealed rounds, with nothing lost in the tails.
#
# Given the batches, revealed rounds are one Gaussian mechanism whose squared mu is the sum of the rounds' squared
# shifts. Those shifts are whole multiples of one unit (a record is drawn 0, 1, 2, .. times), so the sum lives
# on a lattice and its law is an n-fold convolution. It is done by direct convolution of non-negative numbers,
# not by FFT: every weight, down to 1e-60, keeps its relative accuracy, which a delta of 1e-30 needs.

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
    square = _trim(law)
    while True:
        if times & 1:
            result = square if result is None else _convolve(result, square)
        times >>= 1
        if not times:
            return result if result is not None else square
        square = _convolve(square, square)


def _convolve(first: SquaredShifts, second: SquaredShifts) -> SquaredShifts:
    if len(first.weights) + len(second.weights) > _LARGEST_LATTICE:
        raise NotCertified(f"more than {_LARGEST_LATTICE} different sums of squared shifts: price it with pld")
    weights = np.convolve(first.weights, second.weights)
    terms = min(len(first.weights), len(second.weights))
    error = first.relative_error + second.relative_error + (terms + 2) * _ROUNDOFF
    lost = first.lost + second.lost
    return _trim(SquaredShifts(first.unit, first.start + second.start, weights, lost, error))


def _trim(law: SquaredShifts) -> SquaredShifts:
    """Cut negligible weights off both ends and count them as lost."""
    kept = np.flatnonzero(law.weights > _DROPPED)
    first, last = int(kept[0]), int(kept[-1]) + 1
    lost = math.fsum(law.weights[:first]) + math.fsum(law.weights[last:])
    return SquaredShifts(law.unit, law.start + first, law.weights[first:last], law.lost + 2 * lost, law.relative_error)


_BINS = 20_000
"""Only for several different revealed pairs at once: their sums are rounded outward onto this many values."""
_BINS_BEFORE_PRODUCT = 4_000


@dataclass(frozen=True)
class _Side:
    """One side of the enclosure: values of mu with their weights; +1 bounds delta from above, -1 from below."""

    mu: Floats
    weights: Floats
    lost: float
    relative_error: float
    sign: int

    def log_delta(self, epsilon: float) -> float:
        error = log_delta_error(self.mu, epsilon)
        terms = np.exp(gaussian_log_delta(self.mu, epsilon) + self.sign * error)
        total = math.fsum(self.weights * terms) * (1 + self.sign * self.relative_error)
        total += self.lost if self.sign > 0 else 0.0
        return math.log(total) if total > 0 else -math.inf


class RevealedAccountant(CountingAccountant):
    """Exact accounting of revealed batches, alone or beside plain Gaussian releases.

    Guarantee: two-sided up to rounding, which is bounded and rounded outward, for replace-one and
    replace-attribute (docs/theorems/accountants.md, "revealed").
    """

    name = "revealed"
    supported = (GaussianPair, MixedGaussianPair)

    def _interval(self, cost: PairCounts, delta: float) -> EpsilonInterval:
        lower = _smallest_epsilon(_side(cost, -1), delta)
        return EpsilonInterval(lower, max(lower, _smallest_epsilon(_side(cost, +1), delta)))

    def delta(self, cost: PairCounts, epsilon: float) -> float:
        """The smallest delta at `epsilon` >= 0, rounded up."""
        if cost.unprotected:
            return 1.0
        return min(1.0, math.exp(_side(cost, +1).log_delta(epsilon))) if cost.counts else 0.0


def _side(cost: PairCounts, sign: int) -> _Side:
    certain = math.fsum(n * pair.mu**2 for pair, n in cost.counts if isinstance(pair, GaussianPair))
    laws = [squared_shifts(pair, n) for pair, n in cost.counts if isinstance(pair, MixedGaussianPair)]
    values, weights = np.zeros(1), np.ones(1)
    if laws:
        values, weights = reduce(_adder(sign), ((law.values, law.weights) for law in laws))
    mu = np.sqrt(values + certain) * (1 + sign * 2 * LATTICE_ERROR)
    takes_part = mu > 0
    return _Side(mu[takes_part], weights[takes_part], _lost(laws), sum(law.relative_error for law in laws), sign)


def _lost(laws: list[SquaredShifts]) -> float:
    return math.fsum(law.lost for law in laws)


def _adder(sign: int) -> Callable[[tuple[Floats, Floats], tuple[Floats, Floats]], tuple[Floats, Floats]]:
    """Adds two independent laws and rounds the values of the sum outward, so that there are never too many."""

    def add(first: tuple[Floats, Floats], second: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        if len(first[0]) * len(second[0]) > _BINS_BEFORE_PRODUCT**2:
            first, second = (_coarsen(*law, _BINS_BEFORE_PRODUCT, sign) for law in (first, second))
        values = np.add.outer(first[0], second[0]).ravel()
        return _coarsen(values, np.multiply.outer(first[1], second[1]).ravel(), _BINS, sign)

    return add


def _coarsen(values: Floats, weights: Floats, bins: int, sign: int) -> tuple[Floats, Floats]:
    if len(values) <= bins:
        return values, weights
    low, width = float(values.min()), float(np.ptp(values)) / (bins - 1)
    position = (values - low) / width
    index = (np.ceil(position) if sign > 0 else np.floor(position)).astype(np.int64)
    grid = low + width * np.arange(index.max() + 1)
    return grid, np.asarray(np.bincount(index, weights=weights), dtype=float)


def _smallest_epsilon(side: _Side, delta: float) -> float:
    """The smallest epsilon whose (signed) delta is at most `delta`, rounded to the side's own direction."""
    if side.lost >= delta:
        raise NotCertified(f"the weights cut off, {side.lost}, exceed delta = {delta}")
    target = math.log(delta)

    def excess(epsilon: float) -> float:
        return max(side.log_delta(epsilon), -1e6) - target

    if not len(side.mu) or excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    epsilon = float(brentq(excess, 0.0, high, xtol=1e-300, rtol=1e-14))
    while side.sign * excess(epsilon) > 0:
        epsilon *= 1 + side.sign * 1e-14
    return epsilon
