"""Tests of noise keep their level, also where messages are a single number."""

from __future__ import annotations

import numpy as np
import pytest

from audit.probes.fresh_noise import _answers_alone, _of_published, _truth, _variances
from audit.report.results import CheckOutcome
from audit.runs.noise import Residuals, grid_step, judge_residuals, off_grid
from calibrate.manifest.mechanism import GaussianNoise, NoiseSampler, RandomizedCategory
from privfair.noise import ExactNoise
from tests.planted_bugs.fixed_randomness import fixed_randomness

ALPHA = 0.05


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(20, 1), (12, 6)])
def test_true_noise_is_flagged_at_most_as_often_as_stated(shape: tuple[int, int]) -> None:
    random, runs, alarms = np.random.default_rng(5), 150, 0
    for _ in range(runs):
        found = tuple(Residuals(silo, "value", random.normal(size=shape)) for silo in ("north", "south", "west"))
        alarms += any(one.outcome is CheckOutcome.FAILED for one in judge_residuals(found, ALPHA))
    assert alarms <= runs * ALPHA + 3 * np.sqrt(runs * ALPHA)


def test_a_little_less_noise_everywhere_is_seen_in_all_values_together() -> None:
    random = np.random.default_rng(6)
    found = tuple(Residuals(f"silo {n}", "value", 0.93 * random.normal(size=(10, 60))) for n in range(10))
    wrong = [one.name for one in judge_residuals(found, 1e-3) if one.outcome is CheckOutcome.FAILED]
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


@pytest.mark.parametrize("bit", [0, 7, 22])
def test_a_bit_of_the_message_in_the_low_digits_is_seen(bit: int) -> None:
    random = np.random.default_rng(10)
    clean = random.integers(-(2**31), 2**31, size=(12, 40))
    steps = clean + np.rint(random.normal(size=clean.shape) * 2**30).astype(np.int64)
    rows = (steps - clean) / 2**30
    assert not _failed((Residuals("north", "value", rows, steps, clean, 27),))
    marked = (steps & ~(1 << bit)) | ((clean > 0).astype(np.int64) << bit)
    assert _failed((Residuals("north", "value", rows, marked, clean, 27),)) == {"low digits of value of north"}


def test_a_grid_twice_as_coarse_is_no_leak() -> None:
    """A scale that is signed just below a power of two; the gate rounds it up, and beyond it."""
    declared = GaussianNoise.model_construct(
        name="value", sigma=float(np.nextafter(1.0, 0.0)), strategy=None, sampler=NoiseSampler.DISCRETE_GRID
    )
    clean, noise = [np.full(40, 0.3)] * 20, ExactNoise()
    step = grid_step(declared)
    with fixed_randomness(1):
        sent = [noise.gaussian(each, 1.0) for each in clean]
    assert step is not None
    assert not any(off_grid(row, 2 * step) for row in sent)
    assert not _failed((Residuals.of("north", declared, sent, clean),))


def test_noise_that_two_values_of_a_message_share_is_seen() -> None:
    random = np.random.default_rng(11)
    one, other = random.normal(size=(24, 6)), random.normal(size=(24, 9))
    assert not _failed((Residuals("north", "one", one), Residuals("north", "other", other)))
    other[:, :6] = one
    shared = "repetition of one and other over rounds and silos"
    assert _failed((Residuals("north", "one", one), Residuals("north", "other", other))) == {shared}


@pytest.mark.slow
def test_true_noise_of_the_gate_alone_is_flagged_at_most_as_often_as_stated() -> None:
    random, runs, alarms = np.random.default_rng(14), 200, 0
    for _ in range(runs):
        p_values = _variances(list(random.normal(size=(600, 8))), 8, 3)
        alarms += len(p_values) * min(p_values.values()) < ALPHA
    assert alarms <= runs * ALPHA + 3 * np.sqrt(runs * ALPHA)


def _spoil(rows: np.ndarray, kind: str) -> np.ndarray:
    """Messages of three silos in turn, 50 of each: noise that is missing where few numbers show it."""
    rows, direction = rows.copy(), np.full(8, 1 / np.sqrt(8))
    match kind:
        case "one message":
            rows[40] *= 0.01
        case "a round of all silos":
            rows[36:39] *= 0.1
        case "one silo":
            rows[1::3] *= 0.7
        case "one place of one silo":
            rows[1::3, 5] *= 0.2
        case "one place":
            rows[:, 2] *= 0.6
        case "one direction":
            rows -= np.outer(rows @ direction, direction)
        case "the message before":
            rows[3:] = 0.7 * rows[:-3] + np.sqrt(0.51) * rows[3:]
    return rows


KINDS = ("one message", "a round of all silos", "one silo", "one place of one silo", "one place", "one direction")


@pytest.mark.parametrize("kind", ["nothing", *KINDS, "the message before"])
def test_noise_that_is_missing_in_a_corner_is_seen_in_published_messages(kind: str) -> None:
    """True noise passes at one in a million; what is missing in few of the 1,200 numbers does not."""
    rounds, silos = np.repeat(np.arange(50), 3), np.tile(np.arange(3), 50)
    rows = _spoil(np.random.default_rng(15).normal(size=(150, 8)), kind)
    p_values = _of_published(rows, rounds, silos)
    assert (len(p_values) * min(p_values.values()) < 1e-6) is (kind != "nothing"), p_values


