"""The Renyi accountant, and the moments accountant that it grew out of.

The Renyi accountant adds Renyi divergences order by order and converts once at the end. Looser than a privacy loss
distribution, but its formulas share nothing with one: a second opinion that errs on the private side. The conversion is
equation A5 of docs/theorems/accountants.md.

The moments accountant of Abadi et al. (2016) is kept as printed (log moments up to order 32, tail bound at the end),
because published budgets were computed with it. It covers what that paper covers: Gaussian releases of a full or a
secret Poisson batch under add-remove. Both directions are integrated numerically, as in the paper; the binomial sum of
the Renyi accountant plays no part in it, so the two check each other (equation A6 of docs/theorems/accountants.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

import numpy as np
from scipy.special import gammaln, logsumexp

from calibrate.accountants.registry import priced_pairs, self_composed
from calibrate.accountants.support import (
    PRICED_PAIRS,
    DominatingPair,
    FixedSizeReplacePair,
    Free,
    GaussianPair,
    LaplacePair,
    MixedGaussianPair,
    RandomAllocationPair,
    RandomizedResponsePair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
    TruncatedPair,
    Unbounded,
)
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, NotCertified, open_unit, positive
from calibrate.errors import rate as check_rate
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit
from calibrate.releases import Leaf

# Moments of the likelihood ratio of two Gaussian mixtures, by the trapezoid rule.
#
# The integrands are analytic in a strip around the real line (the nearest zero of a mixture lies pi z^2 away), so
# the trapezoid rule converges faster than any power of the step; with the step chosen here its error is far
# below the rounding of the sum, and `_OUTWARD` covers that rounding.

_SUM_ROUNDING = 1e-13
_MOST_NODES = 4_000_000
_DEVIATIONS = 14.0


def log_mixture_moment(
    rate: float, noise_multiplier: float, upper_mean: float, lower_mean: float, order: float
) -> float:
    """log of the integral of P^order * Q^(1 - order), rounded up.

    P = (1-q) N(0, z^2) + q N(upper_mean, z^2), Q the same with lower_mean; the means are in [-1, 1]. A negative
    order is allowed. Infinite when the grid would be larger than memory should bear: an upper bound still.
    """
    z = noise_multiplier
    # Every factor is a Gaussian with a mean in [-1, 1] raised to at most |order| + 1: the mass lies within.
    reach = 2 * abs(order) + 2 + _DEVIATIONS * z
    step = min(z, z * z) / 8
    if 2 * reach / step > _MOST_NODES:
        return math.inf
    x = np.arange(-reach, reach + step, step)

    def log_density(mean: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        log_here, log_there = math.log1p(-rate) if rate < 1 else -math.inf, math.log(rate)
        tilt = (2 * x * mean - mean**2) / (2 * z * z)
        return np.logaddexp(log_here, log_there + tilt) - (x / z) ** 2 / 2

    log_integrand = order * log_density(upper_mean) + (1 - order) * log_density(lower_mean)
    total = float(logsumexp(log_integrand)) + math.log(step / (z * math.sqrt(2 * math.pi)))
    return total + _SUM_ROUNDING * (1 + abs(total))


# Renyi divergences of the dominating pairs, one function per pair, each an upper bound at every order.
#
# `poisson_gaussian_rdp` is the binomial sum (Mironov, Talwar and Zhang 2019, Section 3.3) that is also printed in
# the articles judged by the theorem catalogue. Fractional orders are integrated numerically; the fixed-size bound
# of Wang, Balle and Kasiviswanathan (2019) is dp-accounting's.


def poisson_gaussian_rdp(rate: float, noise_multiplier: float, orders: Sequence[int]) -> tuple[float, ...]:
    """Renyi divergence of one Gaussian release of a secret Poisson batch, at integer orders >= 2.

    log sum_k binom(a, k) (1-q)^(a-k) q^k exp((k^2 - k) / (2 z^2)) / (a - 1), for add-remove and in log space.
    Because the binomial weights sum to one, the sum is 1 + sum_k weight_k * expm1(..): nothing cancels.
    """
    check_rate("sampling rate", rate)
    positive("noise multiplier", noise_multiplier)
    for order in orders:
        if order < 2 or order != int(order):
            raise InvalidInput("order", order, "must be a whole number, at least 2", "give for example 2 .. 64")
    return tuple(_log_binomial_sum(rate, noise_multiplier, int(a)) / (int(a) - 1) for a in orders)


def _log_binomial_sum(rate: float, noise_multiplier: float, order: int) -> float:
    if rate == 1:
        return order * (order - 1) / (2 * noise_multiplier**2)
    k = np.arange(2, order + 1, dtype=float)
    log_binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    log_weight = log_binomial + k * math.log(rate) + (order - k) * math.log1p(-rate)
    exponent = (k**2 - k) / (2 * noise_multiplier**2)
    log_excess = logsumexp(log_weight + exponent + np.log(-np.expm1(-exponent)))
    return float(np.logaddexp(0.0, log_excess)) if log_excess > 0 else math.log1p(math.exp(log_excess))


def rdp_of_pair(pair: DominatingPair, orders: tuple[float, ...]) -> Floats:
    """The Renyi divergence of one dominating pair at each order > 1, in the worse direction."""
    a = np.array(orders)
    match pair:
        case GaussianPair(mu):
            return a * mu**2 / 2
        case SubsampledGaussianPair(rate, z):
            return np.array([_sampled_gaussian(rate, z, order) for order in orders])
        case SubsampledReplacePair(rate, z):
            return np.array([_replaced_in_poisson_batch(rate, z, order) for order in orders])
        case FixedSizeReplacePair(rate, z):
            return np.array(_fixed_size(rate, z, orders))
        case MixedGaussianPair(components):
            weights, shifts = np.array(components).T
            # log sum_j w_j exp(a (a-1) mu_j^2 / 2) / (a-1): the batch has the same law under P and Q.
            exponents = np.outer(a * (a - 1) / 2, shifts**2)
            return np.asarray(logsumexp(exponents, axis=1, b=weights) / (a - 1))
        case RandomAllocationPair(batches, drawn, z):
            return _random_allocation(batches, drawn, z, a)
        case TruncatedPair(whole, chance):
            parts = np.stack([rdp_of_pair(whole, orders), rdp_of_pair(pair.cut, orders)])
            return np.asarray(logsumexp((a - 1) * parts, axis=0, b=[[1 - chance], [chance]]) / (a - 1))
        case LaplacePair(scale):
            # The losses between the two ends, and the atom at each end, integrated in closed form.
            up = np.log(a / (2 * a - 1)) + (a - 1) / scale
            down = np.log((a - 1) / (2 * a - 1)) - a / scale
            return np.asarray(np.logaddexp(up, down) / (a - 1))
        case RandomizedResponsePair(epsilon, categories):
            return _randomised_response(epsilon, categories, a)
        case Free():
            return np.zeros_like(a)
        case Unbounded():
            return np.full_like(a, math.inf)
        case _:
            assert_never(pair)


def _sampled_gaussian(rate: float, z: float, order: float) -> float:
    """The mixture against the plain Gaussian; the mirror image is never larger at the same order."""
    if float(order).is_integer():
        return poisson_gaussian_rdp(rate, z, (int(order),))[0]
    return log_mixture_moment(rate, z, 1.0, 0.0, order) / (order - 1)


@lru_cache(maxsize=64)
def _fixed_size(rate: float, z: float, orders: tuple[float, ...]) -> tuple[float, ...]:
    """Wang, Balle and Kasiviswanathan 2019, Theorem 27; z is already the noise over *two* bounds."""
    from dp_accounting.rdp import rdp_privacy_accountant as rdp  # 0.5 s, for this one pair

    return tuple(float(value) for value in rdp._compute_rdp_sample_wor_gaussian(rate, z, orders))


def _replaced_in_poisson_batch(rate: float, z: float, order: float) -> float:
    return log_mixture_moment(rate, z, 1.0, -1.0, order) / (order - 1)


def _random_allocation(batches: int, drawn: int, z: float, a: Floats) -> Floats:
    """The worse direction of one epoch, never above one Gaussian (docs/theorems/sampling.md#random-allocation).

    Removal is exact at whole orders (the next one for a fractional order); addition is bounded by Jensen's
    inequality and by that of arithmetic and geometric means.
    """
    whole = np.ceil(a - 1e-12).astype(int)
    within = whole <= _HIGHEST_MOMENT
    log_moments = _log_moments_of_mean(batches, drawn, z)
    removal = np.where(within, log_moments[np.minimum(whole, _HIGHEST_MOMENT)] / (whole - 1), math.inf)
    gaussian: Floats = a / (2 * z * z)
    whole_epoch = (1 + (a - 1) / batches) / (2 * z * z) if drawn == batches else gaussian
    return np.asarray(np.minimum(np.maximum(removal, whole_epoch), gaussian))


_HIGHEST_MOMENT = 128
"""Orders above this are bounded by one full Gaussian."""


@lru_cache(maxsize=64)
def _log_moments_of_mean(batches: int, drawn: int, z: float) -> Floats:
    """log E S^k for k = 0, 1, ..: coefficients of exp(x (1 - r/t)) (sum_k E[Y^k] (x/t)^k / k!)^r, times k!.

    Products of series by repeated squaring, in log space: all coefficients are positive, so nothing cancels.
    """
    k = np.arange(_HIGHEST_MOMENT + 1)
    series = k * (k - 1) / (2 * z * z) - k * math.log(batches) - gammaln(k + 1)
    total = np.where(k == 0, 0.0, k * math.log1p(-drawn / batches) - gammaln(k + 1)) if drawn < batches else None
    return self_composed(_log_convolve, series, drawn, total) + gammaln(k + 1)


def _log_convolve(first: Floats, second: Floats) -> Floats:
    """log of the coefficients of a product of two series with positive coefficients, given as logarithms."""
    return np.array([logsumexp(first[: n + 1] + second[n::-1]) for n in range(len(first))])


def _randomised_response(epsilon: float, categories: int, a: Floats) -> Floats:
    """P and Q give e^eps / n and 1 / n to the two true categories, 1 / n to each other one; n = e^eps + k - 1."""
    log_n = np.logaddexp(epsilon, math.log(categories - 1))
    terms = [a * epsilon - log_n, (1 - a) * epsilon - log_n]
    if categories > 2:
        terms.append(np.full_like(a, math.log(categories - 2) - log_n))
    return np.asarray(logsumexp(np.stack(terms), axis=0) / (a - 1))


DEFAULT_ORDERS: tuple[float, ...] = (
    *(1 + step / 10 for step in range(1, 100)),
    *(float(order) for order in range(11, 65)),
    *(80.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0),
)

_OUTWARD = 1e-10
"""Relative rounding allowance on each price; the formulas themselves lose less than 1e-12."""


def epsilon_at_order(rdp: float, order: float, delta: float) -> float:
    """rdp + ln((a-1)/a) - (ln delta + ln a)/(a-1): epsilon at one order, as printed in FedFDP's Theorem 2.

    Guarantee: an (a, rdp)-Renyi private release is (this, delta)-private (Canonne, Kamath and Steinke 2020,
    Proposition 12); it may be negative, which means epsilon 0.
    """
    if not order > 1:
        raise InvalidInput("order", order, "must be greater than 1", "give for example 2")
    open_unit("delta", delta)
    # Equation A5.
    return rdp + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def epsilon_from_rdp(orders: Sequence[float], rdp: Sequence[float], delta: float) -> float:
    """The best epsilon over all orders, never below 0."""
    if len(orders) != len(rdp) or not orders:
        raise InvalidInput("orders", len(orders), "must match the Renyi values one to one", "give one value per order")
    return max(0.0, min(epsilon_at_order(value, a, delta) for a, value in zip(orders, rdp, strict=True)))


@dataclass(frozen=True)
class Curve:
    """Upper bounds, one for each order of the accountant: Renyi divergences, or log moments."""

    values: tuple[float, ...]


class _AddsCurves:
    """Bounds of adaptively composed releases add, order by order."""

    def self_compose(self, cost: Curve, times: int) -> Curve:
        return Curve(tuple(value * times for value in cost.values))

    def compose(self, first: Curve, second: Curve) -> Curve:
        return Curve(tuple(a + b for a, b in zip(first.values, second.values, strict=True)))


@dataclass(frozen=True)
class RenyiAccountant(_AddsCurves):
    """Prices every pair of the support table by its Renyi divergence; gives the upper side only.

    Guarantee: Renyi divergences of adaptively composed releases add (Mironov 2017, Proposition 1); see
    docs/theorems/accountants.md, "renyi", for each pair. No lower bound is claimed: lower is 0.
    """

    orders: tuple[float, ...] = DEFAULT_ORDERS
    name = "renyi"

    def __post_init__(self) -> None:
        if not self.orders or min(self.orders) <= 1 or not all(map(math.isfinite, self.orders)):
            raise InvalidInput("orders", self.orders, "must be finite and greater than 1", "give for example 2 .. 64")

    def price(self, leaf: Leaf, unit: PrivacyUnit) -> Curve:
        pairs = priced_pairs(self.name, leaf, unit, PRICED_PAIRS)
        total = np.sum([rdp_of_pair(pair, self.orders) for pair in pairs], axis=0)
        return Curve(tuple((total * (1 + _OUTWARD)).tolist()))

    def epsilon(self, cost: Curve, delta: float) -> EpsilonInterval:
        if not any(cost.values):  # nothing was published: the conversion would still charge its logarithms
            return EpsilonInterval(0.0, 0.0)
        return EpsilonInterval(0.0, epsilon_from_rdp(self.orders, cost.values, delta) * (1 + _OUTWARD))


LARGEST_MOMENT = 32
"""The paper: "it suffices to compute alpha(lambda) for lambda <= 32"."""


class MomentsAccountant(_AddsCurves):
    """Upper bounds by log moments; no lower bound is claimed, so lower is 0.

    Guarantee: log moments of adaptively composed releases add, and epsilon = min over lambda of
    (alpha(lambda) + ln(1/delta)) / lambda (Abadi et al. 2016, Theorem 2; record, add-remove).
    """

    name = "moments"

    def price(self, leaf: Leaf, unit: PrivacyUnit) -> Curve:
        total = Curve((0.0,) * LARGEST_MOMENT)
        for pair in priced_pairs(self.name, leaf, unit, (GaussianPair, SubsampledGaussianPair)):
            total = self.compose(total, _log_moments(pair))
        return total

    def epsilon(self, cost: Curve, delta: float) -> EpsilonInterval:
        if not any(cost.values):
            return EpsilonInterval(0.0, 0.0)
        # Equation A6.
        bounds = ((moment - math.log(delta)) / order for order, moment in enumerate(cost.values, start=1))
        return EpsilonInterval(0.0, min(bounds) * (1 + _OUTWARD))


def _log_moments(pair: DominatingPair) -> Curve:
    return Curve(tuple(_log_moment(pair, order) * (1 + _OUTWARD) for order in range(1, LARGEST_MOMENT + 1)))


def _log_moment(pair: DominatingPair, order: int) -> float:
    """The larger of log E_P[(P/Q)^lambda] and log E_Q[(Q/P)^lambda]."""
    match pair:
        case GaussianPair(mu):
            return order * (order + 1) * mu**2 / 2
        case SubsampledGaussianPair(rate, z):
            # E_P[(P/Q)^l] = int P^(l+1) Q^(-l); the mirror image is int P^(-l) Q^(l+1).
            return max(
                log_mixture_moment(rate, z, 1.0, 0.0, order + 1.0), log_mixture_moment(rate, z, 1.0, 0.0, -float(order))
            )
        case Unbounded():
            return math.inf
        case Free():
            return 0.0
        case _:
            raise NotCertified(f"the moments accountant has no formula for {pair!r}")
