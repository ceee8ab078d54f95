"""What commands share: options that several of them have, each declared once, and how `--help` shows them.

Help has nothing beyond 80 columns, no sentence cut off, and long lists of options in parts.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
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
    """What this invocation asks for; a command that runs another has separate answers."""
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
        help="Number of processor threads [default: 1, the fastest for small models].",
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
resume_option = click.option("--resume", is_flag=True, help="Resume the interrupted run in --out.")
audit_option = click.option("--audit", "audit_path", type=FILE, help="JSON report that `privfair audit --out` wrote.")


# Help of commands.

WIDTH = 80


class _Formatter(click.HelpFormatter):
    """Click keeps lines of a block marked by `\\b` as they are; here those that are too long are broken as well."""

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([_in_words(row) for row in rows], col_max, col_spacing)

    def write_text(self, text: str) -> None:
        inner = click.HelpFormatter(width=self.width, max_width=self.width)
        inner.current_indent = self.current_indent
        inner.write_text(text)
        for line in inner.getvalue().splitlines():
            self.write("\n".join(break_line(line)) + "\n")


def _in_words(row: tuple[str, str]) -> tuple[str, str]:
    """An option with its range as people say it: `--reruns N` and "at least 0", not `INTEGER RANGE` and "x>=0"."""
    name, text = row
    for kind, letter in (("INTEGER RANGE", "N"), ("FLOAT RANGE", "X"), ("INTEGER", "N"), ("FLOAT", "X")):
        name = name.replace(f" {kind}", f" {letter}")
    for pattern, words in (
        (r"([-\d.e]+)<=x<=([-\d.e]+)([];])", r"\1 to \2\3"),
        (r"x>=([-\d.e]+)([];])", r"at least \1\2"),
        (r"x>([-\d.e]+)([];])", r"above \1\2"),
        (r"\[default: \((.*)\)\]", r"[default: \1]"),
    ):
        text = re.sub(pattern, words, text)
    return name, text


def break_line(line: str, width: int = WIDTH) -> list[str]:
    """One line of an example or a table as lines that fit: commands end in a backslash, other text is indented."""
    if len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    if line.lstrip().startswith("privfair "):
        return _break_command(line, indent, width)
    column = re.match(r"\s*\S+(\s\S+)*?\s{2,}", line)
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * len(column.group()) if column else indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def _break_command(line: str, indent: str, width: int) -> list[str]:
    """A command over several lines as a shell takes it, cut before an option."""
    parts = re.split(r" (?=-)", line.strip().removesuffix(" \\"))
    lines, current = [], indent + parts[0]
    for part in parts[1:]:
        if len(current) + len(part) + 3 > width:
            lines.append(current + " \\")
            current = f"{indent}    {part}"
        else:
            current += f" {part}"
    ending = " \\" if line.endswith(" \\") else ""
    return [*lines, current + ending]


class _Context(click.Context):
    formatter_class = _Formatter


class Subcommands(click.Group):
    """A group that lists each command with its first sentence, whole."""

    context_class = _Context

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, _first_sentence(one)) for name, one in found if one is not None and not one.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _first_sentence(command: click.Command) -> str:
    if command.short_help:
        return command.short_help
    paragraph = " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[^.])\.(?:\s|$)", paragraph, maxsplit=1)[0]


def with_our_help(command: click.Command) -> click.Command:
    """The command, and those below it, with help that fits and the global options."""
    command.context_class = _Context
    with_global_options(command)
    if isinstance(command, click.Group):
        for one in command.commands.values():
            with_our_help(one)
    return command


def write_options_in_parts(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter, parts: Mapping[str, Collection[str]]
) -> None:
    """The options of a command that has many: those named by a part under its title, the rest last."""
    options = [one for one in command.get_params(ctx) if isinstance(one, click.Option)]
    records = [(one.name, one.get_help_record(ctx)) for one in options]
    named = {name for names in parts.values() for name in names}
    rest = {name for name, _ in records if name is not None} - named
    for title, names in {**parts, "Options": rest}.items():
        with formatter.section(title):
            formatter.write_dl([record for name, record in records if name in names and record is not None])
