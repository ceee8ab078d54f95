"""The analytic Gaussian mechanism, exact mixtures of it for revealed batches, and the accountants built from both.

Write mu for sensitivity / standard deviation. Then (docs/theorems/accountants.md, equation A1)

    delta(mu, eps) = Phi(-a) - exp(eps) * Phi(-b),   a = eps/mu - mu/2,   b = eps/mu + mu/2,

and n releases with mu_1 .. mu_n are one release with mu = sqrt(sum mu_i^2). Since b^2 - a^2 = 2 eps, both
terms share the factor phi(a): delta = phi(a) * (R(a) - R(b)) with Mills' ratio R(x) = Phi(-x) / phi(x). All
work is done on log delta in that form, so that neither exp(eps) overflows nor a delta of 1e-300 drowns.

An observer who knows the batches sees, given them, one Gaussian mechanism with mu^2 = sum of the squared
shifts of the rounds. Hence delta(eps) = sum over s of weight(s) * gaussian_delta(sqrt(s), eps): binomial
weights for Poisson and fixed-size batches, multiplicities for draws with replacement, a single s for shuffled
epochs and for plain Gaussian releases in addition to them (equation A2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from scipy.special import erfcx, ndtr

from calibrate.accountants.registry import CountingAccountant, PairCounts, self_composed
from calibrate.accountants.support import GaussianPair, MixedGaussianPair
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, NotCertified, open_unit, positive
from calibrate.privacy_unit import EpsilonInterval
from calibrate.roots import find_root

_SMALL_MU = 0.5
"""Below this R(a) - R(b) is integrated from its derivative; subtracting would cancel."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_UNIT_ROUNDOFF = 2.0**-53
_FINEST = 8 * _UNIT_ROUNDOFF
"""The relative precision of a root that is no finer than doubles are."""


def _mills(x: Floats) -> Floats:
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)))


def gaussian_log_delta(mu: Floats, epsilon: float) -> Floats:
    """log delta(mu, epsilon) for each mu > 0 of an array, at one epsilon >= 0."""
    # Equation A1 in the form phi(a) (R(a) - R(b)): three ranges, so that the difference never cancels.
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    result = np.empty_like(a)
    small, bulk = mu < _SMALL_MU, (mu >= _SMALL_MU) & (a < 0)
    tail = ~small & ~bulk
    if small.any():
        x = a[small, None] + mu[small, None] * (1 + _NODES) / 2
        # R(a) - R(b) is the integral of -R'(x) = 1 - x R(x) > 0.
        difference = (1 - x * _mills(x)) @ _WEIGHTS * mu[small] / 2
        result[small] = np.log(difference) - a[small] ** 2 / 2 - _LOG_SQRT_2PI
    if bulk.any():
        beyond = np.exp(-(a[bulk] ** 2) / 2 - _LOG_SQRT_2PI) * _mills(b[bulk])
        result[bulk] = np.log(ndtr(-a[bulk]) - beyond)
    if tail.any():
        difference = _mills(a[tail]) - _mills(b[tail])
        result[tail] = np.log(difference) - a[tail] ** 2 / 2 - _LOG_SQRT_2PI
    return result


def log_delta_error(mu: Floats, epsilon: float) -> Floats:
    """A bound on the absolute rounding error of `gaussian_log_delta`.

    a and b carry at most three roundings each, so a^2/2 is off by at most 4u * b^2 (u = 2^-53, |a| <= b);
    the difference of the Mills ratios loses at most the factor 2 + b^2. The constant leaves room for erfcx.
    """
    return np.asarray(128 * _UNIT_ROUNDOFF * (2 + (epsilon / mu + mu / 2) ** 2))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The smallest delta at `epsilon` >= 0 of a Gaussian mechanism with sensitivity / deviation = mu >= 0."""
    _check_nonnegative("mu", mu)
    _check_nonnegative("epsilon", epsilon)
    if mu == 0:
        return 0.0
    return math.exp(_log_delta(mu, epsilon, 0))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon of a Gaussian mechanism with parameter mu at `delta`, rounded up."""
    return gaussian_epsilon_interval(mu, mu, delta).upper


