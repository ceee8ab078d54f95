"""Renyi divergences of the dominating pairs, one function a pair, each an upper bound at every order.

`poisson_gaussian_rdp` is the binomial sum (Mironov, Talwar and Zhang 2019, Section 3.3) that also stands in
the papers judged by the theorem catalogue. Fractional orders are integrated numerically; the fixed-size bound
of Wang, Balle and Kasiviswanathan (2019) is dp-accounting's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import assert_never

import numpy as np
from scipy.special import gammaln, logsumexp

from calibrate.accountants.dominating_pairs import (
    DominatingPair,
    FixedSizeReplacePair,
    Free,
    GaussianPair,
    LaplacePair,
    MixedGaussianPair,
    RandomizedResponsePair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
    Unbounded,
)
from calibrate.accountants.mixture_moments import log_mixture_moment
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from calibrate.validation import positive
from calibrate.validation import rate as check_rate


def poisson_gaussian_rdp(rate: float, noise_multiplier: float, orders: Sequence[int]) -> tuple[float, ...]:
    """Renyi divergence of one Gaussian release of a secret Poisson batch, at integer orders >= 2.

    log sum_k binom(a, k) (1-q)^(a-k) q^k exp((k^2 - k) / (2 z^2)) / (a - 1), for add-remove and in log space.
    Because the binomial weights sum to one, the sum is 1 + sum_k weight_k * expm1(..): nothing cancels.
    """
    check_rate("sampling rate", rate)
    positive("noise multiplier", noise_multiplier)
    for order in orders:
        if order < 2 or order != int(order):
            raise InvalidInput(
                "order", order, "must be a whole number, at least 2", "give for example 2 .. 64"
            )
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
            exponents = np.outer(a * (a - 1) / 2, shifts**2)
            return np.asarray(logsumexp(exponents, axis=1, b=weights) / (a - 1))
        case LaplacePair(scale):
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
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    return tuple(float(value) for value in rdp._compute_rdp_sample_wor_gaussian(rate, z, orders))


def _replaced_in_poisson_batch(rate: float, z: float, order: float) -> float:
    return log_mixture_moment(rate, z, 1.0, -1.0, order) / (order - 1)


def _randomised_response(epsilon: float, categories: int, a: Floats) -> Floats:
    """P and Q give e^eps / n and 1 / n to the two true categories, 1 / n to each other one; n = e^eps + k - 1."""
    log_n = np.logaddexp(epsilon, math.log(categories - 1))
    terms = [a * epsilon - log_n, (1 - a) * epsilon - log_n]
    if categories > 2:
        terms.append(np.full_like(a, math.log(categories - 2) - log_n))
    return np.asarray(logsumexp(np.stack(terms), axis=0) / (a - 1))
