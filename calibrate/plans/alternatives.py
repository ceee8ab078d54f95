"""Which assumption costs what: the same promise under other assumptions, with the noise it would need.

Some alternatives are offered (another sampling, another mechanism). Others are hypothetical: they show the
price of an assumption that this algorithm's transcript does not support, and each says why it is not offered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from calibrate.plans.clipped_sums import COHORTS, FedfdpPlan, FpflPlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.mmd_fedavg import MmdFedavgPlan
from calibrate.plans.plan import NoisyValue, Plan, of_one_batch, with_once
from calibrate.plans.steffle import StefflePlan
from calibrate.privacy_unit import EpsilonDelta, NoiseKind, PrivacyUnit, Protected, Relation
from calibrate.releases import InSequence, Release, Repeated, Sampled
from calibrate.sampling import Batch, FixedSize, Poisson, SamplingName
from calibrate.solve import solve_noise


@dataclass(frozen=True)
class Alternative:
    """The noise one value would need under other assumptions.

    `sigma` is the standard deviation of the noise on the plan's reference value (named in `value`), and
    `ratio` that sigma over the plan's own. `not_offered` is None for an alternative that can be had by choosing
    other parameters; otherwise it says why its assumption does not hold here.
    """

    description: str
    value: str
    noise_multiplier: float
    sigma: float
    ratio: float
    not_offered: str | None

    def to_json(self) -> dict[str, object]:
        return {
            "description": self.description,
            "value": self.value,
            "noise_multiplier": self.noise_multiplier,
            "sigma": self.sigma,
            "ratio": self.ratio,
            "offered": self.not_offered is None,
            "not_offered": self.not_offered,
        }


@dataclass(frozen=True)
class _Case:
    description: str
    template: Release
    unit: PrivacyUnit
    value: NoisyValue
    not_offered: str | None = None


def explain(
    plan: Plan, target: EpsilonDelta, counted: Callable[[int, int], None] | None = None
) -> tuple[Alternative, ...]:
    """The plan itself first, then its alternatives, each with the noise that meets the same target.

    `counted` is told how many of them are done, and how many there are.
    """
    if not plan.values():
        return ()
    own = _Case("as planned", plan.template(), plan.unit, plan.values()[-1 if _is_steffle(plan) else 0])
    base = _solve(own, target, None)
    found, cases = [base], tuple(_cases(plan, own))
    for case in cases:
        if counted is not None:
            counted(len(found), len(cases) + 1)
        found.append(_solve(case, target, base.sigma))
    return tuple(found)


def _is_steffle(plan: Plan) -> bool:
    """h_W is SteFFLe's reference value: its sensitivity needs neither L nor D."""
    return isinstance(plan, StefflePlan)


def _solve(case: _Case, target: EpsilonDelta, base: float | None) -> Alternative:
    multiplier = solve_noise(case.template, case.unit, target).factor * case.value.noise_multiplier
    spread = math.sqrt(2) if case.value.kind is NoiseKind.LAPLACE else 1.0
    sigma = multiplier * case.value.sensitivity * spread
    ratio = 1.0 if base is None else sigma / base
    return Alternative(case.description, case.value.name, multiplier, sigma, ratio, case.not_offered)


def _cases(plan: Plan, own: _Case) -> Iterator[_Case]:
    match plan:
        case StefflePlan():
            yield from _steffle(plan, own)
        case FedfdpPlan():
            yield from _fedfdp(plan, own)
        case FpflPlan():
            yield from _fpfl(plan, own)
        case MmdFedavgPlan():
            yield from _mmd(plan, own)
        case GaussianPlan():
            yield from _gaussian(plan, own)
        case _:
            return


def _steffle(plan: StefflePlan, own: _Case) -> Iterator[_Case]:
    for sampling in (SamplingName.SHUFFLED, SamplingName.POISSON, SamplingName.FULL):
        if sampling is plan.sampling:
            continue
        batch = plan.silo_size if sampling is SamplingName.FULL else plan.batch_size
        other = replace(plan, sampling=sampling, batch_size=batch)
        yield _Case(f"{sampling.value} batches", other.template(), other.unit, other.values()[-1])
    if plan.histogram_noise_ratio is None:
        paid = replace(plan, histogram_noise_ratio=1.0)
        description = "also paying for a noisy attribute histogram"
        yield _Case(description, paid.template(), paid.unit, paid.values()[-1])
    yield _Case(
        "charging h_W alone",
        plan.publish((replace(own.value, noise_multiplier=1.0),), plan.once()),
        plan.unit,
        replace(own.value, noise_multiplier=1.0),
        "h_theta of the same batch is published too",
    )
    if plan.sampling is not SamplingName.FULL:
        secret = Sampled(Poisson(plan.batch_size / plan.silo_size, Batch.SECRET), of_one_batch(plan.values()))
        yield _Case(
            "secret Poisson batches, amplified as in DP-SGD",
            with_once(Repeated(secret, plan.rounds), plan.once()),
            PrivacyUnit(Protected.RECORD, Relation.ADD_REMOVE),
            own.value,
            "the plain gradient g shows the batch, and the common part of a record's two messages is not bounded",
        )


