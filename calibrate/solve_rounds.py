"""For given noise: the most rounds, or the largest sampling rate, with which a release or a plan keeps a promise.

More rounds and larger batches never cost less, so a bisection finds the largest value. As everywhere, what is priced is
continuous noise; `calibrate_plan` also keeps back what discrete noise may cost, which is a hair more noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from calibrate.accountants.accountant import total_cost
from calibrate.accountants.certified.accountant import CertifiedAccountant
from calibrate.accountants.certified.search import TargetCheck, seems_within, surely_within
from calibrate.accountants.losses.directions import Side
from calibrate.accountants.registry import best_epsilon
from calibrate.accountants.support import PairCounts
from calibrate.errors import InvalidInput, NotCertified, positive
from calibrate.plans.from_mapping import algorithm_named, parameter_names, plan_from_mapping
from calibrate.plans.gaussian import BatchSampling
from calibrate.plans.plan import AlgorithmName, Plan, PluginName
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit
from calibrate.releases import Release, scale_noise, untruncated

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
