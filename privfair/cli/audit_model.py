"""`privfair audit --model M --members A.csv --nonmembers B.csv`: who was in the training data of a model?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privfair.cli.output import options, print_rich

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from audit.attribute.result import AttributeInference
    from audit.membership.epsilon_bound import Claim
    from audit.membership.membership_audit import MembershipAudit, MembershipOptions
    from audit.membership.records import AuditedRecords, RecordTables
    from audit.membership.shadow.train import ShadowRecipe
    from audit.membership.targets.target import Target
    from calibrate.manifest.trust import TrustFile


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
    click.option("--label", help="The column with the class, where the model leaves it open."),
    click.option("--drop", multiple=True, help="A column that is no feature; may be given several times."),
    click.option("--classes", help="The classes in the order of the model's outputs: A,B,..."),
    click.option(
        "--outputs",
        type=click.Choice(["by-look", "probabilities", "logits"]),
        default="by-look",
        show_default=True,
        help="What the model's outputs are.",
    ),
    click.option("--trust-pickle", is_flag=True, help="Open a file that can run code when it is opened."),
    click.option("--score", help="Without --model: the column with a membership score that you bring."),
    click.option("--smaller-is-member", is_flag=True, help="Of --score: small values mean member (a loss)."),
    click.option("--manifest", "manifest_path", type=_FILE, help="The manifest whose promise is on trial."),
    click.option("--epsilon", type=float, help="Without a manifest: the epsilon that is claimed."),
    click.option("--delta", type=float, default=1e-5, show_default=True, help="Of the claim, or of the bound."),
    click.option(
        "--relation",
        type=click.Choice(["add-remove", "replace-one"]),
        default="add-remove",
        show_default=True,
        help="Of the claim without a manifest: how neighbouring data sets differ.",
    ),
    click.option(
        "--assignment",
        type=click.Choice(["exchangeable", "coins"]),
        default="exchangeable",
        show_default=True,
        help="How members were chosen: a random part of all records, or a fair coin for each record.",
    ),
    click.option(
        "--shadow-models",
        type=click.IntRange(min=0),
        default=64,
        show_default=True,
        help="Models trained to compare with; 0 leaves the loss threshold alone.",
    ),
    click.option(
        "--shadow",
        type=click.Choice(["same", "logistic", "perceptron"]),
        default="same",
        show_default=True,
        help="Their kind; same: as much like the model as can be.",
    ),
    click.option("--hidden", type=_COUNT, default=64, show_default=True, help="Of --shadow perceptron."),
    click.option("--epochs", type=_COUNT, help="Of --shadow logistic or perceptron."),
    click.option("--jobs", type=_COUNT, default=1, show_default=True, help="Shadow groups side by side."),
)


@dataclass(frozen=True)
class ModelFlags:
    """The flags of a model's audit, as they were typed."""

    model_path: Path | None
    members: Path | None
    nonmembers: Path | None
    population: Path | None
    label: str | None
    drop: tuple[str, ...]
    classes: str | None
    outputs: str
    trust_pickle: bool
    score: str | None
    smaller_is_member: bool
    manifest_path: Path | None
    epsilon: float | None
    delta: float
    relation: str
    assignment: str
    shadow_models: int
    shadow: str
    hidden: int
    epochs: int | None
    jobs: int

    @property
    def asked_for(self) -> bool:
        """Whether a model is to be audited and not a run."""
        return any((self.model_path, self.members, self.nonmembers, self.score))

    def require_complete(self, run: Path | None) -> None:
        if run is not None:
            raise click.UsageError(f"give either the run {run} or --model, --members and --nonmembers, not both")
        if self.members is None or self.nonmembers is None:
            raise click.UsageError("an audit of a model needs --members FILE and --nonmembers FILE")
        if (self.model_path is None) == (self.score is None):
            raise click.UsageError("give --model PATH, or --score COLUMN for scores of your own; one of the two")
        if self.epsilon is not None and self.manifest_path is not None:
            raise click.UsageError("give --manifest or --epsilon, not both: one promise is on trial")


