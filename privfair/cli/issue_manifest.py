"""From a budget, a paper's noise or the wish for no privacy to a signed manifest on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.manifest.document import BudgetDocument, DataBinding
from calibrate.manifest.from_budget import Terms, valid_for
from calibrate.manifest.mechanism import InTheClear, NoiseSource
from calibrate.privacy_unit import PrivacyUnit
from privfair.cli.output import write_bytes
from privfair.data.facts import digest
from privfair.plan.file import PlanFile

if TYPE_CHECKING:
    from calibrate.budget import CertifiedBudget
    from calibrate.plans.plan import Plan
    from calibrate.privacy_unit import EpsilonDelta
    from privfair.algorithms.algorithm import Algorithm
    from privfair.data.training_data import TrainingData
    from privfair.plan.privacy import Parameters
    from privfair.plan.training import TrainingPlan

_SIZE_PARAMETERS = {"silo_size": 1, "users": 1, "group_size": 2}
"""Which parameter of a plan tells how many units there are, and how many times over."""
_NO_REASON = "No reason was given when this budget was issued."


@dataclass(frozen=True)
class Issuing:
    """How a manifest is to be issued, as the command line says it."""

    out: Path
    key_path: Path
    silos: tuple[str, ...] = ()
    valid_days: int = 90
    why: str = ""
    research_noise: bool = False


@dataclass(frozen=True, eq=False)
class _Subject:
    """What the manifest will be about: the data, and the algorithm where the plan says how to train."""

    binding: DataBinding
    data: TrainingData | None
    algorithm: Algorithm[Any] | None


def issue_manifest(
    budget: CertifiedBudget,
    file: PlanFile,
    *,
    out: Path,
    key_path: Path,
    silos: tuple[str, ...] = (),
    valid_days: int = 90,
    why: str = "",
    research_noise: bool = False,
) -> str:
    """Sign what a calibrated budget certifies; the path of the manifest."""
    from calibrate.manifest.from_budget import document_from_budget

    issuing = Issuing(out, key_path, silos, valid_days, why, research_noise)
    subject = _subject(file, issuing, budget.plan)
    _require_allowed(subject, budget.plan.unit)
    _require_covered(subject)
    terms = _terms(file, issuing, subject, _clear_values(subject, budget.plan.rounds), _clips(budget.plan))
    return _sign(document_from_budget(budget, terms), subject, issuing)


def issue_as_printed(plan: Plan, target: EpsilonDelta, file: PlanFile, issuing: Issuing) -> BudgetDocument:
    """Sign a paper's own noise: its claim beside what it truly costs."""
    from calibrate.manifest.from_budget import PaperClaim, document_as_printed
    from calibrate.theorems.printed import printed_noise

    printed = printed_noise(plan, target)
    subject = _subject(file, issuing, plan)
    _require_allowed(subject, plan.unit)
    terms = _terms(file, issuing, subject, _clear_values(subject, plan.rounds), _clips(plan))
    claim = PaperClaim(target.epsilon, printed.place)
    document = document_as_printed(plan, printed.noise_multipliers, target.delta, claim, terms)
    _sign(document, subject, issuing)
    return document


def issue_without_promise(file: PlanFile, reason: str, issuing: Issuing) -> BudgetDocument:
    """Sign that a run protects nobody, so that it cannot be taken for a private one."""
    from calibrate.manifest.from_budget import document_without_promise
    from privfair.plan.privacy import Unpriced, unpromised_parameters
    from privfair.plan.training import training_plan

    if not reason.strip():
        raise click.UsageError("--no-privacy needs a reason, which stands in every output of the run")
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
            shape=tuple(shape),
            why=known[name].why if name in known else f"Sent without noise: {reason}",
            depends_on_unit=known[name].depends_on_unit if name in known else True,
        )
        for name, shape in subject.algorithm.shapes().items()
    )
    signed = parameters.given if isinstance(parameters, Unpriced) else parameters.parameters() if parameters else {}
    terms = replace(_terms(file, issuing, subject, clear, {}), parameters=signed)
    document = document_without_promise(file.algorithm, plan.recipe.unit, rounds, reason, file.digest, terms)
    _sign(document, subject, issuing)
    return document


