"""`privfair audit --model M --members A.csv --nonmembers B.csv`: who was in the training data of a model?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from audit.executors import executor_of
from privfair.cli.output import options, print_rich, print_wrapped, progress_bar, scheduler_option

if TYPE_CHECKING:
    from audit.models.epsilon_bound import ClaimOnTrial
    from audit.models.membership_audit import MembershipOptions
    from audit.models.records import AuditedRecords, RecordTables
    from audit.models.shadow_models import ShadowRecipe
    from audit.models.targets import Target
    from audit.report.results import AuditReport, Interval
    from calibrate.manifest.trust import TrustFile
    from privfair.run.folder_trust import FolderTrust


_FILE = click.Path(path_type=Path, dir_okay=False)
_COUNT = click.IntRange(min=1)

model_options = options(
    click.option(
        "--model",
        "model_path",
        type=click.Path(path_type=Path),
        help="Audit a model instead of a run: a run folder, .onnx, or a trusted .pkl, .joblib or .pt file.",
    ),
    click.option("--members", type=_FILE, help="Records that were in the model's training data."),
    click.option("--nonmembers", type=_FILE, help="Records from the same source that were not."),
    click.option("--population", type=_FILE, help="Other records: shadow models are trained on these alone (offline)."),
    click.option("--label", help="Column with the class, needed if the model does not tell it."),
    click.option("--unit", help="Column that tells people apart; all records of one person share one coin."),
    click.option("--drop", multiple=True, help="Column that is not a feature; may be given several times."),
    click.option("--classes", help="Classes in the order of the model's outputs, as A,B,..."),
    click.option(
        "--outputs",
        type=click.Choice(["by-look", "probabilities", "logits"]),
        default="by-look",
        show_default=True,
        help="Kind of the model's outputs; by-look decides from their values.",
    ),
    click.option(
        "--architecture",
        metavar="module:Class",
        help="Class or function of your own that makes the torch module whose state dict --model holds.",
    ),
    click.option("--trust-pickle", is_flag=True, help="Open a pickle although it can run code when it is opened."),
    click.option("--score", help="Column with membership scores of your own, instead of --model."),
    click.option("--smaller-is-member", is_flag=True, help="Small values of --score mean member, as for a loss."),
    click.option("--manifest", "manifest_path", type=_FILE, help="Manifest whose promise is on trial."),
    click.option("--epsilon", type=float, help="Claimed epsilon that is on trial, instead of --manifest."),
    click.option(
        "--delta",
        type=float,
        default=1e-5,
        show_default=True,
        help="Delta of the claim; without a claim, the delta at which epsilon is bounded.",
    ),
    click.option(
        "--relation",
        type=click.Choice(["add-remove", "replace-one"]),
        default="add-remove",
        show_default=True,
        help="How neighbouring data sets of the claimed --epsilon differ.",
    ),
    click.option(
        "--assignment",
        type=click.Choice(["exchangeable", "coins"]),
        default="exchangeable",
        show_default=True,
        help="How members were chosen: a random part of all records, or a fair coin for each record.",
    ),
    click.option(
        "--family",
        type=click.Choice(["epsilon-delta", "gaussian"]),
        help="Reading of the bound: any release, or one known to be Gaussian, of which more can be proved; by default "
        "what the manifest signs, and without one any release.",
    ),
    click.option(
        "--by",
        multiple=True,
        metavar="class|correctness|COLUMN",
        help="Compare the leakage of these groups, with intervals that hold together; may be given several times.",
    ),
    click.option(
        "--exposed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Number of the most exposed records to list, with intervals that hold together.",
    ),
    click.option(
        "--shadow-models",
        type=click.IntRange(min=0),
        default=64,
        show_default=True,
        help="Number of shadow models to compare with; 0 uses the loss threshold only.",
    ),
    click.option(
        "--shadow",
        type=click.Choice(["same", "logistic", "perceptron"]),
        default="same",
        show_default=True,
        help="Kind of the shadow models; same means as much like the model as possible.",
    ),
    click.option(
        "--hidden", type=_COUNT, default=64, show_default=True, help="Width of the hidden layer of --shadow perceptron."
    ),
    click.option("--epochs", type=_COUNT, help="Training epochs of --shadow logistic or perceptron."),
    click.option(
        "--attack",
        "attacks",
        multiple=True,
        metavar="NAME",
        help="Membership attack of another package to run beside the built-in ones; may be given several times.",
    ),
    click.option(
        "--jobs", type=_COUNT, default=1, show_default=True, help="Number of threads that train shadow models."
    ),
    scheduler_option,
)


@dataclass(frozen=True)
class ModelFlags:
    """The flags of a model's audit, as they were typed."""

    model_path: Path | None
    members: Path | None
    nonmembers: Path | None
    population: Path | None
    label: str | None
    unit: str | None
    drop: tuple[str, ...]
    classes: str | None
    outputs: str
    architecture: str | None
    trust_pickle: bool
    score: str | None
    smaller_is_member: bool
    manifest_path: Path | None
    epsilon: float | None
    delta: float
    relation: str
    assignment: str
    family: str | None
    by: tuple[str, ...]
    exposed: int
    shadow_models: int
    shadow: str
    hidden: int
    epochs: int | None
    attacks: tuple[str, ...]
    jobs: int
    scheduler: str | None

    @property
    def asked_for(self) -> bool:
        """Whether a model is to be audited and not a run."""
        return any((self.model_path, self.members, self.nonmembers, self.score))

    @property
    def run_folder(self) -> Path | None:
        """The run whose model is audited, if the model is one."""
        return self.model_path if self.model_path is not None and self.model_path.is_dir() else None

    @property
    def own_shadows(self) -> bool:
        """Whether the target itself says what resembles it."""
        return self.shadow == "same" or not self.shadow_models

    @property
    def grouping_columns(self) -> tuple[str, ...]:
        """The columns among the groups to compare; scores alone know neither class nor correctness."""
        from audit.settings import BY_CLASS, BY_CORRECTNESS

        own = {BY_CLASS, BY_CORRECTNESS} if self.score is None else set()
        return tuple(name for name in self.by if name not in own)

    def require_complete(self, run: Path | None, sensitive: str | None, confidence: float) -> None:
        """Refuse what flags, paths and the files' first lines show to be wrong, before anything heavy is loaded."""
        if run is not None:
            raise click.UsageError(f"give either the run {run} or --model, --members and --nonmembers, not both")
        if self.members is None or self.nonmembers is None:
            raise click.UsageError("an audit of a model needs --members FILE and --nonmembers FILE")
        if (self.model_path is None) == (self.score is None):
            raise click.UsageError("give --model PATH, or --score COLUMN for scores of your own; one of the two")
        if self.epsilon is not None and self.manifest_path is not None:
            raise click.UsageError("give --manifest or --epsilon, not both: one promise is on trial")
        self._require_numbers(confidence)
        if self.epochs is not None and self.own_shadows:
            raise click.UsageError("--epochs is for --shadow logistic or --shadow perceptron")
        if sensitive is not None and self.model_path is None:
            raise click.UsageError("--sensitive needs --model: scores of members say nothing about an attribute")
        self._require_files()

    def _require_numbers(self, confidence: float) -> None:
        from audit.settings import require_attack, require_models
        from calibrate.errors import open_unit
        from calibrate.privacy_unit import EpsilonDelta

        open_unit("confidence", confidence)
        EpsilonDelta(1.0 if self.epsilon is None else self.epsilon, self.delta)
        if self.model_path is not None:
            require_models(self.shadow_models, self.exposed)
        for name in self.attacks:
            require_attack(name)

    def _require_columns(self) -> None:
        """By the first line of each file; a run's files are written as the run says, and wait until it is opened."""
        from privfair.data.infer import read_header, recognise

        own = [name for name in (self.score or self.label, self.unit) if name is not None]
        for path in (self.members, self.nonmembers, self.population):
            header = None if path is None or self.run_folder is not None else read_header(path, recognise(path))
            if header is not None:
                for name in (*own, *self.drop, *self.grouping_columns):
                    header.require(name)

    def _require_files(self) -> None:
        from audit.named import refuse_pickle, refuse_unknown_kind

        named = {"--model": self.model_path, "--members": self.members, "--nonmembers": self.nonmembers}
        for option, path in {**named, "--population": self.population, "--manifest": self.manifest_path}.items():
            if path is not None and not path.exists():
                raise click.UsageError(f"{option} {path} does not exist; check the path")
        if self.model_path is not None and self.run_folder is None and self.architecture is None:
            refuse_unknown_kind(self.model_path)
        if self.model_path is not None and not self.trust_pickle and self.architecture is None:
            refuse_pickle(self.model_path)
        self._require_columns()
        if self.manifest_path is not None:
            from calibrate.manifest.verify import read_unverified
            from privfair.durable import read_named

            read_unverified(read_named(self.manifest_path, "--manifest"))


