"""From a certified budget, or a paper's own noise, to the document that gets signed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from calibrate.budget import CalibratedValue, CertifiedBudget
from calibrate.discrete_noise_slack import ProfileSlack
from calibrate.errors import InvalidInput
from calibrate.manifest.cross_check import CrossCheck, cross_check
from calibrate.manifest.discreteness import continuous_target, noise_margin, slack_of, with_margin
from calibrate.manifest.document import Accounting, BudgetDocument, DiscreteNoise
from calibrate.manifest.guarantee import AsPrintedGuarantee, PrivateGuarantee
from calibrate.manifest.mechanism import (
    GaussianNoise,
    InTheClear,
    LaplaceNoise,
    NoiseSampler,
    RandomizedCategory,
)
from calibrate.manifest.plan_digest import plan_digest
from calibrate.manifest.steps import in_our_words
from calibrate.manifest.terms import (
    ALWAYS_UNPROTECTED,
    Terms,
    checked_document,
    declarations,
    sampler_for,
    with_clear,
)
from calibrate.plans.plan import AlgorithmName, Mechanism, NoisyValue, Plan
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit
from calibrate.releases import RandomizedResponse, Release, leaves
from calibrate.validation import positive

Declared = GaussianNoise | LaplaceNoise | RandomizedCategory | InTheClear

_ROUNDED_UP = 1e-6
"""By how much the true price of a paper's noise is rounded up, relatively and absolutely, to leave room."""


@dataclass(frozen=True)
class PaperClaim:
    """What a paper says its noise achieves, and where."""

    epsilon: float
    place: str


@dataclass(frozen=True)
class _Price:
    """Two opinions at one delta, and what discrete noise may add to them."""

    checked: CrossCheck
    delta: float
    slack: ProfileSlack


@in_our_words("document")
def document_from_budget(budget: CertifiedBudget, terms: Terms) -> BudgetDocument:
    """The document that promises what the budget was calibrated for.

    The noise is raised by a hair (see `noise_margin`) to pay for being discrete. The event is priced again by
    two accountants, together with what the terms publish in the clear, and `ManifestRefused` is raised if they
    disagree or if price and slack exceed the target. Everything needed to recompute epsilon is in the document.
    """
    plan, target = budget.plan, budget.target
    slack = slack_of(_declared_all(budget.values, budget.release, plan.rounds, terms))
    continuous, factor = continuous_target(target, slack), noise_margin(target, slack)
    raised = with_margin(budget.release, factor)
    event = with_clear(raised, terms.clear)
    price = _Price(
        cross_check(event, plan.unit, continuous.delta, continuous.epsilon), continuous.delta, slack
    )
    guarantee = PrivateGuarantee(**_scope(plan, terms), epsilon=target.epsilon, delta=target.delta)
    values = tuple(_raised(value, factor) for value in budget.values)
    declared = _declared_all(values, raised, plan.rounds, terms)
    return _document(plan, guarantee, declared, event, price, terms)


@in_our_words("document")
def document_as_printed(
    plan: Plan, noise_multipliers: Mapping[str, float], delta: float, claim: PaperClaim, terms: Terms
) -> BudgetDocument:
    """The document of a paper's own noise: its claim beside the certified truth.

    Every value of the plan needs its noise multiplier (sigma divided by the value's *true* sensitivity).
    """
    noisy = tuple(_with_noise(value, noise_multipliers) for value in plan.values())
    once = tuple(_with_noise(value, noise_multipliers) for value in plan.once())
    event = with_clear(plan.publish(noisy, once), terms.clear)
    values = (*(_calibrated(value, True) for value in noisy), *(_calibrated(value, False) for value in once))
    declared = _declared_all(values, event, plan.rounds, terms)
    price, true_epsilon = _true_price(event, plan.unit, delta, slack_of(declared))
    guarantee = AsPrintedGuarantee(
        **_scope(plan, terms),
        epsilon=true_epsilon,
        delta=delta,
        claimed_epsilon=claim.epsilon,
        claim=claim.place,
    )
    return _document(plan, guarantee, declared, event, price, terms)


def _true_price(
    event: Release, unit: PrivacyUnit, delta: float, slack: ProfileSlack
) -> tuple[_Price, float | None]:
    """What noise that nobody calibrated costs, slack included; None if no finite epsilon is certified."""
    checked = cross_check(event, unit, delta, None)
    upper = checked.first.interval.upper
    if upper is None:
        return _Price(checked, delta, slack), None
    true = EpsilonDelta(upper * (1 + _ROUNDED_UP) + 2 * slack.epsilon + _ROUNDED_UP, delta)
    try:
        continuous = continuous_target(true, slack)
    except InvalidInput:
        return _Price(checked, delta, slack), None
    again = cross_check(event, unit, continuous.delta, continuous.epsilon)
    return _Price(again, continuous.delta, slack), true.epsilon


