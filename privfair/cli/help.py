"""What `--help` looks like: nothing beyond 80 columns, no sentence cut off, long lists of options in parts."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping

import click

from privfair.cli.options import with_global_options

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
