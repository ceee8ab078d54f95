"""From a plan and a target to a certified budget: the smallest noise that keeps the promise, value by value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from calibrate.accountants.registry import best_epsilon
from calibrate.errors import InvalidInput, NotCertified, positive
from calibrate.plans.pay_once import PayOncePlan
from calibrate.plans.plan import Mechanism, NoisyValue, Plan
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval
from calibrate.releases import Release, scale_noise
from calibrate.solve_noise import solve_noise

Json = dict[str, object]

_LARGEST_TARGET = 1000.0


@dataclass(frozen=True)
class CalibratedValue:
    """One published value with its noise: `sigma` = sensitivity * noise_multiplier, in the value's own scale.

    For Gaussian noise sigma is the standard deviation, for Laplace noise the scale. Randomised response has
    neither; its `keep_probability` is given instead.
    """

    name: str
    sensitivity: float
    mechanism: Mechanism
    noise_multiplier: float | None
    sigma: float | None
    every_round: bool
    keep_probability: float | None = None

    def to_json(self) -> Json:
        json: Json = {
            "name": self.name,
            "sensitivity": self.sensitivity,
            "noise_multiplier": self.noise_multiplier,
            "sigma": self.sigma,
            "mechanism": self.mechanism.value,
            "published": "every round" if self.every_round else "once",
        }
        return json if self.keep_probability is None else json | {"keep_probability": self.keep_probability}


@dataclass(frozen=True)
class CertifiedBudget:
    """A plan with its noise, and the certified cost of publishing it.

    Guarantee: under the plan's assumptions the release is (certified.upper, target.delta)-private for the
    plan's unit, and certified.upper <= target.epsilon. `certified.lower` is the cost that some data set
    reaches; `optimality_gap` says how much smaller the noise could be at best (None if that is not known).
    """

    plan: Plan
    target: EpsilonDelta
    release: Release
    certified: EpsilonInterval
    accountant: str
    values: tuple[CalibratedValue, ...]
    joint_noise_multiplier: float | None
    optimality_gap: float | None

    @property
    def claimed_epsilon(self) -> float:
        """What may be promised: the target's epsilon, which certified.upper does not exceed."""
        return self.target.epsilon

    def value(self, name: str) -> CalibratedValue:
        for value in self.values:
            if value.name == name:
                return value
        known = ", ".join(value.name for value in self.values)
        raise InvalidInput("name", name, "is not a value of this budget", f"use {known}")

    def to_json(self) -> Json:
        return {
            "algorithm": self.plan.algorithm.value,
            "epsilon": self.target.epsilon,
            "delta": self.target.delta,
            "certified": {"lower": self.certified.lower, "upper": self.certified.upper},
            "rounds": self.plan.rounds,
            "releases": [value.to_json() for value in self.values],
            "joint_noise_multiplier": self.joint_noise_multiplier,
            "assumptions": list(self.plan.assumptions()),
            "unprotected": list(self.plan.unprotected()),
            "unit": self.plan.unit.protected.value,
            "relation": self.plan.unit.relation.value,
            "accountant": self.accountant,
            "optimality_gap": self.optimality_gap,
            "parameters": self.plan.parameters(),
        }


