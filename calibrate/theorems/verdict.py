"""The four things that can be said about a published claim, and how they are told apart.

A verdict is always computed: from the claim and from what the release really costs (an interval), or from
the claimed and the exact value of a bound. The set is closed: Holds, Fails, Undecided, NotApplicable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, assert_never, final

from calibrate.privacy_unit import EpsilonInterval

Json = dict[str, object]

_SAME = 1e-9
"""Two closed forms this close, relatively, are the same number; it covers rounding and nothing else."""


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
class Verdict:
    """What is common to all verdicts. Only its four final subclasses are ever made."""

    word: ClassVar[str]

    id: str
    finding: Finding
    preconditions: tuple[Precondition, ...]

    def to_json(self) -> Json:
        json: Json = {"id": self.id} | _numbers(self.finding.comparison)
        json["verdict"] = self.word
        json["preconditions"] = [{"text": rule.text, "holds": rule.holds} for rule in self.preconditions]
        json["why"] = self.finding.why
        json["granted"] = list(self.finding.granted)
        json["details"] = dict(self.finding.details)
        return json


@final
@dataclass(frozen=True)
class Holds(Verdict):
    """The claim is true here; `looseness` >= 1 is the factor by which it could be sharper (None: no ratio)."""

    word: ClassVar[str] = "holds"
    looseness: float | None

    def to_json(self) -> Json:
        return super().to_json() | {"looseness": None if self.looseness is None else _finite(self.looseness)}


@final
@dataclass(frozen=True)
class Fails(Verdict):
    """The claim is false here: even the lower end of the true cost exceeds it."""

    word: ClassVar[str] = "fails"


@final
@dataclass(frozen=True)
class Undecided(Verdict):
    """The certified interval straddles the claim."""

    word: ClassVar[str] = "undecided"


@final
@dataclass(frozen=True)
class NotApplicable(Verdict):
    """A condition of the theorem does not hold here, so it promises nothing; `broken` names the conditions."""

    word: ClassVar[str] = "not applicable"
    broken: tuple[str, ...]

    def to_json(self) -> Json:
        return super().to_json() | {"broken": list(self.broken)}


def judge_finding(id: str, finding: Finding, preconditions: tuple[Precondition, ...]) -> Verdict:
    """The verdict that follows from the numbers and the conditions, and from nothing else."""
    broken = tuple(rule.text for rule in preconditions if not rule.holds)
    if broken:
        return NotApplicable(id, finding, preconditions, broken)
    comparison = finding.comparison
    match comparison:
        case EpsilonComparison(claimed, true):
            if true.upper <= claimed:
                return Holds(id, finding, preconditions, claimed / true.upper if true.upper > 0 else math.inf)
            kind = Fails if true.lower > claimed else Undecided
            return kind(id, finding, preconditions)
        case BoundComparison():
            if _keeps(comparison):
                return Holds(id, finding, preconditions, _looseness(comparison))
            return Fails(id, finding, preconditions)
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
