"""From a plan and a target to a certified budget: the smallest noise that keeps the promise, value by value.

For given noise `solve_parameter` finds the most rounds or the largest sampling rate instead.

Published noise is discrete while accountants price continuous noise. What that may cost
(docs/theorems/discrete-noise.md) is taken from the target before solving, so the noise that is shown is the noise that
is signed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from calibrate.accountants.registry import AccountantName, Priced, best_epsilon, priced_by
from calibrate.discrete_noise import NO_SLACK, ProfileSlack, combined
from calibrate.errors import InvalidInput, NotCertified, UnsupportedCombination, positive
from calibrate.meaning import Meaning
from calibrate.plans.plan import NoisyValue, Plan, RandomizedValue
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, bounds_apart
from calibrate.releases import Release, scale_noise
from calibrate.search_cost import price_search, solve_search
from calibrate.solve import solve_noise
from calibrate.tries import DRAW_ERROR, RandomTries

_LARGEST_TARGET = 1000.0
_ROOM_FOR_ROUNDING = 1 - 1e-11
"""Accountants reach the same price by different roads, so the solver aims this much lower than what is promised."""


@dataclass(frozen=True)
class CertifiedBudget:
    """A plan with its noise, and the certified cost of publishing it.

    Guarantee: under the plan's assumptions the release with continuous noise is `continuous`-private for the plan's
    unit by the accountant `first`, and with the discrete noise that the engine draws it is `target`-private, as long
    as no value has more numbers than its `numbers` (`ProfileSlack.certified`). `factor` scales the plan's template;
    at `factor_lower` the target is provably broken (0 if no such factor is known).
    """

    plan: Plan
    target: EpsilonDelta
    slack: ProfileSlack
    release: Release
    first: Priced
    values: tuple[NoisyValue | RandomizedValue, ...]
    factor: float | None = None
    factor_lower: float = 0.0
    tries: RandomTries | None = None
    """How many tries of `release` are made where the best one is shown; None for a single run."""

    @property
    def continuous(self) -> EpsilonDelta:
        """What continuous noise must satisfy, so that discrete noise keeps the target."""
        return self.slack.continuous(self.target)

    @cached_property
    def certified(self) -> EpsilonInterval:
        """The upper end is what may be promised; the lower end is the cost that some data set reaches."""
        lower, reached = self.first.interval.lower, self._attained
        if reached is None:
            lower = 0.0
        elif reached != self.release:
            try:
                lower = best_epsilon(reached, self.plan.unit, self.continuous.delta).interval.lower
            except NotCertified:  # not part of the promise, so it is simply not told
                lower = 0.0
        return EpsilonInterval(min(lower, self.target.epsilon), self.target.epsilon)

    @cached_property
    def optimality_gap(self) -> float | None:
        """By how much, relatively, the noise exceeds noise that is proved to be too little; None if not known."""
        reached, lower = self._attained, self.factor_lower
        if self.factor is None or reached is None:
            return None
        if reached != self.release:
            try:
                lower = self.factor * solve_noise(reached, self.plan.unit, self.continuous).factor_lower
            except NotCertified:
                return None
        return self.factor / lower - 1 if lower > 0 else None

    @property
    def joint_noise_multiplier(self) -> float | None:
        """The joint noise multiplier of one round's values; None if they are not Gaussian values of one batch."""
        joint = self.plan.joint_noise_ratio()
        return None if joint is None or self.factor is None else joint * self.factor

    @property
    def _attained(self) -> Release | None:
        if self.factor is None:
            return self.release
        reached = self.plan.attained(self.plan.values(), self.plan.once())
        return None if reached is None else scale_noise(reached, self.factor)

    def _reach(self, value: NoisyValue | RandomizedValue) -> dict[str, object]:
        """The clip of one unit's part, and how far neighbouring data sets of the signed relation move the sum."""
        if isinstance(value, RandomizedValue):
            return {"clip": None, "sensitivity_for_relation": 1.0}
        apart = bounds_apart(self.plan.unit.relation)
        return {"clip": value.sensitivity, "sensitivity_for_relation": value.sensitivity * apart}

    def value(self, name: str) -> NoisyValue:
        """The noisy value of that name, with its calibrated noise."""
        for value in self.values:
            if value.name == name and isinstance(value, NoisyValue):
                return value
        known = ", ".join(value.name for value in self.values)
        raise InvalidInput("name", name, "is not a noisy value of this budget", f"use {known}")

    def to_json(self) -> dict[str, object]:
        return {
            "algorithm": self.plan.algorithm.value,
            "epsilon": self.target.epsilon,
            "delta": self.target.delta,
            "certified": {"lower": self.certified.lower, "upper": self.certified.upper},
            "meaning": Meaning(self.target).to_json(),
            "rounds": self.plan.rounds,
            "releases": [value.to_json() | self._reach(value) for value in self.values],
            "joint_noise_multiplier": self.joint_noise_multiplier,
            "assumptions": list(self.plan.assumptions()),
            "unprotected": list(self.plan.unprotected()),
            "unit": self.plan.unit.protected.value,
            "relation": self.plan.unit.relation.value,
            "accountant": self.first.accountant_name.value,
            "optimality_gap": self.optimality_gap,
            "parameters": self.plan.parameters(),
            **({} if self.tries is None else {"tries": {"mean": self.tries.mean, "shape": self.tries.shape}}),
        }


