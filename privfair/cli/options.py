"""Options that several commands have, each declared once; those that every command has are global."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


@dataclass
class Invocation:
    """What the global options of one invocation ask for."""

    as_json: bool = False
    verbose: bool = False
    quiet: bool = False
    show_values: bool = False
    config: Path | None = None


def asked() -> Invocation:
    """What this invocation asks for; one command that runs another has answers of its own."""
    context = click.get_current_context(silent=True)
    return Invocation() if context is None else context.meta.setdefault(__name__, Invocation())


VALUES_WANTED = {"now": False}
"""Whether this invocation was asked to show the cell that a file is refused for; `privfair.cli.main` sets it back."""


def _remember(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Keep what a global option says; a command below a group may repeat or leave out what the group was told."""
    said, name = context.meta.setdefault(__name__, Invocation()), option.name or ""
    if value:
        setattr(said, name, value)
        VALUES_WANTED["now"] |= name == "show_values"
    return getattr(said, name)


def _global(*names: str, help: str, **more: Any) -> click.Option:
    keep: dict[str, Any] = {"callback": _remember, "is_eager": True, "expose_value": False, "hidden": True}
    return click.Option(names, help=help, **keep | more)


GLOBAL_OPTIONS = (
    _global("--json", "as_json", is_flag=True, help="JSON on standard output and nothing else there."),
    _global("-v", "--verbose", is_flag=True, help="Show more: reasons, assumptions, every command that was run."),
    _global("-q", "--quiet", is_flag=True, help="No progress display."),
    _global(
        *("--threads",),
        type=click.IntRange(1, 1024),
        callback=None,
        help="Number of processor threads; one unless given, because more slow small models down.",
    ),
    _global(
        "--show-values",
        is_flag=True,
        help="Show the cell that a file is refused for, to you at the terminal; nothing is shown where output is kept.",
    ),
    _global("--config", type=FILE, help="Your configuration: whom you trust, and your ledger and key."),
)
"""What every command takes, before and after its own options; `--help` of the whole names them once."""


def with_global_options(command: click.Command) -> None:
    """Let the command take the global options, those that it does not have itself."""
    own = {name for param in command.params for name in param.opts}
    command.params += [option for option in GLOBAL_OPTIONS if own.isdisjoint(option.opts)]


class Renamed(click.Option):
    """An option whose later names are former spellings: they are taken, and not shown."""

    def _named_once(self) -> click.Option:
        shown = copy(self)
        shown.opts = self.opts[:1]
        return shown

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return click.Option.get_help_record(self._named_once(), ctx)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return f"'{self.opts[0]}'"


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
json_option = click.option(
    "--json", "as_json", is_flag=True, hidden=True, callback=_remember, help="JSON on standard output."
)
"""For a command that is not yet written with `asked`."""

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
budget_option = click.option(
    *("--budget", "--manifest", "budget"),
    cls=Renamed,
    type=FILE,
    required=True,
    help="The signed budget for this plan.",
)
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
