"""The Gaussian bound from repeated runs: sharper, for releases that are Gaussian at heart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scipy.special import ndtri

from audit.bounds.counts import ErrorCounts
from audit.bounds.error_box import box_p_value, error_box
from audit.bounds.lower_bound import LowerBound, Method, allowed_failure
from audit.bounds.trade_off import CurveFamily, TradeOff, check_family_delta
from calibrate.accountants.gaussian import gaussian_epsilon_interval


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
