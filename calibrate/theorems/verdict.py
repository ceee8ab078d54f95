"""The four things that can be said about a published claim, and how they are told apart.

A verdict is always computed: from the claim and from what the release really costs (an interval), or from
the claimed and the exact value of a bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from html import escape
from typing import assert_never

from calibrate.privacy_unit import EpsilonInterval

Json = dict[str, object]

_SAME = 1e-9
"""Two closed forms this close, relatively, are the same number; it covers rounding and nothing else."""


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
        everywhere = "" if self.as_quantified is None else f"; as quantified: <b>{self.as_quantified.outcome.value}</b>"
        broken = "".join(f"<li>does not hold here: {escape(text)}</li>" for text in self.broken)
        return (
            f"{escape(self.id)}: <b>{self.outcome.value}</b>{everywhere}. {escape(self.finding.why)}<ul>{broken}</ul>"
        )

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
