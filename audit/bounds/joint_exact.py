"""The joint exact test of repeated runs: both error counts in one statistic, instead of a box around them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from scipy.optimize import brentq

from audit.bounds.counts import ErrorCounts
from audit.bounds.error_box import lower_rate, upper_rate
from audit.bounds.joint_tail import JointTail
from audit.bounds.lower_bound import LowerBound, Method, allowed_failure
from audit.bounds.trade_off import CurveFamily, EpsilonDeltaCurve, GaussianCurve, TradeOff, check_family_delta
from calibrate.accountants.gaussian import gaussian_epsilon_interval
from calibrate.errors import InvalidInput
from calibrate.validation import open_unit

_AIM = 0.975
"""The search aims at this fraction of the level, so that the certificate needs few cells."""
_MOST = 256.0
_CLOSE = 3e-4
_NOTHING = 1e-6


@dataclass(frozen=True)
class JointExact:
    """p = nuisance_error + the largest tail probability over the rates in a (1 - nuisance_error) interval.

    Guarantee: docs/theorems/audit-bounds.md, "The joint exact test"; for any curve with `p_value`, and with
    `lower_bound` for the curves of `family`. It loses nothing to a union bound over the two rates, as a box does.
    """

    family: CurveFamily = CurveFamily.GAUSSIAN
    nuisance_error: float = 1e-3
    method: ClassVar[Method] = Method.JOINT_EXACT

    def __post_init__(self) -> None:
        open_unit("nuisance error", self.nuisance_error)

    def p_value(self, counts: ErrorCounts, claim: TradeOff) -> float:
        return min(1.0, self.nuisance_error + self._tail(counts).largest(claim))

    def refutes(self, counts: ErrorCounts, claim: TradeOff, confidence: float = 0.95) -> bool:
        return self._tail(counts).is_below(claim, self._level(confidence))

    def lower_bound(self, counts: ErrorCounts, delta: float, confidence: float = 0.95) -> LowerBound:
        check_family_delta(self.family, delta)
        level, tail = self._level(confidence), self._tail(counts)
        if self.family is CurveFamily.GAUSSIAN:
            mu = _largest_refuted(tail, GaussianCurve, level)
            epsilon = gaussian_epsilon_interval(mu, mu, delta).lower
            return LowerBound(epsilon, delta, confidence, self.method, self.family, counts, mu)
        epsilon = _largest_refuted(tail, lambda epsilon: EpsilonDeltaCurve(epsilon, delta), level)
        return LowerBound(epsilon, delta, confidence, self.method, self.family, counts)

    def _level(self, confidence: float) -> float:
        level = allowed_failure(confidence) - self.nuisance_error
        if level <= 0:
            raise InvalidInput(
                "confidence",
                confidence,
                f"leaves nothing after the nuisance error {self.nuisance_error:g}",
                "give the test a smaller nuisance error",
            )
        return level

    def _tail(self, counts: ErrorCounts) -> JointTail:
        half = self.nuisance_error / 2
        errors, runs = counts.false_positives, counts.runs_without
        return JointTail(counts, max(0.0, lower_rate(errors, runs, half)), upper_rate(errors, runs, half))


def _largest_refuted(tail: JointTail, curve: Callable[[float], TradeOff], level: float) -> float:
    """The largest parameter certified as refuted, up to the precision of the certificate.

    The tail probability grows with the parameter: the root of the uncertified glance is the guess, and the
    guess is lowered until it is certified.
    """

    def excess(parameter: float) -> float:
        return math.log(max(tail.glance(curve(parameter)), 1e-300)) - math.log(_AIM * level)

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
        if high > _MOST:
            return _certified(tail, curve, level, _MOST)
    return _certified(tail, curve, level, float(brentq(excess, 0.0, high, xtol=1e-7, rtol=1e-9)))


def _certified(tail: JointTail, curve: Callable[[float], TradeOff], level: float, guess: float) -> float:
    """The guess if it is certified as refuted, else the largest smaller parameter that is."""
    low, high = guess, guess
    while not tail.is_below(curve(low), level):
        low, high = 0.99 * low, low
        if low < _NOTHING:
            return 0.0
    while high - low > _CLOSE * low:
        middle = (low + high) / 2
        if tail.is_below(curve(middle), level):
            low = middle
        else:
            high = middle
    return low
