"""Options that several commands have, each declared once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)

VALUES_WANTED = {"now": False}
"""Whether this invocation was asked to show the cell that a file is refused for; `privfair.cli.main` sets it back."""


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several click options as one decorator, in reading order."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


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

_trust = ("--trust", "trust_path")
root_option = click.option("--root", type=FILE, help="Public root key that signed the trust file, where it is signed.")
required_trust_options = options(
    click.option(*_trust, type=FILE, required=True, help="Trust file: whose signatures are required."), root_option
)
trust_options = options(
    click.option(*_trust, type=FILE, help="Trust file by which the manifest's signatures are checked."), root_option
)
folder_trust_options = options(
    trust_options,
    click.option(
        "--trust-code",
        is_flag=True,
        help="Run the code that the run folder brings, if its digest is signed; needs --trust.",
    ),
)
"""For commands that open a run folder, which may come from anybody."""

anchor_option = click.option("--anchor", type=FILE, help="Anchor file; LEDGER.anchor beside a ledger file by default.")
manifest_option = click.option("--manifest", type=FILE, required=True, help="The signed budget for this plan.")
resume_option = click.option("--resume", is_flag=True, help="Go on with the interrupted run in --out.")
audit_option = click.option("--audit", "audit_path", type=FILE, help="JSON report that `privfair audit --out` wrote.")

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
