"""From a price to the document that gets signed: a calibrated budget, a paper's own noise, or no privacy at all."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from types import MappingProxyType
from typing import assert_never

from calibrate.budget import CertifiedBudget, with_noise
from calibrate.discrete_noise import MOST_NUMBERS, NO_SLACK, ProfileSlack, combined
from calibrate.errors import InvalidInput
from calibrate.manifest.document import (
    NO_PLAN_FILE,
    VALID_DAYS,
    Accounting,
    BudgetDocument,
    DataBinding,
    DataIdentity,
    Issuer,
    OwnCode,
    SamplingDeclaration,
    SearchTerms,
    Validity,
    plan_digest,
)
from calibrate.manifest.issue import BudgetDraft, CrossCheck, cross_check, renyi_points
from calibrate.manifest.mechanism import (
    AsPrintedGuarantee,
    DeclaredRelease,
    GaussianNoise,
    Guarantee,
    InTheClear,
    LaplaceNoise,
    NoiseSampler,
    Noisy,
    NoPrivacyPromised,
    PrivateGuarantee,
    RandomizedCategory,
    Scope,
)
from calibrate.manifest.strict_json import in_our_words
from calibrate.plans.plan import AlgorithmName, NoisyValue, PaperNoise, PlainValue, Plan, PluginName, RandomizedValue
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, NoiseKind, PrivacyUnit, Protected
from calibrate.releases import InSequence, Release, Sampled, multiplicities
from calibrate.tries import RandomTries

ALWAYS_UNPROTECTED = "Timing, message sizes and the number of rounds."
TIMING_OF_TRIES = "Whoever sees how long the search takes learns how many tries there were, which must stay secret."
_BEST_TRY = "The best of a secret random number of tries, shown alone. "
_SECRET_TRIES = "All tries but the best, and their number, stay secret, and the number is drawn apart from the data."
_NO_REASON = "No reason was given when this budget was issued."
_AGGREGATOR_TRUSTED = "Whoever sees the aggregates or the model; the aggregator sees contributions and is trusted."
_RESERVED = (1e-6, 0.5)
"""Which shares of a paper's delta are tried to pay for its noise being discrete."""
_ROUNDED_UP = 1e-6
"""By how much the true price of a paper's noise is rounded up, relatively and absolutely, to leave room."""


