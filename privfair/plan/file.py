"""A plan file: one TOML file that says what is published, on which data, how it is trained, and which settings to try.

::

    algorithm = "steffle"

    [target]                     # the promise; --epsilon and --delta may give it instead
    epsilon = 1.0
    delta = 1e-5

    [privacy]                    # what is published: the plan's parameters, spelled as the flags
    silo-size = 7500
    batch-size = 256
    rounds = 1172
    minority-fraction = 0.4
    lipschitz = 1.0
    w-radius = 1.0

    [data]                       # which data (read by `privfair train`)
    [training]                   # how to train (read by `privfair train`)

    [search]
    tries = 10                   # on average; the number itself is random and stays secret
    shape = 0                    # of the law of that number; 0 unless given, 1 is the geometric law
    score = "accuracy"           # on the held-out records: accuracy, balanced_accuracy, auc or loss

    [[search.settings]]          # each try takes one of these at random, over what [training] says
    learning-rate = 0.1
    [[search.settings]]
    learning-rate = 1.0

A budget is bound to the file byte for byte: `digest` is the SHA-256 of its bytes. A plan given by flags alone is
bound to the canonical JSON of its parameters.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rfc8785
from pydantic import TypeAdapter, ValidationError

from calibrate.errors import InvalidInput
from calibrate.privacy_unit import EpsilonDelta
from calibrate.tries import RandomTries

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


# A section of a plan file as a frozen dataclass: every key known, every value of its type, mistakes named.

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
            raise InvalidInput(f"[{place}] {key}", _short(value), "is not known", nearest(spelled, names))


@cache
def _adapter(kind: type[DataclassInstance]) -> TypeAdapter[Any]:
    """Made once for each kind: a schema of many columns reads as many sections."""
    return TypeAdapter(kind)


def read_section(kind: type[Section], place: str, mapping: Mapping[str, Any], folder: Path = Path()) -> Section:
    """The section of type `kind` with these keys, read by pydantic as strictly as JSON: no text becomes a number.

    Dashes and underscores in keys are alike, and paths are relative to `folder`, the plan's own. `place` is the
    table's name, for error messages.
    """
    refuse_unknown(place, mapping, key_names(kind))
    given: dict[str, object] = {}
    for key, value in mapping.items():
        if key.replace("-", "_") in given:
            raise InvalidInput(f"[{place}] {key}", _short(value), "is given twice", "spell it once")
        given[key.replace("-", "_")] = value
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
    """The first complaint of pydantic about the table `place` as the one sentence that a plan's mistakes get."""
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


def nearest(name: str, names: Sequence[str]) -> str:
    """The remedy for a wrong name: the nearest right one, or all of them."""
    close = get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"use {', '.join(names)}"


def _inside(folder: Path, value: object) -> Path | tuple[Path, ...] | None:
    """A path, or several, as seen from `folder`; None for anything else."""
    if isinstance(value, Path):
        return folder / value
    if isinstance(value, tuple) and value and all(isinstance(item, Path) for item in value):
        return tuple(folder / item for item in value)
    return None


def _short(value: Any) -> Any:
    """A whole table in an error message helps nobody."""
    return "(a table)" if isinstance(value, Mapping) else value


_SECTIONS = ("target", "privacy", "data", "training", "search")


@dataclass(frozen=True)
class PlanFile:
    """The parsed plan and the digest a manifest is bound to."""

    algorithm: str
    target_section: Mapping[str, Any]
    privacy: Mapping[str, Any]
    data: Mapping[str, Any]
    training: Mapping[str, Any]
    digest: str
    folder: Path
    on_file: bool = True
    """Whether `digest` is of a file's bytes (and flags over it), and not of flags alone."""
    name: str = "plan.toml"
    search: Mapping[str, Any] | None = None
    """Settings to try, where the best of a secret random number of tries is to be shown."""

    def target(self, epsilon: float | None = None, delta: float | None = None) -> EpsilonDelta:
        """The promise asked for: the given numbers, else the file's."""
        wanted = {"epsilon": epsilon, "delta": delta}
        for name in wanted:
            if wanted[name] is None:
                wanted[name] = self.target_section.get(name)
            if wanted[name] is None:
                raise InvalidInput(f"--{name}", None, "is needed", f"give --{name}, or [target] {name} in the plan")
        unknown = sorted(set(self.target_section) - set(wanted))
        if unknown:
            raise InvalidInput(
                f"[target] {unknown[0]}", self.target_section[unknown[0]], "is not known", "use epsilon and delta"
            )
        return EpsilonDelta(wanted["epsilon"], wanted["delta"])  # type: ignore[arg-type]


_NO_PLAN = "check the path; `privfair init` writes a plan for your own files"


