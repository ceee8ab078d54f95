"""A section of a plan file as a frozen dataclass: every key known, every value of its type, mistakes named."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from calibrate.errors import InvalidInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Section = TypeVar("Section", bound="DataclassInstance")


def key_names(kind: type[DataclassInstance]) -> tuple[str, ...]:
    """The keys of a section, as a plan file spells them."""
    return tuple(field.name.replace("_", "-") for field in fields(kind))


def refuse_unknown(place: str, mapping: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse every key that is not known, with the nearest one that is."""
    names = tuple(known)
    for key, value in mapping.items():
        spelled = key.replace("_", "-")
        if spelled not in names:
            close = get_close_matches(spelled, names, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"use {', '.join(names)}"
            raise InvalidInput(f"[{place}] {key}", _short(value), "is not known", remedy)


def read_section(
    kind: type[Section], place: str, mapping: Mapping[str, Any], folder: Path = Path()
) -> Section:
    """The section with these keys; dashes and underscores are alike, paths are relative to the plan's folder."""
    refuse_unknown(place, mapping, key_names(kind))
    hints = get_type_hints(kind)
    given: dict[str, Any] = {}
    for key, value in mapping.items():
        name = key.replace("-", "_")
        if name in given:
            raise InvalidInput(f"[{place}] {key}", value, "is given twice", "spell it once")
        given[name] = _converted(f"[{place}] {key}", value, hints[name], folder)
    for field in fields(kind):
        missing = field.default is MISSING and field.default_factory is MISSING and field.name not in given
        if missing:
            key = field.name.replace("_", "-")
            raise InvalidInput(f"[{place}] {key}", None, "is needed", f"write {key} = ... under [{place}]")
    return kind(**given)


def _converted(argument: str, value: Any, hint: Any, folder: Path) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise InvalidInput(argument, _short(value), "must be a list", "write it in square brackets")
        inner = get_args(hint)[0]
        return tuple(_converted(argument, item, inner, folder) for item in value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice(argument, value, hint)
    if hint is Path:
        return folder / _of_type(argument, value, str, "a path in quotes")
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInput(argument, _short(value), "must be a number", "write for example 0.5")
        return float(value)
    if hint is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidInput(argument, _short(value), "must be a whole number", "write for example 100")
        return value
    if hint is bool:
        return _of_type(argument, value, bool, "true or false")
    return _of_type(argument, value, str, "text in quotes")


def _choice(argument: str, value: Any, kind: type[Enum]) -> Enum:
    names = [str(member.value) for member in kind]
    if not isinstance(value, str) or value not in names:
        close = get_close_matches(str(value), names, n=1)
        remedy = f"did you mean {close[0]}?" if close else f"use {', '.join(names)}"
        raise InvalidInput(argument, _short(value), "is not one of the choices", remedy)
    return kind(value)


def _of_type(argument: str, value: Any, kind: type, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise InvalidInput(argument, _short(value), f"must be {wanted}", "mend the plan")
    return value


def _short(value: Any) -> Any:
    """A whole table in an error message helps nobody."""
    return "(a table)" if isinstance(value, Mapping) else value
