"""From a certified budget, or a paper's own noise, to the document that gets signed."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, assert_never

from calibrate.budget import CertifiedBudget, with_noise
from calibrate.discrete_noise import NO_SLACK, ProfileSlack, combined
from calibrate.errors import InvalidInput
from calibrate.manifest.document import (
    NO_PLAN_FILE,
    Accounting,
    BudgetDocument,
    DataBinding,
    DataIdentity,
    LedgerBinding,
    OwnCode,
    SamplingDeclaration,
    SearchTerms,
    Validity,
    plan_digest,
)
from calibrate.manifest.issue import CrossCheck, PricedDocument, cross_check, renyi_points
from calibrate.manifest.mechanism import (
    AsPrintedGuarantee,
    DeclaredRelease,
    GaussianNoise,
    InTheClear,
    LaplaceNoise,
    NoiseSampler,
    NoiseSource,
    NoPrivacyPromised,
    PrivateGuarantee,
    RandomizedCategory,
)
from calibrate.manifest.strict_json import in_our_words
from calibrate.plans.plan import AlgorithmName, NoisyValue, PlainValue, Plan, PluginName, RandomizedValue
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, NoiseKind, PrivacyUnit, Protected
from calibrate.releases import InSequence, Release, Sampled, multiplicities
from calibrate.tries import RandomTries

# What the people behind a budget decide, beside the noise: for which data, until when, and why.

ALWAYS_UNPROTECTED = "Timing, message sizes and the number of rounds."
TIMING_OF_TRIES = "Whoever sees how long the search takes learns how many tries there were, which must stay secret."
_SECRET_TRIES = "All tries but the best, and their number, stay secret, and the number is drawn apart from the data."
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
    dataset: DataIdentity | None = None
    ledgers: tuple[LedgerBinding, ...] = ()
    code: tuple[OwnCode, ...] = ()
    not_protected: tuple[str, ...] = ()
    """What the way from the files to the records leaves unprotected, such as records that are held out for testing."""
    assumptions: tuple[str, ...] = ()
    """What the guarantee assumes in addition to the plan's own assumptions."""
    retention: int | None = None
    """Every so many steps the transcript keeps values in full, else digests; None to keep all."""
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


def with_clear(event: Release | None, clear: tuple[InTheClear, ...]) -> Release:
    """The event with what is published in the clear beside it; None for a run without any noise."""
    if not clear and event is None:
        raise InvalidInput("clear", clear, "must name what is published", "list the releases of the run")
    parts = tuple(release.primitive() for release in clear)
    if event is None:
        return InSequence(parts)
    return InSequence((event, *parts)) if parts else event


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
            dataset=terms.dataset,
            ledgers=terms.ledgers,
            code=terms.code,
            justification=terms.justification,
            retention=terms.retention,
        )


# The document of a run that protects nobody, such as a baseline: signed, so that it cannot pass for private.


@in_our_words("document")
def document_without_promise(
    algorithm: str, unit: PrivacyUnit, rounds: int, why: str, config_digest: str, terms: Terms
) -> PricedDocument:
    """The document that promises nothing; all the run publishes stands in `terms.clear`."""
    document = checked_document(
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
            interval=EpsilonInterval(0.0, math.inf),
            event=with_clear(None, terms.clear),
            delta=None,
            discrete_noise=NO_SLACK,
            assumptions=(),
            second_opinion=None,
        ),
        config_digest=config_digest,
    )
    return PricedDocument.from_check(document, None)


_RESERVED = (1e-6, 0.5)
"""Which shares of a paper's delta are tried to pay for its noise being discrete."""
_ROUNDED_UP = 1e-6
"""By how much the true price of a paper's noise is rounded up, relatively and absolutely, to leave room."""


@dataclass(frozen=True)
class PaperClaim:
    """What a paper says its noise achieves, and where."""

    epsilon: float
    place: str