def judge_model(
    flags: ModelFlags, run: Path | None, trust: TrustFile | None, seed: int, confidence: float
) -> MembershipAudit:
    """Read the files, open the model, train shadow models, attack, judge."""
    from audit.membership.membership_audit import audit_model, audit_scores
    from audit.membership.records import RecordTables
    from audit.membership.targets.target import Direction, read_scores

    flags.require_complete(run)
    assert flags.members is not None
    assert flags.nonmembers is not None
    if flags.model_path is None:
        assert flags.score is not None
        tables = RecordTables.read(flags.members, flags.nonmembers)
        direction = Direction.SMALLER if flags.smaller_is_member else Direction.LARGER
        scores = read_scores(tables, flags.score, direction)
        is_member = _member_marks(tables)
        return audit_scores(
            scores, is_member, flags.score, _options(flags, None, seed, confidence), _claim(flags, trust)
        )
    target = open_model(flags)
    claim = _claim(flags, trust)
    records = records_for(flags, target)
    chosen = _options(flags, _recipe(flags), seed, confidence)
    with _executor(flags.jobs) as executor, _progress(flags.shadow_models) as progress:
        return audit_model(target, records, chosen, claim, executor, progress)


def open_model(flags: ModelFlags) -> Target:
    """The model that was named, opened as the flags allow."""
    from audit.membership.targets.open_target import PickleTrust, open_target
    from audit.membership.targets.target import OutputKind

    assert flags.model_path is not None
    pickles = PickleTrust.TRUSTED if flags.trust_pickle else PickleTrust.REFUSED
    return open_target(flags.model_path, pickles, OutputKind(flags.outputs))


def show_membership(found: MembershipAudit) -> None:
    """The attacks' strength as a table."""
    from rich.table import Table

    result = found.result
    table = Table("attack", "AUC", "TPR at 0.1% FPR", "TPR at 1% FPR", "AUC on shadow models")
    for attack in result.attacks:
        cells = [attack.auc, *(point.tpr for point in attack.tpr_at_fpr)]
        control = "" if attack.control_auc is None else f"{attack.control_auc:.3f}"
        texts = (f"{one.value:.3f} [{one.lower:.3f}, {one.upper:.3f}]" for one in cells)
        table.add_row(attack.name.value, *(text.replace("[", "\\[") for text in texts), control)
    shadow = "no shadow models"
    if result.shadow is not None:
        shadow = f"{result.shadow.models} shadow models ({result.shadow.kind}, {result.shadow.design.value})"
    print_rich(
        f"{result.members} members, {result.nonmembers} non-members; {shadow}; "
        f"intervals at {100 * result.confidence:g}%",
        table,
    )


def records_for(flags: ModelFlags, target: Target) -> AuditedRecords:
    """The records of all files as this model takes them."""
    from audit.membership.records import ColumnChoice, RecordTables, encode_tables
    from audit.membership.targets.run_target import RunTarget

    assert flags.members is not None
    assert flags.nonmembers is not None
    if isinstance(target, RunTarget):
        tables = RecordTables.read(flags.members, flags.nonmembers, flags.population, target.delimiter)
        return target.encode(tables)
    tables = RecordTables.read(flags.members, flags.nonmembers, flags.population)
    classes = None if flags.classes is None else tuple(name.strip() for name in flags.classes.split(","))
    choice = ColumnChoice(flags.label, flags.drop, classes)
    records = encode_tables(tables, choice, target.class_names, target.feature_names)
    if flags.label is None:
        click.echo(f"  class column: {records.label_column} (name another with --label)", err=True)
    return records


def _member_marks(tables: RecordTables) -> Any:
    import numpy as np

    return np.arange(tables.members.records + tables.nonmembers.records) < tables.members.records


def _options(flags: ModelFlags, recipe: ShadowRecipe | None, seed: int, confidence: float) -> MembershipOptions:
    from audit.membership.membership_audit import MembershipOptions
    from audit.membership.result import Assignment

    return MembershipOptions(flags.shadow_models, recipe, Assignment(flags.assignment), confidence, seed, flags.delta)


def _recipe(flags: ModelFlags) -> ShadowRecipe | None:
    """None for "same": the target itself says what resembles it."""
    from audit.membership.shadow.stacked_linear import StackedLogistic
    from audit.membership.shadow.stacked_perceptron import StackedPerceptron

    if flags.shadow == "same" or not flags.shadow_models:
        if flags.epochs is not None:
            raise click.UsageError("--epochs is for --shadow logistic or --shadow perceptron")
        return None
    epochs = {} if flags.epochs is None else {"epochs": flags.epochs}
    if flags.shadow == "logistic":
        return StackedLogistic(**epochs)
    return StackedPerceptron((flags.hidden,), **epochs)


