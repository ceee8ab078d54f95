"""From a plan file to the budget document that an officer signs: a promise, a paper's own noise, or no privacy.

Of the engine, this module alone sees how noise is calibrated and priced; nothing that trains imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from calibrate.budget import calibrate_plan
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.manifest.document import DataBinding, OwnCode
from calibrate.manifest.draft import BudgetSubject, Issuer, NoPromise, Price, draft_document
from calibrate.manifest.issue import BudgetDraft
from calibrate.manifest.mechanism import InTheClear
from calibrate.manifest.strict_json import digest
from calibrate.plans import plan_from_mapping
from calibrate.plans.plan import Plan as PricedPlan
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit
from privfair.algorithms.algorithm import Algorithm
from privfair.algorithms.recipe import Parameters, Unpriced, unpromised_parameters
from privfair.data.training_data import known_of_silos, load_training_data, site_facts
from privfair.federation.coordinator import PublicFacts
from privfair.federation.local_party import require_declared
from privfair.plan.data import DataPlan, SiteSource, read_data_plan
from privfair.plan.plan import Plan, SearchPlan, search_plan
from privfair.plan.plan import Promise as Promise
from privfair.plan.plan import Unprotected as Unprotected
from privfair.plan.training import TrainingPlan, plugin_digests, training_plan
from privfair.run.public import build

_SIZE_PARAMETERS = {"silo_size": 1, "users": 1, "group_size": 2, "units": 1}
"""Which parameter of a plan tells how many units there are, and how many times over."""


_NO_WISHES = Issuer()


def draft(
    file: Plan, issuer: Issuer = _NO_WISHES, promise: Promise = "calibrated", target: EpsilonDelta | None = None
) -> BudgetDraft:
    """Price the plan and write the document in one step.

    Args:
        file: the plan.
        issuer: what follows from no plan: ledgers, lifetime, justification.
        promise: what the plan's `guarantee` says, unless that is "calibrated" and another one is asked for here.
        target: the plan's own [target] unless it was given by flags.

    Guarantee: all but nonce and validity is a function of the plan, the data it names, the issuer, the promise and the
    target, so whoever has them can draft again and compare.
    """
    promise = file.guarantee if promise == "calibrated" else promise
    issuer = replace(issuer, research_noise=issuer.research_noise or file.research_noise)
    if promise != "calibrated" and file.search is not None:
        raise InvalidInput("[search]", "(a table)", "belongs to a promise of this plan's own", "drop it, try by hand")
    if isinstance(promise, Unprotected):
        return _draft_unprotected(file, issuer, promise.why)
    aim = file.target() if target is None else target
    plan = plan_from_mapping(file.algorithm, file.privacy)
    printed = plan.printed(aim) if promise == "as-printed" else None
    about = _about(file, issuer, plan)
    _require_covered(about)
    search = search_plan(file)
    price: Price
    if printed is None:
        price = calibrate_plan(plan, aim, about.subject.numbers, None if search is None else search.tries)
    else:
        price = printed
    drafted = _require_fit(draft_document(price, about.subject, issuer), about)
    if search is not None:
        _require_tries_fit(search, drafted, about, plan)
    return drafted


def _draft_unprotected(file: Plan, issuer: Issuer, why: str) -> BudgetDraft:
    training = training_plan(file)
    rounds, parameters = training.planned_rounds, None
    if not training.recipe.baseline:
        parameters = unpromised_parameters(file.algorithm, file.privacy, rounds)
    about = _about(file, issuer, parameters, training)
    assert about.algorithm is not None
    subject = replace(about.subject, clear=_in_the_clear(about.algorithm, rounds, why))
    signed = parameters.given if isinstance(parameters, Unpriced) else parameters.parameters() if parameters else {}
    price = NoPromise(file.algorithm, training.recipe.unit, rounds, why, signed)
    return _require_fit(draft_document(price, subject, issuer), about)


@dataclass(frozen=True, eq=False)
class _About:
    """What the manifest will be about, and the algorithm where the plan says how to train."""

    subject: BudgetSubject
    algorithm: Algorithm[Any] | None = None
    facts: PublicFacts | None = None


def _about(file: Plan, issuer: Issuer, parameters: Parameters, unpromised: TrainingPlan | None = None) -> _About:
    bound = file.digest if file.on_file else None
    if not file.data:
        if file.training:
            raise InvalidInput("[data]", None, "is needed beside [training]", "say which data to train on")
        binding, code = _binding_without_data(issuer, parameters), _own_code(plugin_digests(file.algorithm))
        return _About(BudgetSubject(binding, code=code, config_digest=bound))
    if issuer.silos:
        raise InvalidInput("--silo", issuer.silos, "and the plan's [data] both name silos", "drop --silo")
    plan = None if unpromised is not None or isinstance(parameters, Unpriced) else parameters
    if not file.training:
        data = read_data_plan(file.data, file.folder)
        unit = None if plan is None else plan.unit
        binding, _, known = _binding(data, False, unit, plan, issuer.research_noise)
        code = _own_code(plugin_digests(file.algorithm, data))
        return _About(BudgetSubject(binding, data.identity, code, not_protected=known, config_digest=bound))
    training = unpromised or training_plan(file)
    if plan is not None:
        training.refuse_unpromised_keys()
        training.updates(plan.rounds)  # refused here rather than by the engine, once it is signed
    unit = training.recipe.unit if plan is None else plan.unit
    binding, facts, known = _binding(training.data, training.recipe.central, unit, plan, issuer.research_noise)
    algorithm = build(training, facts, parameters, binding)[1]
    subject = BudgetSubject(
        data=binding,
        dataset=training.data.identity,
        code=_own_code(training.code_digests()),
        shapes={name: tuple(shape) for name, shape in algorithm.shapes().items()},
        clear=() if plan is None else _in_the_clear(algorithm, plan.rounds),
        not_protected=known,
        assumptions=training.assumptions,
        retention=training.training.retention,
        config_digest=bound,
    )
    return _About(subject, algorithm, facts)


def _binding(
    data: DataPlan, central: bool, unit: PrivacyUnit | None, plan: PricedPlan | None, research: bool
) -> tuple[DataBinding, PublicFacts, tuple[str, ...]]:
    """What is signed of the data, the public facts about it, and what is known of it beside the noise.

    Under a promise every step from the files to the records is known to keep it. Where files stay at their own sites
    all of it follows from the plan and its schema, and no record is read.
    """
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
    """Refuse a promise beside a plain value that the unit can influence: no noise elsewhere makes up for it."""
    for value in about.subject.clear:
        if value.depends_on_unit:
            raise UnsupportedCombination(
                f"a promise beside {value.name!r} in the clear",
                f"it depends on the protected unit ({value.why.rstrip('.')})",
                "change that, or have a manifest signed that promises nothing",
            )


def _require_fit(drafted: BudgetDraft, about: _About) -> BudgetDraft:
    """Better refused by the officer's own machine than by the engine, after somebody has signed."""
    if about.algorithm is not None:
        require_declared(about.algorithm, drafted.document)
    return drafted


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
