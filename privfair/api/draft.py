"""From a plan file to the budget document that an officer signs: a promise, a paper's own noise, or no privacy.

An officer's machine drafts what a request asks for again from the request's plan, and signs it only if both agree.

Of the engine, this module alone sees how noise is calibrated and priced; nothing that trains imports it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibrate.budget import calibrate_plan
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.manifest.document import BudgetDocument, DataBinding, Issuer, OwnCode
from calibrate.manifest.draft import BudgetSubject, NoPromise, Price, draft_document
from calibrate.manifest.issue import BudgetDraft, recompute, require_same
from calibrate.manifest.mechanism import (
    AsPrintedGuarantee,
    InTheClear,
    NoiseSource,
    NoPrivacyPromised,
    PrivateGuarantee,
)
from calibrate.manifest.strict_json import digest
from calibrate.plans import plan_from_mapping
from calibrate.plans.plan import Plan as PricedPlan
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit
from privfair.algorithms.algorithm import Algorithm
from privfair.algorithms.recipe import Parameters, Unpriced, unpromised_parameters
from privfair.data.stability import data_here, known_of_plan, known_of_silos
from privfair.data.training_data import load_training_data, site_facts
from privfair.federation.coordinator import PublicFacts
from privfair.federation.local_party import require_declared
from privfair.ledger.claim import LedgerStatus, require_bound
from privfair.plan.data import DataPlan, SiteSource, read_data_plan
from privfair.plan.plan import Plan, SearchPlan, search_plan
from privfair.plan.plan import Promise as Promise
from privfair.plan.plan import Unprotected as Unprotected
from privfair.plan.training import TrainingPlan, build, plugin_digests, training_plan

_SIZE_PARAMETERS = {"silo_size": 1, "users": 1, "group_size": 2, "units": 1}
"""Which parameter of a plan gives the number of units, and how many times over."""


_NO_WISHES = Issuer()


def draft(
    file: Plan,
    issuer: Issuer = _NO_WISHES,
    promise: Promise = "calibrated",
    target: EpsilonDelta | None = None,
    asked: BudgetDocument | None = None,
) -> BudgetDraft:
    """Price the plan and write the document in one step.

    Args:
        file: the plan.
        issuer: what follows from no plan: ledgers, lifetime, justification.
        promise: what the plan's `guarantee` says, unless that is "calibrated" and another one is asked for here.
        target: the plan's own [target] unless it was given by flags.
        asked: a request's document, which stands for data that are not on this machine and for code not to be run.

    Guarantee: all but nonce and validity is a function of the plan, the data it names, the issuer, the promise and the
    target, so anyone who has them can draft again and compare.
    """
    promise = file.guarantee if promise == "calibrated" else promise
    issuer = replace(issuer, research_noise=issuer.research_noise or file.research_noise, witness=file.witness)
    if promise != "calibrated" and file.search is not None:
        raise InvalidInput("[search]", "(a table)", "belongs to a promise of this plan's own", "drop it, try by hand")
    if isinstance(promise, Unprotected):
        return _draft_unprotected(file, issuer, promise.why, asked)
    aim = file.target() if target is None else target
    plan = plan_from_mapping(file.algorithm, file.privacy)
    printed = plan.printed(aim) if promise == "as-printed" else None
    about = _about(file, issuer, plan, asked=asked)
    _require_covered(about)
    search = search_plan(file)
    price: Price
    if printed is None:
        price = calibrate_plan(plan, aim, about.subject.numbers, None if search is None else search.tries)
    else:
        price = printed
    drafted = _require_fit(draft_document(price, about.subject, issuer), about)
    if search is not None and (asked is None or about.facts is not None):
        _require_tries_fit(search, drafted, about, plan)
    return drafted


def _draft_unprotected(file: Plan, issuer: Issuer, why: str, asked: BudgetDocument | None) -> BudgetDraft:
    training = training_plan(file)
    rounds, parameters = training.planned_rounds, None
    if not training.recipe.baseline:
        parameters = unpromised_parameters(file.algorithm, file.privacy, rounds)
    about = _about(file, issuer, parameters, training, asked)
    subject = about.subject
    if about.algorithm is not None:
        subject = replace(subject, clear=_in_the_clear(about.algorithm, rounds, why))
    signed = parameters.given if isinstance(parameters, Unpriced) else parameters.parameters() if parameters else {}
    price = NoPromise(file.algorithm, training.recipe.unit, rounds, why, signed)
    return _require_fit(draft_document(price, subject, issuer), about)


@dataclass(frozen=True, eq=False)
class _About:
    """What the manifest will be about, and the algorithm where the plan says how to train."""

    subject: BudgetSubject
    algorithm: Algorithm[Any] | None = None
    facts: PublicFacts | None = None


def _about(
    file: Plan,
    issuer: Issuer,
    parameters: Parameters,
    unpromised: TrainingPlan | None = None,
    asked: BudgetDocument | None = None,
) -> _About:
    bound = file.digest if file.on_file else None
    if not file.data:
        if file.training:
            raise InvalidInput("[data]", None, "is needed next to [training]", "say which data to train on")
        binding, code = _binding_without_data(issuer, parameters), _own_code(plugin_digests(file.algorithm))
        return _About(BudgetSubject(binding, code=code, config_digest=bound))
    if issuer.silos:
        raise InvalidInput("--silo", issuer.silos, "and the plan's [data] both name silos", "drop --silo")
    plan = None if unpromised is not None or isinstance(parameters, Unpriced) else parameters
    if not file.training:
        data = read_data_plan(file.data, file.folder)
        unit = None if plan is None else plan.unit
        binding, _, known = _binding(data, False, unit, plan, issuer.research_noise, asked)
        code = _own_code(plugin_digests(file.algorithm, data))
        return _About(BudgetSubject(binding, data.identity, code, not_protected=known, config_digest=bound))
    training = unpromised or training_plan(file)
    if plan is not None:
        training.refuse_unpromised_keys()
        training.updates(plan.rounds)  # refused here rather than by the engine, once it is signed
    unit = training.recipe.unit if plan is None else plan.unit
    binding, facts, known = _binding(training.data, training.recipe.central, unit, plan, issuer.research_noise, asked)
    algorithm = None
    if facts is not None and (asked is None or not training.own_code()):
        algorithm = build(training, facts, parameters, binding)[1]
    shapes, clear = _published(algorithm, asked)
    subject = BudgetSubject(
        data=binding,
        dataset=training.data.identity,
        code=_own_code(training.code_digests()),
        shapes=shapes,
        clear=clear if plan is None or algorithm is None else _in_the_clear(algorithm, plan.rounds),
        not_protected=known,
        assumptions=training.assumptions,
        retention=training.training.retention,
        config_digest=bound,
    )
    return _About(subject, algorithm, facts)


def _published(
    algorithm: Algorithm[Any] | None, asked: BudgetDocument | None
) -> tuple[dict[str, tuple[int, ...]], tuple[InTheClear, ...]]:
    """The shapes of all values and, without an algorithm, what the request asks to publish in the clear."""
    if algorithm is not None:
        return {name: tuple(shape) for name, shape in algorithm.shapes().items()}, ()
    assert asked is not None
    clear = tuple(one for one in asked.releases if isinstance(one, InTheClear))
    return {one.name: one.shape for one in asked.releases if one.shape is not None}, clear


def _binding(
    data: DataPlan,
    central: bool,
    unit: PrivacyUnit | None,
    plan: PricedPlan | None,
    research: bool,
    asked: BudgetDocument | None,
) -> tuple[DataBinding, PublicFacts | None, tuple[str, ...]]:
    """What is signed of the data, the public facts about it, and what is known of it in addition to the noise.

    Under a promise every step from the files to the records is known to keep it. Where files stay at their own sites
    all of it follows from the plan and its schema, and no record is read. There are no facts where the data are not on
    this machine.
    """
    if asked is not None and not data_here(data):
        return asked.data, None, () if plan is None else known_of_plan(data, plan.unit, len(asked.data.silos))
    if isinstance(data.source, SiteSource):
        facts, binding = site_facts(data, central=central, unit=unit)
        apart = data.attributes is not None
        return binding, facts, () if plan is None else known_of_silos(plan.unit, len(binding.silos), apart=apart)
    loaded = load_training_data(data, central=central, unit=unit)
    if plan is None:
        return loaded.binding, loaded.facts, ()
    loaded.require_allowed(plan.unit, research)
    return loaded.binding_for(plan.unit), loaded.facts, loaded.not_protected(plan.unit)


def _own_code(digests: Mapping[str, str]) -> tuple[OwnCode, ...]:
    return tuple(OwnCode(name=name, sha256=sha256) for name, sha256 in digests.items())


def _binding_without_data(issuer: Issuer, parameters: Parameters) -> DataBinding:
    """Names and sizes by hand; there is no schema to bind, which the digest of null says."""
    silos = issuer.silos
    if not silos:
        known = {name: getattr(parameters, name, None) for name in _SIZE_PARAMETERS}
        sizes = [size * _SIZE_PARAMETERS[name] for name, size in known.items() if isinstance(size, int)]
        if not sizes:
            raise InvalidInput(
                "--silo",
                None,
                "is needed: this plan does not say how many units a silo has",
                "give --silo NAME=SIZE for each silo, or a plan file with [data]",
            )
        silos = (("silo-1", sizes[0]),)
    return DataBinding.of(digest(None), silos)


def _in_the_clear(algorithm: Algorithm[Any], rounds: int, reason: str | None = None) -> tuple[InTheClear, ...]:
    """What goes out without noise: what the algorithm sends so in any case, and for a `reason` all the rest."""
    known, shapes = {value.name: value for value in algorithm.clear_values()}, algorithm.shapes()
    return tuple(
        InTheClear(
            name=name,
            publications=rounds,
            shape=tuple(shapes[name]),
            why=known[name].why if name in known else f"Sent without noise: {reason}",
            depends_on_unit=known[name].depends_on_unit if name in known else True,
        )
        for name in (known if reason is None else shapes)
    )


def _require_covered(about: _About) -> None:
    """Refuse a promise next to a plain value that the unit can influence: no noise elsewhere makes up for it."""
    for value in about.subject.clear:
        if value.depends_on_unit:
            raise UnsupportedCombination(
                f"a promise next to {value.name!r} in the clear",
                f"it depends on the protected unit ({value.why.rstrip('.')})",
                "change that, or have a manifest signed that promises nothing",
            )


def _require_fit(drafted: BudgetDraft, about: _About) -> BudgetDraft:
    """Better refused by the officer's own machine than by the engine, after someone has signed."""
    if about.algorithm is not None:
        require_declared(about.algorithm, drafted.document)
    return drafted