def judge_model(flags: ModelFlags, trusted: FolderTrust, seed: int, confidence: float) -> AuditReport:
    """Read the files, open the model, train shadow models, attack, judge."""
    from audit.models.membership_audit import audit_model, audit_scores
    from audit.models.records import RecordTables
    from audit.models.targets import MemberEnd, quality_of, read_scores

    assert flags.members is not None
    assert flags.nonmembers is not None
    if flags.model_path is None:
        assert flags.score is not None
        tables = RecordTables.read(flags.members, flags.nonmembers)
        direction = MemberEnd.SMALLER if flags.smaller_is_member else MemberEnd.LARGER
        scores = read_scores(tables, flags.score, direction)
        alone = flags.unit is None and set(tables.members.columns) == {flags.score}
        units = None if alone else tables.units(flags.unit)
        chosen = _options(flags, None, seed, confidence)
        claim, groupings = _claim(flags, trusted.signers), _groupings(flags, tables)
        return audit_scores(scores, _member_marks(tables), flags.score, chosen, claim, units, groupings)
    chosen = _options(flags, _recipe(flags), seed, confidence)
    with executor_of(flags.jobs, flags.scheduler, threads=True) as executor, progress_bar("shadow models") as progress:
        target = open_model(flags, trusted)
        claim = _claim(flags, trusted.signers)
        records = records_for(flags, target)
        report = audit_model(target, records, chosen, claim, executor, progress)
    return report.model_copy(update={"model": quality_of(target, records)})