def read_plan_file(path: Path) -> PlanFile:
    """The plan in a TOML file; every section and name is checked."""
    try:
        content = path.read_bytes()
        parsed = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise InvalidInput("plan", str(path), f"cannot be read ({error.strerror})", _NO_PLAN) from error
    except RecursionError:
        raise InvalidInput("plan", str(path), "is nested too deeply", "fix the file") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        why = str(error).partition(": value has")[0]  # of too many digits Python also says how to change Python
        raise InvalidInput("plan", str(path), f"is not TOML: {why}", "fix the file") from error
    for key, value in parsed.items():
        if key == "algorithm":
            continue
        if key not in _SECTIONS or not isinstance(value, dict):
            known = ", ".join(f"[{section}]" for section in _SECTIONS)
            raise InvalidInput(f"{path}: {key}", value, "is not part of a plan", f"use algorithm and {known}")
    if "algorithm" not in parsed:
        raise InvalidInput(f"{path}: algorithm", None, "is needed", 'write algorithm = "steffle" at the top')
    target, privacy, data, training, search = (parsed.get(section, {}) for section in _SECTIONS)
    digest, algorithm = hashlib.sha256(content).hexdigest(), str(parsed["algorithm"])
    return PlanFile(
        algorithm, target, privacy, data, training, digest, path.parent, name=path.name, search=search or None
    )


def plan_from_flags(algorithm: str, path: Path | None, flags: Mapping[str, Any]) -> PlanFile:
    """The plan of a file, of flags, or of a file with flags that win over it."""
    given = {key: value for key, value in flags.items() if value is not None and value != ()}
    for key, value in given.items():  # before the digest, which has no spelling for NaN
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                name = key.replace("_", "-")
                raise InvalidInput(name, number, "must be a finite number", "give a plain decimal number")
    if path is None:
        digest = _digest({"algorithm": algorithm, "privacy": _plain(given)})
        return PlanFile(algorithm, {}, given, {}, {}, digest, Path(), on_file=False)
    file = read_plan_file(path)
    if file.algorithm != algorithm:
        rule = f"is a plan for {file.algorithm}, not for {algorithm}"
        raise InvalidInput("--plan", str(path), rule, "name that algorithm, or another file")
    if not given:
        return file
    merged = {key.replace("-", "_"): value for key, value in file.privacy.items()} | given
    digest = _digest({"file": file.digest, "algorithm": algorithm, "privacy": _plain(merged)})
    return replace(file, privacy=merged, digest=digest)


def _digest(document: dict[str, Any]) -> str:
    try:
        return hashlib.sha256(rfc8785.dumps(document)).hexdigest()
    except rfc8785.CanonicalizationError as error:
        raise InvalidInput(
            "plan", "(its numbers)", "has a number that no double can hold", "give smaller ones"
        ) from error


def _plain(mapping: Mapping[str, Any]) -> dict[str, object]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in mapping.items()}


# The [search] section: which settings to try, how often, and by what the best try is known.

_SEARCH_KEYS = ("tries", "shape", "score", "settings")
_OF_THE_RUN = ("rounds", "signed-rounds", "model", "retention", "block", "positive", "sampling", "batch-size")
"""What all tries have in common: what is signed, and what a score must mean for all of them alike."""
_MOST_SETTINGS = 1000


class TryScore(Enum):
    """By what a try is judged on the held-out records."""

    ACCURACY = "accuracy"
    BALANCED_ACCURACY = "balanced_accuracy"
    AUC = "auc"
    LOSS = "loss"

    def of(self, metrics: Mapping[str, Any]) -> float:
        """Larger is better; minus infinity where none was measured."""
        value = metrics.get(self.value)
        if not isinstance(value, int | float) or math.isnan(value):
            return -math.inf
        return -float(value) if self is TryScore.LOSS else float(value)


@dataclass(frozen=True)
class SearchPlan:
    """What is tried: the law of the number of tries, the score, and one plan per setting."""

    tries: RandomTries
    score: TryScore
    settings: tuple[Mapping[str, Any], ...]
    plans: tuple[PlanFile, ...]


def search_plan(file: PlanFile) -> SearchPlan | None:
    """The typed [search] of a plan file; None where it has none."""
    section = file.search
    if section is None:
        return None
    unknown = sorted(set(section) - set(_SEARCH_KEYS))
    if unknown:
        rule = f"is not known; a search has {', '.join(_SEARCH_KEYS)}"
        raise InvalidInput(f"[search] {unknown[0]}", "(a value)", rule, "drop it")
    for key in ("tries", "settings"):
        if key not in section:
            raise InvalidInput(f"[search] {key}", None, "is needed", "see docs/training.md")
    tries = RandomTries.with_mean(
        _read_number("tries", section["tries"]), _read_number("shape", section.get("shape", 0.0))
    )
    settings = _read_settings(section["settings"])
    plans = tuple(replace(file, training={**file.training, **one}, search=None) for one in settings)
    return SearchPlan(tries, _read_score(section.get("score", TryScore.ACCURACY.value)), settings, plans)


def _read_number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"[search] {key}", value, "must be a number", "write for example tries = 10")
    return float(min(value, 1e300))


def _read_score(value: object) -> TryScore:
    try:
        return TryScore(value)
    except ValueError:
        known = ", ".join(score.value for score in TryScore)
        raise InvalidInput("[search] score", value, "is not known", f"use one of {known}") from None


def _read_settings(value: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise InvalidInput("[search] settings", "(a value)", "must be tables", "write [[search.settings]] for each")
    if len(value) > _MOST_SETTINGS:
        raise InvalidInput("[search] settings", len(value), f"are more than {_MOST_SETTINGS}", "give fewer")
    for one in value:
        common = sorted(set(one) & set(_OF_THE_RUN))
        if common:
            rule = "is the same for all tries, because the budget is signed for it"
            raise InvalidInput(f"[[search.settings]] {common[0]}", "(a value)", rule, "write it under [training]")
    return tuple(value)