def gaussian_epsilon_interval(mu_lower: float, mu_upper: float, delta: float) -> EpsilonInterval:
    """Epsilon at `delta` for a mu known to be in [mu_lower, mu_upper], rounded outward.

    Guarantee: epsilon grows with mu; each end is moved until the computed log delta, shifted by its
    rounding-error bound, is on the right side of log delta.
    """
    open_unit("delta", delta)
    _check_nonnegative("mu", mu_lower)
    _check_nonnegative("mu", mu_upper)
    lower = _epsilon_end(mu_lower, delta, -1)
    return EpsilonInterval(lower, max(lower, _epsilon_end(mu_upper, delta, +1)))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose Gaussian mechanism is (epsilon, delta)-private, rounded down."""
    _check_nonnegative("epsilon", epsilon)
    open_unit("delta", delta)
    target = math.log(delta) - _UNIT_ROUNDOFF * abs(math.log(delta))

    def excess(mu: float) -> float:
        return _log_delta(mu, epsilon, +1) - target

    low = high = math.sqrt(2 * epsilon) + 1
    while excess(high) <= 0:
        high *= 2
    while excess(low) > 0:
        low /= 2
    mu = find_root(excess, low, high, 1e-300, _FINEST)
    while excess(mu) > 0:
        mu *= 1 - 4 * _UNIT_ROUNDOFF
    return mu


def _log_delta(mu: float, epsilon: float, side: int) -> float:
    """log delta, moved up (side +1) or down (side -1) by its error bound."""
    at = np.array([mu])
    return float((gaussian_log_delta(at, epsilon) + side * log_delta_error(at, epsilon))[0])


def _epsilon_end(mu: float, delta: float, side: int) -> float:
    if mu == 0:
        return 0.0
    target = math.log(delta) - side * _UNIT_ROUNDOFF * abs(math.log(delta))

    def excess(epsilon: float) -> float:
        return _log_delta(mu, epsilon, side) - target

    # Phi(-a) <= exp(-a^2/2) gives the first guess; its growth pays for the rounding margin.
    guess = mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta)) + mu
    return falling_root(excess, side, guess, 1.5, _FINEST, 4 * _UNIT_ROUNDOFF)


def falling_root(
    excess: Callable[[float], float], side: int, guess: float, growth: float, precision: float, nudge: float
) -> float:
    """The smallest epsilon >= 0 at which a falling excess is at most 0, moved until it is so (+1), or is not (-1)."""
    if excess(0.0) <= 0:
        return 0.0
    while excess(guess) > 0:
        guess *= growth
    epsilon = find_root(excess, 0.0, guess, 1e-300, precision)
    while side * excess(epsilon) > 0:
        epsilon *= 1 + side * nudge
    return epsilon


def _check_nonnegative(argument: str, value: float) -> None:
    if value != 0:
        try:
            positive(argument, value)
        except InvalidInput:
            raise InvalidInput(argument, value, "must be finite and at least 0", "give 0 or more") from None


class GaussianAccountant(CountingAccountant):
    """Exact accounting of compositions of plain Gaussian releases.

    Guarantee: releases with mu_1 .. mu_n, also adaptively chosen, are together exactly the Gaussian mechanism
    with mu = sqrt(sum mu_i^2) (docs/theorems/accountants.md, "gaussian"), for the unit of `support`.
    """

    name = "gaussian"
    supported = (GaussianPair,)

    def _interval(self, cost: PairCounts, delta: float) -> EpsilonInterval:
        low = high = 0.0
        for pair, times in cost.counts:
            assert isinstance(pair, GaussianPair)
            # The joint multiplier of several values and the division behind mu cost a few roundings.
            once = _outward(pair.mu**2 * (1 - 16 * _UNIT_ROUNDOFF), pair.mu**2 * (1 + 16 * _UNIT_ROUNDOFF))
            more = _outward(once[0] * times, once[1] * times)
            low, high = _outward(low + more[0], high + more[1]) if high else more
        return gaussian_epsilon_interval(
            math.nextafter(math.sqrt(low), 0), math.nextafter(math.sqrt(high), math.inf), delta
        )


def _outward(lower: float, upper: float) -> tuple[float, float]:
    """One rounding outward on both sides."""
    return math.nextafter(lower, 0), math.nextafter(upper, math.inf)


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
    return self_composed(_convolve, _trim(SquaredShifts(unit, 0, once, 0.0, 16 * _ROUNDOFF)), times)


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
        # Equation A2: the sum over s of weight(s) * delta(sqrt(s)), with every factor moved to the side of the bound.
        total = math.fsum(self.weights * terms) * (1 + self.sign * self.relative_error)
        # What was cut off the law of s may have any delta up to 1.
        total += self.lost if self.sign > 0 else 0.0
        return math.log(total) if total > 0 else -math.inf


class RevealedAccountant(CountingAccountant):
    """Exact accounting of revealed batches, alone or with plain Gaussian releases.

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
    # Plain releases have the same squared shift whatever the batches, so they add to every s.
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
    # Delta grows with mu: values rounded up bound it from above, values rounded down from below.
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

    return falling_root(excess, side.sign, 1.0, 2.0, 1e-14, 1e-14) if len(side.mu) else 0.0
