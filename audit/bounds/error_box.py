"""The Clopper-Pearson box around both error rates, and the test it makes of any trade-off curve.

Guarantee: each side is exceeded by the true rate with probability at most failure / 2, so the true pair of
rates lies in the box with probability at least 1 - failure. A curve is refuted when the whole box lies
below it (docs/theorems/audit-bounds.md, "The box").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import betainccinv, ndtri

from audit.bounds.lower_bound import (
    ErrorCounts,
    LowerBound,
    Method,
    allowed_failure,
    bound_of_parameter,
    smallest_level,
)
from audit.bounds.trade_off import CurveFamily, TradeOff, check_family_delta
from audit.settings import CONFIDENCE


@dataclass(frozen=True)
class ErrorBox:
    """Upper bounds of the two error rates that hold together."""

    false_positive_rate: float
    false_negative_rate: float

    def refutes(self, claim: TradeOff) -> bool:
        """Equation (1)."""
        return self.false_negative_rate < claim.type_two_error(self.false_positive_rate)

    def epsilon(self, delta: float) -> float:
        """The largest refuted epsilon at `delta`, equation (2)."""
        first, second = self.false_positive_rate, self.false_negative_rate
        return max(_log_ratio(1 - second - delta, first), _log_ratio(1 - first - delta, second))

    def mu(self) -> float:
        """The largest refuted Gaussian, equation (3)."""
        return max(0.0, float(-ndtri(self.false_positive_rate) - ndtri(self.false_negative_rate)))


def upper_rate(errors: int, trials: int, failure: float) -> float:
    """The Clopper-Pearson upper bound: the rate at which so few errors have probability `failure`."""
    return float(betainccinv(errors + 1, trials - errors, failure)) if errors < trials else 1.0


def lower_rate(errors: int, trials: int, failure: float) -> float:
    """The Clopper-Pearson lower bound."""
    return 1 - upper_rate(trials - errors, trials, failure)


def error_box(counts: ErrorCounts, failure: float) -> ErrorBox:
    """Both rates' upper bounds, each at half of the failure probability."""
    return ErrorBox(
        upper_rate(counts.false_positives, counts.runs_without, failure / 2),
        upper_rate(counts.false_negatives, counts.runs_with, failure / 2),
    )


@dataclass(frozen=True)
class ClopperPearson:
    """The largest parameter of `family` that the whole box refutes: nothing is assumed unless a Gaussian is asked for.

    Guarantee: docs/theorems/audit-bounds.md, "The box", for a threshold that does not depend on the counted runs; for
    any release with the default family, and with `CurveFamily.GAUSSIAN` for releases dominated by one Gaussian release.
    """

    family: CurveFamily = CurveFamily.EPSILON_DELTA

    @property
    def method(self) -> Method:
        return Method.GAUSSIAN if self.family is CurveFamily.GAUSSIAN else Method.CLOPPER_PEARSON

    def p_value(self, counts: ErrorCounts, claim: TradeOff) -> float:
        """The smallest failure probability at which the box refutes the curve (the box shrinks as it grows)."""
        return smallest_level(lambda failure: error_box(counts, failure).refutes(claim))

    def refutes(self, counts: ErrorCounts, claim: TradeOff, confidence: float = CONFIDENCE) -> bool:
        return error_box(counts, allowed_failure(confidence)).refutes(claim)

    def lower_bound(self, counts: ErrorCounts, delta: float, confidence: float = CONFIDENCE) -> LowerBound:
        check_family_delta(self.family, delta)
        box = error_box(counts, allowed_failure(confidence))
        parameter = box.mu() if self.family is CurveFamily.GAUSSIAN else box.epsilon(delta)
        return bound_of_parameter(self, parameter, counts, delta, confidence)


def _log_ratio(success: float, error: float) -> float:
    return max(0.0, math.log(success / error)) if success > 0 else 0.0