def _document(
    plan: Plan,
    guarantee: PrivateGuarantee | AsPrintedGuarantee,
    declared: tuple[Declared, ...],
    event: Release,
    price: _Price,
    terms: Terms,
) -> BudgetDocument:
    first = price.checked.first
    return checked_document(
        terms,
        algorithm=plan.algorithm.value,
        guarantee=guarantee,
        releases=(*declared, *terms.clear),
        rounds=plan.rounds,
        sampling=declarations(event, terms.enforcement),
        accounting=Accounting(
            accountant=first.accountant,
            library=first.library,
            version=first.version,
            interval=first.interval,
            event=event,
            delta=price.delta,
            discrete_noise=DiscreteNoise(epsilon=price.slack.epsilon, mass=price.slack.mass),
            assumptions=plan.assumptions(),
            second_opinion=price.checked.second,
        ),
        config_digest=terms.config_digest or plan_digest(plan.algorithm.value, plan.parameters()),
    )


def _scope(plan: Plan, terms: Terms) -> dict[str, Any]:
    names = ", ".join(value.name for value in (*plan.values(), *plan.once()))
    return {
        "unit": plan.unit.protected,
        "adjacency": plan.unit.relation,
        "scope": terms.scope or _observer(plan.algorithm),
        "covered": (f"All noisy values of all {plan.rounds} rounds together: {names}.",),
        "not_protected": (*plan.unprotected(), ALWAYS_UNPROTECTED),
    }


def _observer(algorithm: AlgorithmName) -> str:
    """Who may look, in each algorithm's threat model (docs/threat-model.md)."""
    match algorithm:
        case AlgorithmName.STEFFLE | AlgorithmName.PAY_ONCE | AlgorithmName.FEDFDP:
            return "The server, other silos and eavesdroppers, who see everything the silo sends."
        case AlgorithmName.FPFL | AlgorithmName.MMD_FEDAVG:
            return (
                "Whoever sees the aggregates or the model; the aggregator sees contributions and is trusted."
            )
        case AlgorithmName.GAUSSIAN:
            return "Whoever sees the noisy values or anything computed from them."
        case _:
            assert_never(algorithm)


def _declared_all(
    values: tuple[CalibratedValue, ...], event: Release, rounds: int, terms: Terms
) -> tuple[Declared, ...]:
    return tuple(_declared(value, event, rounds, terms) for value in values)


def _raised(value: CalibratedValue, factor: float) -> CalibratedValue:
    """Multiplied in the same order as the event, so that both hold the very same number."""
    if value.noise_multiplier is None:
        return value
    multiplier = value.noise_multiplier * factor
    return replace(value, noise_multiplier=multiplier, sigma=multiplier * value.sensitivity)


def _declared(value: CalibratedValue, event: Release, rounds: int, terms: Terms) -> Declared:
    publications = rounds if value.every_round else 1
    shape = terms.shapes.get(value.name)
    match value.mechanism:
        case Mechanism.GAUSSIAN:
            return GaussianNoise(
                name=value.name,
                publications=publications,
                shape=shape,
                sensitivity=value.sensitivity,
                clip=terms.clips.get(value.name),
                noise_multiplier=_number(value.name, value.noise_multiplier),
                sigma=_number(value.name, value.sigma),
                sampler=sampler_for(terms.noise_source, NoiseSampler.DISCRETE_GRID),
            )
        case Mechanism.LAPLACE:
            return LaplaceNoise(
                name=value.name,
                publications=publications,
                shape=shape,
                sensitivity=value.sensitivity,
                clip=terms.clips.get(value.name),
                noise_multiplier=_number(value.name, value.noise_multiplier),
                scale=_number(value.name, value.sigma),
                sampler=sampler_for(terms.noise_source, NoiseSampler.DISCRETE_GRID),
            )
        case Mechanism.RANDOMIZED_RESPONSE:
            response = _randomized_response(value.name, event)
            return RandomizedCategory(
                name=value.name,
                publications=publications,
                shape=shape,
                epsilon=response.epsilon,
                categories=response.categories,
                sampler=sampler_for(terms.noise_source, NoiseSampler.CATEGORICAL),
            )
        case _:
            assert_never(value.mechanism)


def _randomized_response(name: str, event: Release) -> RandomizedResponse:
    found = [leaf for leaf, _ in leaves(event) if isinstance(leaf, RandomizedResponse)]
    if len(found) != 1:
        raise InvalidInput(name, len(found), "must be exactly one randomised response", "publish it once")
    return found[0]


def _with_noise(value: NoisyValue, noise_multipliers: Mapping[str, float]) -> NoisyValue:
    if value.name not in noise_multipliers:
        raise InvalidInput(value.name, None, "needs its noise", f"give a noise multiplier for {value.name}")
    return replace(value, noise_ratio=positive(value.name, noise_multipliers[value.name]))


def _calibrated(value: NoisyValue, every_round: bool) -> CalibratedValue:
    sigma = value.noise_ratio * value.sensitivity
    return CalibratedValue(
        value.name, value.sensitivity, value.mechanism, value.noise_ratio, sigma, every_round
    )


def _number(name: str, value: float | None) -> float:
    if value is None:
        raise InvalidInput(name, value, "has no noise", "calibrate the plan first")
    return float(value)
