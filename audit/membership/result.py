"""What a membership attack achieved, with intervals, as plain values that a report can draw.

The mapping of `MembershipResult.to_json()` is part of the answer of `privfair audit --model` (key "membership")::

    {"kind": "membership",
     "target": {"kind", "source"},
     "members", "nonmembers", "confidence",
     "assignment": "exchangeable" | "coins",            how it was decided who is a member
     "shadow": null | {"kind", "models", "design": "online" | "offline", "training"},
     "intervals": {"auc", "tpr"},                       in words: which intervals these are
     "attacks": [{"name": "loss" | "lira-online" | "lira-offline" | "rmia" | "score",
                  "auc": {"value", "lower", "upper"},
                  "tpr_at_fpr": [{"fpr": 0.001, "value", "lower", "upper"}, {"fpr": 0.01, ...}],
                  "roc": [{"fpr", "tpr", "lower", "upper"}, ...],   growing fpr, evenly spaced on a log axis, last 1
                  "control_auc": null | number}]}       the same attack on shadow models in the target's place

Bounds on epsilon are in the verdict's own "attacks", whose names are "membership: " + name.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from calibrate.errors import InvalidInput, count, open_unit

AUC_INTERVAL = "Wilson score interval with the largest variance the area can have, A (1 - A) / min(members, nonmembers)"
TPR_INTERVAL = (
    "exact and free of assumptions about the scores: order statistics for the threshold, Clopper-Pearson for the rate, "
    "the error split evenly over the four sides; each rate has its own interval"
)


class AttackName(Enum):
    """The attacks by the names used on the command line and in reports."""

    LOSS = "loss"
    LIRA_ONLINE = "lira-online"
    LIRA_OFFLINE = "lira-offline"
    RMIA = "rmia"
    SCORE = "score"
    """A score that the user brings."""


class Assignment(Enum):
    """How it was decided which records are members; the bound on epsilon stands on it."""

    EXCHANGEABLE = "exchangeable"
    """Members are a uniformly random part, of fixed size, of all audited records."""
    COINS = "coins"
    """Each record became a member by a fair coin of its own."""


class ShadowDesign(Enum):
    """What shadow models were trained on."""

    ONLINE = "online"
    """Random halves of the audited records."""
    OFFLINE = "offline"
    """Random halves of other records."""


@dataclass(frozen=True)
class Interval:
    """An estimate with the interval that covers the truth at the result's confidence."""

    value: float
    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not 0 <= self.lower <= self.value <= self.upper <= 1:
            raise InvalidInput(
                "interval",
                (self.lower, self.value, self.upper),
                "must be ordered within [0, 1]",
                "report this as a bug",
            )


@dataclass(frozen=True)
class RocPoint:
    """The share of members found when this share of non-members is accused."""

    fpr: float
    tpr: Interval

    def to_json(self) -> dict[str, float]:
        return {"fpr": self.fpr, "tpr": self.tpr.value, "lower": self.tpr.lower, "upper": self.tpr.upper}


@dataclass(frozen=True)
class AttackResult:
    """One attack's strength against the target."""

    name: AttackName
    auc: Interval
    tpr_at_fpr: tuple[RocPoint, ...]
    roc: tuple[RocPoint, ...]
    control_auc: float | None
    """The area the same attack reaches against shadow models; None where there are none."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name.value,
            "auc": asdict(self.auc),
            "tpr_at_fpr": [{"fpr": point.fpr, **asdict(point.tpr)} for point in self.tpr_at_fpr],
            "roc": [point.to_json() for point in self.roc],
            "control_auc": self.control_auc,
        }


@dataclass(frozen=True)
class ShadowFacts:
    """Which models the attacks compared the target with."""

    kind: str
    models: int
    design: ShadowDesign
    training: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"design": self.design.value}


@dataclass(frozen=True)
class MembershipResult:
    """Every attack that ran against one target."""

    target_kind: str
    target_source: str
    members: int
    nonmembers: int
    confidence: float
    assignment: Assignment
    shadow: ShadowFacts | None
    attacks: tuple[AttackResult, ...]

    def __post_init__(self) -> None:
        count("members", self.members)
        count("nonmembers", self.nonmembers)
        open_unit("confidence", self.confidence)

    def attack(self, name: AttackName) -> AttackResult:
        for one in self.attacks:
            if one.name is name:
                return one
        ran = ", ".join(one.name.value for one in self.attacks)
        raise InvalidInput("attack", name.value, f"did not run (these did: {ran})", "ask for it")

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "membership",
            "target": {"kind": self.target_kind, "source": self.target_source},
            "members": self.members,
            "nonmembers": self.nonmembers,
            "confidence": self.confidence,
            "assignment": self.assignment.value,
            "shadow": None if self.shadow is None else self.shadow.to_json(),
            "intervals": {"auc": AUC_INTERVAL, "tpr": TPR_INTERVAL},
            "attacks": [one.to_json() for one in self.attacks],
        }
