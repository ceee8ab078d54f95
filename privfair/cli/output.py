"""What every command prints with: JSON where it is asked for, else text at 80 columns, and progress."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from privfair.cli.options import WIDTH, asked
from privfair.data.read import watch_reading

Item = TypeVar("Item")


def print_json(document: object) -> None:
    """Strict JSON: an unbounded epsilon becomes the string "Infinity", never a bare NaN or Infinity."""
    click.echo(json.dumps(_strict(document), indent=2, allow_nan=False, ensure_ascii=False))


def answer(document: object, *sentences: str) -> None:
    """The document where --json asks for it, else the sentences that say the same, at 80 columns."""
    if asked().as_json:
        print_json(document)
    else:
        print_wrapped(*sentences)


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "Infinity" if value > 0 else "-Infinity" if value < 0 else "NaN"
    return value


def print_wrapped(*lines: str, indent: str = "  ") -> None:
    """Plain text at 80 columns, on any screen: later lines of a sentence are indented."""
    for line in lines:
        click.echo("\n".join(wrap(line, indent)))


def wrap(line: str, indent: str = "  ") -> list[str]:
    """Text as lines of at most 80 columns; words are never broken, so that paths can be copied."""
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
def progress_bar(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on standard error with the time left: call what it gives with what is done, and how much there is.

    Files that are read meanwhile take the bar over, each with its share. Where no one looks (a pipe, --json into a
    file) there is no bar.
    """
    console = Console(stderr=True)
    if asked().quiet or not console.is_terminal:
        yield lambda done, total: None
        return

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
