"""The root of a monotone function between two points, for callers that then certify it themselves.

scipy.optimize has such a finder, but importing it takes longer than most questions take to answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_MOST_STEPS = 1000


def find_root(function: Callable[[float], float], low: float, high: float, absolute: float, relative: float) -> float:
    """Where the function changes its sign, within `absolute` + `relative` |x|; its signs at the two ends must differ.

    Chandrupatla (Advances in Engineering Software 28, 1997): inverse quadratic interpolation where three points make it
    trustworthy, else halving. An infinite value counts by its sign alone.
    """
    new, old = high, low
    at_new, at_old = function(new), function(old)
    if at_new == 0 or at_old == 0:
        return new if at_new == 0 else old
    if (at_new > 0) == (at_old > 0):
        raise ValueError(f"no change of sign between {low!r} and {high!r}")
    step = 0.5
    for _ in range(_MOST_STEPS):
        trial = new + step * (old - new)
        at_trial = function(trial)
        if (at_trial > 0) == (at_new > 0):
            dropped, at_dropped = new, at_new
        else:
            dropped, at_dropped, old, at_old = old, at_old, new, at_new
        new, at_new = trial, at_trial
        best = new if abs(at_new) < abs(at_old) else old
        least = (absolute + relative * abs(best)) / abs(old - new)
        if least > 0.5 or at_new == 0:
            break
        step = min(max(_interpolated((new, old, dropped), (at_new, at_old, at_dropped)), least), 1.0 - least)
    return best


def _interpolated(x: tuple[float, float, float], y: tuple[float, float, float]) -> float:
    """Where to look next between the first two of three points, as a share of the way; one half if they do not tell."""
    (a, b, c), (at_a, at_b, at_c) = x, y
    if not all(map(math.isfinite, y)) or at_c in (at_a, at_b):
        return 0.5
    place, height = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
    if not 1.0 - math.sqrt(1.0 - place) < height < math.sqrt(place):
        return 0.5
    return at_a / (at_b - at_a) * at_c / (at_b - at_c) + (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
