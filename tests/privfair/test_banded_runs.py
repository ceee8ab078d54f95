"""Banded noise in the engine: the gate mixes, the coordinator takes apart, a crash needs no state, audits follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.report.results import CheckOutcome
from audit.runs.evidence import RunEvidence
from audit.runs.noise import check_noise, residuals
from calibrate.banded import banded_strategy
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.sampling import Cyclic
from privfair.algorithms.algorithm import SiloTensors
from privfair.batches.participation import Participation, group_of_units
from privfair.batches.randomness import SeededWords
from privfair.contribution import RecentRounds
from privfair.noise import ExactNoise
from privfair.transcript import Transcript
from tests.privfair.small_runs import GAUSSIAN, Desk
from tests.privfair.test_rounds_interrupted import Killed, kill_after, theta

GROUPS, ROUNDS = 4, 12
PLAN = GAUSSIAN.format(rate=1 / GROUPS, rounds=20, more="rounds = 12\nblock = 4").replace(
    "clip = 1.0", f'clip = 1.0\nnoise = "banded"\nbatches = {GROUPS}'
)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk.at(tmp_path_factory.mktemp("banded"), PLAN)


def without_noise(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(ExactNoise, "gaussian", lambda self, values, sigma: np.array(values, dtype=np.float64))


def evidence_of(desk: Desk, out: str) -> RunEvidence:
    return RunEvidence.read(desk.folder / out, plan_path=desk.plan)


# Mixing and taking apart.


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=15), st.integers(2, 6))
def test_what_was_mixed_is_taken_apart_whatever_rounds_are_missing(gaps: list[int], bands: int) -> None:
    column = banded_strategy(bands, 20)
    silo, coordinator = RecentRounds(column), RecentRounds(column)
    random = np.random.default_rng(sum(gaps))
    for number in np.cumsum(gaps).tolist():
        own = random.normal(size=3)
        sent = silo.mix(number, own)
        silo.add(number, own)
        found = coordinator.unmix(number, sent)
        coordinator.add(number, found)
        np.testing.assert_allclose(found, own, atol=1e-9)
        assert len(silo.vectors) <= bands - 1


def test_independent_noise_becomes_the_inverse_of_the_strategy() -> None:
    column, rounds = banded_strategy(3, 8), 8
    matrix = sum(np.diag(np.full(rounds - j, c), -j) for j, c in enumerate(column))
    z = np.random.default_rng(0).normal(size=(rounds, 1))
    recent, found = RecentRounds(column), []
    for number in range(rounds):
        found.append(recent.unmix(number, z[number]))
        recent.add(number, found[-1])
    np.testing.assert_allclose(np.stack(found), np.linalg.solve(matrix, z), atol=1e-12)


# Groups.


def _silo(rows: int = 200, seed: int = 0) -> SiloTensors:
    random = np.random.default_rng(seed)
    x = torch.from_numpy(random.normal(size=(rows, 3)))
    y, s = (torch.from_numpy(random.integers(0, 2, rows)) for _ in range(2))
    return SiloTensors("north", x, y, s)


def _without(silo: SiloTensors, row: int) -> SiloTensors:
    kept = torch.arange(len(silo)) != row
    return replace(silo, x=silo.x[kept], y=silo.y[kept], s=silo.s[kept])


@pytest.mark.parametrize("row", [0, 57, 199])
def test_a_removed_record_leaves_all_others_in_their_groups(row: int) -> None:
    silo = _silo()
    groups = group_of_units(silo, 5)
    np.testing.assert_array_equal(np.delete(groups, row), group_of_units(_without(silo, row), 5))
    changed = silo.x.clone()
    changed[row] += 1.0
    np.testing.assert_array_equal(np.delete(groups, row), np.delete(group_of_units(replace(silo, x=changed), 5), row))
    assert set(groups.tolist()) == set(range(5))


def test_rounds_go_through_the_groups_in_turn_and_a_record_is_back_after_a_cycle() -> None:
    silo = _silo()
    groups = group_of_units(silo, 5)
    whole = Participation("north", 200, Cyclic(5, 1.0, 5), SeededWords(1, "x"), groups=groups)
    drawn = Participation("north", 200, Cyclic(5, 0.3, 5), SeededWords(1, "x"), groups=groups)
    batches = {number: whole.batch(number) for number in range(10)}
    assert sorted(np.concatenate([batches[number] for number in range(5)]).tolist()) == list(range(200))
    assert all(np.array_equal(batches[number], batches[number + 5]) for number in range(5))
    some = {number: drawn.batch(number) for number in range(50)}
    assert all(set(some[number]) <= set(batches[number % 5]) for number in some)


def test_cyclic_batches_need_records_and_no_users() -> None:
    with pytest.raises(UnsupportedCombination, match="does not see"):
        Participation("north", 200, Cyclic(5), SeededWords(1, "x"))
    users = replace(_silo(4), unit_of_row=torch.tensor([0, 0, 1, 1]))
    with pytest.raises(UnsupportedCombination, match="users"):
        group_of_units(users, 2)


# Whole runs.


def test_without_noise_a_banded_run_is_the_plain_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Mixed on one side and taken apart on the other, nothing is left but the noise."""
    plain = Desk.at(tmp_path, PLAN.replace('noise = "banded"', 'sampling = "cyclic"'))
    without_noise(monkeypatch)
    desk.train(desk.budget("quiet.json"), "quiet")
    plain.train(plain.budget("plain.json"), "plain")
    np.testing.assert_allclose(theta(desk, "quiet"), theta(plain, "plain"), atol=1e-6)