# A request drafted again on the officer's machine.


@dataclass(frozen=True)
class Compared:
    """What follows from a request's plan, and sentences that the officer reads before signing."""

    drafted: BudgetDraft
    lines: tuple[str, ...]


def compare(asked: BudgetDocument, plan: str | None, folder: Path, ledger: LedgerStatus | str | None) -> Compared:
    """Draft the budget for the same plan as `asked`, whose paths are relative to `folder`; none of its code is run.

    What follows from neither the plan nor the data is taken from the request: dates, purpose, and a target or kind of
    guarantee that the plan leaves open. Raises `ManifestRefused` unless every other field is as drafted, and
    `LedgerRefused` unless it is bound to the officer's `ledger` (its status, or its id alone).
    """
    recompute(asked)
    if asked.dataset is not None:
        asked.dataset.require_safe()
    match ledger:
        case LedgerStatus():
            known = ledger.compare(asked)
        case str():
            require_bound(asked, ledger)
            known = (_NO_DATA_SETS,)
        case None:
            known = (f"You named no ledger: {_bound(asked)}.", _NO_DATA_SETS)
    guarantee, issuer = asked.guarantee, Issuer(ledgers=asked.ledgers, why=asked.justification)
    issuer = replace(issuer, research_noise=asked.noise_source is NoiseSource.SEEDED_RESEARCH_ONLY)
    if plan is None:
        file = Plan(asked.algorithm, {}, asked.parameters, {}, {})
        unconfirmed = ["The request has no plan file: parameters, target and silos are the engineer's."]
    else:
        file = Plan.parse(plan.encode(), folder / "plan.toml")
        unconfirmed = list(_unconfirmed(file))
    if not file.data:
        issuer = replace(issuer, silos=tuple((silo.name, silo.size) for silo in asked.data.silos))
    promise, target = file.guarantee, None
    match guarantee:
        case NoPrivacyPromised(why=why):
            promise = Unprotected(why) if promise == "calibrated" else promise
        case AsPrintedGuarantee(claimed_epsilon=epsilon, delta=delta):
            promise, target = "as-printed" if promise == "calibrated" else promise, _left_open(file, epsilon, delta)
        case PrivateGuarantee(epsilon=epsilon, delta=delta):
            target = _left_open(file, epsilon, delta)
    if promise != file.guarantee:
        unconfirmed.append("The plan asks for a calibrated guarantee; the request does not.")
    if issuer.research_noise and not file.research_noise:
        unconfirmed.append("The plan asks for noise of the system; the request asks for noise of a seed.")
    drafted = draft(file, issuer, promise, target, asked)
    require_same(asked, drafted.document)
    return Compared(drafted, (*known, *(f"NOT CONFIRMED: {line}" for line in unconfirmed)))


