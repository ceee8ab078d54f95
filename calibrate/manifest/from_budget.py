"""From a certified budget, or a paper's own noise, to the document that gets signed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, assert_never

from calibrate.budget import CalibratedValue, CertifiedBudget
from calibrate.discrete_noise import ProfileSlack
from calibrate.errors import InvalidInput, positive
from calibrate.manifest.consistency import continuous_target, noise_margin, slack_of, with_margin
from calibrate.manifest.document import (
    Accounting,
    BudgetDocument,
    DataBinding,
    DiscreteNoise,
    Interval,
    LedgerHead,
    SamplingDeclaration,
    Validity,
)
from calibrate.manifest.issue import CrossCheck, cross_check
from calibrate.manifest.mechanism import (
    AsPrintedGuarantee,
    GaussianNoise,
    InTheClear,
    LaplaceNoise,
    NoiseSampler,
    NoiseSource,
    NoPrivacyPromised,
    PrivateGuarantee,
    RandomizedCategory,
)
from calibrate.manifest.strict_json import Json, NotStrictJson, digest, in_our_words
from calibrate.plans.plan import AlgorithmName, Mechanism, NoisyValue, PlainValue, Plan
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit
from calibrate.releases import InSequence, NonPrivate, RandomizedResponse, Release, Sampled, leaves, multiplicities

# What the people behind a budget decide, beside the noise: for which data, until when, and why.

ALWAYS_UNPROTECTED = "Timing, message sizes and the number of rounds."
DEFAULT_LIFETIME = timedelta(days=90)


@dataclass(frozen=True)
class Enforcement:
    """Whether somebody makes sure that batches are drawn as priced, and who; else, whose word it rests on."""

    enforced: bool
    by: str


BY_THE_ENGINE = Enforcement(True, "privfair's own batch sampler")
BY_THE_TRAINER = Enforcement(False, "whoever trains")


@dataclass(frozen=True)
class Terms:
    """Everything a manifest says that no calculation can know.

    `scope` says who may look at what; None takes the algorithm's own threat model. `clear` names what is
    published without noise; it is added to the priced event, where it is free only if it cannot depend on the
    protected unit. `config_digest` is the plan's own digest unless more than the plan is to be bound.
    """

    data: DataBinding
    validity: Validity
    justification: str
    enforcement: Enforcement = BY_THE_ENGINE
    noise_source: NoiseSource = NoiseSource.OPERATING_SYSTEM
    scope: str | None = None
    clear: tuple[InTheClear, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    clips: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    config_digest: str | None = None
    ledger: LedgerHead | None = None
    parameters: Mapping[str, PlainValue] = field(default_factory=lambda: MappingProxyType({}))
    """What [privacy] says where nothing is promised; a priced plan brings its own."""


def valid_for(lifetime: timedelta = DEFAULT_LIFETIME, start: datetime | None = None) -> Validity:
    """In force from now (or `start`) for the given time."""
    now = datetime.now(UTC)
    begin = now if start is None else start
    with in_our_words("validity"):
        return Validity(issued_at=now, not_before=begin, not_after=begin + lifetime)


def fresh_nonce() -> str:
    """A single-use value of 256 random bits; the ledger accepts one claim for each."""
    return secrets.token_hex(32)


def with_clear(event: Release, clear: tuple[InTheClear, ...]) -> Release:
    """The event with what is published in the clear beside it, so that the price knows of it."""
    return InSequence((event, *_in_the_clear(clear))) if clear else event


def only_clear(clear: tuple[InTheClear, ...]) -> Release:
    """The event of a run that publishes nothing with noise."""
    if not clear:
        raise InvalidInput("clear", clear, "must name what is published", "list the releases of the run")
    return InSequence(_in_the_clear(clear))


def _in_the_clear(clear: tuple[InTheClear, ...]) -> tuple[NonPrivate, ...]:
    return tuple(NonPrivate(release.why, release.depends_on_unit) for release in clear)


def declarations(event: Release, enforcement: Enforcement) -> tuple[SamplingDeclaration, ...]:
    """One declaration for each sampling the event is priced with."""
    samplings = dict.fromkeys(leaf.sampling for leaf in multiplicities(event) if isinstance(leaf, Sampled))
    return tuple(
        SamplingDeclaration(scheme=sampling, assumption_enforced=enforcement.enforced, enforced_by=enforcement.by)
        for sampling in samplings
    )


def sampler_for(source: NoiseSource, exact: NoiseSampler) -> NoiseSampler:
    """The sampler a release names under a noise source: the exact one, unless everything is research."""
    return NoiseSampler.SEEDED_RESEARCH_ONLY if source is NoiseSource.SEEDED_RESEARCH_ONLY else exact


def checked_document(terms: Terms, **fields: object) -> BudgetDocument:
    """The document with these fields and the terms' own; refused in our words instead of pydantic's."""
    with in_our_words("document"):
        return BudgetDocument(
            **fields,  # type: ignore[arg-type]
            data=terms.data,
            noise_source=terms.noise_source,
            nonce=fresh_nonce(),
            validity=terms.validity,
            ledger=terms.ledger,
            justification=terms.justification,
        )


# The digest that ties a manifest to the plan it was signed for.
#
# The engine computes it from what it is about to run, the issuer from what was priced; no plan class is needed
# for it, because the engine must not import plans.


def plan_digest(algorithm: str, parameters: Mapping[str, Json]) -> str:
    """SHA-256 of the algorithm's name and all of its parameters, in canonical JSON."""
    try:
        return digest({"algorithm": algorithm, "parameters": dict(parameters)})
    except NotStrictJson as broken:
        raise InvalidInput("parameters", parameters, str(broken), "use plain finite values") from broken


