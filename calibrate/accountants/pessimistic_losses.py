"""Privacy loss distributions that dominate a pair, on a grid: dp-accounting's own, and ours where it has none.

Ours hand the pair's hockey-stick curve to dp-accounting's connect-the-dots construction, which returns the
smallest distribution on the grid whose curve lies above the given one.
"""

from __future__ import annotations

import math
from typing import Any, assert_never

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution, privacy_loss_mechanism
from dp_accounting.privacy_accountant import NeighboringRelation
from scipy.special import log_ndtr, ndtr

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
from calibrate.arrays import Floats
from calibrate.errors import NotCertified

_LOG_TAIL = -50.0
"""Losses rarer than exp(_LOG_TAIL) may be counted as infinite."""
_TAIL_DEVIATIONS = 9.8
"""Phi(-9.8) < exp(-50)."""


def pessimistic_loss(pair: DominatingPair, step: float) -> Any:
    """A dp-accounting PrivacyLossDistribution on multiples of `step` whose hockey-stick curve dominates the pair's."""
    match pair:
        case GaussianPair(mu):
            return _gaussian(1 / mu, step)
        case SubsampledGaussianPair(rate, z):
            return _gaussian(z, step, sampling_prob=rate)
        case SubsampledReplacePair(rate, z):
            relation = NeighboringRelation.REPLACE_ONE
            return _gaussian(z, step, sampling_prob=rate, neighboring_relation=relation)
        case LaplacePair(scale):
            return privacy_loss_distribution.from_laplace_mechanism(scale, value_discretization_interval=step)
        case FixedSizeReplacePair() | MixedGaussianPair() | RandomizedResponsePair():
            return _connect_the_dots(pair, step)
        case Free() | Unbounded():
            raise NotCertified(f"{pair!r} has no privacy loss distribution on a grid")
        case _:
            assert_never(pair)


def _gaussian(standard_deviation: float, step: float, **how: Any) -> Any:
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation, value_discretization_interval=step, log_mass_truncation_bound=_LOG_TAIL, **how
    )


def _connect_the_dots(
    pair: FixedSizeReplacePair | MixedGaussianPair | RandomizedResponsePair, step: float
) -> Any:
    """All three curves are symmetric, delta(-e) = 1 - exp(-e) + exp(-e) delta(e): only e >= 0 is computed."""
    last = math.ceil(_largest_loss(pair) / step) + 1
    epsilons = np.asarray(step * np.arange(last + 1), dtype=float)
    right = _hockey_stick(pair, epsilons)
    left = -np.expm1(-epsilons[:0:-1]) + np.exp(-epsilons[:0:-1]) * right[:0:-1]
    curve = np.minimum.accumulate(np.clip(np.concatenate([left, right]), 0.0, 1.0))
    return privacy_loss_distribution.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, -last, last, curve)
    )


def _hockey_stick(
    pair: FixedSizeReplacePair | MixedGaussianPair | RandomizedResponsePair, epsilons: Floats
) -> Floats:
    """delta(e) for e >= 0."""
    match pair:
        case FixedSizeReplacePair(rate, z):
            # For e >= 0 this direction is the larger one; the symmetric continuation covers its mirror image.
            loss = privacy_loss_mechanism.GaussianPrivacyLoss(
                z, sampling_prob=rate, adjacency_type=privacy_loss_mechanism.AdjacencyType.REMOVE
            )
            return np.asarray(loss.get_delta_for_epsilon(epsilons), dtype=float)
        case MixedGaussianPair(components):
            kept, dropped = _weighty(components)
            total = np.full_like(epsilons, dropped)
            for weight, mu in kept:
                if mu > 0:
                    behind = np.exp(epsilons + log_ndtr(-epsilons / mu - mu / 2))
                    total += weight * np.maximum(0.0, ndtr(mu / 2 - epsilons / mu) - behind)
            return total
        case RandomizedResponsePair(epsilon, categories):
            n = math.exp(epsilon) + categories - 1
            return np.asarray(np.maximum(0.0, math.exp(epsilon) - np.exp(epsilons)) / n)
        case _:
            assert_never(pair)


def _largest_loss(pair: FixedSizeReplacePair | MixedGaussianPair | RandomizedResponsePair) -> float:
    """A loss beyond which less than exp(_LOG_TAIL) of the mass lies."""
    match pair:
        case FixedSizeReplacePair(rate, z):
            tilt = (2 * (1 + _TAIL_DEVIATIONS * z) - 1) / (2 * z * z)
            return float(np.logaddexp(math.log1p(-rate), math.log(rate) + tilt))
        case MixedGaussianPair(components):
            return max(mu**2 / 2 + _TAIL_DEVIATIONS * mu for _, mu in _weighty(components)[0])
        case RandomizedResponsePair(epsilon):
            return epsilon
        case _:
            assert_never(pair)


def _weighty(components: tuple[tuple[float, float], ...]) -> tuple[tuple[tuple[float, float], ...], float]:
    """The components that matter, and the weight of the rest: it is charged as delta outright."""
    kept = tuple((weight, mu) for weight, mu in components if weight > math.exp(_LOG_TAIL))
    return kept, math.fsum(weight for weight, _ in components if weight <= math.exp(_LOG_TAIL))
