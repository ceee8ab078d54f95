"""Two bounds from one run: many independent coins, one training.

Steinke, Nasr and Jagielski (2023): under (epsilon, delta) privacy a guess about one coin with k sides is right with
probability at most q = e^eps / (e^eps + k - 1), up to delta, whatever is known of the other coins. Delta is paid for as
in docs/theorems/audit-bounds.md, Theorem 2, which is sharper than the published term and implies it.

Mahloujifar, Melis and Chaudhuri (2024): any trade-off curve. Let p_i be the probability of exactly i right guesses of
c'. A curve limits, for every j, how much mass can sit at j right guesses or more, given the mass at j - 1 or more.
Starting from probability tau at "c or more right" and walking down, the least total probability that this needs is
computed; if it exceeds 1, the curve does not allow tau. The p-value is the largest tau it allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import betaincinv

from audit.bounds.binomial import at_least, log_masses
from audit.bounds.lower_bound import (
    GuessCounts,
    LowerBound,
    Method,
    allowed_failure,
    bound_of_parameter,
    refuted_up_to,
    smallest_level,
)
from audit.bounds.trade_off import CurveFamily, TradeOff, check_family_delta, curves_of
from audit.settings import CONFIDENCE

_SCAN = 33
_BISECTIONS = 30


@dataclass(frozen=True)
class OneRun:
    """`guesses` of `coins` fixed beforehand, `correct` of them right.

    Guarantee: docs/theorems/audit-bounds.md, "One run"; for any release, one run or several pooled.
    """

    method: ClassVar[Method] = Method.ONE_RUN
    family: ClassVar[CurveFamily] = CurveFamily.EPSILON_DELTA

    def p_value(self, counts: GuessCounts, claim: TradeOff) -> float:
        """The smallest of the p-values of the (epsilon, delta) promises in the claim.

        All of them bound the same probability P[W >= v], so the smallest needs no correction.
        """
        return min(self._p_value(counts, promise.epsilon, promise.delta) for promise in claim.points())

    def refutes(self, counts: GuessCounts, claim: TradeOff, confidence: float = CONFIDENCE) -> bool:
        return self.p_value(counts, claim) < allowed_failure(confidence)

    def lower_bound(self, counts: GuessCounts, delta: float, confidence: float = CONFIDENCE) -> LowerBound:
        check_family_delta(self.family, delta)
        epsilon = self._largest_refuted(counts, delta, allowed_failure(confidence))
        return LowerBound(epsilon, delta, confidence, self.method, self.family, counts)

    def _largest_refuted(self, counts: GuessCounts, delta: float, failure: float) -> float:
        """The largest epsilon found with a p-value below `failure`; every such epsilon is valid."""

        def refuted(epsilon: float) -> bool:
            return self._p_value(counts, epsilon, delta) < failure

        most = _without_delta(counts, failure)
        grid = np.linspace(0.0, most, _SCAN)
        low = next((i for i in range(_SCAN - 1, -1, -1) if refuted(grid[i])), None)
        if low is None:
            return 0.0
        inside, outside = float(grid[low]), float(grid[min(low + 1, _SCAN - 1)])
        for _ in range(_BISECTIONS):
            middle = (inside + outside) / 2
            if refuted(middle):
                inside = middle
            else:
                outside = middle
        return inside

    def _p_value(self, counts: GuessCounts, epsilon: float, delta: float) -> float:
        """The right side of equation (7)."""
        if counts.correct == 0:
            return 1.0
        wrong = wrong_rate(epsilon, counts.choices)
        tail = at_least(counts.correct, counts.guesses, wrong)
        if delta == 0:
            return tail
        return min(1.0, tail + counts.coins * delta * _delta_price(counts, wrong, tail))


def wrong_rate(epsilon: float, choices: int) -> float:
    """1 - q: how often at least an epsilon-private guess about a coin with this many sides is wrong."""
    return (choices - 1) / (math.exp(epsilon) + choices - 1)


def _without_delta(counts: GuessCounts, failure: float) -> float:
    """The epsilon at which P[W >= v] alone equals `failure`: no bound with delta can exceed it."""
    if counts.correct == 0:
        return 0.0
    right = float(betaincinv(counts.correct, counts.guesses - counts.correct + 1, failure))
    return max(0.0, math.log((counts.choices - 1) * right / (1 - right)))


def _delta_price(counts: GuessCounts, wrong: float, tail: float) -> float:
    """What one coin pays for delta in equation (7): tail (1 - tail) / (v P[W = v]), at most 1 - q."""
    mass = float(np.exp(log_masses(np.array([float(counts.correct)]), counts.guesses, wrong))[0])
    if mass == 0:
        return min(wrong, _price_far_out(counts, wrong))
    return min(wrong, tail * (1 - tail) / (counts.correct * mass))


def _price_far_out(counts: GuessCounts, wrong: float) -> float:
    """Where P[W = v] underflows above the mean.

    Each mass is at most `step` times the one before, so tail / mass <= 1 / (1 - step).
    """
    # P[W = v + 1] / P[W = v] = (r - v) / (v + 1) * q / (1 - q).
    step = (counts.guesses - counts.correct) / (counts.correct + 1) * (1 - wrong) / wrong
    return 1 / (counts.correct * (1 - step)) if step < 1 else math.inf


@dataclass(frozen=True)
class FDPOneRun:
    """`guesses` of `coins` fixed beforehand, `correct` of them right, against curves of `family` or a claim.

    Guarantee: docs/theorems/audit-bounds.md, "One run against a trade-off curve"; one run or several pooled; for any
    release, and with `CurveFamily.GAUSSIAN` for releases dominated by one Gaussian release.
    """

    family: CurveFamily = CurveFamily.EPSILON_DELTA
    method: ClassVar[Method] = Method.F_DP

    def p_value(self, counts: GuessCounts, claim: TradeOff) -> float:
        return smallest_level(lambda tau: not_allowed(counts, claim, tau))

    def refutes(self, counts: GuessCounts, claim: TradeOff, confidence: float = CONFIDENCE) -> bool:
        return not_allowed(counts, claim, allowed_failure(confidence))

    def lower_bound(self, counts: GuessCounts, delta: float, confidence: float = CONFIDENCE) -> LowerBound:
        curves, failure = curves_of(self.family, delta), allowed_failure(confidence)
        parameter = refuted_up_to(lambda parameter: not_allowed(counts, curves(parameter), failure))
        return bound_of_parameter(self, parameter, counts, delta, confidence)


def not_allowed(counts: GuessCounts, claim: TradeOff, tau: float) -> bool:
    """Whether the curve gives this many right guesses, or more, a probability below `tau`: equation (9)."""
    guesses, sides = counts.guesses, counts.choices - 1
    total = guesses / counts.coins
    least = claim.least_probability
    right = tau * counts.correct / counts.coins
    wrong = tau * (guesses - counts.correct) / counts.coins
    for i in range(counts.correct - 1, -1, -1):
        needed = sides * least(right)
        if needed <= wrong:
            return False  # Nothing moves now, so nothing moves further down.
        # Mass p at i right guesses adds p (guesses - i) / coins to `wrong` and p i / coins to `right`.
        right += i / (guesses - i) * (needed - wrong)
        wrong = needed
        if right + wrong > total:
            return True
    return False