def open_model(flags: ModelFlags, trusted: FolderTrust) -> Target:
    """The model that was named, opened as the flags allow."""
    from audit.models.open_target import PickleTrust, open_target
    from audit.models.targets import OutputKind

    assert flags.model_path is not None
    pickles = PickleTrust.TRUSTED if flags.trust_pickle else PickleTrust.REFUSED
    return open_target(flags.model_path, pickles, OutputKind(flags.outputs), trusted, flags.architecture)


def show_membership(report: AuditReport) -> None:
    """The attacks' strength as a table, where a model was audited."""
    from rich.table import Table

    result = report.membership
    if result is None:
        return
    table = Table("attack", "AUC", "TPR at 0.1% FPR", "TPR at 1% FPR", "AUC on shadow models")
    for attack in result.attacks:
        cells = [attack.auc, *attack.tpr_at_fpr]
        control = "" if attack.control_auc is None else f"{attack.control_auc:.3f}"
        texts = (f"{one.value:.3f} [{one.lower:.3f}, {one.upper:.3f}]" for one in cells)
        table.add_row(attack.plugin or attack.name.value, *(text.replace("[", "\\[") for text in texts), control)
    shadow = "no shadow models"
    if result.shadow is not None:
        shadow = f"{result.shadow.models} shadow models ({result.shadow.kind}, {result.shadow.design.value})"
    print_rich(
        f"{result.members} members, {result.nonmembers} non-members; {shadow}; "
        f"intervals at {100 * result.confidence:g}%",
        table,
    )


