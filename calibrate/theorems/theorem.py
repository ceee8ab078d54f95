"""A published claim as an entry that can be judged at any setting, and the four verdicts on it.

An entry holds the claim's id and source, the printed formula, its parameters with the paper's own setting as
defaults, its conditions as predicates, and one function that computes what is true. A verdict is always computed: from
the claim and from what the release really costs (an interval), or from the claimed and the exact value of a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice, product
from typing import TypeVar, assert_never, cast

from calibrate.errors import InvalidInput, nearest
from calibrate.notebook import as_html
from calibrate.privacy_unit import EpsilonInterval

Json = dict[str, object]

_SAME = 1e-9
"""Two closed forms this close, relatively, are the same number; it covers rounding and nothing else."""


class Form(Enum):
    """A claim as it is printed, or with what its own proof has in its place."""

    PRINTED = "printed"
    PROVED = "proved"


class Outcome(Enum):
    """The claim is true here; is false here; the certified interval straddles it; a condition of it does not hold."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "undecided"
    NOT_APPLICABLE = "not applicable"


class Direction(Enum):
    """What a claim about a number says: the true value is at most, at least, or exactly the claimed one."""

    AT_MOST = "at most"
    AT_LEAST = "at least"
    EXACTLY = "exactly"


@dataclass(frozen=True)
class Precondition:
    """One condition of a theorem, judged at one setting."""

    text: str
    holds: bool


@dataclass(frozen=True)
class EpsilonComparison:
    """The epsilon a theorem promises against what its own noise really costs."""

    claimed: float
    true: EpsilonInterval


@dataclass(frozen=True)
class BoundComparison:
    """The number a claim states against the exact one; `found` may be infinite."""

    quantity: str
    claimed: float
    found: float
    direction: Direction = Direction.AT_MOST


Comparison = EpsilonComparison | BoundComparison


