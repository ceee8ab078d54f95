"""Tests of noise keep their level, also where messages are a single number."""

from __future__ import annotations

import numpy as np
import pytest

from audit.noise import Residuals, judge_residuals
from audit.report.results import Outcome

ALPHA = 0.05


@pytest.mark.parametrize("shape", [(20, 1), (12, 6)])
def test_true_noise_is_flagged_at_most_as_often_as_stated(shape: tuple[int, int]) -> None:
    random, runs, alarms = np.random.default_rng(5), 150, 0
    for _ in range(runs):
        found = tuple(Residuals(silo, "value", random.normal(size=shape)) for silo in ("north", "south", "west"))
        alarms += any(one.outcome is Outcome.FAILED for one in judge_residuals(found, ALPHA))
    assert alarms <= runs * ALPHA + 3 * np.sqrt(runs * ALPHA)


def test_a_little_less_noise_everywhere_is_seen_in_all_values_together() -> None:
    random = np.random.default_rng(6)
    found = tuple(Residuals(f"silo {n}", "value", 0.93 * random.normal(size=(10, 60))) for n in range(10))
    wrong = [one.name for one in judge_residuals(found, 1e-3) if one.outcome is Outcome.FAILED]
    assert wrong == ["variance of all values"]
