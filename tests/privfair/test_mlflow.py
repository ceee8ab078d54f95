"""Experiment tracking: the promise, the signed files, and test metrics named as what they are: not private."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from calibrate.errors import InvalidInput
from privfair.integrations.mlflow import LiveProgress, MlflowSink, log_run
from privfair.run.public import Progress
from tests.privfair.small_runs import GAUSSIAN, Desk


class Notes:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.numbers: list[tuple[int, dict[str, float]]] = []
        self.files: list[str] = []

    def params(self, values: Mapping[str, str]) -> None:
        self.said |= values

    def tags(self, values: Mapping[str, str]) -> None:
        self.said |= values

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self.numbers.append((step, dict(values)))

    def artifact(self, path: Path) -> None:
        self.files.append(path.name)


@pytest.fixture(scope="module")
def live() -> Notes:
    return Notes()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, live: Notes) -> Path:
    desk = Desk.at(tmp_path_factory.mktemp("tracked"), GAUSSIAN.format(rate=0.2, rounds=3, more=""))
    desk.train(desk.budget(), progress=LiveProgress(live))
    return desk.folder / "run"


def test_a_run_is_logged_with_its_promise_and_its_signed_files(run: Path) -> None:
    notes = Notes()
    log_run(run, notes)
    assert notes.said["privfair.epsilon"] == "8.0"
    assert notes.said["privfair.promise"] == "epsilon 8 at delta 1e-05 for one record"
    assert notes.said["privfair.claimed_epsilon"] == "none"
    assert len(notes.said["privfair.model_sha256"]) == 64
    assert notes.files == ["budget.json", "receipts.json", "run.json"]
    assert [step for step, _ in notes.numbers] == [1, 2, 3]
    assert all(name.startswith("not_private/") for _, numbers in notes.numbers for name in numbers)
    assert "not_private/accuracy" in notes.numbers[-1][1]


def test_numbers_about_true_records_can_be_left_out(run: Path) -> None:
    notes = Notes()
    log_run(run, notes, metrics=False)
    assert not notes.numbers


def test_progress_is_logged_while_it_trains(run: Path, live: Notes) -> None:
    assert [step for step, _ in live.numbers] == [1, 2, 3]
    assert live.numbers[-1][1]["privfair/rounds_charged"] == 3
    assert "not_private/accuracy" in live.numbers[-1][1]
    quiet = Notes()
    LiveProgress(quiet, metrics=False)(Progress(1, 3, 1, 3, {"overall": {"accuracy": 1.0}}))
    assert quiet.numbers == [(1, {"privfair/rounds_charged": 1.0})]


def test_a_missing_tracker_is_one_sentence(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(InvalidInput, match=r"privfair\[mlflow\]"):
        log_run(run)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_it_in_its_file_store(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_ENABLE_TELEMETRY", "false")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as started:
        log_run(run, MlflowSink())
    found = mlflow.get_run(started.info.run_id)
    assert found.data.params["privfair.epsilon"] == "8.0"
    assert found.data.tags["privfair.promise"].startswith("epsilon 8")
    assert "not_private/accuracy" in found.data.metrics
    kept = {Path(one.path).name for one in mlflow.MlflowClient().list_artifacts(started.info.run_id, "privfair")}
    assert kept == {"budget.json", "receipts.json", "run.json"}
