"""From a plan file to the budget document that an officer signs: a promise, a paper's own noise, or no privacy.

Of the engine, this module alone sees how noise is calibrated and priced; nothing that trains imports it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from calibrate.budget import CertifiedBudget, calibrate_plan
from calibrate.discrete_noise import MOST_NUMBERS
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.manifest.document import DataBinding, DataIdentity, LedgerBinding, OwnCode
from calibrate.manifest.from_budget import (
    PaperClaim,
    Terms,
    document_as_printed,
    document_from_budget,
    document_without_promise,
    valid_for,
)
from calibrate.manifest.issue import PricedDocument
from calibrate.manifest.mechanism import InTheClear, NoiseSource
from calibrate.manifest.strict_json import digest
from calibrate.plans.from_mapping import plan_from_mapping
from calibrate.plans.plan import Plan
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit
from calibrate.theorems.printed import printed_noise
from privfair.algorithms.algorithm import Algorithm
from privfair.data.training_data import TrainingData, known_of_silos, load_training_data, site_facts
from privfair.federation.local_party import require_declared
from privfair.federation.party import PublicFacts
from privfair.plan.data import DataPlan, SiteSource, read_data_plan
from privfair.plan.file import PlanFile
from privfair.plan.privacy import Parameters, Unpriced, unpromised_parameters
from privfair.plan.search import SearchPlan, search_plan
from privfair.plan.training import TrainingPlan, plugin_digests, training_plan
from privfair.run.public import build

_SIZE_PARAMETERS = {"silo_size": 1, "users": 1, "group_size": 2, "units": 1}
"""Which parameter of a plan tells how many units there are, and how many times over."""
_NO_REASON = "No reason was given when this budget was issued."


@dataclass(frozen=True)
class Issuing:
    """What the issuer decides beside the plan: silos where the plan names no data, in which ledgers, how long, why."""

    silos: tuple[tuple[str, int], ...] = ()
    ledgers: tuple[LedgerBinding, ...] = ()
    lifetime: timedelta = timedelta(days=90)
    why: str = ""
    research_noise: bool = False
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of published values, where the plan has no [training] that tells them."""
    dataset: DataIdentity | None = None
    """The declared identity of the data, where the plan has no [data] that tells it."""
    code: tuple[OwnCode, ...] = ()
    """Files of the user's own to bind, where no [training] names them."""
    not_protected: tuple[str, ...] = ()
    """What else is treated as public, each in one sentence."""


@dataclass(frozen=True, eq=False)
class _Subject:
    """What the manifest will be about: the data, and the algorithm where the plan says how to train."""

    binding: DataBinding
    algorithm: Algorithm[Any] | None = None
    dataset: DataIdentity | None = None
    code: tuple[OwnCode, ...] = ()
    not_protected: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    given_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    retention: int | None = None
    facts: PublicFacts | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        known = self.given_shapes if self.algorithm is None else self.algorithm.shapes()
        return {name: tuple(shape) for name, shape in known.items()}


def promise(file: PlanFile, target: EpsilonDelta, issuing: Issuing) -> tuple[CertifiedBudget, PricedDocument]:
    """The calibrated budget of a plan file, and the document that promises exactly it."""
    plan = plan_from_mapping(file.algorithm, file.privacy)
    subject = _subject(file, issuing, plan)
    _require_covered(subject)
    # Smaller shapes are not made use of, so that the noise is what `calibrate` shows for the same plan without data.
    numbers = {name: max(MOST_NUMBERS, math.prod(shape)) for name, shape in subject.shapes.items()}
    search = search_plan(file)
    budget = calibrate_plan(plan, target, numbers, None if search is None else search.tries)
    terms = _terms(file, issuing, subject, _clear_values(subject, plan.rounds), _clips(plan))
    priced = _require_fit(document_from_budget(budget, terms), subject)
    if search is not None:
        _require_tries_fit(search, priced, subject, plan)
    return budget, priced


