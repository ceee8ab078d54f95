"""The part of a model's audit that computes; it loads the attacks, which refusals need not wait for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from audit.bounds import CurveFamily
from audit.executors import executor_of
from audit.models.attribute_audit import AttributeOptions
from audit.models.epsilon_bound import ClaimOnTrial
from audit.models.exposure import Marks, grouping_column
from audit.models.membership_audit import MembershipOptions, audit_model, audit_scores
from audit.models.records import AuditedRecords, ColumnChoice, RecordTables, encode_tables
from audit.models.shadow_models import ShadowRecipe
from audit.models.targets import MemberEnd, OutputKind, PickleTrust, Target, open_target, quality_of, read_scores
from audit.report.results import Assignment, AuditReport
from audit.settings import ExposureOptions
from calibrate.errors import InvalidInput
from calibrate.manifest.trust import FolderTrust, TrustFile
from calibrate.manifest.verify import authenticate, read_unverified
from calibrate.privacy_unit import Relation
from privfair.cli.output import progress_bar
from privfair.durable import read_named

if TYPE_CHECKING:
    from privfair.cli.audit_model import ModelFlags


def judge_model(flags: ModelFlags, trusted: FolderTrust) -> AuditReport:
    """Read the files, open the model, train shadow models, attack, judge."""
    if flags.model_path is None:
        assert flags.score is not None
        tables = RecordTables.read(flags.members, flags.nonmembers)
        direction = MemberEnd.SMALLER if flags.smaller_is_member else MemberEnd.LARGER
        scores = read_scores(tables, flags.score, direction)
        alone = flags.unit is None and set(tables.members.columns) == {flags.score}
        units = None if alone else tables.units(flags.unit)
        chosen = _options(flags, None)
        claim, groupings = _claim(flags, trusted.signers), _groupings(flags, tables)
        return audit_scores(scores, _member_marks(tables), flags.score, chosen, claim, units, groupings)
    chosen = _options(flags, _recipe(flags))
    with executor_of(flags.jobs, flags.scheduler, threads=True) as executor, progress_bar("shadow models") as progress:
        target = open_model(flags, trusted)
        claim = _claim(flags, trusted.signers)
        records = records_for(flags, target)
        report = audit_model(target, records, chosen, claim, executor, progress)
    return report.model_copy(update={"model": quality_of(target, records)})


def open_model(flags: ModelFlags, trusted: FolderTrust) -> Target:
    """The model that was named, opened as the flags allow."""
    assert flags.model_path is not None
    pickles = PickleTrust.TRUSTED if flags.trust_pickle else PickleTrust.REFUSED
    return open_target(flags.model_path, pickles, OutputKind(flags.outputs), trusted, flags.architecture)


def records_for(flags: ModelFlags, target: Target) -> AuditedRecords:
    """The records of all files as this model takes them."""
    if flags.run_folder is not None:
        from audit.models.torch_targets import RunTarget

        assert isinstance(target, RunTarget)
        tables = RecordTables.read(flags.members, flags.nonmembers, flags.population, target.layout)
        return replace(target.encode(tables, flags.unit), groupings=_groupings(flags, tables))
    tables = RecordTables.read(flags.members, flags.nonmembers, flags.population)
    classes = None if flags.classes is None else tuple(name.strip() for name in flags.classes.split(","))
    choice = ColumnChoice(flags.label, flags.drop, classes, flags.unit)
    records = encode_tables(tables, choice, target.class_names, target.feature_names)
    records = replace(records, groupings=_groupings(flags, tables))
    if flags.label is None:
        click.echo(f"  class column: {records.label_column} (name another with --label)", err=True)
    return records


def _groupings(flags: ModelFlags, tables: RecordTables) -> dict[str, Marks]:
    """The columns among the groups that were asked for; scores alone know neither class nor correctness."""
    return {name: grouping_column(name, tables.cells(name)) for name in flags.grouping_columns}


def _member_marks(tables: RecordTables) -> Any:

    return np.arange(tables.members.records + tables.nonmembers.records) < tables.members.records


def _options(flags: ModelFlags, recipe: ShadowRecipe | None) -> MembershipOptions:

    assignment, named = Assignment(flags.assignment), dict.fromkeys(flags.attacks)
    family = None if flags.family is None else CurveFamily(flags.family)
    exposure = ExposureOptions(tuple(dict.fromkeys(flags.by)), flags.exposed)
    return MembershipOptions(
        shadow_models=flags.shadow_models,
        recipe=recipe,
        assignment=assignment,
        confidence=flags.confidence,
        seed=flags.seed,
        delta=flags.delta,
        attacks=tuple(named),
        family=family,
        exposure=exposure,
    )


def _recipe(flags: ModelFlags) -> ShadowRecipe | None:
    """None for "same": the target itself says what resembles it."""
    if flags.own_shadows:
        return None
    from audit.models.stacked import StackedLogistic, StackedPerceptron

    epochs = {} if flags.epochs is None else {"epochs": flags.epochs}
    if flags.shadow == "logistic":
        return StackedLogistic(**epochs)
    return StackedPerceptron((flags.hidden,), **epochs)


def _claim(flags: ModelFlags, trust: TrustFile | None) -> ClaimOnTrial | None:
    """The manifest's promise, the run's own, or the auditor's words; in this order."""
    if flags.epsilon is not None:
        return ClaimOnTrial.said(flags.epsilon, flags.delta, Relation(flags.relation))
    path = flags.budget_path
    if path is None and flags.run_folder is not None:
        from privfair.run.folder import RunFolder

        path = RunFolder.existing(flags.run_folder).manifest
    if path is None:
        return None
    envelope = read_named(path, "--budget")
    read = read_unverified(envelope) if trust is None else authenticate(envelope, trust, for_reading=True)
    return ClaimOnTrial.of_manifest(read.document)


Inferred = dict[str, object]
"""The fields of a report that attribute inference fills in: what was found, or why nothing could be."""


def _not_inferred(why: str) -> Inferred:
    return {"attribute_inference_not_possible": why}


def attribute_of_run(
    wanted: bool, run: Path, trusted: FolderTrust, plan_path: Path | None, seed: int, confidence: float
) -> Inferred:
    """Of a run; a run that does not allow it (no model yet, images, too few records) says so."""
    from audit.models.attribute_targets import attribute_inference_of_run

    if not wanted:
        return _not_inferred("it was not asked for")
    try:
        options = AttributeOptions(confidence, seed)
        return {"attribute_inference": attribute_inference_of_run(run, options, trusted, plan_path)}
    except InvalidInput as refused:
        return _not_inferred(f"{refused.argument} {refused.rule}")


def attribute_of_model(flags: ModelFlags, trusted: FolderTrust) -> Inferred:
    """Of a model with two files; only where a column was named."""
    if flags.sensitive is None:
        return _not_inferred("no --sensitive COLUMN was named")
    from audit.models.attribute_targets import attribute_inference_of_model
    from audit.models.torch_targets import RunTarget

    target = open_model(flags, trusted)
    expected = target.layout if isinstance(target, RunTarget) else None
    tables = RecordTables.read(flags.members, flags.nonmembers, expected=expected)
    options = AttributeOptions(flags.confidence, flags.seed)
    found = attribute_inference_of_model(target, tables, records_for(flags, target), flags.sensitive, options)
    return {"attribute_inference": found}
