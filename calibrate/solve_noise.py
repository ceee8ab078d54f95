"""The smallest noise that keeps a promise, with a certificate for it and for how close to optimal it is.

A template release says how the noises relate to each other; one factor scales them all. `solve_noise` finds
the smallest factor whose certified epsilon meets the target, and (if asked) a factor below which the target is
provably broken, so that the user sees the gap. Delta may be as small as 1e-30.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar, assert_never

from calibrate.accountants.accountant import leave_room, total_cost
from calibrate.accountants.certified.accountant import CertifiedAccountant, gaussian_interval
from calibrate.accountants.certified.search import Bounds, FactorSearch
from calibrate.accountants.gaussian import gaussian_mu
from calibrate.accountants.losses.directions import Side
from calibrate.accountants.pairs import (
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
    Unbounded,
)
from calibrate.accountants.support import PairCounts
from calibrate.errors import InvalidInput, NotCertified, positive
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit
from calibrate.releases import Gaussian, Laplace, Release, Sampled, Together, leaves, scale_noise, untruncated

Cost = TypeVar("Cost")

_STRONGEST_MU = 30.0
"""Noise below 1/30 of a unit's reach hides nothing worth certifying: the search does not go lower."""
_WIDEST = 1e9


class Certificate(Enum):
    """How much is proved about a solved factor."""

    UPPER = "upper"
    TWO_SIDED = "two-sided"


@dataclass(frozen=True)
class SolvedNoise:
    """The factor found, what it achieves, and how far below it the optimum can lie.

    `factor_lower` is a factor at which the target is provably broken (and with every smaller one); 0 if none
    was asked for or none exists. `certified` is the epsilon of `release` at the target's delta; its lower end is
    0 unless the certificate is two-sided.
    """

    release: Release
    factor: float
    factor_lower: float
    certified: EpsilonInterval
    accountant: str

    @property
    def gap(self) -> float:
        """The factor is at most this fraction above the optimum; infinite if no lower factor is known."""
        return self.factor / self.factor_lower - 1 if self.factor_lower > 0 else math.inf


def solve_noise(
    template: Release,
    unit: PrivacyUnit,
    target: EpsilonDelta,
    certificate: Certificate = Certificate.TWO_SIDED,
    tolerance: float = 1e-5,
) -> SolvedNoise:
    """The smallest factor x such that `scale_noise(template, x)` is certified to meet the target.

    Guarantee: `scale_noise(template, result.factor)` is (target.epsilon, target.delta)-private for the unit, by the
    certified accountant (docs/theorems/certified-accountant.md). More noise never costs more, so the same
    holds for every larger factor. `tolerance` is how far above the optimum the factor may lie, relatively,
    because of the discretisation; fixed-size batches have a wider, honest gap between the proved bounds.
    """
    positive("tolerance", tolerance)
    _check_has_noise(template)
    whole, chance = untruncated(template)
    if chance:  # cut batches cost delta alone (docs/theorems/truncated-poisson.md), whatever the noise
        solved = solve_noise(whole, unit, leave_room(target, chance), Certificate.UPPER, tolerance)
        lower = solve_noise(whole, unit, target, certificate, tolerance).factor_lower
        release = scale_noise(template, solved.factor)
        return SolvedNoise(release, solved.factor, lower, solved.certified, solved.accountant)
    accountant = CertifiedAccountant()

    def pairs_at(factor: float) -> PairCounts:
        return total_cost(accountant, scale_noise(template, factor), unit)

    pairs = pairs_at(1.0)
    if pairs.unprotected:
        raise NotCertified(
            "the template publishes something of the unit in the clear, which no noise factor protects; "
            "add noise to it, or declare it as not depending on the unit"
        )
    if all(isinstance(pair, GaussianPair) for pair, _ in pairs.counts):
        factor, lower = _exact_gaussian(pairs_at, target)
    else:
        factor, lower = _search_factor(pairs_at, pairs, target, certificate, tolerance)
    at_factor = pairs_at(factor)
    achieved = 0.0
    if certificate is Certificate.TWO_SIDED:
        achieved = min(target.epsilon, accountant.epsilon_lower(at_factor, target.delta))
    else:
        lower = 0.0
    release = scale_noise(template, factor)
    return SolvedNoise(release, factor, lower, EpsilonInterval(achieved, target.epsilon), accountant.name)