@in_our_words("document")
def document_from_budget(budget: CertifiedBudget, terms: Terms) -> PricedDocument:
    """The document that promises what the budget was calibrated for, with the very noise of the budget.

    A second accountant prices the event, and `ManifestRefused` is raised if it contradicts the first, or if the terms
    publish something of the protected unit in the clear. Everything needed to recompute epsilon is in the document.
    """
    plan, continuous = budget.plan, budget.continuous
    event = with_clear(budget.release, terms.clear)
    # What does not depend on the unit is free, so the budget's own price is that of the whole event.
    first = None if any(release.depends_on_unit for release in terms.clear) else budget.first
    checked = cross_check(event, plan.unit, continuous.delta, continuous.epsilon, first, budget.tries)
    scope = _scope(plan, budget.values, terms)
    if budget.tries is not None:
        scope["covered"] = (f"The best of a secret random number of tries, shown alone. {scope['covered'][0]}",)
        scope["not_protected"] = (*scope["not_protected"], TIMING_OF_TRIES)
    guarantee = PrivateGuarantee(**scope, epsilon=budget.target.epsilon, delta=budget.target.delta)
    declared = tuple(_declare(value, plan.rounds, terms) for value in budget.values)
    return _document(plan, guarantee, declared, event, checked, continuous.delta, budget.slack, terms, budget.tries)


@in_our_words("document")
def document_as_printed(
    plan: Plan, noise_multipliers: Mapping[str, float], delta: float, claim: PaperClaim, terms: Terms
) -> PricedDocument:
    """The document of a paper's own noise: its claim beside the certified truth.

    Every value of the plan needs its noise multiplier (sigma divided by the value's *true* sensitivity).
    """
    noisy, once = with_noise(plan.values(), noise_multipliers), with_noise(plan.once(), noise_multipliers)
    event = with_clear(plan.publish(noisy, once), terms.clear)
    declared = tuple(_declare(value, plan.rounds, terms) for value in (*noisy, *once))
    slack = combined(release.slack for release in declared)
    checked, priced_at, true_epsilon = _true_price(event, plan.unit, delta, slack)
    guarantee = AsPrintedGuarantee(
        **_scope(plan, (*noisy, *once), terms),
        epsilon=true_epsilon,
        delta=delta,
        claimed_epsilon=claim.epsilon,
        claim=claim.place,
    )
    return _document(plan, guarantee, declared, event, checked, priced_at, slack, terms)


def _true_price(
    event: Release, unit: PrivacyUnit, delta: float, slack: ProfileSlack
) -> tuple[CrossCheck, float, float | None]:
    """Two prices of noise that nobody calibrated, the delta they hold at, and the epsilon they amount to.

    The epsilon holds at `delta` and includes the slack; None if no finite epsilon is certified.
    """
    for reserved in _RESERVED:
        priced_at = delta * (1 - reserved)
        checked = cross_check(event, unit, priced_at, None)
        upper = checked.first.interval.upper
        if upper == math.inf:
            return checked, priced_at, None
        true = EpsilonDelta(upper * (1 + _ROUNDED_UP) + 2 * slack.epsilon + _ROUNDED_UP, delta)
        try:
            enough = slack.continuous(true).delta >= priced_at
        except InvalidInput:
            break
        if enough:
            return checked, priced_at, true.epsilon
    return checked, priced_at, None


def _document(
    plan: Plan,
    guarantee: PrivateGuarantee | AsPrintedGuarantee,
    declared: tuple[DeclaredRelease, ...],
    event: Release,
    checked: CrossCheck,
    delta: float,
    slack: ProfileSlack,
    terms: Terms,
    tries: RandomTries | None = None,
) -> PricedDocument:
    searched = () if tries is None else (f"{_SECRET_TRIES} There are {tries.mean:.4g} on average.",)
    document = checked_document(
        terms,
        algorithm=plan.algorithm.value,
        parameters=plan.parameters(),
        guarantee=guarantee,
        releases=(*declared, *terms.clear),
        rounds=plan.rounds,
        sampling=declarations(event, terms.enforcement),
        accounting=Accounting(
            **dict(checked.first),
            event=event,
            delta=delta,
            discrete_noise=slack,
            assumptions=(
                *plan.assumptions(),
                plan.arithmetic,
                *terms.assumptions,
                *searched,
                *(() if terms.config_digest else (NO_PLAN_FILE,)),
            ),
            second_opinion=checked.second,
            search=None if tries is None else SearchTerms(gamma=tries.gamma, shape=tries.shape),
            renyi=renyi_points(event, plan.unit, tries),
        ),
        config_digest=terms.config_digest or plan_digest(plan.algorithm.value, plan.parameters()),
    )
    return PricedDocument.from_check(document, checked)


