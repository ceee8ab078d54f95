"""The Clopper-Pearson box around both error rates, and the test it makes of any trade-off curve.

Guarantee: each side is exceeded by the true rate with probability at most failure / 2, so the true pair of
rates lies in the box with probability at least 1 - failure. A curve is refuted when the whole box lies
below it (docs/theorems/audit-bounds.md, "The box").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from scipy.special import betainccinv, ndtri

from audit.bounds.lower_bound import (
    ErrorCounts,
    GuessCounts,
    LowerBound,
    Method,
    allowed_failure,
    refuted_up_to,
    smallest_level,
)
from audit.bounds.trade_off import CurveFamily, EpsilonDeltaCurve, GaussianCurve, TradeOff, check_family_delta
from calibrate.accountants.gaussian import gaussian_epsilon_interval


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


# The Clopper-Pearson bound from repeated runs: no assumption on the release, and little power.


@dataclass(frozen=True)
class ClopperPearson:
    """(epsilon, delta) privacy forces 1 - FNR <= e^eps FPR + delta, and the same with the rates swapped.

    Guarantee: docs/theorems/audit-bounds.md, "The box"; for any release and a threshold that does not
    depend on the counted runs.
    """

    method: ClassVar[Method] = Method.CLOPPER_PEARSON
    family: ClassVar[CurveFamily] = CurveFamily.EPSILON_DELTA

    def p_value(self, counts: ErrorCounts, claim: TradeOff) -> float:
        return box_p_value(counts, claim)

    def refutes(self, counts: ErrorCounts, claim: TradeOff, confidence: float = 0.95) -> bool:
        return error_box(counts, allowed_failure(confidence)).refutes(claim)

    def lower_bound(self, counts: ErrorCounts, delta: float, confidence: float = 0.95) -> LowerBound:
        check_family_delta(self.family, delta)
        box = error_box(counts, allowed_failure(confidence))
        first, second = box.false_positive_rate, box.false_negative_rate
        epsilon = max(_log_ratio(1 - second - delta, first), _log_ratio(1 - first - delta, second))
        return LowerBound(epsilon, delta, confidence, self.method, self.family, counts)


def _log_ratio(success: float, error: float) -> float:
    return max(0.0, math.log(success / error)) if success > 0 else 0.0


# The Gaussian bound from repeated runs: sharper, for releases that are Gaussian at heart.


@dataclass(frozen=True)
class GaussianBox:
    """mu = Phi^-1(1 - FPR) - Phi^-1(FNR) at the corner of the box, then epsilon(mu, delta).

    Guarantee: docs/theorems/audit-bounds.md, "The box", for releases dominated by one Gaussian release. For
    any other claim use `p_value` with the manifest's own curve, which assumes nothing.
    """

    method: ClassVar[Method] = Method.GAUSSIAN
    family: ClassVar[CurveFamily] = CurveFamily.GAUSSIAN

    def p_value(self, counts: ErrorCounts, claim: TradeOff) -> float:
        return box_p_value(counts, claim)

    def refutes(self, counts: ErrorCounts, claim: TradeOff, confidence: float = 0.95) -> bool:
        return error_box(counts, allowed_failure(confidence)).refutes(claim)

    def lower_bound(self, counts: ErrorCounts, delta: float, confidence: float = 0.95) -> LowerBound:
        check_family_delta(self.family, delta)
        box = error_box(counts, allowed_failure(confidence))
        mu = max(0.0, float(-ndtri(box.false_positive_rate) - ndtri(box.false_negative_rate)))
        epsilon = gaussian_epsilon_interval(mu, mu, delta).lower
        return LowerBound(epsilon, delta, confidence, self.method, self.family, counts, mu)


# The one-run bound of Mahloujifar, Melis and Chaudhuri (2024): any trade-off curve, coins with k sides.
#
# Let p_i be the probability of exactly i right guesses of c'. A trade-off curve limits, for every j, how much
# mass can sit at j right guesses or more, given the mass at j - 1 or more. Starting from probability tau at
# "c or more right" and walking down, the least total probability that this needs is computed; if it exceeds 1, the
# curve does not allow tau. The p-value is the largest tau it allows.


@dataclass(frozen=True)
class FDPOneRun:
    """`guesses` of `coins` fixed beforehand, `correct` of them right, against curves of `family` or a claim.

    Guarantee: docs/theorems/audit-bounds.md, "One run against a trade-off curve"; one run or several pooled.
    """

    family: CurveFamily = CurveFamily.GAUSSIAN
    method: ClassVar[Method] = Method.F_DP

    def p_value(self, counts: GuessCounts, claim: TradeOff) -> float:
        return smallest_level(lambda tau: not_allowed(counts, claim, tau))

    def refutes(self, counts: GuessCounts, claim: TradeOff, confidence: float = 0.95) -> bool:
        return not_allowed(counts, claim, allowed_failure(confidence))

    def lower_bound(self, counts: GuessCounts, delta: float, confidence: float = 0.95) -> LowerBound:
        check_family_delta(self.family, delta)
        failure = allowed_failure(confidence)
        if self.family is CurveFamily.GAUSSIAN:
            mu = refuted_up_to(lambda mu: not_allowed(counts, GaussianCurve(mu), failure))
            epsilon = gaussian_epsilon_interval(mu, mu, delta).lower
            return LowerBound(epsilon, delta, confidence, self.method, self.family, counts, mu)
        epsilon = refuted_up_to(lambda eps: not_allowed(counts, EpsilonDeltaCurve(eps, delta), failure))
        return LowerBound(epsilon, delta, confidence, self.method, self.family, counts)


def not_allowed(counts: GuessCounts, claim: TradeOff, tau: float) -> bool:
    """Whether the curve gives so many right guesses, or more, a probability below `tau`."""
    guesses, sides = counts.guesses, counts.choices - 1
    total = guesses / counts.coins
    least = claim.least_probability
    right = tau * counts.correct / counts.coins
    wrong = tau * (guesses - counts.correct) / counts.coins
    for i in range(counts.correct - 1, -1, -1):
        needed = sides * least(right)
        if needed <= wrong:
            return False  # Nothing moves now, so nothing moves further down.
        right += i / (guesses - i) * (needed - wrong)
        wrong = needed
        if right + wrong > total:
            return True
    return False