def _search_factor(
    pairs_at: Callable[[float], PairCounts],
    pairs: PairCounts,
    target: EpsilonDelta,
    certificate: Certificate,
    tolerance: float,
) -> tuple[float, float]:
    bounds = Bounds(max(_strength(pair) for pair, _ in pairs.counts) / _STRONGEST_MU, _WIDEST)
    if pairs.chance_of_taking_part <= target.delta:  # no noise is needed; the least that is searched is given
        return bounds.low, 0.0
    start = _central_limit_start(pairs_at, target, bounds)
    above = FactorSearch(pairs_at, target, Side.UPPER, bounds)
    estimated, slope = above.estimate(start, 0.02 * tolerance)
    factor = above.certify(estimated, slope, tolerance)
    if certificate is Certificate.UPPER or estimated <= bounds.low:
        return factor, 0.0
    below = FactorSearch(pairs_at, target, Side.LOWER, bounds)
    if any(isinstance(pair, FixedSizeReplacePair) for pair, _ in pairs.counts):
        estimated, slope = below.estimate(0.9 * estimated, 0.02 * tolerance)
    return factor, below.certify(estimated, slope, tolerance)


def _exact_gaussian(pairs_at: Callable[[float], PairCounts], target: EpsilonDelta) -> tuple[float, float]:
    """Only plain Gaussian releases: mu is inversely proportional to the factor, and epsilon(mu) is analytic."""
    squares = math.fsum(n * pair.mu**2 for pair, n in pairs_at(1.0).counts if isinstance(pair, GaussianPair))
    factor = math.sqrt(squares) / gaussian_mu(target.epsilon, target.delta)
    while gaussian_interval(pairs_at(factor), target.delta).upper > target.epsilon:
        factor *= 1 + 2**-50
    lower = factor * (1 - 1e-13)
    while gaussian_interval(pairs_at(lower), target.delta).lower <= target.epsilon:
        lower *= 1 - 1e-13
    return factor, lower


def _central_limit_start(pairs_at: Callable[[float], PairCounts], target: EpsilonDelta, bounds: Bounds) -> float:
    """Where the central limit theorem for privacy losses puts the factor: total mu^2 equals the Gaussian's."""
    wanted = _rough_gaussian_mu(target) ** 2
    low, high = math.log(bounds.low), math.log(bounds.high)
    while high - low > 0.05:
        middle = (low + high) / 2
        total = sum(n * _variance(pair) for pair, n in pairs_at(math.exp(middle)).counts)
        low, high = (middle, high) if total > wanted else (low, middle)
    return math.exp((low + high) / 2)


def _rough_gaussian_mu(target: EpsilonDelta) -> float:
    """The mu of a Gaussian mechanism that meets the target, to a few per cent: only a start."""
    epsilon, low, high = target.epsilon, 1e-6, 2.0 + 2 * math.sqrt(target.epsilon)
    while high / low > 1.03:
        mu = math.sqrt(low * high)
        # Only the first of the two terms of delta(mu): an upper bound on delta.
        log_delta = math.log(max(0.5 * math.erfc((epsilon / mu - mu / 2) / math.sqrt(2)), 1e-300))
        low, high = (mu, high) if log_delta < math.log(target.delta) else (low, mu)
    return low


def _variance(pair: DominatingPair) -> float:
    """About the variance of the loss, which is what the central limit theorem adds up."""
    match pair:
        case GaussianPair(mu):
            return mu**2
        case SubsampledGaussianPair(rate, z) | FixedSizeReplacePair(rate, z):
            return rate**2 * math.expm1(min(700.0, z**-2))
        case SubsampledReplacePair(rate, z):
            return 4 * rate**2 * math.expm1(min(700.0, z**-2))
        case MixedGaussianPair(components):
            return math.fsum(weight * mu**2 for weight, mu in components)
        case RandomAllocationPair(batches, drawn, z):
            return drawn / batches**2 * math.expm1(min(700.0, z**-2))
        case LaplacePair(scale):
            return scale**-2
        case RandomizedResponsePair(epsilon, _):
            return min(epsilon, epsilon**2)
        case Free() | Unbounded():
            return 0.0
        case _:
            assert_never(pair)


def _strength(pair: DominatingPair) -> float:
    """The signal over the noise of one pair, which falls in proportion to the factor; 0 where there is none."""
    match pair:
        case GaussianPair(mu):
            return mu
        case SubsampledGaussianPair(_, z) | FixedSizeReplacePair(_, z) | SubsampledReplacePair(_, z):
            return 1 / z
        case RandomAllocationPair(noise_multiplier=z):
            return 1 / z
        case MixedGaussianPair(components):
            return min(mu for _, mu in components if mu > 0)
        case LaplacePair(scale):
            return 1 / scale
        case RandomizedResponsePair() | Free() | Unbounded():
            return 0.0
        case _:
            assert_never(pair)


def _check_has_noise(template: Release) -> None:
    noisy = (Gaussian, Laplace, Together, Sampled)
    if not any(isinstance(leaf, noisy) for leaf, _ in leaves(template)):
        raise InvalidInput(
            "template", template, "has no Gaussian or Laplace noise to solve for", "give a release with noise"
        )