def _claim(flags: ModelFlags, trust: TrustFile | None) -> Claim | None:
    """The manifest's promise, the run's own, or the auditor's words; in this order."""
    from audit.membership.epsilon_bound import Claim
    from calibrate.manifest.verify import authenticate, read_unverified
    from calibrate.privacy_unit import Relation
    from privfair.cli.output import read_bytes
    from privfair.run.folder import RunFolder

    if flags.epsilon is not None:
        return Claim.said(flags.epsilon, flags.delta, Relation(flags.relation))
    path = flags.manifest_path
    if path is None and flags.model_path is not None and flags.model_path.is_dir():
        path = RunFolder.existing(flags.model_path).manifest
    if path is None:
        return None
    envelope = read_bytes(path, "--manifest")
    read = read_unverified(envelope) if trust is None else authenticate(envelope, trust)
    return Claim.of_manifest(read.document)


@contextmanager
def _executor(jobs: int) -> Iterator[Executor | None]:
    """Threads: the products release Python's lock. One job runs here, so that an interrupt stops it at once."""
    if jobs == 1:
        yield None
        return
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(jobs)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _progress(models: int) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error while shadow models are trained."""
    if not models:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("shadow models", total=models)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# The attribute-inference part of `privfair audit`.

attribute_options = options(
    click.option(
        "--sensitive", help="With --model: the column whose values are to be guessed, for attribute inference."
    ),
    click.option(
        "--attribute-inference/--no-attribute-inference",
        "infer",
        default=True,
        show_default=True,
        help="Of a run: guess the attribute of its records from its model, beside imputation.",
    ),
)


@dataclass(frozen=True)
class AttributeFlags:
    sensitive: str | None
    infer: bool


@dataclass(frozen=True)
class AttributeAnswer:
    """What was found, or why nothing could be."""

    found: AttributeInference | None
    why_not: str | None = None

    def to_json(self) -> dict[str, Any]:
        if self.found is None:
            return {"attribute_inference": None, "attribute_inference_not_possible": self.why_not}
        return {"attribute_inference": self.found.to_json()}

    def show(self) -> None:
        """A table of attacks beside imputation."""
        from rich.markup import escape
        from rich.table import Table

        if self.found is None:
            if self.why_not is not None:
                print_rich(f"attribute inference: not possible ({escape(self.why_not)})")
            return
        found = self.found
        table = Table("attack", "right on members", "on non-members", "members minus non-members, over imputation")
        table.add_row("imputation", _share(found.imputation_members), _share(found.imputation_nonmembers), "")
        for one in found.attacks:
            gap = f"{_share(one.leakage)} \\[{_share(one.leakage.lower)}, {_share(one.leakage.upper)}]"
            table.add_row(
                one.name,
                _share(one.members.accuracy),
                _share(one.nonmembers.accuracy),
                f"{gap}{'  leaks' if one.leaks else ''}",
            )
        print_rich(f"attribute inference: {found.finding.value}; {escape(found.why)}", table)


def attribute_of_run(
    flags: AttributeFlags, run: Path, plan_path: Path | None, seed: int, confidence: float
) -> AttributeAnswer:
    """Of a run; a run that does not allow it (no model yet, images, too few records) says so."""
    from audit.attribute.attribute_audit import AttributeOptions
    from audit.attribute.of_model import attribute_inference_of_run
    from calibrate.errors import InvalidInput

    if not flags.infer:
        return AttributeAnswer(None, "it was not asked for")
    try:
        options = AttributeOptions(confidence, seed)
        return AttributeAnswer(attribute_inference_of_run(run, options, plan_path))
    except InvalidInput as refused:
        return AttributeAnswer(None, f"{refused.argument} {refused.rule}")


def attribute_of_model(flags: AttributeFlags, model: ModelFlags, seed: int, confidence: float) -> AttributeAnswer:
    """Of a model with two files; only where a column was named."""
    from audit.attribute.attribute_audit import AttributeOptions
    from audit.attribute.of_model import attribute_inference_of_model
    from audit.membership.records import RecordTables
    from audit.membership.targets.run_target import RunTarget

    if flags.sensitive is None:
        return AttributeAnswer(None, "no --sensitive COLUMN was named")
    if model.model_path is None:
        raise click.UsageError("--sensitive needs --model: scores of members say nothing about an attribute")
    assert model.members is not None
    assert model.nonmembers is not None
    target = open_model(model)
    delimiter = target.delimiter if isinstance(target, RunTarget) else ","
    tables = RecordTables.read(model.members, model.nonmembers, delimiter=delimiter)
    found = attribute_inference_of_model(
        target, tables, records_for(model, target), flags.sensitive, AttributeOptions(confidence, seed)
    )
    return AttributeAnswer(found)


def _share(value: Any) -> str:
    return f"{100 * (value if isinstance(value, float) else value.value):.1f}%"
