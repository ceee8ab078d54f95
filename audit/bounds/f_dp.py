"""The one-run bound of Mahloujifar, Melis and Chaudhuri (2024): any trade-off curve, coins with k sides.

Let p_i be the probability of exactly i right guesses of c'. A trade-off curve limits, for every j, how much
mass can sit at j right guesses or more, given the mass at j - 1 or more. Starting from probability tau at
"c or more right" and walking down, the least total probability that this needs is computed; if it exceeds 1, the
curve does not allow tau. The p-value is the largest tau it allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from audit.bounds.counts import GuessCounts
from audit.bounds.lower_bound import LowerBound, Method, allowed_failure
from audit.bounds.refutation import refuted_up_to, smallest_level
from audit.bounds.trade_off import CurveFamily, EpsilonDeltaCurve, GaussianCurve, TradeOff, check_family_delta
from calibrate.accountants.gaussian import gaussian_epsilon_interval


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
