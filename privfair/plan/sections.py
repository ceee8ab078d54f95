"""A table of a TOML file as a frozen dataclass: every key known, every value of its type and rule, mistakes named.

A class lists its fields as `learning_rate: Positive = 0.5`; `Checked` applies every rule at construction, and
`read_section` reads a table into its fields.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from calibrate.errors import InvalidInput, count, nearest, open_unit, positive, rate

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Section = TypeVar("Section", bound="DataclassInstance")


def key_names(kind: type[DataclassInstance]) -> tuple[str, ...]:
    """The keys of a section, as a plan file spells them."""
    return tuple(field.name.replace("_", "-") for field in fields(kind))


def dashed(place: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The table with its keys as a plan file spells them; refused where one is given in both spellings."""
    found: dict[str, object] = {}
    for key, value in mapping.items():
        spelled = key.replace("_", "-")
        if spelled in found:
            raise InvalidInput(f"[{place}] {key}", _short(value), "is given twice", "spell it once")
        found[spelled] = value
    return found


def refuse_unknown(place: str, mapping: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse every key that is not known, with the nearest one that is."""
    names = tuple(known)
    for key, value in mapping.items():
        spelled = key.replace("_", "-")
        if spelled not in names:
            raise InvalidInput(f"[{place}] {key}", _short(value), "is not known", nearest(spelled, names))


@cache
def _adapter(kind: type[DataclassInstance]) -> TypeAdapter[Any]:
    """Made once for each kind: a schema of many columns reads as many sections."""
    return TypeAdapter(kind)


def read_section(kind: type[Section], place: str, mapping: Mapping[str, Any], folder: Path = Path()) -> Section:
    """The section of type `kind` with these keys, read by pydantic as strictly as JSON: no text becomes a number.

    Dashes and underscores in keys are the same, and paths are relative to `folder`, the plan's own. `place` is the
    table's name, for error messages.
    """
    refuse_unknown(place, mapping, key_names(kind))
    given = {key.replace("-", "_"): value for key, value in dashed(place, mapping).items()}
    try:
        found: Section = _adapter(kind).validate_json(json.dumps(given, default=str), strict=True)
    except ValidationError as broken:
        raise as_invalid_input(broken, place) from None
    moved = {field.name: _inside(folder, getattr(found, field.name)) for field in fields(kind)}
    return replace(found, **{name: path for name, path in moved.items() if path is not None})


_RULES = {
    "int": ("must be a whole number", "write for example 100"),
    "float": ("must be a number", "write for example 0.5"),
    "finite": ("must be a finite number", "write for example 0.5"),
    "bool": ("must be true or false", "write it without quotes"),
    "string": ("must be text in quotes", "fix this value"),
    "path": ("must be a path in quotes", "fix this value"),
    "tuple": ("must be a list", "write it in square brackets"),
}
"""By the first word of pydantic's name for a mistake: the rule that was broken, and the remedy."""


def as_invalid_input(broken: ValidationError, place: str) -> InvalidInput:
    """The first complaint of pydantic about the table `place` in the words that a plan's mistakes have."""
    fault = broken.errors(include_url=False)[0]
    cause = fault.get("ctx", {}).get("error")
    if isinstance(cause, InvalidInput):
        return cause
    key = next((part.replace("_", "-") for part in fault["loc"] if isinstance(part, str)), "")
    argument, value = f"[{place}] {key}".rstrip(), _short(fault["input"])
    if fault["type"] == "missing":
        return InvalidInput(argument, None, "is needed", f"write {key} = ... under [{place}]")
    if fault["type"] in ("enum", "literal_error"):
        names = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
        return InvalidInput(argument, value, "is not one of the choices", nearest(str(value), names))
    return InvalidInput(argument, value, *_RULES.get(fault["type"].split("_")[0], (fault["msg"], "fix this value")))


def _inside(folder: Path, value: object) -> Path | tuple[Path, ...] | None:
    """A path, or several, as seen from `folder`; None for anything else."""
    if isinstance(value, Path):
        return folder / value
    if isinstance(value, tuple) and value and all(isinstance(item, Path) for item in value):
        return tuple(folder / item for item in value)
    return None


def _short(value: Any) -> Any:
    """A whole table in an error message helps no one."""
    return "(a table)" if isinstance(value, Mapping) else value


def at_least_zero(argument: str, value: float) -> float:
    """The value of `argument`, if it is finite and not negative; refused otherwise."""
    if not 0 <= value < math.inf:
        raise InvalidInput(argument, value, "must be a finite number of at least 0", "give 0 or more")
    return value


def below_one(argument: str, value: float) -> float:
    """The value of `argument`, if it is in [0, 1); refused otherwise."""
    if not 0 <= value < 1:
        raise InvalidInput(argument, value, "must be in [0, 1)", "0 forgets at once, 0.9 averages")
    return value


def whole(argument: str, value: int) -> int:
    """The value of `argument`, if it is a whole number and not negative; refused otherwise."""
    return count(argument, value, least=0)


Positive = Annotated[float, positive]
AtLeastZero = Annotated[float, at_least_zero]
BelowOne = Annotated[float, below_one]
Rate = Annotated[float, rate]
OpenUnit = Annotated[float, open_unit]
Count = Annotated[int, count]
Whole = Annotated[int, whole]


@dataclass(frozen=True)
class Checked:
    """A table of a plan file whose fields are annotated with rules, which are checked at construction."""

    place: ClassVar[str] = ""
    """The table's name, for messages."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            argument = f"{self.place} {field.name.replace('_', '-')}".lstrip()
            _check(argument, getattr(self, field.name), hints[field.name])


@dataclass(frozen=True)
class Options(Checked):
    """What the [training] section may say for one algorithm, in addition to what all share."""


def _check(argument: str, value: Any, hint: Any) -> None:
    """Apply the rule of an annotated type, also inside `tuple[...]`, `... | None` and next to a word like "auto"."""
    if value is None or isinstance(value, str):
        return
    for rule in getattr(hint, "__metadata__", ()):
        rule(argument, value)
    for part in get_args(hint) if not hasattr(hint, "__metadata__") else ():
        if hasattr(part, "__metadata__") or get_args(part):
            for item in value if isinstance(value, tuple) else (value,):
                _check(argument, item, part)


@dataclass(frozen=True)
class GradientOptions(Options):
    """Steps of `learning_rate / (1 + learning_rate_decay * step)` along the gradient; for fedsgd and gaussian."""

    learning_rate: Positive = 0.5
    learning_rate_decay: AtLeastZero = 0.0

    def rate(self, step: int) -> float:
        """The length of a step, counted from 0."""
        return self.learning_rate / (1 + self.learning_rate_decay * step)


@dataclass(frozen=True)
class LocalTrainingOptions(Options):
    """Each silo makes `local_epochs` passes over its batch in mini-batches of `local_batch` (left out: all at once)."""

    learning_rate: Positive = 0.1
    local_epochs: Count = 1
    local_batch: Count | None = None
