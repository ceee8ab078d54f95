"""What attribute inference found: accuracies, the advantage over imputation, and members against non-members."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from audit.membership.blind import BlindRule
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, open_unit

# A confidence interval for the mean of bounded numbers that holds at every sample size.
#
# Attack and imputation are right on nearly the same records, so their difference is zero nearly always; the normal
# approximation and the bootstrap then promise more than they keep. The interval here is a test by betting: a
# gambler who
# bets against "the mean is m" with stakes chosen from earlier values only has a wealth that exceeds 2/alpha with
# probability at most alpha/2 if m is the mean (Ville's inequality), and becomes rich quickly if it is not.

_LARGEST_STAKE = 0.75
"""No bet may lose more than this share of the wealth, so that it never runs out."""
_HALVINGS = 40


@dataclass(frozen=True)
class Interval:
    """An estimate between two ends, at the confidence of whoever made it."""

    value: float
    lower: float
    upper: float

    def to_json(self) -> dict[str, float]:
        return {"value": self.value, "lower": self.lower, "upper": self.upper}


def mean_interval(values: Floats, low: float, high: float, confidence: float) -> Interval:
    """The mean of independent values in [low, high] with a common mean, given in an order unrelated to the values.

    Guarantee: covers that mean with probability at least `confidence`, whatever the distribution
    (docs/theorems/attribute-inference.md, the interval).
    """
    if len(values) == 0:
        raise InvalidInput("values", "none", "must not be empty", "give at least one")
    if values.min() < low or values.max() > high:
        raise InvalidInput("values", float(values.min()), f"must lie in [{low}, {high}]", "report this as a bug")
    alpha = 1 - open_unit("confidence", confidence)
    scaled = np.clip((np.asarray(values, dtype=np.float64) - low) / (high - low), 0.0, 1.0)
    width = high - low
    lower = low + width * _lower_end(scaled, alpha)
    upper = high - width * _lower_end(1 - scaled, alpha)
    return Interval(float(np.mean(values)), lower, upper)


def _lower_end(values: Floats, alpha: float) -> float:
    """The largest m on a fine grid for which the wealth of betting on "more than m" refutes every mean up to m.

    The wealth falls as m grows, factor by factor, so halving finds the end; the refuted side is returned.
    """
    stakes = _stakes(values, alpha)
    goal = math.log(2 / alpha)
    refuted, kept = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (refuted + kept) / 2
        if _best_log_wealth(values, stakes, middle) >= goal:
            refuted = middle
        else:
            kept = middle
    return refuted


def _best_log_wealth(values: Floats, stakes: Floats, mean: float) -> float:
    """The largest wealth on the way: stopping there was allowed."""
    bets = np.minimum(stakes, _LARGEST_STAKE / mean)
    return float(np.cumsum(np.log1p(bets * (values - mean))).max())


def _stakes(values: Floats, alpha: float) -> Floats:
    """How much to bet on each value, by the variance of those before it."""
    count = len(values)
    places = np.arange(1, count + 1)
    running = (0.5 + np.cumsum(values)) / (places + 1)
    variance = (0.25 + np.cumsum((values - running) ** 2)) / (places + 1)
    before = np.concatenate([[0.25], variance[:-1]])
    return np.sqrt(2 * math.log(2 / alpha) / (count * before))


HOW = (
    "Advantage: an attack's correct guesses minus imputation's, record by record. Leakage: the advantage on members "
    "minus that on non-members. Intervals are by betting and hold at every sample size; those of leakage hold for all "
    "attacks at once."
)


class Finding(Enum):
    LEAKAGE = "leakage"
    """The model tells more of its members' attribute than of others': an attack's interval is above zero."""
    NONE_FOUND = "no leakage found"
    """No attack's interval is above zero; their upper ends say what these attacks exclude, and nothing more."""
    NOT_COMPARABLE = "not comparable"
    """Members and non-members differ without any model, so a difference between them proves nothing."""


@dataclass(frozen=True)
class OnOneSet:
    """How an attack did on members, or on non-members."""

    accuracy: Interval
    advantage: Interval
    """Over imputation, paired."""

    def to_json(self) -> dict[str, Any]:
        return {"accuracy": self.accuracy.to_json(), "advantage": self.advantage.to_json()}


@dataclass(frozen=True)
class AttackResult:
    name: str
    members: OnOneSet
    nonmembers: OnOneSet
    leakage: Interval
    """Advantage over imputation on members minus that on non-members."""

    @property
    def leaks(self) -> bool:
        return self.leakage.lower > 0

    @property
    def beats_imputation(self) -> bool:
        """Whether an attacker gains by it on members; an attack may show memory and still guess worse."""
        return self.members.advantage.lower > 0

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "members": self.members.to_json(),
            "nonmembers": self.nonmembers.to_json(),
            "leakage": self.leakage.to_json(),
            "leaks": self.leaks,
            "beats_imputation": self.beats_imputation,
        }


@dataclass(frozen=True)
class NotApplied:
    name: str
    why: str


@dataclass(frozen=True)
class AttributeInference:
    """All attacks on one attribute of one model."""

    attribute: str
    values: tuple[str, ...]
    members: int
    nonmembers: int
    auxiliary: int
    """Records, apart from those asked about, from which imputation and attacks learned."""
    imputation_members: Interval
    imputation_nonmembers: Interval
    attacks: tuple[AttackResult, ...]
    not_applied: tuple[NotApplied, ...]
    confidence: float
    blind: BlindRule
    """Whether the two sets can be told apart by somebody who never sees the model."""

    @property
    def finding(self) -> Finding:
        if self.blind.tells_apart:
            return Finding.NOT_COMPARABLE
        return Finding.LEAKAGE if any(one.leaks for one in self.attacks) else Finding.NONE_FOUND

    @property
    def why(self) -> str:
        """The finding in one sentence."""
        if self.finding is Finding.NOT_COMPARABLE:
            return (
                f"members and non-members differ by themselves (a rule that never sees the model tells them apart, "
                f"p = {self.blind.p_value:.2g}), so nothing can be said about {self.attribute}; take both at random "
                "from one source"
            )
        strongest = max(self.attacks, key=lambda one: (one.leaks and one.beats_imputation, one.leakage.lower))
        found = strongest.leakage
        if self.finding is Finding.LEAKAGE:
            alone = "" if strongest.beats_imputation else "; taken alone it guesses no better than imputation"
            return (
                f"the model remembers {self.attribute} of its members: over imputation, {strongest.name} gains "
                f"{100 * found.value:.1f} points more on members than on non-members (at least "
                f"{100 * found.lower:.1f}){alone}"
            )
        most = max(one.leakage.upper for one in self.attacks)
        return (
            f"no attack tells more of {self.attribute} for members than for non-members once imputation is taken off; "
            f"what these attacks could gain is at most {100 * most:.1f} points"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "attribute": self.attribute,
            "values": list(self.values),
            "finding": self.finding.value,
            "why": self.why,
            "confidence": self.confidence,
            "records": {"members": self.members, "nonmembers": self.nonmembers, "auxiliary": self.auxiliary},
            "imputation": {
                "members": self.imputation_members.to_json(),
                "nonmembers": self.imputation_nonmembers.to_json(),
            },
            "attacks": [one.to_json() for one in self.attacks],
            "blind": {"auc": self.blind.auc, "p_value": self.blind.p_value},
            "not_applied": [{"name": one.name, "why": one.why} for one in self.not_applied],
            "method": HOW,
        }
