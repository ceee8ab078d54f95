"""Tests of noise keep their level, also where messages are a single number."""

from __future__ import annotations

import numpy as np
import pytest

from audit.noise import Residuals, judge_residuals
from audit.report.results import Outcome

ALPHA = 0.05


@pytest.mark.slow
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


@pytest.mark.parametrize("shape", [(240, 1), (24, 30)])
@pytest.mark.parametrize(("distance", "sign"), [(2, 1.0), (8, -1.0), (13, 1.0)])
def test_noise_that_comes_back_at_any_distance_and_with_either_sign_is_seen(
    shape: tuple[int, int], distance: int, sign: float
) -> None:
    rows = np.random.default_rng(7).normal(size=shape)
    for place in range(distance, len(rows)):
        rows[place] = sign * rows[place - distance]
    found = (Residuals("north", "value", rows),)
    assert _failed(found), "a single number per round may also show it by its variance"
    assert shape[1] == 1 or "repetition of value over rounds and silos" in _failed(found)


def test_noise_that_one_silo_takes_from_another_some_rounds_later_is_seen() -> None:
    random = np.random.default_rng(8)
    north, south = random.normal(size=(30, 8)), random.normal(size=(30, 8))
    south[5:] = -north[:-5]
    assert _failed((Residuals("north", "value", north), Residuals("south", "value", south)))


def test_two_messages_of_a_long_run_with_the_same_noise_are_seen() -> None:
    rows = np.random.default_rng(9).normal(size=(200, 40))
    rows[171] = rows[12]
    assert _failed((Residuals("north", "value", rows),)) == {"repetition of value over rounds and silos"}


@pytest.mark.parametrize("bit", [0, 7])
def test_a_bit_of_the_message_in_the_low_digits_is_seen(bit: int) -> None:
    random = np.random.default_rng(10)
    clean = random.integers(-(2**31), 2**31, size=(12, 40))
    steps = clean + np.rint(random.normal(size=clean.shape) * 2**30).astype(np.int64)
    rows = (steps - clean) / 2**30
    assert not _failed((Residuals("north", "value", rows, steps, clean),))
    marked = (steps & ~(1 << bit)) | ((clean > 0).astype(np.int64) << bit)
    assert _failed((Residuals("north", "value", rows, marked, clean),)) == {"low digits of value of north"}


def _failed(found: tuple[Residuals, ...]) -> set[str]:
    return {one.name for one in judge_residuals(found, 1e-3) if one.outcome is Outcome.FAILED}
