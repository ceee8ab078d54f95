"""What a bound is: it tests a claimed curve, and says which epsilons the evidence refutes."""

from __future__ import annotations

from typing import Protocol, TypeVar

from audit.bounds.counts import ErrorCounts, GuessCounts
from audit.bounds.lower_bound import LowerBound, Method
from audit.bounds.trade_off import CurveFamily, TradeOff

Evidence = TypeVar("Evidence", contravariant=True)


class Bound(Protocol[Evidence]):
    """A bound whose evidence is counts; every answer is valid for evidence not chosen by its own result."""

    @property
    def method(self) -> Method: ...

    @property
    def family(self) -> CurveFamily: ...

    def p_value(self, counts: Evidence, claim: TradeOff) -> float:
        """At most u with probability at most u, for every u, if the claim is true."""
        ...

    def refutes(self, counts: Evidence, claim: TradeOff, confidence: float = 0.95) -> bool:
        """True with probability at most 1 - confidence if the claim is true."""
        ...

    def lower_bound(self, counts: Evidence, delta: float, confidence: float = 0.95) -> LowerBound:
        """Above the true epsilon at `delta` with probability at most 1 - confidence."""
        ...


RepeatedRunsBound = Bound[ErrorCounts]
OneRunBound = Bound[GuessCounts]
