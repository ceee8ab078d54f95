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


steps_option = click.option(
    "--steps-per-message",
    type=click.IntRange(1, 1024),
    default=1,
    hidden=True,
    help="Number of steps that a guard answers at once, for slow engines; more than 1 needs a run with one party.",
)

threshold_options = options(
    click.option("--threshold", type=float, hidden=True, help="As threshold under [decision] in the plan."),
    click.option("--target-gap", type=float, hidden=True, help="As target-gap under [decision] in the plan."),
    click.option("--target-rate", type=float, hidden=True, help="As target-rate under [decision] in the plan."),
)
"""Former spellings of [decision] in a plan."""

_trust = ("--trust", "trust_path")
root_option = click.option("--root", type=FILE, hidden=True, help="Public root key of a signed trust file.")
required_trust_options = options(
    click.option(*_trust, type=FILE, required=True, help="Trust file: whose signatures are required."), root_option
)
budget_option = click.option(
    *("--budget", "--manifest", "budget"),
    cls=Renamed,
    type=FILE,
    required=True,
    help="The signed budget for this plan.",
)
resume_option = click.option("--resume", is_flag=True, help="Go on with the interrupted run in --out.")
audit_option = click.option("--audit", "audit_path", type=FILE, help="JSON report that `privfair audit --out` wrote.")
