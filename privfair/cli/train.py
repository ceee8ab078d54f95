"""`privfair train`: train under a signed budget."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privfair.cli.keys import trust_options
from privfair.cli.output import (
    json_option,
    number_text,
    print_json,
    print_wrapped,
    progress_bar,
    show_values_option,
    steps_option,
    table_lines,
    threads_option,
    threshold_options,
)
from privfair.durable import read_named

if TYPE_CHECKING:
    from calibrate.epsilon_so_far import EpsilonSoFar
    from privfair.run.public import Progress
    from privfair.training import TrainingResult

_EXAMPLE = """
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
  at-least = 7000                    # records each silo has for sure: public
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
  privfair train plan.toml --manifest budget.json --trust trust.json --ledger ledger.db --out run/
  privfair predict run/ --input new.csv --out predictions.csv

\b
With files of your own, one for each silo, [data] and [data.partition] become
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
A manifest is used once. An interrupted run goes on with --resume.
"""
_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command("train", epilog=_EXAMPLE, short_help="train under a signed budget")
@click.argument("plan", type=_PATH)
@click.option("--manifest", type=_PATH, required=True, help="The signed budget for this plan and data.")
@trust_options
@click.option(
    "--ledger",
    metavar="LEDGER",
    help="Ledger to charge: the file or postgresql+psycopg:// URL of `privfair ledger init`; not with --guards.",
)
@click.option("--anchor", type=_PATH, help="Anchor file of the ledger; LEDGER.anchor beside a file unless given.")
@click.option(
    "--guards",
    "guards_path",
    type=_PATH,
    help="Coordinate the guards of this TOML file, which hold data and ledgers, instead of reading any record.",
)
@click.option(
    "--test-file",
    "test_files",
    type=_PATH,
    multiple=True,
    help="With --guards: a file of public records to measure the model on; may be given several times.",
)
@steps_option
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for the run.")
@click.option("--resume", is_flag=True, help="Go on with the interrupted run in --out.")
@threshold_options
@threads_option
@click.option("--quiet", is_flag=True, help="No progress display.")
@show_values_option
@click.option("-v", "--verbose", is_flag=True, help="Show rates by group and every line of what is not protected.")
@json_option
def command(
    plan: Path,
    manifest: Path,
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
    quiet: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Train the plan in a TOML file under a signed budget; everything about the run goes into --out.

    The manifest must be signed for this very plan file and for data of this shape; each round is charged in the
    ledger before noise is drawn for it. Exit code 3: signature, trust, plan, data or ledger was refused.

    With --guards the silos' records, ledgers and noise are in processes of their own (`privfair guard serve`), and this
    one only asks them for published values; docs/how-to/federation.md.
    """
    from calibrate.epsilon_so_far import EpsilonSoFar
    from privfair.run.metrics import ThresholdRule
    from privfair.run.public import promise_of, read_signed_plan

    rule = ThresholdRule(threshold, target_gap, target_rate)
    if guards_path is None:
        if ledger is None or test_files or steps_per_message > 1:
            raise click.UsageError(
                "--ledger is needed, and neither --test-file nor --steps-per-message is known, unless --guards is given"
            )
    elif ledger is not None or anchor is not None:
        raise click.UsageError("with --guards the ledgers are the guards' own; drop --ledger and --anchor")
    elif rule != ThresholdRule():
        raise click.UsageError("with --guards no record is held out here; choose the threshold when predicting")
    with progress_bar("reading and checking budget, plan and files", shown=not quiet):
        from privfair.training import TrustInForce, execute, prepare, train_with_guards  # loads the engine

        trust = TrustInForce(trust_path, root)
        if guards_path is None:
            prepared = prepare(plan, manifest, trust)
            budget = prepared.document
        else:
            signed = read_signed_plan(plan, read_named(manifest, "--manifest"), trust.file)
            budget = signed.document
    promise = promise_of(budget)
    prices = EpsilonSoFar(budget)
    try:
        with _display(prices, promise.text, quiet) as show:
            if guards_path is None:
                assert ledger is not None
                result = execute(prepared, out, ledger, anchor, resume, show, trust, rule)
            else:
                result = train_with_guards(signed, guards_path, out, test_files, resume, show, steps_per_message)
    except KeyboardInterrupt:
        click.echo(f"privfair: interrupted; the run in {out} goes on with the same command and --resume", err=True)
        sys.exit(130)
    document = result.to_json()
    document["epsilon_spent"] = None if promise.nothing else prices.after(document["rounds_charged"])
    if as_json:
        print_json(document)
    else:
        _show(result, document, verbose)


@contextmanager
def _display(prices: EpsilonSoFar, promise: str, quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A bar on standard error: steps, epsilon spent so far, and the last metrics."""
    if quiet:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

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


def _metrics_text(overall: dict[str, Any]) -> str:
    if overall["accuracy"] is None:
        return "none was measured"
    parity = overall["demographic_parity"]
    gap = "" if parity is None else f" gap {parity:.3f}"
    return f"accuracy {overall['accuracy']:.3f}{gap}"


def quality_lines(measured: dict[str, Any], warning: str | None, label: str = "this model") -> list[str]:
    """The small table that stands beside every accuracy: what always answering the majority reaches, and a warning."""
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


def group_lines(measured: dict[str, Any]) -> list[str]:
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


def _show(result: TrainingResult, document: dict[str, Any], verbose: bool) -> None:
    spent, decision = document["epsilon_spent"], document["decision"]
    protected, not_protected = result.protection.lines()
    print_wrapped(protected)
    if verbose:
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
                f"  Try: privfair frontier {document['run']} --target-rate 0.2, or class-weight and a larger "
                "learning-rate or epsilon in the plan.",
                indent="       ",
            )
        if verbose:
            print_wrapped(*group_lines(measured))
    if decision["not_reached"] is not None:
        print_wrapped(f"WARNING  {decision['not_reached']}; the threshold stays at {decision['threshold']:g}")
    if result.best is not None:
        setting = ", ".join(f"{name} = {value}" for name, value in result.best["setting"].items())
        print_wrapped("", f"the best try of the search, by {result.best['score']}: {setting}")
    print_wrapped("", f"run folder: {document['run']}")
