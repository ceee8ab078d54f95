"""`privfair audit training module:function`: does anyone's training function keep its promise?"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from audit.executors import executor_of
from audit.named import load_named
from audit.settings import CONFIDENCE
from calibrate.errors import InvalidInput, PrivfairError, open_unit
from calibrate.privacy_unit import EpsilonDelta
from privfair.cli.audit_show import show_report
from privfair.cli.options import FILE, FOLDER, json_option, worker_options
from privfair.cli.output import print_json, progress_bar
from privfair.data.infer import FileLayout, read_header
from privfair.data.read import read_table
from privfair.durable import write_named


@click.command("training", short_help="does a training function keep its promise?")
@click.argument("function", metavar="MODULE:FUNCTION")
@click.option("--data", "data_path", type=FILE, required=True, help="Records to train on, as CSV or Parquet.")
@click.option("--label", required=True, help="Column with the class, or the quantity.")
@click.option("--epsilon", type=float, help="Claimed epsilon that is on trial; without it the verdict is leaks or not.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="Delta of the claim and of the bound.")
@click.option(
    "--access",
    type=click.Choice(["final-model", "iterates", "gradients"]),
    default="final-model",
    show_default=True,
    help="What the observer sees; beyond the final model the function must call watch (docs/audit-training.md).",
)
@click.option("--unit", help="Column that tells people apart; all records of one person share one coin.")
@click.option(
    "--arrays", is_flag=True, help="Give the function a pair of arrays (features, labels) instead of a pandas table."
)
@click.option("--runs", type=click.IntRange(min=1), default=32, show_default=True, help="How often to train.")
@click.option("--canaries", type=click.IntRange(min=2), help="Number of units with a coin in each run.")
@click.option(
    "--score", metavar="MODULE:FUNCTION", help="score(model, records): one number per record, larger for member."
)
@click.option(
    "--control", metavar="MODULE:FUNCTION", help="The same training without noise, to measure the power with."
)
@click.option(
    "--budget-seconds", type=float, help="Train as often as fits into so many seconds, by the first run's time."
)
@click.option("--folder", type=FOLDER, help="Keep finished runs here, and go on from them.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of canaries and coins.")
@click.option("--confidence", type=float, default=CONFIDENCE, show_default=True, help="Confidence of the bound.")
@click.option("--out", type=FILE, help="File to which the report is also written, as JSON.")
@worker_options
@json_option
def training_command(
    function: str,
    data_path: Path,
    label: str,
    epsilon: float | None,
    delta: float,
    access: str,
    unit: str | None,
    arrays: bool,
    runs: int,
    canaries: int | None,
    score: str | None,
    control: str | None,
    budget_seconds: float | None,
    folder: Path | None,
    seed: int,
    confidence: float,
    out: Path | None,
    workers: int,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Train again and again, with canaries that coins put in or leave out, and bound epsilon by what shows.

    \b
    The function is anyone's: train(data) -> model, with data a pandas table (or --arrays).
    What it is asked for depends on --access:
      final-model   the model's confidence on the canaries, or --score
      iterates      train(data, watch) that shows watch its parameters after each step
      gradients     train(data, watch) that shows watch its noisy gradient at each step
    Canaries: records as they are, mislabelled ones, and rare ones; see docs/audit-training.md.
    Exit code 1 if the claim is refuted; 0 otherwise. Ctrl-C with --folder keeps what is done.
    """
    # All that can be refused at once, before anything heavy is loaded.
    open_unit("--confidence", confidence)
    EpsilonDelta(1.0 if epsilon is None else epsilon, delta)
    _require_columns(data_path, label, unit, arrays)
    with redirect_stdout(sys.stderr):  # a module of one's own may print
        for named in (function, control, score):
            if named is not None:
                load_named(named)

    from audit.coins.training_audit import audit_training

    data, column = _read(data_path, label, unit, arrays)
    with executor_of(workers, scheduler) as executor, _progress(folder) as progress, _own_mistakes(function):
        report = audit_training(
            function,
            data,
            epsilon=epsilon,
            delta=delta,
            access=access,
            label=column,
            unit=unit,
            runs=runs,
            canaries=canaries,
            score=score,
            control=control,
            confidence=confidence,
            seed=seed,
            budget_seconds=budget_seconds,
            executor=executor,
            folder=folder,
            progress=progress,
        )
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    report = report.model_copy(update={"audited_at": now})
    if out is not None:
        write_named(out, f"{report.model_dump_json(indent=2)}\n".encode())
    if as_json:
        print_json(report.to_json())
    else:
        show_report(report, verbose=False)
    if report.verdict.value == "violated":
        sys.exit(1)


def _require_columns(path: Path, label: str, unit: str | None, arrays: bool) -> None:
    """Refuse a file that is not there, or whose first line does not name the columns."""
    if not path.is_file():
        raise InvalidInput("--data", str(path), "does not exist", "check the path")
    if arrays and unit is not None:
        raise click.UsageError("--unit needs a table: leave --arrays out")
    header = read_header(path, FileLayout())
    if header is None:
        return
    for option, name in (("--label", label), ("--unit", unit)):
        if name is not None and name not in header.columns:
            raise InvalidInput(option, name, "is not in the data", f"name one of its {len(header.columns)} columns")


def _read(path: Path, label: str, unit: str | None, arrays: bool) -> tuple[Any, str | None]:
    """A pandas table with the name of its label, or a pair of arrays."""
    import pandas as pd

    frame = pd.DataFrame({name: _numbers_or_text(values) for name, values in read_table(path, ",").columns.items()})
    if not arrays:
        return frame, label
    if label not in frame.columns:
        raise InvalidInput("--label", label, "is not in the data", f"name one of its {len(frame.columns)} columns")
    try:
        features = frame.drop(columns=[label]).to_numpy("float64")
    except ValueError:
        raise click.UsageError("--arrays takes numbers only: leave it out, or encode the texts") from None
    return (features, frame[label].to_numpy()), None


def _numbers_or_text(values: NDArray[Any]) -> NDArray[Any]:
    """A column as pandas would read it: numbers where every cell is one or is empty."""
    import pandas as pd

    try:
        return np.asarray(pd.to_numeric(values))
    except (ValueError, TypeError):
        return values


@contextmanager
def _own_mistakes(function: str) -> Iterator[None]:
    """What the user's function raises is a mistake in it, said with file and line; its words may quote records."""
    try:
        yield
    except Exception as error:
        module = sys.modules.get(function.partition(":")[0])
        file = None if module is None else getattr(module, "__file__", None)
        lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == file]
        if isinstance(error, PrivfairError) or not lines:
            raise
        why = f"raises {type(error).__name__} in line {lines[-1]} of {file}"
        raise InvalidInput("function", function, why, "call it on the data yourself to see more") from error


@contextmanager
def _progress(folder: Path | None) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error; an interrupt says where finished runs are kept."""
    try:
        with progress_bar("training runs") as show:
            yield show
    except KeyboardInterrupt:
        if folder is not None:
            click.echo(f"  stopped; finished runs are kept in {folder}, the same command goes on from them", err=True)
        raise
