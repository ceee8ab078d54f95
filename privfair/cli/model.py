"""A model: train it under a signed budget, and predict with it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from calibrate.epsilon_so_far import EpsilonSoFar
from calibrate.manifest.trust import FolderTrust
from privfair.cli.config import anchor_for, configured_trust, needed_trust, read_trust_file, root_for, user_config
from privfair.cli.options import (
    FILE,
    FOLDER,
    Renamed,
    asked,
    budget_option,
    resume_option,
    root_option,
    steps_option,
    threshold_options,
)
from privfair.cli.output import number_text, print_json, print_wrapped, progress_bar, table_lines
from privfair.durable import read_named, write_named
from privfair.fairness.measurement import Measured
from privfair.plan.plan import AS_IT_IS, Plan, ThresholdRule
from privfair.run.metrics import predict
from privfair.run.open_run import TrustInForce
from privfair.run.public import Progress, promise_of, read_signed_plan
from privfair.training import TrainingResult, execute, prepare, train_with_guards

_TRAIN_EXAMPLE = """
\b
A whole example. plan.toml (docs/training.md has every key):
  algorithm = "gaussian"             # DP-SGD in every silo; or steffle
  [target]
  epsilon = 2.0
  delta = 1e-5
  [privacy]
  sampling-rate = 0.05
  rounds = 200
  clip = 1.0
  [data]
  dataset = "credit-card"
  at-least = 7000                    # public lower bound on records per silo
  [data.partition]
  kind = "equal"
  silos = 3
  [training]
  learning-rate = 1.0

\b
A fair model, one attribute protected: above [data], and as [training], write
  algorithm = "pay-once"               # or steffle (docs/examples)
  [target]
  epsilon = 1.0
  delta = 1e-5
  [privacy]
  rounds = 200                         # free: the attribute is paid for once
  [training]
  fairness = 4.0
  learning-rate = 1.0

\b
Commands:
  privfair keys generate --role privacy-officer --out officer.pem
  privfair keys trust --key officer.pem --role privacy-officer --out trust.json
  privfair ledger init ledger.db
  privfair calibrate plan.toml --out budget.json --key officer.pem --ledger ledger.db
  privfair train plan.toml --budget budget.json --trust trust.json --ledger ledger.db --out run/
  privfair predict run/ --input new.csv --out predictions.csv

\b
With your own files, one for each silo, [data] and [data.partition] become
  [data]
  files = ["north.csv", "south.csv", "west.csv"]
  schema = "schema.toml"
  at-least = 100

\b
and schema.toml says what the columns mean (docs/data.md):
  version = 1
  [target]
  column = "default"
  classes = ["no", "yes"]
  [sensitive]
  column = "sex"
  groups = ["female", "male"]
  [numeric.age]
  bounds = [18, 98]                    # public bounds; or mean and scale
  [numeric.income]
  mean = 10.0
  scale = 2.0
  [categorical.job]
  values = ["clerk", "nurse", "other"]