def _require_tries_fit(search: SearchPlan, priced: PricedDocument, subject: _Subject, plan: Plan) -> None:
    """Better refused here than by a try, once the whole search is charged."""
    if subject.facts is None:
        raise InvalidInput(
            "[search]", "(a table)", "needs [data] and [training]", "say what the tries train, and on what"
        )
    for setting in search.plans:
        training = training_plan(setting)
        training.refuse_unpromised_keys()
        require_declared(build(training, subject.facts, plan, subject.binding)[1], priced.document)


def as_printed(file: PlanFile, target: EpsilonDelta, issuing: Issuing) -> PricedDocument:
    """The document of a paper's own noise for the target: its claim beside what it truly costs."""
    _refuse_search(file)
    plan = plan_from_mapping(file.algorithm, file.privacy)
    printed = printed_noise(plan, target)
    subject = _subject(file, issuing, plan)
    _require_covered(subject)
    terms = _terms(file, issuing, subject, _clear_values(subject, plan.rounds), _clips(plan))
    claim = PaperClaim(target.epsilon, printed.place)
    return _require_fit(document_as_printed(plan, printed.noise_multipliers, target.delta, claim, terms), subject)


def without_promise(file: PlanFile, reason: str, issuing: Issuing) -> PricedDocument:
    """The document of a run that protects nobody, so that it cannot be taken for a private one."""
    if not reason.strip():
        raise InvalidInput("--no-privacy", reason, "needs a reason, which all outputs show", "give one")
    _refuse_search(file)
    plan = training_plan(file)
    rounds, parameters = plan.planned_rounds, None
    if not plan.recipe.baseline:
        parameters = unpromised_parameters(file.algorithm, file.privacy, rounds)
    subject = _subject(file, issuing, parameters, plan)
    assert subject.algorithm is not None
    known = {value.name: value for value in subject.algorithm.clear_values()}
    clear = tuple(
        InTheClear(
            name=name,
            publications=rounds,
            shape=shape,
            why=known[name].why if name in known else f"Sent without noise: {reason}",
            depends_on_unit=known[name].depends_on_unit if name in known else True,
        )
        for name, shape in subject.shapes.items()
    )
    signed = parameters.given if isinstance(parameters, Unpriced) else parameters.parameters() if parameters else {}
    terms = replace(_terms(file, issuing, subject, clear, {}), parameters=signed)
    document = document_without_promise(file.algorithm, plan.recipe.unit, rounds, reason, file.digest, terms)
    return _require_fit(document, subject)


def _refuse_search(file: PlanFile) -> None:
    if file.search is not None:
        raise InvalidInput("[search]", "(a table)", "belongs to a promise of this plan's own", "drop it, try by hand")


def _subject(
    file: PlanFile, issuing: Issuing, parameters: Parameters, unpromised: TrainingPlan | None = None
) -> _Subject:
    if not file.data:
        if file.training:
            raise InvalidInput("[data]", None, "is needed beside [training]", "say which data to train on")
        return _Subject(
            _binding_without_data(issuing, parameters),
            dataset=issuing.dataset,
            code=(*issuing.code, *_own_code(plugin_digests(file.algorithm))),
            given_shapes=issuing.shapes,
        )
    if issuing.silos:
        raise InvalidInput("--silo", issuing.silos, "and the plan's [data] both name silos", "drop --silo")
    plan = None if unpromised is not None or isinstance(parameters, Unpriced) else parameters
    if not file.training:
        plan_of_data = read_data_plan(file.data, file.folder)
        binding, _, known = _about(
            plan_of_data, False, None if plan is None else plan.unit, plan, issuing.research_noise
        )
        code = _own_code(plugin_digests(file.algorithm, plan_of_data))
        return _Subject(binding, dataset=plan_of_data.identity, code=code, not_protected=known)
    training = unpromised or training_plan(file)
    if plan is not None:
        training.refuse_unpromised_keys()
        training.updates(plan.rounds)  # refused here rather than by the engine, once it is signed
    unit = training.recipe.unit if plan is None else plan.unit
    binding, facts, known = _about(training.data, training.recipe.central, unit, plan, issuing.research_noise)
    return _Subject(
        binding,
        build(training, facts, parameters, binding)[1],
        training.data.identity,
        _own_code(training.code_digests()),
        known,
        training.assumptions,
        retention=training.training.retention,
        facts=facts,
    )


