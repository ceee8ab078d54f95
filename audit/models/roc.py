"""The curve of an attack: area, rates at low false-positive rates, and points for a log-log figure, with intervals.

A larger score means "member". Membership attacks are judged where few are accused wrongly (Carlini et al. 2022), so
true-positive rates at 0.1% and 1% come first and the area second.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, ndtri

from audit.bounds.lower_bound import allowed_failure
from audit.bounds.repeated_runs import lower_rate, upper_rate
from audit.report.results import Interval, RateAt, RocPoint
from audit.settings import CONFIDENCE
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput

LOW_RATES = (0.001, 0.01)
_POINTS = 61


def checked_scores(argument: str, scores: ArrayLike) -> Floats:
    """One finite score per record, at least one."""
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise InvalidInput(
            argument, values.shape, "must be one score per record, at least one", "give a flat list of scores"
        )
    bad = ~np.isfinite(values)
    if bad.any():
        raise InvalidInput(
            argument,
            f"record {int(np.argmax(bad))}: {values[np.argmax(bad)]}",
            f"must be finite ({int(bad.sum())} are not)",
            "drop or fix these records",
        )
    return values


def area(members: ArrayLike, nonmembers: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """P[a member's score is above a non-member's], ties counting half, with an interval.

    Guarantee: covers the true area with at least `confidence` for large samples, whatever the scores' laws: the
    variance of the estimate is at most A (1 - A) / min(members, nonmembers), and Wilson's interval uses that bound.
    """
    inside, outside = checked_scores("members", members), checked_scores("nonmembers", nonmembers)
    value = area_value(inside, outside)
    least = min(len(inside), len(outside))
    quantile = float(ndtri(1 - allowed_failure(confidence) / 2)) ** 2 / least
    # Wilson: the values a with (value - a)^2 <= z^2 a (1 - a) / least.
    centre = (value + quantile / 2) / (1 + quantile)
    width = math.sqrt(quantile * value * (1 - value) + quantile**2 / 4) / (1 + quantile)
    return Interval(value=value, lower=max(0.0, min(value, centre - width)), upper=min(1.0, max(value, centre + width)))


def area_value(members: Floats, nonmembers: Floats) -> float:
    """The area under the curve: how often a member's score is above a non-member's, ties counted half."""
    ordered = np.sort(nonmembers)
    below = np.searchsorted(ordered, members, side="left") + np.searchsorted(ordered, members, side="right")
    return float(below.sum() / (2 * len(members) * len(nonmembers)))


def rate_at(members: ArrayLike, nonmembers: ArrayLike, fpr: float, confidence: float = CONFIDENCE) -> RateAt:
    """The true-positive rate at a false-positive rate: the best whose measured false-positive rate is not above it.

    Guarantee: the interval covers the attack's true rate at exactly `fpr` with probability at least `confidence`, if
    members and non-members are each drawn independently; nothing is assumed about the scores. Proof in
    docs/theorems/audit-bounds.md#membership: an order statistic of the non-members' scores brackets the threshold, and
    a Clopper-Pearson interval the members above it.
    """
    inside, outside = (np.sort(checked_scores("members", members)), np.sort(checked_scores("nonmembers", nonmembers)))
    return _rate(inside, outside, fpr, allowed_failure(confidence) / 4)


def curve(members: ArrayLike, nonmembers: ArrayLike, confidence: float = CONFIDENCE) -> tuple[RocPoint, ...]:
    """Points at evenly spaced logarithms of the false-positive rate, from one non-member to all of them."""
    inside, outside = (np.sort(checked_scores("members", members)), np.sort(checked_scores("nonmembers", nonmembers)))
    accused = np.unique(np.geomspace(1, len(outside), _POINTS).round().astype(int))
    side = allowed_failure(confidence) / 4
    found = (_rate(inside, outside, int(number) / len(outside), side) for number in accused)
    return tuple(RocPoint(fpr=one.fpr, tpr=one.value, lower=one.lower, upper=one.upper) for one in found)


def low_rates(members: ArrayLike, nonmembers: ArrayLike, confidence: float = CONFIDENCE) -> tuple[RateAt, ...]:
    """The two rates by which membership attacks are compared."""
    return tuple(rate_at(members, nonmembers, fpr, confidence) for fpr in LOW_RATES)


def _rate(inside: Floats, outside: Floats, fpr: float, failure: float) -> RateAt:
    """Both arrays sorted; `failure` for each of four sides."""
    if not 0 < fpr <= 1:
        raise InvalidInput("false-positive rate", fpr, "must lie in (0, 1]", "give for example 0.01")
    if fpr == 1:
        return RateAt(fpr=1.0, value=1.0, lower=1.0, upper=1.0)
    allowed = math.floor(fpr * len(outside) * (1 + 1e-12))
    value = _share_above(inside, outside, allowed)
    most, least = _bracket(len(outside), fpr, failure)
    found = _found_above(inside, outside, most)
    lower = lower_rate(found, len(inside), failure) if found else 0.0
    upper = 1.0
    if least is not None:
        reached = len(inside) - int(np.searchsorted(inside, outside[-least], side="left"))
        upper = upper_rate(reached, len(inside), failure)
    return RateAt(fpr=fpr, value=value, lower=max(0.0, min(lower, value)), upper=min(1.0, max(upper, value)))


def _bracket(nonmembers: int, fpr: float, failure: float) -> tuple[int, int | None]:
    """How many non-members may lie above a threshold so that its true rate is surely at most, or at least, `fpr`.

    With k of n scores above "just over the (k+1)th largest", the true rate is above fpr only if Bin(n, fpr) <= k. The
    kth largest itself as threshold has a true rate below fpr only if Bin(n, fpr) >= k.
    """
    sure = _first(nonmembers, lambda k: bool(bdtr(k, nonmembers, fpr) > failure)) - 1
    enough = _first(nonmembers, lambda k: k > 0 and bool(1 - bdtr(k - 1, nonmembers, fpr) <= failure))
    return sure, enough if enough <= nonmembers else None


def _first(most: int, holds: Callable[[int], bool]) -> int:
    """The smallest number in 0 .. most for which a condition holds that holds for all larger ones; else most + 1."""
    low, high = 0, most + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _found_above(inside: Floats, outside: Floats, accused: int) -> int:
    """Members strictly above the (accused + 1)th largest non-member; none if even 0 accused are too many."""
    if accused < 0:
        return 0
    if accused >= len(outside):
        return len(inside)
    return len(inside) - int(np.searchsorted(inside, outside[len(outside) - 1 - accused], side="right"))


def _share_above(inside: Floats, outside: Floats, accused: int) -> float:
    return _found_above(inside, outside, accused) / len(inside)