def _subject(
    file: PlanFile, issuing: Issuing, parameters: Parameters, unpromised: TrainingPlan | None = None
) -> _Subject:
    if not file.data:
        if file.training:
            raise InvalidInput("[data]", None, "is needed beside [training]", "say which data to train on")
        return _Subject(_binding_without_data(issuing, parameters), None, None)
    if issuing.silos:
        raise click.UsageError("--silo and the plan's [data] both name silos; drop --silo")
    from privfair.data.training_data import load_training_data
    from privfair.plan.data import read_data_plan

    if not file.training:
        data = load_training_data(read_data_plan(file.data, file.folder))
        return _Subject(data.binding, data, None)
    from privfair.plan.privacy import Unpriced
    from privfair.plan.training import training_plan
    from privfair.run.prepare import Unsigned, build

    training = unpromised or training_plan(file)
    if unpromised is None and parameters is not None and not isinstance(parameters, Unpriced):
        training.refuse_unpromised_keys()
        training.updates(parameters.rounds)  # refused here rather than by the engine, once it is signed
    data = load_training_data(training.data, central=training.recipe.central)
    return _Subject(data.binding, data, build(training, data, Unsigned(parameters, promised=unpromised is None))[1])


def _binding_without_data(issuing: Issuing, parameters: Parameters) -> DataBinding:
    """Names and sizes by hand; there is no schema to bind, which the digest of null says."""
    silos = [_named_size(text) for text in issuing.silos]
    if not silos:
        known = {name: getattr(parameters, name, None) for name in _SIZE_PARAMETERS}
        sizes = [size * _SIZE_PARAMETERS[name] for name, size in known.items() if isinstance(size, int)]
        if not sizes:
            raise click.UsageError(
                "this plan does not say how many units a silo has: give --silo NAME=SIZE for each silo, "
                "or a plan file with [data]"
            )
        silos = [("silo-1", sizes[0])]
    return DataBinding.of(digest(None), silos)


def _named_size(text: str) -> tuple[str, int]:
    name, equals, size = text.rpartition("=")
    if not equals or not name.strip() or not size.strip().isdigit() or int(size) < 1:
        raise click.UsageError(f"--silo {text}: write NAME=SIZE, for example --silo north=7500")
    return name.strip(), int(size)


def _require_allowed(subject: _Subject, unit: PrivacyUnit) -> None:
    if subject.data is not None:
        subject.data.require_allowed(unit)


def _require_covered(subject: _Subject) -> None:
    """Refuse a promise beside a plain value that the protected unit can influence: no noise elsewhere mends that."""
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
    shapes = subject.algorithm.shapes()
    return tuple(
        InTheClear(
            name=value.name,
            publications=rounds,
            shape=tuple(shapes[value.name]),
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
    shapes = {} if subject.algorithm is None else subject.algorithm.shapes()
    return Terms(
        data=subject.binding,
        validity=valid_for(timedelta(days=issuing.valid_days)),
        justification=issuing.why.strip() or _NO_REASON,
        noise_source=NoiseSource.SEEDED_RESEARCH_ONLY if issuing.research_noise else NoiseSource.OPERATING_SYSTEM,
        clear=clear,
        shapes={name: tuple(shape) for name, shape in shapes.items()},
        clips=clips,
        config_digest=file.digest,
    )


def _sign(document: BudgetDocument, subject: _Subject, issuing: Issuing) -> str:
    from calibrate.manifest.issue import issue
    from calibrate.manifest.keys import load_private
    from privfair.cli.keys import ask_password

    if subject.algorithm is not None:
        from privfair.round_loop import require_declared

        # Better refused by the officer's own machine than by the engine, after somebody has signed.
        require_declared(subject.algorithm, document)
    write_bytes(issuing.out, issue(document, load_private(issuing.key_path, ask_password)))
    return str(issuing.out)