\b
A name with spaces is quoted: [numeric."Age in years"].
A manifest is used once. Continue an interrupted run with --resume.
"""


@click.command("train", epilog=_TRAIN_EXAMPLE, short_help="train under a signed budget")
@click.argument("plan", type=FILE)
@budget_option
@needed_trust
@click.option("--ledger", metavar="LEDGER", help="Ledger to charge [default: config]; not with --sites.")
@click.option("--anchor", type=FILE, hidden=True, help="Anchor file, if not the configured one.")
@root_option
@click.option(
    *("--sites", "--guards", "guards_path"),
    cls=Renamed,
    type=FILE,
    help="Coordinate the sites of this TOML file, whose guards hold data and ledgers, instead of reading any record.",
)
@click.option(
    "--test-file",
    "test_files",
    type=FILE,
    multiple=True,
    hidden=True,
    help="With --sites: a file of public records to measure the model on; may be given several times.",
)
@steps_option
@click.option("--out", type=FOLDER, required=True, help="Folder for the run.")
@resume_option
@threshold_options
def train_command(
    plan: Path,
    budget: Path,
    trust_path: Path,
    root: Path | None,
    ledger: str | None,
    anchor: Path | None,
    guards_path: Path | None,
    test_files: tuple[Path, ...],
    steps_per_message: int,
    out: Path,
    resume: bool,
    threshold: float | None,
    target_gap: float | None,
    target_rate: float | None,
) -> None:
    """Train the plan in a TOML file under a signed budget; everything about the run goes into --out.

    The manifest must be signed for this very plan file and for data of this shape; each round is charged in the
    ledger before noise is drawn for it. Exit code 3: signature, trust, plan, data or ledger was refused.

    With --sites the silos' records, ledgers and noise are in separate processes (`privfair serve`), and this
    one only asks them for published values; docs/how-to/federation.md.
    """
    rule = ThresholdRule(threshold, target_gap, target_rate)
    if guards_path is None:
        ledger = ledger or user_config().ledger
        if ledger is None or test_files or steps_per_message > 1:
            raise click.UsageError(
                "--ledger is needed, and neither --test-file nor --steps-per-message is known, unless --sites is given"
            )
    elif ledger is not None or anchor is not None:
        raise click.UsageError("with --sites the ledgers are the guards' own; drop --ledger and --anchor")
    elif rule != AS_IT_IS or Plan.read(plan).decision != AS_IT_IS:
        raise click.UsageError("with --sites no record is held out here; choose the threshold when predicting")
    with progress_bar("reading and checking budget, plan and files"):
        trust = TrustInForce(trust_path, root or root_for(trust_path))
        if guards_path is None:
            prepared = prepare(plan, budget, trust)
            document = prepared.document
        else:
            signed = read_signed_plan(plan, read_named(budget, "--budget"), trust.file)
            document = signed.document
    promise = promise_of(document)
    prices = EpsilonSoFar(document)
    try:
        with _display(prices, promise.text) as show:
            if guards_path is None:
                assert ledger is not None
                place, witness = anchor or anchor_for(ledger), user_config().witness
                result = execute(prepared, out, ledger, place, resume, show, trust, threshold=rule, witness=witness)
            else:
                result = train_with_guards(signed, guards_path, out, test_files, resume, show, steps_per_message)
    except KeyboardInterrupt:
        click.echo(f"privfair: interrupted; continue the run in {out} with the same command and --resume", err=True)
        sys.exit(130)
    answer = {**result.to_json()}
    answer["epsilon_spent"] = None if promise.nothing else prices.after(answer["rounds_charged"])
    if asked().as_json:
        print_json(answer)
    else:
        _show(result, answer)


@contextmanager
def _display(prices: EpsilonSoFar, promise: str) -> Iterator[Callable[[Progress], None] | None]:
    """A bar on standard error: steps, epsilon spent so far, and the last metrics."""
    if asked().quiet:
        yield None
        return

    console = Console(stderr=True, highlight=False)
    console.print(promise, markup=False)
    columns = (
        TextColumn("training"),
        BarColumn(10),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[spent]}"),
        TextColumn("{task.fields[metrics]}"),
    )
    with Bar(*columns, console=console, transient=False) as bar:
        task = bar.add_task("training", total=None, spent="", metrics="")

        def show(now: Progress) -> None:
            spent = prices.about(now.charged)
            shown = "no promise" if spent is None else f"eps spent <= {spent:.2f}"
            fields: dict[str, Any] = {"spent": shown}
            if now.metrics is not None:
                fields["metrics"] = _metrics_text(now.metrics["overall"])
            bar.update(task, completed=now.step, total=now.updates, **fields)

        yield show


def _metrics_text(overall: Measured) -> str:
    if overall["accuracy"] is None:
        return "none was measured"
    parity = overall["demographic_parity"]
    gap = "" if parity is None else f" gap {parity:.3f}"
    return f"accuracy {overall['accuracy']:.3f}{gap}"


def quality_lines(measured: Measured, warning: str | None, label: str = "this model") -> list[str]:
    """The table under every accuracy: what always answering the majority reaches, and a warning."""
    majority = measured["majority"]
    classes = max((len(group["selection_rates"]) for group in measured["groups"].values()), default=2)
    rows = [
        ("", "accuracy", "balanced", "AUC", "parity gap"),
        (
            label,
            number_text(measured["accuracy"]),
            number_text(measured["balanced_accuracy"]),
            number_text(measured.get("auc")),
            number_text(measured["demographic_parity"]),
        ),
        (
            f"always {majority['class']!r}",
            number_text(majority["accuracy"]),
            number_text(1 / classes),
            number_text(0.5),
            number_text(0.0),
        ),
    ]
    return [f"  {line}" for line in table_lines(rows)] + ([] if warning is None else ["", f"WARNING  {warning}"])


def group_lines(measured: Measured) -> list[str]:
    """Rates by group, one line per group."""
    rows = [("group", "records", "accuracy", "positive rate", "true positive", "false positive")]
    rows += [
        (
            name,
            str(group["records"]),
            number_text(group["accuracy"]),
            number_text(group["positive_rate"]),
            number_text(group["true_positive_rate"]),
            number_text(group["false_positive_rate"]),
        )
        for name, group in measured["groups"].items()
    ]
    return [f"  {line}" for line in table_lines(rows)]


def _show(result: TrainingResult, document: Measured) -> None:
    spent, decision = document["epsilon_spent"], document["decision"]
    protected, not_protected = result.protection.lines()
    print_wrapped(protected)
    if asked().verbose:
        print_wrapped("NOT protected:", *(f"  - {text}" for text in document["not_protected"]), indent="    ")
    else:
        print_wrapped(not_protected)
    charged = f"{document['rounds_charged']} of {document['rounds_signed']} signed rounds charged"
    cost = "" if spent is None else f", epsilon spent at most {spent:.4f}"
    print_wrapped(
        f"{document['algorithm']}: {document['promise']}", f"{document['rounds']} rounds trained; {charged}{cost}"
    )
    measured = result.measured
    if measured:
        at = "" if decision["rule"] == "default" else f" at threshold {decision['threshold']:g} ({decision['rule']})"
        print_wrapped("", f"On the held-out records{at}, measured exactly (these numbers are not private):")
        print_wrapped(*quality_lines(measured, result.warning))
        if result.warning is not None:
            print_wrapped(
                f"  Try: privfair report {document['run']} --format frontier --decide target-rate=0.2, or class-weight "
                "and a larger learning-rate or epsilon in the plan.",
                indent="       ",
            )
        if asked().verbose:
            print_wrapped(*group_lines(measured))
    if decision["not_reached"] is not None:
        print_wrapped(f"WARNING  {decision['not_reached']}; the threshold stays at {decision['threshold']:g}")
    if result.best is not None:
        setting = ", ".join(f"{name} = {value}" for name, value in result.best["setting"].items())
        print_wrapped("", f"the best try of the search, by {result.best['score']}: {setting}")
    print_wrapped("", f"run folder: {document['run']}")


_PREDICT_EXAMPLE = """
\b
Example:
  privfair predict run/ --input patients.csv --id patient --out predictions.csv
