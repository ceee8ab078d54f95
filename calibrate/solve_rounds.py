"""For given noise: the most rounds, or the largest sampling rate, with which a plan still keeps a promise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from calibrate.accountants.registry import best_epsilon
from calibrate.errors import InvalidInput, positive
from calibrate.plans.from_mapping import parameter_names, plan_from_mapping
from calibrate.plans.plan import AlgorithmName, Plan
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval
from calibrate.releases import scale_noise

_MOST_ROUNDS = 10**9
_RATE_PRECISION = 1e-6


@dataclass(frozen=True)
class SolvedParameter:
    """The largest value that keeps the promise; `beyond` is the certified epsilon of the next one tried."""

    algorithm: AlgorithmName
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
    algorithm: AlgorithmName | str, parameters: Mapping[str, object], noise_multiplier: float, target: EpsilonDelta
) -> SolvedParameter:
    """The most rounds; `noise_multiplier` is that of the plan's first value, the others keep their ratios.

    Guarantee: the certified upper epsilon of the returned number of rounds is at most the target's.
    """

    def price(rounds: float) -> EpsilonInterval:
        return _price(algorithm, parameters, "rounds", int(rounds), noise_multiplier, target.delta)

    first = price(1)
    if first.upper > target.epsilon:
        raise _not_even("rounds", 1, first, noise_multiplier, target)
    low, high = 1, 2
    while price(high).upper <= target.epsilon:
        low, high = high, high * 2
        if high > _MOST_ROUNDS:
            raise InvalidInput(
                "noise-multiplier", noise_multiplier, f"allows more than {_MOST_ROUNDS} rounds", "use less noise"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if price(middle).upper <= target.epsilon else (low, middle)
    return _solved(algorithm, "rounds", low, noise_multiplier, target, price, high)


def largest_rate(
    algorithm: AlgorithmName | str, parameters: Mapping[str, object], noise_multiplier: float, target: EpsilonDelta
) -> SolvedParameter:
    """The largest sampling rate (or cohort, or batch size), to a relative precision of 1e-6, rounded down."""
    name, largest = _rate_parameter(algorithm, parameters)
    whole = name != "sampling_rate"

    def price(value: float) -> EpsilonInterval:
        given: object = int(value) if whole else value
        return _price(algorithm, parameters, name, given, noise_multiplier, target.delta)

    smallest = 1.0 if whole else _RATE_PRECISION
    at_least = price(smallest)
    if at_least.upper > target.epsilon:
        raise _not_even(name, smallest, at_least, noise_multiplier, target)
    if price(largest).upper <= target.epsilon:
        return _solved(algorithm, name, largest, noise_multiplier, target, price, largest)
    low, high = smallest, largest
    while high - low > (1 if whole else _RATE_PRECISION * low):
        middle = math.floor((low + high) / 2) if whole else math.sqrt(low * high)
        low, high = (middle, high) if price(middle).upper <= target.epsilon else (low, middle)
    return _solved(algorithm, name, low, noise_multiplier, target, price, high)


def _rate_parameter(algorithm: AlgorithmName | str, parameters: Mapping[str, object]) -> tuple[str, float]:
    """Which parameter sets the rate, and its largest value."""
    spelled = {key.replace("-", "_"): value for key, value in parameters.items()}
    name = AlgorithmName(algorithm)
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


def _price(
    algorithm: AlgorithmName | str,
    parameters: Mapping[str, object],
    name: str,
    value: object,
    noise_multiplier: float,
    delta: float,
) -> EpsilonInterval:
    spelled = {key.replace("-", "_"): given for key, given in parameters.items()}
    plan = plan_from_mapping(algorithm, spelled | {name: value})
    return best_epsilon(scale_noise(plan.template(), _factor(plan, noise_multiplier)), plan.unit, delta).interval


def _factor(plan: Plan, noise_multiplier: float) -> float:
    values = plan.values()
    if not values:
        raise InvalidInput(
            "algorithm", plan.algorithm.value, "publishes nothing noisy in its rounds", "they are free already"
        )
    return positive("noise-multiplier", noise_multiplier) / values[0].noise_ratio


def _solved(
    algorithm: AlgorithmName | str,
    parameter: str,
    value: float,
    noise_multiplier: float,
    target: EpsilonDelta,
    price: Callable[[float], EpsilonInterval],
    next_one: float,
) -> SolvedParameter:
    certified, beyond = price(value), price(next_one).upper
    return SolvedParameter(AlgorithmName(algorithm), target, parameter, value, noise_multiplier, certified, beyond)


def _not_even(
    parameter: str, value: float, cost: EpsilonInterval, noise_multiplier: float, target: EpsilonDelta
) -> InvalidInput:
    return InvalidInput(
        "noise-multiplier",
        noise_multiplier,
        f"costs epsilon {cost.upper:.6g} already at {parameter} = {value:g}, above {target.epsilon:g}",
        "use more noise",
    )