def test_a_finished_run_shows_independent_noise_to_an_auditor(desk: Desk) -> None:
    result = desk.train(desk.budget("noisy.json"), "noisy")
    assert result.summary["rounds"]["steps"] == ROUNDS
    evidence = evidence_of(desk, "noisy")
    assert evidence.batches_known
    assert [check.name for check in check_noise(evidence) if check.outcome is CheckOutcome.FAILED] == []


_SLOW = pytest.mark.slow


@pytest.mark.parametrize("appends", [14, *(pytest.param(number, marks=_SLOW) for number in (3, 12, 24))])
def test_a_killed_run_goes_on_after_a_gap_and_neither_side_needs_what_was_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, appends: int
) -> None:
    """Noise off: what is published must be exactly the mixture that the coordinator and the auditor reckon with."""
    out = f"killed-{appends}"
    manifest = desk.budget(f"{out}.json")
    with monkeypatch.context() as patched:
        without_noise(patched)
        kill_after(patched, appends, before_record=False)
        with pytest.raises(Killed):
            desk.train(manifest, out)
    with monkeypatch.context() as patched:
        without_noise(patched)
        result = desk.train(manifest, out, resume=True)
    assert result.summary["rounds"]["sessions"] == 2
    transcript = Transcript.read(desk.folder / out / "transcript.bin")
    for party in transcript.header.parties:
        rounds = transcript.rounds(party, "value_1")
        assert len(rounds) == ROUNDS
        assert (np.diff(rounds) > 1).sum() == 1, "one gap, where the other session begins anew"
    evidence = evidence_of(desk, out)
    largest = max(float(np.abs(one.rows).max()) for one in residuals(evidence))
    assert largest < 1e-6
    for before, after in zip(evidence.positions(), list(evidence.positions())[1:], strict=False):
        moved = _sums_behind(evidence, before, after)
        np.testing.assert_allclose(moved[0], moved[1], atol=1e-5)


def _sums_behind(evidence: RunEvidence, before: Any, after: Any) -> tuple[np.ndarray, np.ndarray]:
    """How far the model moved in a step, and how far the records' own sums would have moved it."""
    algorithm: Any = evidence.algorithm
    rounds = {party: int(number) for party, number in after.state.last.items()}
    total = sum(
        algorithm.contribution(before.state, before.step, silo, evidence.batch(rounds[silo.name], silo)).noisy[0].values
        for silo in evidence.silos
    )
    rate = algorithm.options.rate(before.step)
    moved = (before.state.theta - after.state.theta).numpy() * algorithm.expected / rate
    return moved, np.asarray(total)


@pytest.mark.parametrize("line", [80, pytest.param(1, marks=_SLOW)])
def test_one_row_of_a_file_moves_the_whole_run_by_no_more_than_was_priced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: int
) -> None:
    """Noise off and steps next to nothing, so that only the row itself differs: all rounds together."""
    desk = Desk.at(tmp_path, PLAN.replace("learning-rate = 1.0", "learning-rate = 1e-9"))
    without_noise(monkeypatch)
    desk.train(desk.budget("with.json"), "with")
    north = tmp_path / "north.csv"
    rows = north.read_text().splitlines()
    north.write_text("\n".join([*rows[:line], *rows[line + 1 :]]) + "\n")
    desk.train(desk.budget("without.json"), "without")
    one, other = (Transcript.read(tmp_path / out / "transcript.bin") for out in ("with", "without"))
    moved = {party: one.values(party, "value_1") - other.values(party, "value_1") for party in one.header.parties}
    assert float(np.linalg.norm(moved["north"])) <= np.sqrt(ROUNDS / GROUPS) * (1 + 1e-6)
    assert float(np.linalg.norm(moved["north"])) > 0.1
    assert max(float(np.abs(moved[party]).max()) for party in ("south", "west")) < 1e-6


@pytest.mark.parametrize("method", ["scaffold", pytest.param("fedprox", marks=_SLOW)])
def test_methods_that_take_messages_as_they_are_refuse_banded_noise(tmp_path: Path, method: str) -> None:
    with pytest.raises(InvalidInput, match="taken apart"):
        Desk.at(tmp_path, PLAN + f'method = "{method}"\n').budget("b.json")
