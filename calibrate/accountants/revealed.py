"""Revealed batches: an exact mixture of Gaussian mechanisms over how often the unit took part.

An observer who knows the batches sees, given them, one Gaussian mechanism with mu^2 = sum of the squared
shifts of the rounds. Hence delta(eps) = sum over s of weight(s) * gaussian_delta(sqrt(s), eps): binomial
weights for Poisson and fixed-size batches, multiplicities for draws with replacement, a single s for shuffled
epochs and for plain Gaussian releases beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from scipy.optimize import brentq

from calibrate.accountants.dominating_pairs import GaussianPair, MixedGaussianPair
from calibrate.accountants.gaussian import gaussian_log_delta, log_delta_error
from calibrate.accountants.pair_counts import PairCounts, priced_pairs
from calibrate.accountants.squared_shifts import LATTICE_ERROR, SquaredShifts, squared_shifts
from calibrate.arrays import Floats
from calibrate.errors import NotCertified
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit
from calibrate.releases import Leaf
from calibrate.validation import open_unit

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


class RevealedAccountant:
    """Exact accounting of revealed batches, alone or beside plain Gaussian releases.

    Guarantee: two-sided up to rounding, which is bounded and rounded outward, for replace-one and
    replace-attribute (docs/theorems/accountants.md, "revealed").
    """

    name = "revealed"

    def price(self, leaf: Leaf, unit: PrivacyUnit) -> PairCounts:
        return PairCounts.of(priced_pairs(self.name, leaf, unit, (GaussianPair, MixedGaussianPair)))

    def self_composed(self, cost: PairCounts, times: int) -> PairCounts:
        return cost.times(times)

    def composed(self, first: PairCounts, second: PairCounts) -> PairCounts:
        return first.plus(second.counts)

    def epsilon(self, cost: PairCounts, delta: float) -> EpsilonInterval:
        open_unit("delta", delta)
        if cost.unprotected:
            return EpsilonInterval(math.inf, math.inf)
        if not cost.counts:
            return EpsilonInterval(0.0, 0.0)
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
        values, weights = reduce(_summed(sign), ((law.values, law.weights) for law in laws))
    mu = np.sqrt(values + certain) * (1 + sign * 2 * LATTICE_ERROR)
    takes_part = mu > 0
    return _Side(
        mu[takes_part], weights[takes_part], _lost(laws), sum(law.relative_error for law in laws), sign
    )


def _lost(laws: list[SquaredShifts]) -> float:
    return math.fsum(law.lost for law in laws)


def _summed(sign: int) -> Callable[[tuple[Floats, Floats], tuple[Floats, Floats]], tuple[Floats, Floats]]:
    """Adds two independent laws and rounds the values of the sum outward, so that there are never too many."""

    def add(first: tuple[Floats, Floats], second: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        if len(first[0]) * len(second[0]) > _BINS_BEFORE_PRODUCT**2:
            first, second = (_coarse(*law, _BINS_BEFORE_PRODUCT, sign) for law in (first, second))
        values = np.add.outer(first[0], second[0]).ravel()
        return _coarse(values, np.multiply.outer(first[1], second[1]).ravel(), _BINS, sign)

    return add


def _coarse(values: Floats, weights: Floats, bins: int, sign: int) -> tuple[Floats, Floats]:
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