The file needs the feature columns of the training files; class and sensitive attribute may be missing.
"""


@click.command("predict", epilog=_PREDICT_EXAMPLE, short_help="the predictions of a trained model")
@click.argument("run", type=FOLDER)
@click.option("--input", "input_path", type=FILE, required=True, help="CSV or Parquet file with the features.")
@click.option("--out", type=FILE, required=True, help="CSV to write.")
@click.option(
    *("--id", "--keep", "kept"),
    cls=Renamed,
    multiple=True,
    metavar="COLUMN",
    help="Column of the input to repeat first, to know who is who; once per column.",
)
@click.option(
    "--threshold",
    type=float,
    metavar="T",
    help="Predict the positive class from this probability on [default: the run's].",
)
@configured_trust
@click.option(
    *("--allow-code", "--trust-code", "trust_code"),
    cls=Renamed,
    is_flag=True,
    help="Run the code that the run folder brings, if its digest is signed; needs --trust.",
)
def predict_command(
    run: Path,
    input_path: Path,
    out: Path,
    kept: tuple[str, ...],
    threshold: float | None,
    trust_path: Path | None,
    trust_code: bool,
) -> None:
    """Apply the model in RUN to every record of a file: its class, and the probability of each class.

    The CSV can be opened in a spreadsheet: a text that would run as a formula there gets an apostrophe in front.
    """
    signers = None if trust_path is None else read_trust_file(trust_path)
    trusted = FolderTrust(signers, trust_code)
    found = predict(run, input_path, trusted, keep=tuple(dict.fromkeys(kept)), threshold=threshold)
    write_named(out, found.as_csv())
    counts = Counter(found.predicted)
    warning = None
    if len(counts) == 1 and len(found.predicted) > 1:
        same = f"all {len(found.predicted)} records get {found.predicted[0]!r}"
        warning = f"{same}; privfair report RUN --format frontier shows other thresholds"
    if asked().as_json:
        answer = {"predictions": str(out), "records": len(found.predicted), "classes": dict(counts)}
        remark = {} if found.remark is None else {"remark": found.remark}
        print_json({**answer, "threshold": found.threshold, "notes": list(found.notes), "warning": warning, **remark})
        return
    if found.remark is not None:
        print_wrapped(found.remark)
    for note in found.notes:
        print_wrapped(f"{input_path}: {note}, unlike in the training files; read so")
    shown = ", ".join(f"{name}: {counts[name]}" for name in found.class_names)
    at = "" if found.threshold is None else f"; threshold {found.threshold:g}"
    click.echo(f"{out}: {len(found.predicted)} records ({shown}{at})")
    if warning is not None:
        print_wrapped(f"WARNING  {warning}")