@pytest.mark.slow
def test_true_noise_of_published_messages_is_flagged_at_most_as_often_as_stated() -> None:
    random, runs, alarms = np.random.default_rng(16), 300, 0
    rounds, silos = np.repeat(np.arange(30), 3), np.tile(np.arange(3), 30)
    for _ in range(runs):
        p_values = _of_published(random.normal(size=(90, 8)), rounds, silos)
        alarms += len(p_values) * min(p_values.values()) < ALPHA
    assert alarms <= runs * ALPHA + 3 * np.sqrt(runs * ALPHA)


def test_one_message_that_is_too_quiet_is_seen() -> None:
    rows = np.random.default_rng(17).normal(size=(60, 12))
    rows[31] *= 0.1
    assert _failed((Residuals("north", "value", rows),)) == {
        "single messages of value of north",
        "every round of value",
    }


@pytest.mark.parametrize(
    ("missing", "name"),
    [
        ("one round", "every round of v"),
        ("one place", "every place of v"),
        ("along the last", "along the message before"),
    ],
)
def test_noise_that_is_missing_in_a_part_of_all_silos_is_seen(missing: str, name: str) -> None:
    """Noise x 0.7 in one of seven rounds, at one of 200 places, or none along the message before."""
    random, alarms = np.random.default_rng(21), 0
    for _ in range(20):
        found = []
        for party in ("north", "south", "west"):
            rows = random.normal(size=(7, 200) if missing == "one round" else (200, 20))
            clean = np.zeros(rows.shape, dtype=np.int64)
            if missing == "one round":
                rows[3] *= 0.7
            elif missing == "one place":
                rows[:, 11] *= 0.7
            for number in range(1, len(rows) if missing == "along the last" else 0):
                before = rows[number - 1] / np.linalg.norm(rows[number - 1])
                rows[number] -= before * (rows[number] @ before)
            found.append(Residuals(party, "v", rows, np.rint(rows * 2.0**30).astype(np.int64), clean))
        alarms += any(name in one for one in _failed(tuple(found)))
    assert alarms >= 18


@pytest.mark.parametrize("kind", ["true", "none along the message", "sign of the message"])
def test_noise_that_follows_the_message_is_seen(kind: str) -> None:
    random = np.random.default_rng(18)
    clean = random.integers(-(2**31), 2**31, size=(40, 12))
    rows = random.normal(size=clean.shape)
    if kind == "none along the message":
        rows -= clean * ((rows * clean).sum(axis=1) / np.square(clean.astype(float)).sum(axis=1))[:, np.newaxis]
    elif kind == "sign of the message":
        rows = np.abs(rows) * np.sign(clean)
    steps = clean + np.rint(rows * 2**30).astype(np.int64)
    wrong = _failed((Residuals("north", "value", rows, steps, clean, 16),))
    assert ("noise along the messages of value of north" in wrong) is (kind != "true")


@pytest.mark.parametrize("kind", ["true", "one category never lies", "neighbours lie together", "silos lie together"])
def test_answers_that_lie_as_often_as_signed_and_otherwise_than_signed_are_seen(kind: str) -> None:
    random, value = np.random.default_rng(19), RandomizedCategory.model_construct(name="s", categories=2, epsilon=2.0)
    truth, lying = np.arange(3000) % 2, 1 - _truth(value)
    lies = random.random((3, 3000)) < lying
    if kind == "one category never lies":
        lies = (random.random((3, 3000)) < 2 * lying) & (truth == 1)
    elif kind == "neighbours lie together":
        lies = np.repeat(random.random((3, 1500)) < lying, 2, axis=1)
    elif kind == "silos lie together":
        lies[2] = lies[0]
    silos = [((truth ^ each).astype(float), truth.astype(float)) for each in lies]
    assert (_answers_alone(value, silos, 1e-6).outcome is CheckOutcome.FAILED) is (kind != "true")


@pytest.mark.parametrize("limit", [3.0, 3.5])
def test_noise_that_is_cut_off_far_out_is_seen_in_the_gate_alone(limit: float) -> None:
    """Its variance is 0.6% short, which the number of values does not show; a value beyond the cut would be sure."""
    whole = np.random.default_rng(12).normal(size=(6000, 16))
    for rows, seen in ((whole, False), (whole.clip(-limit, limit), True)):
        p_values = _variances(list(rows), 16, 3)
        assert (len(p_values) * min(p_values.values()) < 1e-6) is seen


def test_untrue_answers_that_are_not_any_other_alike_are_seen() -> None:
    """Three categories, the truth kept as often as signed; but who lies names the next category."""
    random, value = np.random.default_rng(13), RandomizedCategory.model_construct(name="s", categories=3, epsilon=1.0)
    truth = random.integers(0, 3, 3000)
    lied = random.random(3000) > _truth(value)
    for shift, seen in ((random.integers(1, 3, 3000), False), (1, True)):
        check = _answers_alone(value, [((truth + lied * shift) % 3.0, truth.astype(float))], 1e-6)
        assert (check.outcome is CheckOutcome.FAILED) is seen


def _failed(found: tuple[Residuals, ...]) -> set[str]:
    return {one.name for one in judge_residuals(found, 1e-3) if one.outcome is CheckOutcome.FAILED}
