"""The analytic Gaussian mechanism: exact delta, epsilon and mu, and the accountant made of them.

Write mu for sensitivity / standard deviation. Then (docs/theorems/accountants.md, equation A1)

    delta(mu, eps) = Phi(-a) - exp(eps) * Phi(-b),   a = eps/mu - mu/2,   b = eps/mu + mu/2,

and n releases with mu_1 .. mu_n are one release with mu = sqrt(sum mu_i^2). Since b^2 - a^2 = 2 eps, both
terms share the factor phi(a): delta = phi(a) * (R(a) - R(b)) with Mills' ratio R(x) = Phi(-x) / phi(x). All
work is done on log delta in that form, so that neither exp(eps) overflows nor a delta of 1e-300 drowns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr

from calibrate.accountants.pairs import DominatingPair, Free, GaussianPair, Unbounded
from calibrate.accountants.support import priced_pairs
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, NotCertified, open_unit, positive
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit
from calibrate.releases import Leaf

_SMALL_MU = 0.5
"""Below this R(a) - R(b) is integrated from its derivative; subtracting would cancel."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_UNIT_ROUNDOFF = 2.0**-53


def _mills(x: Floats) -> Floats:
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)))


def gaussian_log_delta(mu: Floats, epsilon: float) -> Floats:
    """log delta(mu, epsilon) for each mu > 0 of an array, at one epsilon >= 0."""
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
    """Epsilon at `delta` for a mu known to lie in [mu_lower, mu_upper], rounded outward.

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
    mu = _root(excess, low, high)
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

    if excess(0.0) <= 0:
        return 0.0
    # Phi(-a) <= exp(-a^2/2) gives the first guess; the loop pays for the rounding margin.
    high = mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta)) + mu
    while excess(high) > 0:
        high *= 1.5
    epsilon = _root(excess, 0.0, high)
    while side * excess(epsilon) > 0:
        epsilon *= 1 + side * 4 * _UNIT_ROUNDOFF
    return epsilon


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(function, low, high, xtol=1e-300, rtol=4 * np.finfo(float).eps))


def _check_nonnegative(argument: str, value: float) -> None:
    if value != 0:
        try:
            positive(argument, value)
        except InvalidInput:
            raise InvalidInput(argument, value, "must be finite and at least 0", "give 0 or more") from None


@dataclass(frozen=True)
class GaussianCost:
    """An enclosure of the sum of squared mu, carried through every composition with outward rounding."""

    mu_squared_lower: float
    mu_squared_upper: float


class GaussianAccountant:
    """Exact accounting of compositions of plain Gaussian releases.

    Guarantee: releases with mu_1 .. mu_n, also adaptively chosen, are together exactly the Gaussian mechanism
    with mu = sqrt(sum mu_i^2) (docs/theorems/accountants.md, "gaussian"), for the unit of `support`.
    """

    name = "gaussian"

    def price(self, leaf: Leaf, unit: PrivacyUnit) -> GaussianCost:
        cost = GaussianCost(0.0, 0.0)
        for pair in priced_pairs(self.name, leaf, unit, (GaussianPair,)):
            cost = self.compose(cost, _squared(pair))
        return cost

    def self_compose(self, cost: GaussianCost, times: int) -> GaussianCost:
        return _outward(cost.mu_squared_lower * times, cost.mu_squared_upper * times)

    def compose(self, first: GaussianCost, second: GaussianCost) -> GaussianCost:
        if first.mu_squared_upper == 0 or second.mu_squared_upper == 0:  # nothing is added, nothing is rounded
            return second if first.mu_squared_upper == 0 else first
        return _outward(
            first.mu_squared_lower + second.mu_squared_lower, first.mu_squared_upper + second.mu_squared_upper
        )

    def epsilon(self, cost: GaussianCost, delta: float) -> EpsilonInterval:
        if math.isinf(cost.mu_squared_upper):
            return EpsilonInterval(math.inf, math.inf)
        lower = math.nextafter(math.sqrt(cost.mu_squared_lower), 0)
        upper = math.sqrt(cost.mu_squared_upper)
        return gaussian_epsilon_interval(lower, math.nextafter(upper, math.inf) if upper else 0.0, delta)


def _squared(pair: DominatingPair) -> GaussianCost:
    match pair:
        case GaussianPair(mu):
            # The joint multiplier of several values and the division behind mu cost a few roundings.
            return _outward(mu**2 * (1 - 16 * _UNIT_ROUNDOFF), mu**2 * (1 + 16 * _UNIT_ROUNDOFF))
        case Free():
            return GaussianCost(0.0, 0.0)
        case Unbounded():
            return GaussianCost(math.inf, math.inf)
        case _:
            raise NotCertified(f"the gaussian accountant has no formula for {pair!r}")


def _outward(lower: float, upper: float) -> GaussianCost:
    """One rounding outward on both sides; an exact 0 (nothing published) and infinity stay what they are."""
    if upper == 0 or math.isinf(upper):
        return GaussianCost(lower, upper)
    return GaussianCost(math.nextafter(lower, 0), math.nextafter(upper, math.inf))
