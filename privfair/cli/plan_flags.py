"""The flags of each algorithm's plan, generated from the plan's own fields: name, type, default and help sentence."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import MISSING
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import click

from calibrate.plans.from_mapping import PLAN_PLUGINS, PLANS, algorithm_named, parameter_fields, plan_class
from calibrate.plans.plan import Flag, Plan


def algorithm_names() -> tuple[str, ...]:
    """The algorithms that have a plan, those of other packages last: the names of the subcommands."""
    return (*(algorithm.value for algorithm in PLANS), *PLAN_PLUGINS.names())


def plan_of(name: str) -> type[Plan]:
    """The plan class behind a subcommand."""
    return plan_class(algorithm_named(name))


def parameter_flags(plan: type[Plan]) -> tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...]:
    """One click option for each field of a plan. What a value must satisfy is the plan's to say; nothing given is None,
    so that the plan's own default holds."""
    hints = get_type_hints(plan, include_extras=True)
    return tuple(_option(field.name, hints[field.name], field.default) for field in parameter_fields(plan))


def _option(name: str, hint: Any, default: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    kind, flag = get_args(hint)
    assert isinstance(flag, Flag)
    if get_origin(kind) in (Union, types.UnionType):
        parts = [part for part in get_args(kind) if part is not type(None)]
        kind, words = parts[0], [part for part in parts[1:] if issubclass(part, Enum)]
    else:
        words = []
    multiple = get_origin(kind) is tuple
    if multiple:
        kind = get_args(kind)[0]
    choices = [member.value for member in kind] if issubclass(kind, Enum) else None
    given: Any = kind if choices is None else click.Choice(flag.choices or choices)
    return click.option(
        f"--{name.replace('_', '-')}",
        name,
        type=_number_or(tuple(member.value for word in words for member in word)) if words else given,
        metavar=flag.metavar or None,
        help=flag.help + _default(default),
        multiple=multiple,
    )


def _number_or(words: tuple[str, ...]) -> Callable[[str], float | str]:
    """Reads a number, or one of a few words."""

    def number(value: str) -> float | str:
        if value in words:
            return value
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"{value!r} is neither a number nor {' or '.join(words)}") from None

    return number


def _default(value: object) -> str:
    if value is MISSING or value is None:
        return ""
    shown = value.value if isinstance(value, Enum) else value[0] if isinstance(value, tuple) else value
    return f" Default: {shown:g}." if isinstance(shown, float) else f" Default: {shown}."
