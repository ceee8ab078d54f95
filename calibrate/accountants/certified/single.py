"""One single release: epsilon in closed form, where composing on a lattice would be slow and wide.

With few rounds and little noise a loss has no narrow bulk to tilt towards. A single release needs none of that: with
delta_G(mu, eps) of the analytic Gaussian mechanism (docs/theorems/accountants.md, equation A1) the profiles are those
of docs/theorems/certified-accountant.md, section 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import assert_never

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from calibrate.accountants.gaussian import gaussian_epsilon_interval, gaussian_log_delta, log_delta_error
from calibrate.accountants.losses.law import UNIT_ROUNDOFF, log_mixed_ratio
from calibrate.accountants.losses.random_allocation import RandomAllocationLoss
from calibrate.accountants.losses.subsampled import SubsampledReplacement
from calibrate.accountants.pairs import (
    FixedSizeReplacePair,
    GaussianPair,
    LaplacePair,
    MixedGaussianPair,
    PricedPair,
    RandomAllocationPair,
    RandomizedResponsePair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
)
from calibrate.accountants.revealed import RevealedAccountant
from calibrate.accountants.support import PairCounts
from calibrate.privacy_unit import EpsilonInterval

_WOBBLE = 16 * UNIT_ROUNDOFF


def single_interval(pair: PricedPair, delta: float) -> EpsilonInterval:
    """Both ends of the epsilon of one publication of `pair` at `delta`, rounded outward."""
    match pair:
        case GaussianPair(mu):
            return gaussian_epsilon_interval(mu * (1 - _WOBBLE), mu * (1 + _WOBBLE), delta)
        case SubsampledGaussianPair(rate, z) | FixedSizeReplacePair(rate, z):
            return _subsampled(rate, z, delta)
        case SubsampledReplacePair(rate, z):
            if rate == 1:
                return single_interval(GaussianPair(2 / z), delta)
            ends = (_crossing(partial(_replacement_log_delta, rate, z, sign), delta, sign) for sign in (-1, 1))
            return _interval(*ends)
        case MixedGaussianPair():
            return RevealedAccountant().epsilon(PairCounts(((pair, 1),)), delta)
        case LaplacePair(scale):
            return _widened(1 / scale + 2 * math.log1p(-delta), 1 / scale)
        case RandomizedResponsePair(epsilon, categories):
            lost = delta * (1 + (categories - 1) * math.exp(-epsilon))
            return _widened(epsilon + math.log1p(-lost) if lost < 1 else 0.0, epsilon)
        case RandomAllocationPair(batches, drawn, z):
            return _random_allocation(batches, drawn, z, delta)
        case _:
            assert_never(pair)


def _subsampled(rate: float, z: float, delta: float) -> EpsilonInterval:
    """delta = q delta_G(1/z, log(1 + (e^eps - 1)/q)) for eps >= 0 (equation 13), inverted."""
    if delta >= rate * (1 + _WOBBLE):
        return EpsilonInterval(0.0, 0.0)
    lower, upper = 0.0, 0.0
    if delta < rate * (1 - _WOBBLE):
        lower = gaussian_epsilon_interval((1 - _WOBBLE) / z, (1 - _WOBBLE) / z, delta / rate * (1 + _WOBBLE)).lower
    upper = gaussian_epsilon_interval(
        (1 + _WOBBLE) / z, (1 + _WOBBLE) / z, min(delta / rate, 1.0) * (1 - _WOBBLE)
    ).upper
    ends = log_mixed_ratio(np.array([lower, upper]), rate)
    return _interval(float(ends[0]) * (1 - _WOBBLE), float(ends[1]) * (1 + _WOBBLE))


def _replacement_log_delta(rate: float, z: float, sign: int, epsilon: float) -> float:
    """log delta of a Poisson batch under replace-one, rounded up (+1) or down (-1): equations 14 and 15."""
    mu, u = 1 / z, float(SubsampledReplacement(rate, z).position(np.array([epsilon]))[0]) / z
    log_odds = math.log1p(-rate) - math.log(rate)
    log_middle = log_odds + (math.log(math.expm1(epsilon)) if epsilon < 30 else epsilon) if epsilon > 0 else -math.inf
    doubt = 8 * UNIT_ROUNDOFF * (8 + abs(log_odds) + abs(epsilon) + (abs(u) + mu) ** 2)
    if sign < 0:
        first = float(log_ndtr(mu - u))
        rest = math.exp(log_middle + float(log_ndtr(-u)) - first) + math.exp(epsilon + float(log_ndtr(-u - mu)) - first)
        left = 1 - rest - 16 * doubt
        return math.log(rate) + first - 16 * doubt + math.log(left) if left > 0 else -math.inf
    # Any shares that add up to one are a bound; those of the optimal threshold make it sharp.
    log_shares = np.array([log_middle - mu * u + mu * mu / 2, epsilon - 2 * mu * u])
    log_shares -= np.logaddexp(*log_shares)
    bounds = [
        share + _gaussian_log_delta(size, weight - share, doubt)
        for share, weight, size in zip(log_shares.tolist(), (log_middle, epsilon), (mu, 2 * mu), strict=True)
        if share > -math.inf
    ]
    return math.log(rate) + float(np.logaddexp.reduce(bounds)) + 16 * UNIT_ROUNDOFF


def _gaussian_log_delta(mu: float, epsilon: float, doubt: float) -> float:
    """log delta_G(mu, epsilon), rounded up, for an epsilon that is known up to `doubt` only.

    The logarithm falls by at most (|b| + 3/2) / mu per unit of epsilon, b = eps/mu + mu/2 (Mills' ratio).
    """
    at, steepest = np.array([mu]), (abs(epsilon) / mu + mu / 2 + 1.5) / mu
    error = 4 * float(log_delta_error(at, abs(epsilon))[0])
    return float(gaussian_log_delta(at, epsilon)[0]) + error + steepest * doubt


def _random_allocation(batches: int, drawn: int, z: float, delta: float) -> EpsilonInterval:
    """From the law of one epoch itself (docs/theorems/random-allocation.md, equation 2), the larger direction."""

    def log_delta(sign: int, epsilon: float) -> float:
        laws = (RandomAllocationLoss(z, batches, drawn, removal, upper=sign > 0) for removal in (True, False))
        return max(law.log_delta(epsilon) for law in laws)

    ends = (_crossing(partial(log_delta, sign), delta, sign) for sign in (-1, 1))
    return _interval(*ends)


def _crossing(log_delta: Callable[[float], float], delta: float, sign: int) -> float:
    """The smallest epsilon >= 0 at which the rounded log delta is at most log `delta`, rounded to its own side."""
    target = math.log(delta) - sign * UNIT_ROUNDOFF * abs(math.log(delta))

    def excess(epsilon: float) -> float:
        return max(log_delta(epsilon), -1e6) - target

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    epsilon = float(brentq(excess, 0.0, high, xtol=1e-300, rtol=1e-13))
    while sign * excess(epsilon) > 0:
        epsilon *= 1 + sign * 1e-13
    return epsilon


def _widened(epsilon: float, largest: float) -> EpsilonInterval:
    """A closed form with a few roundings of numbers up to `largest`, never below 0."""
    wobble = _WOBBLE * (1 + largest)
    return EpsilonInterval(max(0.0, epsilon - wobble), max(0.0, epsilon + wobble))


def _interval(lower: float, upper: float) -> EpsilonInterval:
    return EpsilonInterval(min(lower, upper), upper)
