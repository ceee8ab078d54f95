"""Means over splits with intervals, and the paired comparison with the control that never sees the attribute."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from privfair_experiments.seed_intervals import Interval
from privfair_experiments.steffle.split import NEGATIVE, RAISED, Row

_Key = tuple[str, float, str, float | None, float]
"""Setting, h, method, epsilon and knob."""


@dataclass(frozen=True)
class Point:
    """One method at one epsilon and one fairness weight."""

    setting: str
    h: float
    method: str
    epsilon: float | None
    true_epsilon: float | None
    knob: float
    splits: int
    error: Interval
    gap: Interval
    threshold: float | None = None
    """The control's threshold whose mean error is nearest to this point's."""
    gap_difference: Interval | None = None
    """This point's gap minus the control's at that threshold, split by split."""
    error_difference: Interval | None = None

    @property
    def verdict(self) -> str:
        """Against the control of about the same error: is the gap smaller, larger, or is it not decided?"""
        if self.gap_difference is None:
            return ""
        low, high = (
            self.gap_difference.mean - self.gap_difference.half,
            self.gap_difference.mean + self.gap_difference.half,
        )
        return "beats" if high < 0 else "loses" if low > 0 else "undecided"


def summarise(rows: list[Row]) -> list[Point]:
    """One point for every method, epsilon and knob; all but the controls are compared with the raised threshold."""
    groups: dict[_Key, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.setting, row.h, row.method, row.epsilon, row.knob].append(row)
    points = []
    for (setting, h, method, epsilon, knob), own in groups.items():
        own = sorted(own, key=lambda row: row.split)
        point = Point(
            setting,
            h,
            method,
            epsilon,
            own[0].true_epsilon,
            knob,
            len(own),
            Interval.of(row.error for row in own),
            Interval.of(row.gap for row in own),
        )
        points.append(point if method in (RAISED, NEGATIVE) else _compared(point, own, groups))
    return points


def _compared(point: Point, own: list[Row], groups: dict[_Key, list[Row]]) -> Point:
    controls = {
        key[4]: sorted(found, key=lambda row: row.split)
        for key, found in groups.items()
        if key[:3] == (point.setting, point.h, RAISED)
    }
    known = {row.split for row in own}
    controls = {t: [row for row in found if row.split in known] for t, found in controls.items()}
    threshold = min(controls, key=lambda t: abs(np.mean([row.error for row in controls[t]]) - point.error.mean))
    pairs = list(zip(own, controls[threshold], strict=True))
    assert all(mine.split == theirs.split for mine, theirs in pairs)
    return replace(
        point,
        threshold=threshold,
        gap_difference=Interval.of(mine.gap - theirs.gap for mine, theirs in pairs),
        error_difference=Interval.of(mine.error - theirs.error for mine, theirs in pairs),
    )
