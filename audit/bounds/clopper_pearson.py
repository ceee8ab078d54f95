"""The Clopper-Pearson bound from repeated runs: no assumption on the release, and little power."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from audit.bounds.counts import ErrorCounts
from audit.bounds.error_box import box_p_value, error_box
from audit.bounds.lower_bound import LowerBound, Method, allowed_failure
from audit.bounds.trade_off import CurveFamily, TradeOff, check_family_delta


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
