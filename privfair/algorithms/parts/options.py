"""The rules that an algorithm's options are annotated with, and the options that several algorithms share.

An options class lists its fields as `learning_rate: Positive = 0.5`; the base class checks every rule at construction,
and a plan file's [training] section is read into it by name (`privfair.plan.sections.read_section`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

from calibrate.errors import InvalidInput, count, open_unit, positive, rate


def at_least_zero(argument: str, value: float) -> float:
    """The value of `argument`, if it is finite and not negative; refused otherwise."""
    if not 0 <= value < math.inf:
        raise InvalidInput(argument, value, "must be a finite number of at least 0", "give 0 or more")
    return value


def below_one(argument: str, value: float) -> float:
    """The value of `argument`, if it lies in [0, 1); refused otherwise."""
    if not 0 <= value < 1:
        raise InvalidInput(argument, value, "must lie in [0, 1)", "0 forgets at once, 0.9 averages")
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
    """Apply the rule of an annotated type, also inside `tuple[...]`, `... | None` and beside a word like "auto"."""
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