@dataclass(frozen=True)
class Finding:
    """What was computed about a claim, before it is judged.

    `granted` lists assumptions in the claim's favour that the algorithm itself does not guarantee.
    """

    comparison: Comparison
    why: str
    granted: tuple[str, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class AsQuantified:
    """What follows about a claim for all settings that it speaks of.

    It fails with a `counterexample`, the setting found; it holds only where that is proved (`why` says where);
    otherwise it is undecided, and `why` says how many settings were tried.
    """

    outcome: Outcome
    why: str
    counterexample: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Misprint:
    """A slip of the printed formula that its own proof or use corrects, and what follows of the corrected form."""

    what: str
    corrected: Outcome


@dataclass(frozen=True)
class Verdict:
    """What follows about a claim: `outcome` at one setting, `as_quantified` for all settings that it speaks of.

    `looseness` >= 1 is the factor by which a claim that holds could be sharper (None: there is no ratio).
    """

    id: str
    outcome: Outcome
    finding: Finding
    preconditions: tuple[Precondition, ...]
    looseness: float | None = None
    as_quantified: AsQuantified | None = None
    misprint: Misprint | None = None

    @property
    def broken(self) -> tuple[str, ...]:
        """The conditions that do not hold here."""
        return tuple(rule.text for rule in self.preconditions if not rule.holds)

    def _repr_html_(self) -> str:
        """How a notebook shows it: at the paper's setting, for all settings, and why."""
        everywhere = "" if self.as_quantified is None else f"; as quantified: {self.as_quantified.outcome.value}"
        broken = (f"does not hold here: {text}" for text in self.broken)
        return as_html(f"{self.id}: {self.outcome.value}{everywhere}", f". {self.finding.why}", items=broken)

    def to_json(self) -> Json:
        """The verdict under the keys of the command line."""
        json: Json = {"id": self.id} | _numbers(self.finding.comparison)
        json["verdict"] = self.outcome.value
        quantified = self.as_quantified
        json["as_quantified"] = None if quantified is None else quantified.outcome.value
        json["counterexample"] = None if quantified is None else quantified.counterexample
        json["misprint"] = (
            None if self.misprint is None else {"what": self.misprint.what, "corrected": self.misprint.corrected.value}
        )
        json["preconditions"] = [{"text": rule.text, "holds": rule.holds} for rule in self.preconditions]
        json["why"] = self.finding.why
        json["why_as_quantified"] = None if quantified is None else quantified.why
        json["granted"] = list(self.finding.granted)
        json["details"] = dict(self.finding.details)
        if self.outcome is Outcome.HOLDS:
            json["looseness"] = None if self.looseness is None else _finite(self.looseness)
        if self.outcome is Outcome.NOT_APPLICABLE:
            json["broken"] = list(self.broken)
        return json


def judge_finding(id: str, finding: Finding, preconditions: tuple[Precondition, ...]) -> Verdict:
    """The verdict on the claim called `id` that follows from its finding and its conditions, and from nothing else."""
    outcome, looseness = _outcome(finding.comparison)
    if not all(rule.holds for rule in preconditions):
        outcome, looseness = Outcome.NOT_APPLICABLE, None
    return Verdict(id, outcome, finding, preconditions, looseness)


def _outcome(comparison: Comparison) -> tuple[Outcome, float | None]:
    match comparison:
        case EpsilonComparison(claimed, true):
            if true.upper <= claimed:
                return Outcome.HOLDS, claimed / true.upper if true.upper > 0 else math.inf
            return (Outcome.FAILS if true.lower > claimed else Outcome.UNDECIDED), None
        case BoundComparison():
            return (Outcome.HOLDS, _looseness(comparison)) if _keeps(comparison) else (Outcome.FAILS, None)
        case _:
            assert_never(comparison)


def _keeps(bound: BoundComparison) -> bool:
    equal = math.isclose(bound.claimed, bound.found, rel_tol=_SAME, abs_tol=_SAME)
    match bound.direction:
        case Direction.AT_MOST:
            return bound.found < bound.claimed or equal
        case Direction.AT_LEAST:
            return bound.found > bound.claimed or equal
        case Direction.EXACTLY:
            return equal
        case _:
            assert_never(bound.direction)


def _looseness(bound: BoundComparison) -> float | None:
    if bound.direction is Direction.AT_MOST and bound.found > 0:
        return max(1.0, bound.claimed / bound.found)
    return 1.0 if bound.direction is Direction.EXACTLY else None


def _numbers(comparison: Comparison) -> Json:
    """The numbers of a comparison under the keys of the command line; infinite ones become null."""
    match comparison:
        case EpsilonComparison(claimed, true):
            return {
                "claimed_epsilon": claimed,
                "true_epsilon": _finite(true.upper),
                "true_epsilon_interval": {"lower": true.lower, "upper": _finite(true.upper)},
            }
        case BoundComparison(quantity, claimed, found, direction):
            return {
                "claimed_epsilon": None,
                "true_epsilon": None,
                "quantity": quantity,
                "direction": direction.value,
                "claimed": claimed,
                "found": _finite(found),
                "unbounded": math.isinf(found),
                "ratio": _finite(found / claimed) if claimed != 0 else None,
            }
        case _:
            assert_never(comparison)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


Value = int | float | tuple[float, ...] | Enum
Choice = TypeVar("Choice", bound=Enum)

_MOST_TRIED = 24
"""Settings of a claim's domain that a search for a counterexample looks at."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a claim. Its kind is that of its default: whole number, number, numbers or choice.

    `check` is a rule of `calibrate.errors` that names the argument when it refuses. `symbols` are other
    spellings, such as the paper's own letter.
    """

    name: str
    default: Value
    meaning: str
    check: Callable[[str, float], float] | None = None
    symbols: tuple[str, ...] = ()
    among: tuple[Enum, ...] = ()
    """The choices that the claim speaks of; all members of the default's enumeration if none is listed."""

    @property
    def shown_default(self) -> object:
        """The paper's own value, a choice by its name."""
        return self.default.value if isinstance(self.default, Enum) else self.default

    def read(self, given: object) -> Value:
        """The value from text or a plain value, checked."""
        if isinstance(self.default, Enum):
            return self._choice(given)
        if isinstance(self.default, tuple):
            parts = given.split(",") if isinstance(given, str) else given
            if not isinstance(parts, (list, tuple)) or not parts:
                raise InvalidInput(self.name, given, "must be a list of numbers", "write for example 1,1.5,2")
            return tuple(self._check(self._number(part)) for part in parts)
        number = self._number(given)
        if isinstance(self.default, int):
            if number != int(number):
                raise InvalidInput(self.name, given, "must be a whole number", "leave out the decimals")
            return int(self._check(int(number)))
        return self._check(number)

    def _choice(self, given: object) -> Enum:
        kind = type(self.default)
        assert issubclass(kind, Enum)
        offered = self.among or tuple(kind)
        for member in offered:
            if given in (member, member.value):
                return member
        names = ", ".join(str(member.value) for member in offered)
        raise InvalidInput(self.name, given, "is not one of the choices", f"use {names}")

    def _number(self, given: object) -> float:
        if isinstance(given, bool) or not isinstance(given, (int, float, str)):
            raise InvalidInput(self.name, given, "must be a number", "give a plain decimal number")
        try:
            number = float(given)
        except ValueError:
            raise InvalidInput(self.name, given, "must be a number", "give a plain decimal number") from None
        if number != number or number in (float("inf"), float("-inf")):
            raise InvalidInput(self.name, given, "must be a finite number", "give a plain decimal number")
        return number

    def _check(self, number: float) -> float:
        return number if self.check is None else self.check(self.name, number)


@dataclass(frozen=True)
class Setting:
    """The values of a claim's parameters, read with their kind."""

    values: Mapping[str, Value]

    def number(self, name: str) -> float:
        return float(cast(float, self.values[name]))

    def whole(self, name: str) -> int:
        return int(cast(int, self.values[name]))

    def numbers(self, name: str) -> tuple[float, ...]:
        return cast("tuple[float, ...]", self.values[name])

    def plain(self) -> dict[str, object]:
        """The values as JSON can hold them; infinity as text."""
        shown: dict[str, object] = {}
        for name, value in self.values.items():
            plain = value.value if isinstance(value, Enum) else list(value) if isinstance(value, tuple) else value
            shown[name] = "Infinity" if plain == math.inf else plain
        return shown

    def choice(self, name: str, kind: type[Choice]) -> Choice:
        value = self.values[name]
        assert isinstance(value, kind)
        return value


@dataclass(frozen=True)
class Condition:
    """One printed (or silently used) condition of a theorem, as a sentence about a setting and a predicate."""

    text: Callable[[Setting], str]
    holds: Callable[[Setting], bool]


@dataclass(frozen=True)
class Correction:
    """What was misprinted, and which reading of the claim corrects it."""

    what: str
    reading: tuple[str, Enum]


@dataclass(frozen=True)
class Theorem:
    """One claim of one paper; `compute` finds what is true at a setting, `judge` says what follows.

    `domain` lists, for parameters that the claim is quantified over, values to search for a counterexample; the first
    value of each is the most extreme one. `proof` says where it is proved that the claim, however read, holds for all.
    `restates` is the id of the claim that this one follows from or says again: it is not counted another time.
    """

    id: str
    citation: str
    place: str
    formula: str
    parameters: tuple[Parameter, ...]
    compute: Callable[[Setting], Finding]
    conditions: tuple[Condition, ...] = ()
    domain: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    proof: str | None = None
    correction: Correction | None = None
    restates: str | None = None

    def source(self) -> Json:
        """Where the claim stands, how it is printed, and the parameters that a setting can change."""
        parameters = [
            {"name": one.name, "default": one.shown_default, "meaning": one.meaning, "symbols": list(one.symbols)}
            for one in self.parameters
        ]
        return {"citation": self.citation, "place": self.place, "formula": self.formula, "parameters": parameters}

    def judge(self, given: Mapping[str, object] | None = None) -> Verdict:
        """The verdict at the paper's own setting, changed where `given` says so; and as the claim is quantified."""
        setting = self.setting(given or {})
        here = self._judge_at(setting)
        return replace(here, as_quantified=self._judge_all(setting, here), misprint=self._misprint(setting))

    def _judge_at(self, setting: Setting) -> Verdict:
        preconditions = tuple(Precondition(rule.text(setting), rule.holds(setting)) for rule in self.conditions)
        return judge_finding(self.id, self.compute(setting), preconditions)

    def _judge_all(self, setting: Setting, here: Verdict) -> AsQuantified:
        """A counterexample at this setting or, else, in the domain; readings and choices stay as they are asked for."""
        if here.outcome is Outcome.FAILS:
            return AsQuantified(Outcome.FAILS, "it fails at this setting", setting.plain())
        if self.proof is not None:
            return AsQuantified(Outcome.HOLDS, f"proved: {self.proof}")
        tried = 0
        for point in islice(product(*self.domain.values()), _MOST_TRIED):
            candidate = self._changed(setting, dict(zip(self.domain, point, strict=True)))
            tried += 1
            if self._judge_at(candidate).outcome is Outcome.FAILS:
                return AsQuantified(Outcome.FAILS, f"found after {tried} settings", candidate.plain())
        return AsQuantified(Outcome.UNDECIDED, f"no counterexample among {tried + 1} settings, and no proof")

    def _changed(self, setting: Setting, changes: Mapping[str, object]) -> Setting:
        read = self.setting(changes).values
        return Setting({**setting.values, **{name: read[name] for name in changes}})

    def _misprint(self, setting: Setting) -> Misprint | None:
        if self.correction is None or setting.values[self.correction.reading[0]] is self.correction.reading[1]:
            return None
        name, reading = self.correction.reading
        return Misprint(self.correction.what, self._judge_at(self._changed(setting, {name: reading})).outcome)

    def setting(self, given: Mapping[str, object]) -> Setting:
        """All parameters, from `given` or by default; an unknown name is refused with the nearest known one."""
        spelled = {spelling: p for p in self.parameters for spelling in (p.name, *p.symbols)}
        values: dict[str, Value] = {parameter.name: parameter.default for parameter in self.parameters}
        seen: set[str] = set()
        for key, value in given.items():
            parameter = spelled.get(key) or spelled.get(key.replace("-", "_"))
            if parameter is None:
                raise InvalidInput(key, value, f"is not a parameter of {self.id}", self._nearest(key))
            if parameter.name in seen:
                raise InvalidInput(key, value, f"gives {parameter.name} twice", "give each parameter once")
            seen.add(parameter.name)
            values[parameter.name] = parameter.read(value)
        return Setting(values)

    def _nearest(self, key: str) -> str:
        return nearest(key.replace("-", "_"), [parameter.name for parameter in self.parameters])