# The document of a run that protects nobody, such as a baseline: signed, so that it cannot pass for private.


@in_our_words("document")
def document_without_promise(
    algorithm: str, unit: PrivacyUnit, rounds: int, why: str, config_digest: str, terms: Terms
) -> BudgetDocument:
    """The document that promises nothing; all the run publishes stands in `terms.clear`."""
    return checked_document(
        terms,
        algorithm=algorithm,
        parameters=dict(terms.parameters),
        guarantee=NoPrivacyPromised(
            unit=unit.protected,
            adjacency=unit.relation,
            scope=terms.scope or "Whoever sees anything of this run.",
            covered=(),
            not_protected=("Everything: this run carries no noise.",),
            why=why,
        ),
        releases=terms.clear,
        rounds=rounds,
        sampling=(),
        accounting=Accounting(
            accountant="none",
            library="privfair",
            version=version("privfair"),
            interval=Interval(lower=0.0, upper=None),
            event=only_clear(terms.clear),
            delta=None,
            discrete_noise=DiscreteNoise(epsilon=0.0, mass=0.0),
            assumptions=(),
            second_opinion=None,
        ),
        config_digest=config_digest,
    )


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
    price = _Price(cross_check(event, plan.unit, continuous.delta, continuous.epsilon), continuous.delta, slack)
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
        **_scope(plan, terms), epsilon=true_epsilon, delta=delta, claimed_epsilon=claim.epsilon, claim=claim.place
    )
    return _document(plan, guarantee, declared, event, price, terms)


def _true_price(event: Release, unit: PrivacyUnit, delta: float, slack: ProfileSlack) -> tuple[_Price, float | None]:
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
        parameters=plan.parameters(),
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
            return "Whoever sees the aggregates or the model; the aggregator sees contributions and is trusted."
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
    return CalibratedValue(value.name, value.sensitivity, value.mechanism, value.noise_ratio, sigma, every_round)


def _number(name: str, value: float | None) -> float:
    if value is None:
        raise InvalidInput(name, value, "has no noise", "calibrate the plan first")
    return float(value)