def show_exposure(report: AuditReport) -> None:
    """Is privacy fair? The groups side by side, and the most exposed records by their place in the file."""
    from rich.markup import escape
    from rich.table import Table

    found = None if report.membership is None else report.membership.exposure
    if found is None:
        return
    together = f"intervals hold together at {100 * found.confidence:g}%"
    for grouping in found.groupings:
        table = Table("group", "members", "non-members", "AUC", "epsilon at least")
        for one in grouping.groups:
            epsilon = "" if one.epsilon_lower is None else f"{one.epsilon_lower:.3f}"
            table.add_row(escape(one.name), str(one.members), str(one.nonmembers), _interval(one.auc), epsilon)
        said = "UNEVEN: some groups leak more than others" if grouping.uneven else "no difference is proved"
        few = f"; too few records: {', '.join(grouping.left_out)}" if grouping.left_out else ""
        print_rich(escape(f"by {grouping.by}: {said} ({found.attack}; {together}{few})"), table)
    if found.records is not None:
        table = Table("file", "record", "advantage", "epsilon at least")
        for record in found.records.records:
            advantage = _interval(record.advantage)
            table.add_row(record.file, str(record.record), advantage, f"{record.epsilon_lower:.3f}")
        exposed = sum(record.exposed for record in found.records.records)
        print_rich(
            f"the {len(found.records.records)} most exposed of {found.records.looked_at} records: training like "
            f"that of the shadow models, without noise, is proved to betray {exposed} of them ({together}; "
            f"{found.records.counted} models can reach a lower end of {found.records.reachable:.2f})",
            table,
        )


def _interval(one: Interval) -> str:
    return f"{one.value:.3f} \\[{one.lower:.3f}, {one.upper:.3f}]"


def records_for(flags: ModelFlags, target: Target) -> AuditedRecords:
    """The records of all files as this model takes them."""
    from audit.models.records import ColumnChoice, RecordTables, encode_tables

    assert flags.members is not None
    assert flags.nonmembers is not None
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


def _groupings(flags: ModelFlags, tables: RecordTables) -> dict[str, Any]:
    """The columns among the groups that were asked for; scores alone know neither class nor correctness."""
    from audit.models.exposure import grouping_column

    return {name: grouping_column(name, tables.cells(name)) for name in flags.grouping_columns}


def _member_marks(tables: RecordTables) -> Any:
    import numpy as np

    return np.arange(tables.members.records + tables.nonmembers.records) < tables.members.records


