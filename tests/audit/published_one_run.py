"""The one-run bound with the delta term as Steinke, Nasr and Jagielski (2023) print it: an oracle for ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from audit.bounds import CurveFamily, EpsilonDeltaCurve, GuessCounts, LowerBound, Method, OneRun, TradeOff
from audit.bounds.binomial import at_least, log_masses
from audit.bounds.lower_bound import allowed_failure, refuted_up_to
from audit.bounds.one_run import wrong_rate


@dataclass(frozen=True)
class PublishedOneRun:
    """P[W >= v] + 2 m delta max_i P[v - i <= W < v] / i, for coins with two sides.

    It is proved where P[W >= v] is at most one half; elsewhere the larger of it and our own term is taken.
    """

    method: ClassVar[Method] = Method.ONE_RUN
    family: ClassVar[CurveFamily] = CurveFamily.EPSILON_DELTA

    def p_value(self, counts: GuessCounts, claim: TradeOff) -> float:
        return min(self._p_value(counts, promise) for promise in claim.points())

    def refutes(self, counts: GuessCounts, claim: TradeOff, confidence: float = 0.95) -> bool:
        return self.p_value(counts, claim) < allowed_failure(confidence)

    def lower_bound(self, counts: GuessCounts, delta: float, confidence: float = 0.95) -> LowerBound:
        def refutes(epsilon: float) -> bool:
            return self.refutes(counts, EpsilonDeltaCurve(epsilon, delta), confidence)

        epsilon = refuted_up_to(refutes)
        if epsilon > 0:
            epsilon += refuted_up_to(lambda more: refutes(epsilon + 1e-6 * more)) * 1e-6
        return LowerBound(epsilon, delta, confidence, self.method, self.family, counts)

    def _p_value(self, counts: GuessCounts, promise: EpsilonDeltaCurve) -> float:
        assert counts.choices == 2
        ours = OneRun().p_value(counts, promise)
        if counts.correct == 0:
            return ours
        wrong = wrong_rate(promise.epsilon, 2)
        below = np.arange(counts.correct - 1, -1, -1, dtype=np.float64)
        reached = np.cumsum(np.exp(log_masses(below, counts.guesses, wrong)))
        price = 2 * float(np.max(reached / np.arange(1, counts.correct + 1)))
        printed = at_least(counts.correct, counts.guesses, wrong) + counts.coins * promise.delta * price
        return max(ours, min(1.0, printed))