def _about(
    plan_of_data: DataPlan, central: bool, unit: PrivacyUnit | None, plan: Plan | None, research: bool
) -> tuple[DataBinding, PublicFacts, tuple[str, ...]]:
    """What is signed of the data, the public facts about it, and what is known of it beside the noise.

    Where files stay at their own sites all of it follows from the plan and its schema, and no record is read.
    """
    if isinstance(plan_of_data.source, SiteSource):
        facts, binding = site_facts(plan_of_data, central=central, unit=unit)
        apart = plan_of_data.attributes is not None
        return binding, facts, () if plan is None else known_of_silos(plan.unit, len(binding.silos), apart=apart)
    data = load_training_data(plan_of_data, central=central, unit=unit)
    return _binding(data, plan, research), data.facts, () if plan is None else data.not_protected(plan.unit)


def _own_code(digests: Mapping[str, str]) -> tuple[OwnCode, ...]:
    return tuple(OwnCode(name=name, sha256=sha256) for name, sha256 in digests.items())


def _binding(data: TrainingData, plan: Plan | None, research: bool) -> DataBinding:
    """What is signed of the data, once every step from the files to it is known to keep the plan's promise."""
    if plan is None:
        return data.binding
    data.require_allowed(plan.unit, research)
    return data.binding_for(plan.unit)


def _binding_without_data(issuing: Issuing, parameters: Parameters) -> DataBinding:
    """Names and sizes by hand; there is no schema to bind, which the digest of null says."""
    silos = issuing.silos
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


def _require_covered(subject: _Subject) -> None:
    """Refuse a promise beside a plain value that the unit can influence: no noise elsewhere makes up for it."""
    for value in () if subject.algorithm is None else subject.algorithm.clear_values():
        if value.depends_on_unit:
            raise UnsupportedCombination(
                f"a promise beside {value.name!r} in the clear",
                f"it depends on the protected unit ({value.why.rstrip('.')})",
                "change that, or have a manifest signed that promises nothing",
            )


def _clear_values(subject: _Subject, rounds: int) -> tuple[InTheClear, ...]:
    if subject.algorithm is None:
        return ()
    shapes = subject.shapes
    return tuple(
        InTheClear(
            name=value.name,
            publications=rounds,
            shape=shapes[value.name],
            why=value.why,
            depends_on_unit=value.depends_on_unit,
        )
        for value in subject.algorithm.clear_values()
    )


def _clips(plan: Plan) -> dict[str, float]:
    """The clip behind each sensitivity, where clipping is what bounds it."""
    clip = getattr(plan, "clip", None)
    if clip is None:
        return {}
    return {value.name: float(clip) for value in plan.values() if value.sensitivity == clip}


def _terms(
    file: PlanFile, issuing: Issuing, subject: _Subject, clear: tuple[InTheClear, ...], clips: Mapping[str, float]
) -> Terms:
    return Terms(
        data=subject.binding,
        validity=valid_for(issuing.lifetime),
        justification=issuing.why.strip() or _NO_REASON,
        noise_source=NoiseSource.SEEDED_RESEARCH_ONLY if issuing.research_noise else NoiseSource.OPERATING_SYSTEM,
        clear=clear,
        shapes=subject.shapes,
        clips=clips,
        config_digest=file.digest if file.on_file else None,
        dataset=subject.dataset,
        ledgers=issuing.ledgers,
        code=subject.code,
        not_protected=(*subject.not_protected, *issuing.not_protected),
        assumptions=subject.assumptions,
        retention=subject.retention,
    )


def _require_fit(priced: PricedDocument, subject: _Subject) -> PricedDocument:
    """Better refused by the officer's own machine than by the engine, after somebody has signed."""
    if subject.algorithm is not None:
        require_declared(subject.algorithm, priced.document)
    return priced
