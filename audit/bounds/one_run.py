"""The one-run bound of Steinke, Nasr and Jagielski (2023): many independent coins, one training run.

Under (epsilon, delta) privacy a guess about one coin with k sides is right with probability at most
q = e^eps / (e^eps + k - 1), up to delta, whatever is known of the other coins. Two ways to pay for delta are
offered: the published one, and a sharper one with a complete proof in docs/theorems/audit-bounds.md, from
which the published one follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, assert_never

import numpy as np
from scipy.special import betaincinv

from audit.bounds.binomial import at_least, log_masses
from audit.bounds.lower_bound import GuessCounts, LowerBound, Method, allowed_failure
from audit.bounds.trade_off import CurveFamily, TradeOff, check_family_delta
from calibrate.errors import UnsupportedCombination

_SCAN = 33
_BISECTIONS = 30


class DeltaTerm(Enum):
    """What is added to P[W >= v], W ~ Binomial(r, q), to pay for delta (m coins).

    PUBLISHED: 2 m delta max_i P[v - i <= W < v] / i, for coins with two sides.
    SHARP: m delta (1 - q) / (E[W | W >= v] - E[W | W < v]), for any coins. Never the larger one where a p-value
    is below 1/2; elsewhere PUBLISHED means the larger of the two, because only that is proved.
    """

    PUBLISHED = "published"
    SHARP = "sharp"


@dataclass(frozen=True)
class OneRun:
    """`guesses` of `coins` fixed beforehand, `correct` of them right.

    Guarantee: docs/theorems/audit-bounds.md, "One run"; for any release, one run or several pooled.
    """

    delta_term: DeltaTerm = DeltaTerm.SHARP
    method: ClassVar[Method] = Method.ONE_RUN
    family: ClassVar[CurveFamily] = CurveFamily.EPSILON_DELTA

    def p_value(self, counts: GuessCounts, claim: TradeOff) -> float:
        """The smallest of the p-values of the (epsilon, delta) promises in the claim.

        All of them bound the same probability P[W >= v], so the smallest needs no correction.
        """
        return min(self._p_value(counts, promise.epsilon, promise.delta) for promise in claim.points())

    def refutes(self, counts: GuessCounts, claim: TradeOff, confidence: float = 0.95) -> bool:
        return self.p_value(counts, claim) < allowed_failure(confidence)

    def lower_bound(self, counts: GuessCounts, delta: float, confidence: float = 0.95) -> LowerBound:
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
        if counts.correct == 0:
            return 1.0
        wrong = wrong_rate(epsilon, counts.choices)
        tail = at_least(counts.correct, counts.guesses, wrong)
        if delta == 0:
            return tail
        return min(1.0, tail + counts.coins * delta * self._price(counts, wrong, tail))

    def _price(self, counts: GuessCounts, wrong: float, tail: float) -> float:
        match self.delta_term:
            case DeltaTerm.PUBLISHED:
                return max(_published_price(counts, wrong), _sharp_price(counts, wrong, tail))
            case DeltaTerm.SHARP:
                return _sharp_price(counts, wrong, tail)
            case _:
                assert_never(self.delta_term)


def wrong_rate(epsilon: float, choices: int) -> float:
    """1 - q: how often at least an epsilon-private guess about a coin with so many sides is wrong."""
    return (choices - 1) / (math.exp(epsilon) + choices - 1)


def _without_delta(counts: GuessCounts, failure: float) -> float:
    """The epsilon at which P[W >= v] alone equals `failure`: no bound with delta can exceed it."""
    if counts.correct == 0:
        return 0.0
    right = float(betaincinv(counts.correct, counts.guesses - counts.correct + 1, failure))
    return max(0.0, math.log((counts.choices - 1) * right / (1 - right)))


def _sharp_price(counts: GuessCounts, wrong: float, tail: float) -> float:
    """tail (1 - tail) / (v P[W = v]), which equals (1 - q) / (E[W | W >= v] - E[W | W < v]); at most 1 - q."""
    mass = float(np.exp(log_masses(np.array([float(counts.correct)]), counts.guesses, wrong))[0])
    if mass == 0:
        return min(wrong, _price_far_out(counts, wrong))
    return min(wrong, tail * (1 - tail) / (counts.correct * mass))


def _price_far_out(counts: GuessCounts, wrong: float) -> float:
    """Where P[W = v] underflows above the mean.

    Each mass is at most `step` times the one before, so tail / mass <= 1 / (1 - step).
    """
    step = (counts.guesses - counts.correct) / (counts.correct + 1) * (1 - wrong) / wrong
    return 1 / (counts.correct * (1 - step)) if step < 1 else math.inf


def _published_price(counts: GuessCounts, wrong: float) -> float:
    """2 max over 1 <= i <= v of P[v - i <= W < v] / i."""
    if counts.choices != 2:
        raise UnsupportedCombination(
            f"the published delta term with {counts.choices}-sided coins",
            "it was proved for two sides",
            "use DeltaTerm.SHARP",
        )
    below = np.arange(counts.correct - 1, -1, -1, dtype=np.float64)
    reached = np.cumsum(np.exp(log_masses(below, counts.guesses, wrong)))
    return 2 * float(np.max(reached / np.arange(1, counts.correct + 1)))
