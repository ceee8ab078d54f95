"""What every command shares: the --json flag, and printing either JSON or rich text."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

VALUES_WANTED = {"now": False}
"""Whether this invocation was asked to show the cell that a file is refused for; `privfair.cli.main` sets it back."""

Item = TypeVar("Item")

ledger_option = click.option(
    "--ledger",
    "ledgers",
    multiple=True,
    metavar="[SILO=]PATH|ID",
    help="The one ledger in which the manifest may be claimed, by its path or id; once per silo with SILO=.",
)
show_values_option = click.option(
    "--show-values",
    is_flag=True,
    expose_value=False,
    callback=lambda _context, _option, wanted: VALUES_WANTED.update(now=wanted),
    help="Show the cell that a file is refused for, to you at the terminal; nothing is shown where the output is kept.",
)
"""For commands that read the owner's files; `privfair.cli.main` shows the cell."""

json_option = click.option("--json", "as_json", is_flag=True, help="JSON on standard output and nothing else there.")


def print_json(document: object) -> None:
    """Strict JSON: an unbounded epsilon becomes the string "Infinity", never a bare NaN or Infinity."""
    click.echo(json.dumps(_strict(document), indent=2, allow_nan=False, ensure_ascii=False))


def print_answer(document: dict[str, Any], as_json: bool, *sentences: str) -> None:
    """The document as JSON, or the sentences that say the same."""
    if as_json:
        print_json(document)
        return
    for sentence in sentences:
        click.echo(sentence)


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "Infinity" if value > 0 else "-Infinity" if value < 0 else "NaN"
    return value


WIDTH = 80


def print_wrapped(*lines: str, indent: str = "  ") -> None:
    """Plain text at 80 columns, on any screen: later lines of a sentence are indented."""
    for line in lines:
        click.echo("\n".join(wrap(line, indent)))


def wrap(line: str, indent: str = "  ") -> list[str]:
    """One sentence as lines of at most 80 columns; words are never broken, so that paths can be copied."""
    found = textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return found or [""]


def table_lines(rows: Iterable[Iterable[str]]) -> list[str]:
    """Rows of equal length as aligned columns, the first one to the left and the others to the right."""
    cells = [list(row) for row in rows]
    widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
    return [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def checks_text(outcomes: Sequence[str]) -> str:
    """How many checks of an audit passed, and why the others did not: one that is not possible is not a failure."""
    counted = [f"{outcomes.count('passed')} of {len(outcomes)} checks passed"]
    counted += [f"{outcomes.count(one)} {one}" for one in ("failed", "not possible") if one in outcomes]
    return ", ".join(counted)


def number_text(value: float | None, digits: int = 3) -> str:
    """A share as people read it, and a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


@contextmanager
def progress_bar(label: str, shown: bool = True) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on standard error with the time left: call what it gives with what is done, and how much there is.

    Files that are read meanwhile take the bar over, each with its share. Where nobody looks (a pipe, --json into a
    file) there is no bar.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from privfair.data.read import watch_reading

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        TextColumn("{task.fields[count]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None, count="")

        def show(words: str, done: int, total: int | None, count: str) -> None:
            if bar.tasks[0].description != words:
                bar.reset(task, description=words)
            bar.update(task, completed=done, total=total, count=count)

        def show_reading(file: str, done: int, size: int) -> None:
            if done < size:
                show(f"reading {Path(file).name}", done, size, f"{100 * done // size}%")
            else:
                show(label, 0, None, "")

        with watch_reading(show_reading):
            yield lambda done, total: show(label, done, total, f"{done}/{'?' if total is None else total}")


def track(label: str, items: Sequence[Item]) -> Iterator[Item]:
    """The items one after the other, with a bar on standard error that says how long the rest takes."""
    with progress_bar(label) as show:
        for number, item in enumerate(items):
            show(number, len(items))
            yield item


def print_rich(*renderables: object) -> None:
    """Tables and other things of rich, on standard output."""
    from rich.console import Console

    console = Console(highlight=False)
    for renderable in renderables:
        console.print(renderable)


def epsilon_text(lower: float, upper: float) -> str:
    """An interval, shown with the digits it certifies and rounded outward."""
    if math.isinf(upper):
        return "unbounded"
    gap = upper - lower
    places = 6 if gap <= 0 else min(6, max(3, 1 - math.floor(math.log10(gap))))
    scale = 10.0**places
    low, high = math.floor(lower * scale) / scale, math.ceil(upper * scale) / scale
    return f"{high:.{places}f}" if low == high else f"[{low:.{places}f}, {high:.{places}f}]"


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several click options as one decorator, in reading order."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


threads_option = click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    default=None,
    expose_value=False,
    help="Number of processor threads; one unless given, because more slow small models down.",
)
"""Read again by `privfair.cli.main`, before anything that computes is loaded."""

steps_option = click.option(
    "--steps-per-message",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Number of steps that a guard answers at once, for slow engines; more than 1 needs a run with one party.",
)

threshold_options = options(
    click.option(
        "--threshold",
        type=float,
        metavar="T",
        help="Predict the positive class from this probability on (two classes only).",
    ),
    click.option(
        "--target-gap",
        type=float,
        metavar="G",
        help="Choose the threshold: the best one whose parity gap on the held-out records is at most this.",
    ),
    click.option(
        "--target-rate",
        type=float,
        metavar="R",
        help="Choose the threshold: this share of the held-out records gets the positive class.",
    ),
)
"""Post-processing of the model; a target is read off the held-out records and is not private."""

_FILE = click.Path(path_type=Path, dir_okay=False)
trust_options = options(
    click.option(
        "--trust", "trust_path", type=_FILE, help="Trust file by which the manifest's signatures are checked."
    ),
    click.option("--root", type=_FILE, help="Public key that signed the trust file, if it is signed."),
    click.option(
        "--trust-code",
        is_flag=True,
        help="Run the code that the run folder brings, if its digest is signed; needs --trust.",
    ),
)
"""For commands that open a run folder, which may come from anybody."""

scheduler_option = click.option(
    "--scheduler", help="Address of a Dask scheduler, for example tcp://127.0.0.1:8786; a killed worker loses nothing."
)
worker_options = options(
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of processes that call the function side by side.",
    ),
    scheduler_option,
)