@dataclass(frozen=True)
class BudgetSubject:
    """What a budget is about: the data, the code that sees them, and what is published of them.

    `clear` names what is published without noise; it is added to the priced event, where it is free only if it cannot
    depend on the protected unit. `config_digest` is the plan's own digest unless more than the plan is to be bound.
    """

    data: DataBinding
    dataset: DataIdentity | None = None
    code: tuple[OwnCode, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    clear: tuple[InTheClear, ...] = ()
    not_protected: tuple[str, ...] = ()
    """What the way from the files to the records leaves unprotected, such as records that are held out for testing."""
    assumptions: tuple[str, ...] = ()
    """What the guarantee assumes in addition to the plan's own assumptions."""
    retention: int | None = None
    """Every so many steps the transcript keeps values in full, else digests; None to keep all."""
    config_digest: str | None = None

    @property
    def numbers(self) -> dict[str, int]:
        """How many numbers each value has at most, for `calibrate_plan`.

        Smaller shapes are not made use of, so that the noise is what `calibrate` shows for the same plan without data.
        """
        return {name: max(MOST_NUMBERS, math.prod(shape)) for name, shape in self.shapes.items()}


@dataclass(frozen=True)
class NoPromise:
    """A run that protects no one, such as a baseline: signed, so that it cannot pass for private.

    All that it publishes is in the subject's `clear`.
    """

    algorithm: str
    unit: PrivacyUnit
    rounds: int
    why: str
    parameters: Mapping[str, PlainValue] = field(default_factory=lambda: MappingProxyType({}))
    """What [privacy] says, though nothing is promised."""


Price = CertifiedBudget | PaperNoise | NoPromise
"""The three kinds of budget documents, by what is known of their noise and its cost."""


def valid_for(lifetime: timedelta = timedelta(days=VALID_DAYS), start: datetime | None = None) -> Validity:
    """In force from now (or `start`) for the given time."""
    now = datetime.now(UTC)
    begin = now if start is None else start
    with in_our_words("validity"):
        return Validity(issued_at=now, not_before=begin, not_after=begin + lifetime)


def fresh_nonce() -> str:
    """A single-use value of 256 random bits; the ledger accepts one claim for each."""
    return secrets.token_hex(32)


@in_our_words("document")
def draft_document(price: Price, subject: BudgetSubject, issuer: Issuer) -> BudgetDraft:
    """The document of a price: what is promised, or claimed, or that nothing is.

    A second accountant prices the event, and `ManifestRefused` is raised if it contradicts the first, or if the subject
    publishes something of the protected unit in the clear. Everything needed to recompute epsilon is in the document,
    with the very noise of the budget.
    """
    match price:
        case CertifiedBudget():
            priced = _promised(price, subject, issuer)
        case PaperNoise():
            priced = _claimed(price, subject, issuer)
        case NoPromise():
            priced = _unprotected(price, subject)
        case _:
            assert_never(price)
    if isinstance(price, NoPromise):
        algorithm, parameters, rounds = price.algorithm, dict(price.parameters), price.rounds
    else:
        algorithm, parameters, rounds = price.plan.algorithm.value, price.plan.parameters(), price.plan.rounds
    leaves = multiplicities(priced.accounting.event)
    samplings = dict.fromkeys(leaf.sampling for leaf in leaves if isinstance(leaf, Sampled))
    document = BudgetDocument(
        algorithm=algorithm,
        parameters=parameters,
        guarantee=priced.guarantee,
        releases=(*priced.noisy, *subject.clear),
        rounds=rounds,
        sampling=tuple(
            SamplingDeclaration(scheme=one, assumption_enforced=True, enforced_by="privfair's own batch sampler")
            for one in samplings
        ),
        accounting=priced.accounting,
        data=subject.data,
        config_digest=subject.config_digest or plan_digest(algorithm, parameters),
        noise_source=issuer.noise_source,
        witness=issuer.witness,
        nonce=fresh_nonce(),
        validity=valid_for(issuer.lifetime),
        dataset=subject.dataset,
        ledgers=issuer.ledgers,
        code=subject.code,
        justification=issuer.why.strip() or _NO_REASON,
        retention=subject.retention,
    )
    return BudgetDraft.from_check(document, priced.checked, price if isinstance(price, CertifiedBudget) else None)


@dataclass(frozen=True)
class _Priced:
    """What the price decides of a document."""

    guarantee: Guarantee
    noisy: tuple[DeclaredRelease, ...]
    accounting: Accounting
    checked: CrossCheck | None = None
    """The two prices; None where nothing is promised."""


def _promised(budget: CertifiedBudget, subject: BudgetSubject, issuer: Issuer) -> _Priced:
    """What the budget was calibrated for, with its very noise."""
    plan, continuous, tries = budget.plan, budget.continuous, budget.tries
    event = with_clear(budget.release, subject.clear)
    # What does not depend on the unit is free, so the budget's own price is that of the whole event.
    first = None if any(release.depends_on_unit for release in subject.clear) else budget.first
    checked = cross_check(event, plan.unit, continuous.delta, continuous.epsilon, first, tries)
    scope = dict(_scope(plan, budget.values, subject, issuer, tries))
    accounting = _accounting(plan, event, checked, continuous.delta, budget.slack, subject, tries)
    guarantee = PrivateGuarantee(**scope, epsilon=budget.target.epsilon, delta=budget.target.delta)
    return _Priced(guarantee, _declared(plan, budget.values, subject, issuer), accounting, checked)


def _claimed(paper: PaperNoise, subject: BudgetSubject, issuer: Issuer) -> _Priced:
    """A paper's claim next to the certified truth."""
    plan, delta = paper.plan, paper.target.delta
    noisy = with_noise(plan.values(), paper.noise_multipliers)
    once = with_noise(plan.once(), paper.noise_multipliers)
    event = with_clear(plan.publish(noisy, once), subject.clear)
    declared = _declared(plan, (*noisy, *once), subject, issuer)
    slack = combined(release.slack for release in declared)
    checked, priced_at, true_epsilon = _true_price(event, plan.unit, delta, slack)
    guarantee = AsPrintedGuarantee(
        **dict(_scope(plan, (*noisy, *once), subject, issuer)),
        epsilon=true_epsilon,
        delta=delta,
        claimed_epsilon=paper.target.epsilon,
        claim=paper.place,
    )
    return _Priced(guarantee, declared, _accounting(plan, event, checked, priced_at, slack, subject), checked)


def _unprotected(nothing: NoPromise, subject: BudgetSubject) -> _Priced:
    guarantee = NoPrivacyPromised(
        unit=nothing.unit.protected,
        adjacency=nothing.unit.relation,
        scope="Whoever sees anything of this run.",
        covered=(),
        not_protected=("Everything: this run carries no noise.",),
        why=nothing.why,
    )
    accounting = Accounting(
        accountant="none",
        library="privfair",
        version=version("privfair"),
        interval=EpsilonInterval(0.0, math.inf),
        event=with_clear(None, subject.clear),
        delta=None,
        discrete_noise=NO_SLACK,
        assumptions=(),
        second_opinion=None,
    )
    return _Priced(guarantee, (), accounting)


def _true_price(
    event: Release, unit: PrivacyUnit, delta: float, slack: ProfileSlack
) -> tuple[CrossCheck, float, float | None]:
    """Two prices of noise that no one calibrated, the delta they hold at, and the epsilon they amount to.

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


def _accounting(
    plan: Plan,
    event: Release,
    checked: CrossCheck,
    delta: float,
    slack: ProfileSlack,
    subject: BudgetSubject,
    tries: RandomTries | None = None,
) -> Accounting:
    searched = () if tries is None else (f"{_SECRET_TRIES} There are {tries.mean:.4g} on average.",)
    without_file = () if subject.config_digest else (NO_PLAN_FILE,)
    return Accounting(
        **dict(checked.first),
        event=event,
        delta=delta,
        discrete_noise=slack,
        assumptions=(*plan.assumptions(), plan.arithmetic, *subject.assumptions, *searched, *without_file),
        second_opinion=checked.second,
        search=None if tries is None else SearchTerms(gamma=tries.gamma, shape=tries.shape),
        renyi=renyi_points(event, plan.unit, tries),
    )


def with_clear(event: Release | None, clear: tuple[InTheClear, ...]) -> Release:
    """The event with what is published in the clear added to it; None for a run without any noise."""
    if not clear and event is None:
        raise InvalidInput("clear", clear, "must name what is published", "list the releases of the run")
    parts = tuple(release.primitive() for release in clear)
    if event is None:
        return InSequence(parts)
    return InSequence((event, *parts)) if parts else event


def _scope(
    plan: Plan,
    values: tuple[NoisyValue | RandomizedValue, ...],
    subject: BudgetSubject,
    issuer: Issuer,
    tries: RandomTries | None = None,
) -> Scope:
    """Whom the promise speaks of, what it covers and what it leaves open."""
    names = ", ".join(value.name for value in values)
    shown, timing = ("", ()) if tries is None else (_BEST_TRY, (TIMING_OF_TRIES,))
    left_out = (*plan.unprotected(), *subject.not_protected, *issuer.not_protected, *_unbound(subject, issuer))
    return Scope(
        unit=plan.unit.protected,
        adjacency=plan.unit.relation,
        scope=_observer(plan),
        covered=(f"{shown}All noisy values of all {plan.rounds} rounds together: {names}.",),
        not_protected=(*left_out, ALWAYS_UNPROTECTED, *timing),
    )


def _unbound(subject: BudgetSubject, issuer: Issuer) -> Iterator[str]:
    """What a budget leaves open that names neither its ledger nor its data set."""
    if not issuer.ledgers:
        yield "A second use of this budget in another ledger: it was signed for none in particular."
    if subject.dataset is None:
        yield "The total over several budgets: the data set has no declared identity, so any other size is another one."


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


def _declared(
    plan: Plan, values: tuple[NoisyValue | RandomizedValue, ...], subject: BudgetSubject, issuer: Issuer
) -> tuple[DeclaredRelease, ...]:
    """The values as they are signed."""
    clip: float | None = getattr(plan, "clip", None)
    # A clip is named where clipping is what bounds the value.
    clipped = {value.name for value in plan.values() if value.sensitivity == clip}
    return tuple(
        _declare(value, plan.rounds, clip if value.name in clipped else None, subject, issuer) for value in values
    )


def _declare(
    value: NoisyValue | RandomizedValue, rounds: int, clip: float | None, subject: BudgetSubject, issuer: Issuer
) -> DeclaredRelease:
    shape = subject.shapes.get(value.name)
    if isinstance(value, RandomizedValue):
        return RandomizedCategory(
            name=value.name,
            publications=1,
            shape=shape,
            epsilon=value.response.local_epsilon,
            categories=value.response.categories,
            sampler=issuer.sampler(NoiseSampler.CATEGORICAL),
        )
    noisy = Noisy(
        name=value.name,
        publications=value.publications(rounds),
        shape=shape,
        sensitivity=float(value.sensitivity),
        clip=None if clip is None else float(clip),
        noise_multiplier=float(value.noise_multiplier),
        sampler=issuer.sampler(NoiseSampler.DISCRETE_GRID),
        family=value.family,
    )
    match value.kind:
        case NoiseKind.GAUSSIAN:
            return GaussianNoise(**dict(noisy), sigma=float(value.sigma), strategy=_strategy(value.bands, rounds))
        case NoiseKind.LAPLACE:
            return LaplaceNoise(**dict(noisy), scale=float(value.sigma))
        case _:
            assert_never(value.kind)


def _strategy(bands: int, rounds: int) -> tuple[float, ...] | None:
    """The coefficients that are signed for banded noise; None for independent noise."""
    if bands == 1:
        return None
    from calibrate.banded import banded_strategy  # an optimiser, which no other caller needs to load

    return banded_strategy(bands, rounds)