_NO_DATA_SETS = "NOT COMPARED with the data sets of a ledger: write `ledger = ...` in your config.toml."


def _bound(asked: BudgetDocument) -> str:
    return "this budget is bound to " + (" and ".join(one.ledger for one in asked.ledgers) or "no ledger")


def _left_open(file: Plan, epsilon: float, delta: float) -> EpsilonDelta:
    """The plan's target, as asked where the plan names none."""
    left = {"epsilon": epsilon, "delta": delta}
    return file.target(*(None if name in file.target_section else value for name, value in left.items()))


def _unconfirmed(file: Plan) -> Iterator[str]:
    """What the request alone says, for want of files or words of the plan."""
    if not file.data:
        yield "The plan names no data; the silos and their sizes are the engineer's."
    elif not data_here(read_data_plan(file.data, file.folder)):
        yield "The data are not on this machine: silos, sizes, schema and shapes are the engineer's; `train` compares."
    if file.data and file.training and training_plan(file).own_code():
        yield "The plan brings its own code, which was not run: shapes and values in the clear are the engineer's."
    if not {"epsilon", "delta"} <= set(file.target_section):
        yield "The plan leaves the target open: epsilon or delta is the engineer's."


def _require_tries_fit(search: SearchPlan, drafted: BudgetDraft, about: _About, plan: PricedPlan) -> None:
    """Better refused here than by a try, once the whole search is charged."""
    if about.facts is None:
        raise InvalidInput(
            "[search]", "(a table)", "needs [data] and [training]", "say what the tries train, and on what"
        )
    for setting in search.plans:
        training = training_plan(setting)
        training.refuse_unpromised_keys()
        require_declared(build(training, about.facts, plan, about.subject.data)[1], drafted.document)