def calibrate_plan(
    plan: Plan, target: EpsilonDelta, numbers: Mapping[str, int] | None = None, tries: RandomTries | None = None
) -> CertifiedBudget:
    """The smallest noise with which the plan meets the target; with `tries`, a search over runs of it does.

    `numbers` says how many numbers one publication of each named value has at most; a value that is not named may
    have 16.7 million. Guarantee: as `CertifiedBudget` states it. The noise of all values keeps the
    plan's ratios and is scaled by one factor.
    """
    if target.epsilon > _LARGEST_TARGET:
        raise InvalidInput(
            "epsilon",
            target.epsilon,
            f"must be at most {_LARGEST_TARGET:g}: a promise weaker than that protects no one",
            "ask for a target below 10, or train without privacy openly (guarantee = {none = ..})",
        )
    value = plan.at(target.epsilon * _ROOM_FOR_ROUNDING)
    if value is not None and tries is not None:
        raise UnsupportedCombination(
            f"a search over runs of {plan.algorithm.value}",
            "its attribute is randomised once, and whatever is tried afterwards costs nothing more",
            "drop [search], and try settings on the randomised attribute",
        )
    if value is not None:
        first = best_epsilon(value.response, plan.unit, target.delta)
        return CertifiedBudget(plan, target, NO_SLACK, value.response, first, (value,))
    known = numbers or {}
    values = tuple(
        replace(value, numbers=known.get(value.name, value.numbers)) for value in (*plan.values(), *plan.once())
    )
    slack = combined(value.slack(plan.rounds) for value in values)
    if tries is not None:
        slack = slack.over_tries(tries.mean, DRAW_ERROR)
    continuous = slack.continuous(target)
    aim = EpsilonDelta(continuous.epsilon * _ROOM_FOR_ROUNDING, continuous.delta)
    if tries is not None:
        factor, lower = solve_search(plan.template(), plan.unit, aim, tries), 0.0
        release = scale_noise(plan.template(), factor)
        first = priced_by(AccountantName.RENYI, price_search(release, plan.unit, continuous.delta, tries))
    else:
        solved = solve_noise(plan.template(), plan.unit, aim)
        factor, lower = solved.factor, solved.factor_lower
        first = best_epsilon(solved.release, plan.unit, continuous.delta)
    return CertifiedBudget(
        plan=plan,
        target=target,
        slack=slack,
        release=scale_noise(plan.template(), factor),
        first=first,
        values=tuple(replace(value, noise_multiplier=value.noise_multiplier * factor) for value in values),
        factor=factor,
        factor_lower=lower,
        tries=tries,
    )


def price_plan(
    plan: Plan,
    delta: float,
    *,
    noise_multipliers: Mapping[str, float] | None = None,
    sigmas: Mapping[str, float] | None = None,
) -> EpsilonInterval:
    """The certified epsilon of a plan with given noise (for example a paper's), by multiplier or by sigma.

    Every value of the plan needs its noise; nothing is filled in.
    """
    if (noise_multipliers is None) == (sigmas is None):
        raise InvalidInput(
            "noise", None, "must be given either as multipliers or as sigmas", "give exactly one of the two"
        )
    if plan.at(1.0) is not None:
        raise InvalidInput("algorithm", plan.algorithm.value, "has no noise multiplier", "its epsilon is its own price")
    given = noise_multipliers if noise_multipliers is not None else _as_multipliers(plan, sigmas or {})
    values, once = with_noise(plan.values(), given), with_noise(plan.once(), given)
    unknown = sorted(set(given) - {value.name for value in (*values, *once)})
    if unknown:
        raise InvalidInput(unknown[0], given[unknown[0]], "is not a value of this plan", "leave it out")
    upper = best_epsilon(plan.publish(values, once), plan.unit, delta).interval.upper
    reached = plan.attained(values, once)
    lower = 0.0 if reached is None else best_epsilon(reached, plan.unit, delta).interval.lower
    return EpsilonInterval(min(lower, upper), upper)


def with_noise(values: tuple[NoisyValue, ...], given: Mapping[str, float]) -> tuple[NoisyValue, ...]:
    """The values with the noise multipliers given for their names; every one is needed."""
    for value in values:
        if value.name not in given:
            raise InvalidInput(value.name, None, "needs its noise", f"give a noise multiplier for {value.name}")
    return tuple(replace(value, noise_multiplier=positive(value.name, given[value.name])) for value in values)


def _as_multipliers(plan: Plan, sigmas: Mapping[str, float]) -> dict[str, float]:
    bounds = {value.name: value.sensitivity for value in (*plan.values(), *plan.once())}
    return {name: positive(name, sigma) / bounds.get(name, 1.0) for name, sigma in sigmas.items()}
