"""Searches shared by the bounds: the end of the refuted parameters, and the smallest refuting level."""

from __future__ import annotations

import math
from collections.abc import Callable

_TOLERANCE = 1e-7
_FIRST_LOG_STEP = 2.0
_LOG_TOLERANCE = 1e-6
_LEAST_LOG_LEVEL = -600.0
_MOST = 450.0


def refuted_up_to(refutes: Callable[[float], bool], first_step: float = 1.0) -> float:
    """The largest parameter found refuted, 0 if none; `refutes` must turn from true to false once.

    The refuted end of the last bracket is returned, so the answer is never above the exact one.
    """
    if not refutes(0.0):
        return 0.0
    low, high = 0.0, first_step
    while refutes(high):
        low, high = high, 2 * high
        if high > _MOST:
            return low
    while high - low > _TOLERANCE * max(1.0, low):
        middle = (low + high) / 2
        if refutes(middle):
            low = middle
        else:
            high = middle
    return low


def smallest_level(refutes_at: Callable[[float], bool]) -> float:
    """The smallest level in (0, 1) that refutes, 1 if none: a p-value, rounded up.

    `refutes_at` must turn from false to true once as the level grows.
    """
    if not refutes_at(1 - 1e-9):
        return 1.0
    low, high = -_FIRST_LOG_STEP, 0.0
    while refutes_at(math.exp(low)):
        low, high = 2 * low, low
        if low < _LEAST_LOG_LEVEL:
            return math.exp(high)
    while high - low > _LOG_TOLERANCE:
        middle = (low + high) / 2
        if refutes_at(math.exp(middle)):
            high = middle
        else:
            low = middle
    return math.exp(high)
