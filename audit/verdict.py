"""What an audit concludes: consistent, violated, or inconclusive; never "passed" because the attack was weak."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from audit.bounds import CONCLUSIVE, LowerBound
from audit.evidence import Check, Layer, Outcome


class Word(Enum):
    CONSISTENT = "consistent"
    """Nothing contradicts the promise, and the audit had the power to see a breach."""
    VIOLATED = "violated"
    """Evidence contradicts the promise, at the stated confidence."""
    INCONCLUSIVE = "inconclusive"
    """Nothing contradicts the promise, but the audit would hardly have noticed."""


class Standing(Enum):
    """Whether the signed noise is known to keep the promise, if it is really there."""

    PRICED = "priced"
    """The manifest's own promise: accountants certified it for the signed noise."""
    CLAIMED = "claimed"
    """Somebody's word, which the signed noise need not keep."""
    CONTESTED = "contested"
    """Somebody's word, and the certified cost of the signed noise is above it."""


@dataclass(frozen=True)
class Promise:
    """What is on trial: the epsilon that was promised or claimed, at its delta."""

    epsilon: float
    delta: float
    source: str
    """In whose words: the manifest's own promise, or a paper's claim that the manifest quotes."""
    standing: Standing = Standing.CLAIMED


@dataclass(frozen=True)
class CurveTest:
    """The manifest's own trade-off curve put to the test: what its signed event allows at every delta at once."""

    p_value: float
    level: float
    """The test's share of the allowed error; a smaller p-value refutes the curve."""

    @property
    def refuted(self) -> bool:
        return self.p_value < self.level

    def to_json(self) -> dict[str, Any]:
        return {"p_value": self.p_value, "level": self.level, "refuted": self.refuted}


@dataclass(frozen=True)
class Attack:
    """One statistical attack: the lower bound it reached, and its power against noise that is missing.

    With several attacks in one verdict each bound and each curve test has its share of the error.
    """

    name: str
    bound: LowerBound
    power: float
    evidence: str
    curve: CurveTest | None = None
    """None where only one (epsilon, delta) is on trial."""


@dataclass(frozen=True)
class Verdict:
    """The conclusion with everything it rests on; a failed check of any layer is a violation."""

    promise: Promise | None
    checks: tuple[Check, ...]
    attacks: tuple[Attack, ...]
    confidence: float

    @property
    def word(self) -> Word:
        if any(check.outcome is Outcome.FAILED for check in self.checks):
            return Word.VIOLATED
        if self.promise is not None and self.epsilon_lower is not None and self.epsilon_lower > self.promise.epsilon:
            return Word.VIOLATED
        if self._refuting is not None:
            return Word.VIOLATED
        return Word.CONSISTENT if self._powerful else Word.INCONCLUSIVE

    @property
    def epsilon_lower(self) -> float | None:
        """The largest lower bound; each attack had its share of the error, so the maximum is valid."""
        return max((attack.bound.epsilon for attack in self.attacks), default=None)

    @property
    def why(self) -> str:
        failed = [check for check in self.checks if check.outcome is Outcome.FAILED]
        if failed:
            return "; ".join(f"{check.name}: {check.finding}" for check in failed)
        refuting = self._refuting
        exceeded = self.promise is not None and (self.epsilon_lower or 0.0) > self.promise.epsilon
        if refuting is not None and refuting.curve is not None and not exceeded:
            return (
                f"{refuting.name}: a run with the signed noise would betray as much with probability at most "
                f"{refuting.curve.p_value:.2g}, so the run has less noise, or publishes more, than the manifest prices"
            )
        if exceeded and self.promise is not None:
            return (
                f"the observer's guesses show epsilon of at least {self.epsilon_lower:.3f} with "
                f"{100 * self.confidence:g}% confidence, and {self.promise.epsilon:g} is {self.promise.source}"
            )
        if self.promise is None and self.epsilon_lower is not None:
            return f"nothing was promised that could be refuted; epsilon is at least {self.epsilon_lower:.3f}"
        if self._contested:
            return (
                "nothing refutes the claim, but the certified cost of the signed noise is above it, and an attack that "
                "would have noticed missing noise says nothing about noise that is there and too small"
            )
        if any(attack.power >= CONCLUSIVE for attack in self.attacks):
            return "no check failed, and an attack that could have refuted the promise did not"
        if self.word is Word.CONSISTENT:
            return "no check failed, and the published values were measured to carry all of the signed noise"
        return "no check failed, but no attack had an even chance of refuting the promise"

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.word.value,
            "why": self.why,
            "epsilon_lower": self.epsilon_lower,
            "confidence": self.confidence,
            "promised": None
            if self.promise is None
            else {"epsilon": self.promise.epsilon, "delta": self.promise.delta, "source": self.promise.source},
            "attacks": [
                {
                    "name": one.name,
                    "power": one.power,
                    "evidence": one.evidence,
                    "bound": one.bound.as_json(),
                    "curve": None if one.curve is None else one.curve.to_json(),
                }
                for one in self.attacks
            ],
            "checks": [check.to_json() for check in self.checks],
        }

    @property
    def _refuting(self) -> Attack | None:
        """The attack that contradicts the manifest's own curve most clearly, if one does."""
        refuting = [one for one in self.attacks if one.curve is not None and one.curve.refuted]
        return min(refuting, key=lambda one: one.curve.p_value if one.curve else 1.0, default=None)

    @property
    def _contested(self) -> bool:
        return self.promise is not None and self.promise.standing is Standing.CONTESTED

    @property
    def _powerful(self) -> bool:
        """An attack with power, or noise measured directly, all of it (`noise_conformance.all_measured`).

        A question of that layer that could not be answered leaves it silent. That the signed noise is there speaks for
        a promise only if the promise was priced with that noise. Power is against noise that is missing; where the
        signed noise itself is known to cost more than was claimed, that is not the breach in question.
        """
        if self._contested:
            return False
        noise = [check.outcome for check in self.checks if check.layer is Layer.NOISE]
        priced = self.promise is None or self.promise.standing is Standing.PRICED
        measured = priced and bool(noise) and all(outcome is Outcome.PASSED for outcome in noise)
        return measured or any(attack.power >= CONCLUSIVE for attack in self.attacks)
