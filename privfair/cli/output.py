"""What every command shares: the --json flag, and printing either JSON or rich text."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from calibrate.errors import InvalidInput

VALUES_WANTED = {"now": False}
"""Whether this invocation was asked to show the cell that a file is refused for; `privfair.cli.main` sets it back."""

# Reading and writing files named on the command line, with errors that say which and why.


def read_bytes(path: Path, argument: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            argument, str(path), f"cannot be read ({error.strerror})", "check the path and its permissions"
        ) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or nothing: a crash leaves the old content. A device or a folder is never replaced."""
    if path.exists() and not path.is_file():
        raise InvalidInput("--out", str(path), "exists and is not a regular file", "name a file")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InvalidInput(
            "--out", str(path), f"cannot be written ({error.strerror})", "choose another place"
        ) from error


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


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "Infinity" if value > 0 else "-Infinity" if value < 0 else "NaN"
    return value


def print_rich(*renderables: object) -> None:
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