def calibrate_plan(plan: Plan, target: EpsilonDelta) -> CertifiedBudget:
    """The smallest noise with which the plan meets the target.

    Guarantee: the returned release's certified upper epsilon at target.delta is at most target.epsilon. The
    noise of all values keeps the plan's ratios and is scaled by one factor.
    """
    if target.epsilon > _LARGEST_TARGET:
        raise InvalidInput(
            "epsilon",
            target.epsilon,
            f"must be at most {_LARGEST_TARGET:g}: a promise weaker than that protects nobody",
            "ask for a target below 10, or train without privacy openly (--no-privacy)",
        )
    if isinstance(plan, PayOncePlan):
        return _pay_once(plan, target)
    solved = solve_noise(plan.template(), plan.unit, target)
    reached = plan.attained(plan.values(), plan.once())
    lower, gap = _lower_end(plan, reached, solved.factor, solved.factor_lower, target)
    joint = plan.joint_noise_ratio()
    return CertifiedBudget(
        plan=plan,
        target=target,
        release=scale_noise(plan.template(), solved.factor),
        certified=EpsilonInterval(min(lower, solved.certified.upper), solved.certified.upper),
        accountant=solved.accountant,
        values=tuple(
            _calibrated(value, solved.factor, every_round)
            for values, every_round in ((plan.values(), True), (plan.once(), False))
            for value in values
        ),
        joint_noise_multiplier=None if joint is None else joint * solved.factor,
        optimality_gap=gap,
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
    if isinstance(plan, PayOncePlan):
        raise InvalidInput("algorithm", plan.algorithm.value, "has no noise multiplier", "its epsilon is its own price")
    given = noise_multipliers if noise_multipliers is not None else _as_multipliers(plan, sigmas or {})
    values, once = _with_noise(plan.values(), given), _with_noise(plan.once(), given)
    unknown = sorted(set(given) - {value.name for value in (*values, *once)})
    if unknown:
        raise InvalidInput(unknown[0], given[unknown[0]], "is not a value of this plan", "leave it out")
    upper = best_epsilon(plan.publish(values, once), plan.unit, delta).interval.upper
    reached = plan.attained(values, once)
    lower = 0.0 if reached is None else best_epsilon(reached, plan.unit, delta).interval.lower
    return EpsilonInterval(min(lower, upper), upper)


def _lower_end(
    plan: Plan, reached: Release | None, factor: float, factor_lower: float, target: EpsilonDelta
) -> tuple[float, float | None]:
    """The epsilon that is really reached, and by how much the noise could shrink at best.

    Neither is part of the promise, so a lower end that can't be certified is simply not told.
    """
    if reached is None:
        return 0.0, None
    try:
        lower = best_epsilon(scale_noise(reached, factor), plan.unit, target.delta).interval.lower
        if reached != plan.template():
            factor_lower = solve_noise(reached, plan.unit, target).factor_lower
    except NotCertified:
        return 0.0, None
    return lower, (factor / factor_lower - 1 if factor_lower > 0 else None)


def _calibrated(value: NoisyValue, factor: float, every_round: bool) -> CalibratedValue:
    multiplier = value.noise_ratio * factor
    sigma = multiplier * value.sensitivity
    return CalibratedValue(value.name, value.sensitivity, value.mechanism, multiplier, sigma, every_round)


def _pay_once(plan: PayOncePlan, target: EpsilonDelta) -> CertifiedBudget:
    """Randomised response at the target's epsilon; pure, so the promise is kept at every delta."""
    release = plan.at(target.epsilon)
    priced = best_epsilon(release, plan.unit, target.delta)
    value = plan.once()[0]
    return CertifiedBudget(
        plan=plan,
        target=target,
        release=release,
        certified=EpsilonInterval(min(priced.interval.lower, target.epsilon), target.epsilon),
        accountant="randomised response (pure)",
        values=(
            CalibratedValue(
                value.name,
                value.sensitivity,
                value.mechanism,
                noise_multiplier=None,
                sigma=None,
                every_round=False,
                keep_probability=plan.keep_probability(target.epsilon),
            ),
        ),
        joint_noise_multiplier=None,
        optimality_gap=None,
    )


def _as_multipliers(plan: Plan, sigmas: Mapping[str, float]) -> dict[str, float]:
    bounds = {value.name: value.sensitivity for value in (*plan.values(), *plan.once())}
    return {name: positive(name, sigma) / bounds.get(name, 1.0) for name, sigma in sigmas.items()}


def _with_noise(values: tuple[NoisyValue, ...], given: Mapping[str, float]) -> tuple[NoisyValue, ...]:
    for value in values:
        if value.name not in given:
            raise InvalidInput(value.name, None, "needs its noise", f"give a number for {value.name}")
    return tuple(replace(value, noise_ratio=positive(value.name, given[value.name])) for value in values)
