"""Pages of the site that are not written by hand: commands, plan keys and error messages, from the code itself."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def command_reference() -> str:
    """One section per command, as `--help` prints it at 88 columns."""
    from privfair.cli import cli

    parts = [
        "# Command line",
        "For everyone who types commands: the `--help` of each. See also [exit codes](exit-codes.md).\n",
    ]
    root = click.Context(cli, info_name="privfair", max_content_width=88, terminal_width=88)
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        assert command is not None
        if command.hidden:
            continue
        parts += _sections(command, click.Context(command, parent=root, info_name=name, terminal_width=88), 2)
    return "\n".join(parts)


def _sections(command: click.Command, context: click.Context, level: int) -> list[str]:
    parts = [f"{'#' * level} {context.command_path}", "```text", command.get_help(context), "```", ""]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            under = command.get_command(context, name)
            assert under is not None
            if under.hidden:
                continue
            parts += _sections(
                under, click.Context(under, parent=context, info_name=name, terminal_width=88), level + 1
            )
    return parts


_PACKAGES = ("calibrate", "privfair", "audit")
_ROOT = Path(__file__).parents[1]


_FOR_PLANS = """For engineers who write or review a plan: every key, its type, its default and what it does.
[The plan file](../training.md) explains the five keys that a new plan needs; the rest are defaults.
"""
_FOR_ERRORS = """For everyone who met an error: messages have the form `argument = value: rule; remedy` and
[exit code](exit-codes.md) 2. Parts in braces depend on what was given.
"""


def plan_keys() -> str:
    """The keys of plan.toml with type, default and meaning: those all plans share, then those of each algorithm."""
    from calibrate.plans import PLANS, plan_class
    from privfair.algorithms.registry import _RECIPES
    from privfair.plan.data import _PARTITIONS
    from privfair.plan.training import TrainingOptions

    parts = [
        "# Plan keys\n",
        _FOR_PLANS,
        "## [training], all algorithms\n",
        *_key_table(TrainingOptions),
        "## [data.partition]\n",
    ]
    for name, partition in _PARTITIONS.items():
        parts += [f'### kind = "{name}"\n', *_key_table(partition)]
    for algorithm in PLANS:
        parts += [f'## [privacy], algorithm = "{algorithm.value}"\n', *_parameter_table(plan_class(algorithm))]
    for key, recipe in _RECIPES.items():
        parts += [f"## [training], {key}\n", *_key_table(recipe.options)]
    return "\n".join([*parts, "Next: [the plan file](../training.md), [algorithms](../fair-algorithms.md).\n"])


def _key_table(kind: type[Any]) -> Iterator[str]:
    """One row per field of a section; its meaning is the text below the field in the code."""
    hints, meanings = get_type_hints(kind), _texts_below(kind)
    if inspect.getdoc(kind):
        yield " ".join(str(inspect.getdoc(kind)).split()) + "\n"
    yield from ("| key | type | default | meaning |", "|---|---|---|---|")
    for field in fields(kind):
        yield _row(field.name, hints[field.name], field.default, meanings.get(field.name, ""))
    yield ""


def _parameter_table(kind: type[Any]) -> Iterator[str]:
    """One row per parameter of a price, with the help of its option on the command line."""
    from calibrate.plans import parameter_fields

    hints = get_type_hints(kind, include_extras=True)
    yield from ("| key | type | default | meaning |", "|---|---|---|---|")
    for field in parameter_fields(kind):
        value, flag = get_args(hints[field.name])
        yield _row(field.name, value, field.default, flag.help)
    yield ""


def _row(name: str, hint: Any, default: object, meaning: str) -> str:
    cells = (f"`{name.replace('_', '-')}`", _type(hint), _default(default), meaning.replace("|", "\\|"))
    return f"| {' | '.join(cells)} |"


def _texts_below(kind: type[Any]) -> dict[str, str]:
    """The string that follows each field, in a class and the classes it extends."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__[:-1]):
        (body,) = ast.parse(inspect.cleandoc(inspect.getsource(one))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
                found[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return found


def _type(hint: Any) -> str:
    """A type as people say it, without the rules that come with it."""
    origin, parts = get_origin(hint), [part for part in get_args(hint) if part is not type(None)]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(f"`{member.value}`" for member in hint)
    if getattr(hint, "__metadata__", None):
        return _type(parts[0])
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (tuple, list):
        return f"list of {_type(parts[0])}"
    if origin in (Union, UnionType):
        return " or ".join(_type(part) for part in parts)
    words = {"int": "whole number", "float": "number", "str": "text", "bool": "true or false", "Path": "file"}
    name = getattr(hint, "__name__", str(hint))
    return words.get(name, name)


def _default(value: object) -> str:
    if value is MISSING:
        return "required"
    shown = value.value if isinstance(value, Enum) else value
    return "none" if shown is None else f"`{str(shown).lower() if isinstance(shown, bool) else shown}`"


def error_messages() -> str:
    """Every message about a value that has a fixed rule and remedy, by the argument that it names."""
    rows = set[tuple[str, str, str]]()
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "InvalidInput":
                    continue
                if len(node.args) != 4:
                    continue
                argument, _, rule, remedy = (_constant(one) for one in node.args)
                if argument and rule and remedy:
                    rows.add((argument, rule, remedy))
    in_order = sorted(rows, key=lambda row: row[0].lower())
    cells = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in in_order)
    return "\n".join(
        [
            "# Error messages\n",
            _FOR_ERRORS,
            "| argument | rule | remedy |",
            "|---|---|---|",
            *(f"| {row} |" for row in cells),
            "",
            "Next: [exit codes](exit-codes.md), [plan keys](plan-keys.md).",
        ]
    )


def _constant(node: ast.expr) -> str:
    """The text of an expression, with names in braces; empty where it is computed elsewhere."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (one.value if isinstance(one, ast.Constant) else "{...}" for one in node.values)
        return "".join(str(part) for part in parts)
    return ""


GENERATED = {
    "reference/cli.md": command_reference,
    "reference/plan-keys.md": plan_keys,
    "reference/errors.md": error_messages,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for place, write in GENERATED.items():
        files.append(File.generated(config, place, content=write()))
    return files
