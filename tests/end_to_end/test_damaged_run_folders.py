"""A run folder with a file missing, cut or filled with something else: one sentence and a documented exit code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.end_to_end.command_line import Outcome, privfair
from tests.privfair.small_runs import GAUSSIAN, Desk

GARBLED = {"missing": None, "empty": b"", "not UTF-8": b"\xff\xfe\n", "a list": b"[]\n", "an empty object": b"{}\n"}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk.at(tmp_path_factory.mktemp("desk"), GAUSSIAN.format(rate=1.0, rounds=3, more=""))
    desk.train(desk.budget())
    return desk


def _spoil(desk: Desk, name: str, content: bytes | None) -> Path:
    run = desk.folder / "spoiled"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(desk.folder / "run", run)
    (run / name).unlink()
    if content is not None:
        (run / name).write_bytes(content)
    return run


def _one_sentence(outcome: Outcome, codes: set[int]) -> None:
    assert outcome.code in codes, (outcome.code, outcome.err)
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("how", GARBLED)
@pytest.mark.parametrize("name", ["budget.json", "transcript.bin", "sessions.jsonl", "plan.toml"])
def test_auditing_a_damaged_folder_is_refused_in_one_sentence(desk: Desk, name: str, how: str) -> None:
    run = _spoil(desk, name, GARBLED[how])
    _one_sentence(privfair("audit", run, "--plan", desk.plan, "--trust", desk.trust, "--reruns", 0), {2, 3})


@pytest.mark.parametrize("how", GARBLED)
@pytest.mark.parametrize("name", ["encoding.json", "model.pt"])
def test_predicting_from_a_damaged_folder_is_refused_in_one_sentence(desk: Desk, name: str, how: str) -> None:
    run = _spoil(desk, name, GARBLED[how])
    out = desk.folder / "predictions.csv"
    outcome = privfair("predict", run, "--input", desk.folder / "north.csv", "--out", out)
    _one_sentence(outcome, {2, 3})


@pytest.mark.parametrize("how", ["not UTF-8", "a list", "an empty object"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "sessions.jsonl", "run.json"])
def test_resuming_in_a_damaged_folder_is_refused_in_one_sentence(desk: Desk, name: str, how: str) -> None:
    run = _spoil(desk, name, GARBLED[how])
    given = ["--manifest", desk.folder / "budget.json", "--trust", desk.trust, "--ledger", desk.ledger]
    _one_sentence(privfair("train", desk.plan, *given, "--out", run, "--resume", "--quiet"), {2, 3})