def _scope(plan: Plan, values: tuple[NoisyValue | RandomizedValue, ...], terms: Terms) -> dict[str, Any]:
    names = ", ".join(value.name for value in values)
    return {
        "unit": plan.unit.protected,
        "adjacency": plan.unit.relation,
        "scope": terms.scope or _observer(plan),
        "covered": (f"All noisy values of all {plan.rounds} rounds together: {names}.",),
        "not_protected": (*plan.unprotected(), *terms.not_protected, *_unbound(terms), ALWAYS_UNPROTECTED),
    }


def _unbound(terms: Terms) -> Iterator[str]:
    """What a budget leaves open that names neither its ledger nor its data set."""
    if not terms.ledgers:
        yield "A second use of this budget in another ledger: it was signed for none in particular."
    if terms.dataset is None:
        yield "The total over several budgets: the data set has no declared identity, so any other size is another one."


_AGGREGATOR_TRUSTED = "Whoever sees the aggregates or the model; the aggregator sees contributions and is trusted."


def _observer(plan: Plan) -> str:
    """Who may look, in each algorithm's threat model (docs/threat-model.md)."""
    match plan.algorithm:
        case AlgorithmName.FAIR_PLUGIN if plan.unit.protected is Protected.USER:
            return _AGGREGATOR_TRUSTED
        case AlgorithmName.STEFFLE | AlgorithmName.PAY_ONCE | AlgorithmName.FEDFDP | AlgorithmName.FAIR_PLUGIN:
            return "The server, other silos and eavesdroppers, who see everything the silo sends."
        case AlgorithmName.FPFL | AlgorithmName.MMD_FEDAVG:
            return _AGGREGATOR_TRUSTED
        case AlgorithmName.GAUSSIAN | AlgorithmName.OWN_LOOP | PluginName():
            return "Whoever sees the noisy values or anything computed from them."
        case _:
            assert_never(plan.algorithm)


def _declare(value: NoisyValue | RandomizedValue, rounds: int, terms: Terms) -> DeclaredRelease:
    """The value as it is signed."""
    shape = terms.shapes.get(value.name)
    if isinstance(value, RandomizedValue):
        return RandomizedCategory(
            name=value.name,
            publications=1,
            shape=shape,
            epsilon=value.response.epsilon,
            categories=value.response.categories,
            sampler=sampler_for(terms.noise_source, NoiseSampler.CATEGORICAL),
        )
    common: dict[str, Any] = {
        "name": value.name,
        "publications": rounds if value.every_round else 1,
        "shape": shape,
        "sensitivity": float(value.sensitivity),
        "clip": terms.clips.get(value.name),
        "noise_multiplier": float(value.noise_multiplier),
        "sampler": sampler_for(terms.noise_source, NoiseSampler.DISCRETE_GRID),
        "family": value.family,
    }
    match value.kind:
        case NoiseKind.GAUSSIAN:
            return GaussianNoise(**common, sigma=float(value.sigma), strategy=_strategy(value.bands, rounds))
        case NoiseKind.LAPLACE:
            return LaplaceNoise(**common, scale=float(value.sigma))
        case _:
            assert_never(value.kind)


def _strategy(bands: int, rounds: int) -> tuple[float, ...] | None:
    """The coefficients that are signed for banded noise; None for independent noise."""
    if bands == 1:
        return None
    from calibrate.banded import banded_strategy  # an optimiser, which nobody else needs to load

    return banded_strategy(bands, rounds)