def _options(flags: ModelFlags, recipe: ShadowRecipe | None, seed: int, confidence: float) -> MembershipOptions:
    from audit.bounds import CurveFamily
    from audit.models.membership_audit import MembershipOptions
    from audit.report.results import Assignment
    from audit.settings import ExposureOptions

    assignment, named = Assignment(flags.assignment), dict.fromkeys(flags.attacks)
    family = None if flags.family is None else CurveFamily(flags.family)
    exposure = ExposureOptions(tuple(dict.fromkeys(flags.by)), flags.exposed)
    return MembershipOptions(
        flags.shadow_models, recipe, assignment, confidence, seed, flags.delta, tuple(named), family, exposure
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
    from audit.models.epsilon_bound import ClaimOnTrial
    from calibrate.manifest.verify import authenticate, read_unverified
    from calibrate.privacy_unit import Relation
    from privfair.durable import read_named

    if flags.epsilon is not None:
        return ClaimOnTrial.said(flags.epsilon, flags.delta, Relation(flags.relation))
    path = flags.manifest_path
    if path is None and flags.run_folder is not None:
        from privfair.run.folder import RunFolder

        path = RunFolder.existing(flags.run_folder).manifest
    if path is None:
        return None
    envelope = read_named(path, "--manifest")
    read = read_unverified(envelope) if trust is None else authenticate(envelope, trust, for_reading=True)
    return ClaimOnTrial.of_manifest(read.document)


# The attribute-inference part of `privfair audit`.

attribute_options = options(
    click.option("--sensitive", help="Column whose values attribute inference tries to guess, with --model."),
    click.option(
        "--attribute-inference/--no-attribute-inference",
        "infer",
        default=True,
        show_default=True,
        help="Whether to guess the sensitive attribute of a run's records from its model.",
    ),
)


@dataclass(frozen=True)
class AttributeFlags:
    sensitive: str | None
    infer: bool


Inferred = dict[str, Any]
"""The fields of a report that attribute inference fills in: what was found, or why nothing could be."""


def _not_inferred(why: str) -> Inferred:
    return {"attribute_inference_not_possible": why}


def show_attribute(report: AuditReport, verbose: bool) -> None:
    """What was found, in one sentence; with `verbose` a table of attacks beside imputation."""
    from rich.markup import escape
    from rich.table import Table

    found = report.attribute_inference
    if found is None:
        if report.attribute_inference_not_possible is not None:
            print_wrapped(f"attribute inference: not possible ({report.attribute_inference_not_possible})")
        return
    if not verbose:
        print_wrapped(f"attribute inference: {found.finding.value}; {found.why}")
        return
    table = Table("attack", "right on members", "on non-members", "members minus non-members, over imputation")
    table.add_row(
        "imputation", _percent(found.imputation.members.value), _percent(found.imputation.nonmembers.value), ""
    )
    for one in found.attacks:
        gap = one.leakage
        text = f"{_percent(gap.value)} \\[{_percent(gap.lower)}, {_percent(gap.upper)}]{'  leaks' if one.leaks else ''}"
        right = (_percent(side.accuracy.value) for side in (one.members, one.nonmembers))
        table.add_row(one.name, *right, text)
    print_rich(f"attribute inference: {found.finding.value}; {escape(found.why)}", table)


def attribute_of_run(
    flags: AttributeFlags, run: Path, trusted: FolderTrust, plan_path: Path | None, seed: int, confidence: float
) -> Inferred:
    """Of a run; a run that does not allow it (no model yet, images, too few records) says so."""
    from audit.models.attribute_audit import AttributeOptions
    from audit.models.attribute_targets import attribute_inference_of_run
    from calibrate.errors import InvalidInput

    if not flags.infer:
        return _not_inferred("it was not asked for")
    try:
        options = AttributeOptions(confidence, seed)
        return {"attribute_inference": attribute_inference_of_run(run, options, trusted, plan_path)}
    except InvalidInput as refused:
        return _not_inferred(f"{refused.argument} {refused.rule}")


def attribute_of_model(
    flags: AttributeFlags, model: ModelFlags, trusted: FolderTrust, seed: int, confidence: float
) -> Inferred:
    """Of a model with two files; only where a column was named."""
    if flags.sensitive is None:
        return _not_inferred("no --sensitive COLUMN was named")
    from audit.models.attribute_audit import AttributeOptions
    from audit.models.attribute_targets import attribute_inference_of_model
    from audit.models.records import RecordTables
    from audit.models.torch_targets import RunTarget

    assert model.members is not None
    assert model.nonmembers is not None
    target = open_model(model, trusted)
    expected = target.layout if isinstance(target, RunTarget) else None
    tables = RecordTables.read(model.members, model.nonmembers, expected=expected)
    found = attribute_inference_of_model(
        target, tables, records_for(model, target), flags.sensitive, AttributeOptions(confidence, seed)
    )
    return {"attribute_inference": found}


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
