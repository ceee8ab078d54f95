"""The Clopper-Pearson box around both error rates, and the test it makes of any trade-off curve.

Guarantee: each side is exceeded by the true rate with probability at most failure / 2, so the true pair of
rates lies in the box with probability at least 1 - failure. A curve is refuted when the whole box lies
below it (docs/theorems/audit-bounds.md, "The box").
"""

from __future__ import annotations

from dataclasses import dataclass

from scipy.special import betainccinv

from audit.bounds.counts import ErrorCounts
from audit.bounds.refutation import smallest_level
from audit.bounds.trade_off import TradeOff


@dataclass(frozen=True)
class ErrorBox:
    """Upper bounds of the two error rates that hold together."""

    false_positive_rate: float
    false_negative_rate: float

    def refutes(self, claim: TradeOff) -> bool:
        return self.false_negative_rate < claim.type_two_error(self.false_positive_rate)


def upper_rate(errors: int, trials: int, failure: float) -> float:
    """The Clopper-Pearson upper bound: the rate at which so few errors have probability `failure`."""
    return float(betainccinv(errors + 1, trials - errors, failure)) if errors < trials else 1.0


def lower_rate(errors: int, trials: int, failure: float) -> float:
    return 1 - upper_rate(trials - errors, trials, failure)


def error_box(counts: ErrorCounts, failure: float) -> ErrorBox:
    return ErrorBox(
        upper_rate(counts.false_positives, counts.runs_without, failure / 2),
        upper_rate(counts.false_negatives, counts.runs_with, failure / 2),
    )


def box_p_value(counts: ErrorCounts, claim: TradeOff) -> float:
    """The smallest failure probability at which the box refutes the curve (the box shrinks as it grows)."""
    return smallest_level(lambda failure: error_box(counts, failure).refutes(claim))
