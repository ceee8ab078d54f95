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
    own = _planned("as planned", plan)
    base = _solve(own, target, None)
    found, cases = [base], tuple(_cases(plan, own))
    for case in cases:
        if counted is not None:
            counted(len(found), len(cases) + 1)
        found.append(_solve(case, target, base.sigma))
    return tuple(found)


def _planned(description: str, plan: Plan) -> _Case:
    """A plan as it is. h_W is SteFFLe's reference value: its sensitivity needs neither L nor D."""
    reference = plan.values()[-1 if isinstance(plan, StefflePlan) else 0]
    return _Case(description, plan.template(), plan.unit, reference)


def _separately(sampling: Poisson, plan: Plan) -> Release:
    """All rounds with each value on a separate batch."""
    return Repeated(InSequence(tuple(Sampled(sampling, value.release()) for value in plan.values())), plan.rounds)


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
        yield _planned(f"{sampling.value} batches", other)
    if plan.histogram_noise_ratio is None:
        yield _planned("also paying for a noisy attribute histogram", replace(plan, histogram_noise_ratio=1.0))
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
    yield _Case(
        "gradient and loss priced as if on separate batches",
        with_once(_separately(sampling, plan), plan.once()),
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
            yield _planned(f"{sampling.value} cohorts ({other.unit.relation.value})", other)
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
            yield _planned(f"{mechanism.value} noise on the predictions", replace(plan, mechanism=mechanism))
    if plan.update_clip is not None:
        bare = replace(plan, users=None, cohort=None, update_clip=None)
        yield _planned("the predictions alone, with the updates unprotected", bare)
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
            yield _planned(f"relation {relation.value}", replace(plan, relation=relation))
    if plan.sampling_rate < 1:
        if plan.sampling is not SamplingName.POISSON:
            yield _planned("Poisson batches of the same rate", _with_poisson(plan, plan.sampling_rate))
        yield _planned("the full data in every round", _with_poisson(plan, 1.0))
    sampling = plan.batch_sampling()
    if len(plan.ratios) > 1 and isinstance(sampling, Poisson):
        yield _Case(
            "the values priced as if on separate batches",
            _separately(sampling, plan),
            plan.unit,
            own.value,
            "they are computed on the same batch",
        )
