"""Solvers: the smallest noise, the most rounds, or the largest sampling rate with which a promise is kept.

A template release says how the noises relate to each other; one factor scales them all. `solve_noise` finds
the smallest factor whose certified epsilon meets the target, and (if asked) a factor below which the target is
provably broken, so that the user sees the gap. Delta may be as small as 1e-30.

For given noise, more rounds and larger batches never cost less, so a bisection finds the largest value. As everywhere,
what is priced is continuous noise; `calibrate_plan` also keeps back what discrete noise may cost, which is slightly
more noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TypeVar, assert_never

from calibrate.accountants.accountant import leave_room, total_cost
from calibrate.accountants.certified.accountant import CertifiedAccountant, gaussian_interval
from calibrate.accountants.certified.search import Bounds, FactorSearch, TargetCheck, seems_within, surely_within
from calibrate.accountants.directions import Side
from calibrate.accountants.gaussian import gaussian_mu
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
from calibrate.accountants.registry import best_epsilon
from calibrate.accountants.support import PairCounts
from calibrate.errors import InvalidInput, NotCertified, positive
from calibrate.plans.from_mapping import algorithm_named, parameter_names, plan_from_mapping
from calibrate.plans.gaussian import BatchSampling
from calibrate.plans.plan import AlgorithmName, Plan, PluginName
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


_MOST_ROUNDS = 10**9
_RATE_PRECISION = 1e-6
_ONE_IN = 20_000
"""Beyond this many rounds the last one in so many is not fought for: deciding it would take a huge lattice."""


def solve_rounds(
    release_at: Callable[[int], Release], unit: PrivacyUnit, target: EpsilonDelta, most: int = _MOST_ROUNDS
) -> int:
    """The largest n, at most `most`, for which `release_at(n)` is certified to meet the target; 0 if there is none.

    `release_at` must cost more for larger n. Guarantee: `release_at(n)` is (target.epsilon, target.delta)-private for
    the unit, by the certified accountant. A bisection on the quick estimate finds the place, which is then certified.
    """
    if untruncated(release_at(1))[1]:  # what is cut off costs delta, in proportion to the rounds
        return _largest_within(lambda times: _truncated_within(release_at(times), unit, target), most)
    accountant, check = CertifiedAccountant(), TargetCheck(target, Side.UPPER)

    def pairs(times: int) -> PairCounts:
        return total_cost(accountant, release_at(times), unit)

    low = _largest_within(lambda times: seems_within(pairs(times), target, check), most)
    while low and not surely_within(pairs(low), target):
        low -= max(1, low // _ONE_IN)
    return low


def _largest_within(within: Callable[[int], bool], most: int) -> int:
    """The largest count for which a falling predicate holds; 0 if it holds for none."""
    low, high = 0, 1
    while high <= most and within(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def _truncated_within(release: Release, unit: PrivacyUnit, target: EpsilonDelta) -> bool:
    try:
        return best_epsilon(release, unit, target.delta).interval.upper <= target.epsilon
    except NotCertified:
        return False


@dataclass(frozen=True)
class SolvedParameter:
    """The largest value that keeps the promise; `beyond` is the certified epsilon of the next one tried."""

    algorithm: AlgorithmName | PluginName
    target: EpsilonDelta
    parameter: str
    value: float
    noise_multiplier: float
    certified: EpsilonInterval
    beyond: float

    def to_json(self) -> dict[str, object]:
        return {
            "algorithm": self.algorithm.value,
            "epsilon": self.target.epsilon,
            "delta": self.target.delta,
            "noise_multiplier": self.noise_multiplier,
            self.parameter: self.value,
            "solved": self.parameter,
            "certified": {"lower": self.certified.lower, "upper": self.certified.upper},
            "beyond": self.beyond,
        }


def largest_rounds(
    algorithm: AlgorithmName | PluginName | str,
    parameters: Mapping[str, object],
    noise_multiplier: float,
    target: EpsilonDelta,
) -> SolvedParameter:
    """The most rounds; `noise_multiplier` is that of the plan's first value, the others keep their ratios.

    Where only whole epochs are drawn (random allocation) they are counted whole.

    Guarantee: the certified upper epsilon of the returned number of rounds is at most the target's.
    """
    plan_at = _plan_with(algorithm, parameters, "rounds", noise_multiplier)
    epoch = plan_at(1)[0].rounds_per_epoch
    one, factor = plan_at(epoch)
    found = epoch * solve_rounds(
        lambda times: _release(*plan_at(times * epoch)), one.unit, target, _MOST_ROUNDS // epoch
    )
    if not found:
        raise _too_little_noise("rounds", epoch, _price(one, factor, target.delta).upper, target)
    if found > _MOST_ROUNDS - epoch:
        raise InvalidInput(
            "noise-multiplier", noise_multiplier, f"allows more than {_MOST_ROUNDS} rounds", "use less noise"
        )
    certified, beyond = (_price(*plan_at(rounds), target.delta) for rounds in (found, found + epoch))
    upper = min(certified.upper, target.epsilon)
    certified = EpsilonInterval(min(certified.lower, upper), upper)
    return SolvedParameter(_name(algorithm), target, "rounds", found, noise_multiplier, certified, beyond.upper)


def largest_rate(
    algorithm: AlgorithmName | PluginName | str,
    parameters: Mapping[str, object],
    noise_multiplier: float,
    target: EpsilonDelta,
) -> SolvedParameter:
    """The largest sampling rate (or cohort, or batch size), to a relative precision of 1e-6, rounded down."""
    name, largest = _rate_parameter(algorithm, parameters)
    whole = name != "sampling_rate"
    plan_at = _plan_with(algorithm, parameters, name, noise_multiplier)

    @cache
    def price(value: float) -> EpsilonInterval:
        return _price(*plan_at(int(value) if whole else value), target.delta)

    low, high = 1.0 if whole else _RATE_PRECISION, largest
    if price(low).upper > target.epsilon:
        raise _too_little_noise(name, low, price(low).upper, target)
    if price(largest).upper <= target.epsilon:
        low = largest
    while high - low > (1 if whole else _RATE_PRECISION * low):
        middle = math.floor((low + high) / 2) if whole else math.sqrt(low * high)
        low, high = (middle, high) if price(middle).upper <= target.epsilon else (low, middle)
    return SolvedParameter(_name(algorithm), target, name, low, noise_multiplier, price(low), price(high).upper)


def _name(algorithm: AlgorithmName | PluginName | str) -> AlgorithmName | PluginName:
    return algorithm_named(algorithm) if isinstance(algorithm, str) else algorithm


def _rate_parameter(algorithm: AlgorithmName | PluginName | str, parameters: Mapping[str, object]) -> tuple[str, float]:
    """Which parameter sets the rate, and its largest value."""
    spelled = {key.replace("-", "_"): value for key, value in parameters.items()}
    name = _name(algorithm)
    allocated = spelled.get("sampling") in (BatchSampling.RANDOM_ALLOCATION, BatchSampling.RANDOM_ALLOCATION.value)
    if allocated or (name is AlgorithmName.GAUSSIAN and spelled.get("batches") is not None):
        rule = "random allocation and cyclic batches have batches per epoch, not a rate"
        raise InvalidInput("solve", "rate", rule, "use --solve rounds")
    for parameter, population in (
        ("sampling_rate", None),
        ("cohort", "users"),
        ("samples_per_group", "group_size"),
        ("batch_size", "silo_size"),
    ):
        if parameter in parameter_names(name):
            if population is None:
                return parameter, 1.0
            size = spelled.get(population)
            if isinstance(size, int):
                return parameter, float(size)
    raise InvalidInput("solve", "rate", f"{name.value} has no sampling rate to solve for", "use --solve rounds")


def _plan_with(
    algorithm: AlgorithmName | PluginName | str, parameters: Mapping[str, object], name: str, noise_multiplier: float
) -> Callable[[float], tuple[Plan, float]]:
    """The plan as a function of its parameter `name`, and the factor that gives its first value the noise."""
    spelled = {key.replace("-", "_"): given for key, given in parameters.items()}

    def plan_at(value: float) -> tuple[Plan, float]:
        plan = plan_from_mapping(algorithm, spelled | {name: value})
        if not plan.values():
            raise InvalidInput(
                "algorithm", plan.algorithm.value, "publishes nothing noisy in its rounds", "they are free already"
            )
        return plan, positive("noise-multiplier", noise_multiplier) / plan.values()[0].noise_multiplier

    return plan_at


def _release(plan: Plan, factor: float) -> Release:
    return scale_noise(plan.template(), factor)


def _price(plan: Plan, factor: float, delta: float) -> EpsilonInterval:
    return best_epsilon(_release(plan, factor), plan.unit, delta).interval


def _too_little_noise(parameter: str, least: float, cost: float, target: EpsilonDelta) -> InvalidInput:
    return InvalidInput(
        "noise-multiplier",
        "(as given)",
        f"costs epsilon {cost:.6g} already at {parameter} = {least:g}, above {target.epsilon:g}",
        "use more noise",
    )