def _fedfdp(plan: FedfdpPlan, own: _Case) -> Iterator[_Case]:
    values, sampling = plan.values(), Poisson(plan.sampling_rate, Batch.SECRET)
    yield _Case(
        "charging the gradient alone",
        plan.publish(values[:1], plan.once()),
        plan.unit,
        own.value,
        "the loss of the same batch is published too",
    )
    separate = InSequence(tuple(Sampled(sampling, value.release()) for value in values))
    yield _Case(
        "gradient and loss priced as if on separate batches",
        with_once(Repeated(separate, plan.rounds), plan.once()),
        plan.unit,
        own.value,
        "both are computed on the same batch",
    )
    yield _Case(
        "replacing a record instead of adding or removing one",
        plan.template(),
        PrivacyUnit(Protected.RECORD, Relation.REPLACE_ONE),
        own.value,
        "this plan promises add-remove; calibrate the gaussian algorithm with relation replace-one for it",
    )


def _fpfl(plan: FpflPlan, own: _Case) -> Iterator[_Case]:
    for sampling in COHORTS:
        if sampling is not plan.sampling:
            other = replace(plan, sampling=sampling)
            description = f"{sampling.value} cohorts ({other.unit.relation.value})"
            yield _Case(description, other.template(), other.unit, own.value)
    if plan.sampling is SamplingName.FIXED:
        printed = replace(own.value, noise_multiplier=2.0)
        yield _Case(
            "fixed cohorts with sensitivity C, as in the paper's analysis",
            plan.publish((printed,), plan.once()),
            plan.unit,
            own.value,
            "replacing a user moves the clipped sum by 2C",
        )
        known = Sampled(FixedSize(plan.users, plan.cohort, Batch.REVEALED), own.value.release())
        yield _Case(
            "cohorts known to the observer",
            with_once(Repeated(known, plan.rounds), plan.once()),
            plan.unit,
            own.value,
            "this plan assumes that the aggregator keeps the cohort secret; this is the price if it does not",
        )


def _mmd(plan: MmdFedavgPlan, own: _Case) -> Iterator[_Case]:
    for mechanism in NoiseKind:
        if mechanism is not plan.mechanism:
            other = replace(plan, mechanism=mechanism)
            description = f"{mechanism.value} noise on the predictions"
            yield _Case(description, other.template(), other.unit, other.values()[0])
    if plan.update_clip is not None:
        bare = replace(plan, users=None, cohort=None, update_clip=None)
        description = "the predictions alone, with the updates unprotected"
        yield _Case(description, bare.template(), bare.unit, own.value)
    yield _Case(
        "charging one group's predictions only",
        plan.publish((plan.values()[0], *plan.values()[plan.groups :]), plan.once()),
        plan.unit,
        own.value,
        "a record that changes its group touches two sets",
    )
    if plan.mechanism is NoiseKind.GAUSSIAN and plan.samples_per_group < plan.group_size:
        everyone = replace(plan, group_size=plan.samples_per_group)
        yield _Case(
            "without amplification, as if the same records were drawn every round",
            everyone.template(),
            everyone.unit,
            own.value,
            "this plan assumes a secret draw; this is the price if it is not secret",
        )


def _with_poisson(plan: GaussianPlan, sampling_rate: float) -> GaussianPlan:
    """The same values with independent noise on Poisson batches."""
    return GaussianPlan(sampling_rate, plan.rounds, plan.relation, plan.ratios, plan.clip)


def _gaussian(plan: GaussianPlan, own: _Case) -> Iterator[_Case]:
    for relation in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
        # Random allocation is priced for added and removed records alone.
        if relation is not plan.relation and plan.sampling is SamplingName.POISSON:
            other = replace(plan, relation=relation)
            yield _Case(f"relation {relation.value}", other.template(), other.unit, own.value)
    if plan.sampling_rate < 1:
        if plan.sampling is not SamplingName.POISSON:
            independent = _with_poisson(plan, plan.sampling_rate)
            yield _Case("Poisson batches of the same rate", independent.template(), independent.unit, own.value)
        full = _with_poisson(plan, 1.0)
        yield _Case("the full data in every round", full.template(), full.unit, own.value)
    sampling = plan.batch_sampling()
    if len(plan.ratios) > 1 and isinstance(sampling, Poisson):
        separate = InSequence(tuple(Sampled(sampling, value.release()) for value in plan.values()))
        yield _Case(
            "the values priced as if on separate batches",
            Repeated(separate, plan.rounds),
            plan.unit,
            own.value,
            "they are computed on the same batch",
        )
