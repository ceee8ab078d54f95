"""The example plans of FedFDP, FPFL and MMD-fair FedAvg: they say what they mean, and they train."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.plans.from_mapping import plan_from_mapping
from privfair.plan_file import read_plan_file
from privfair.training_plan import read_training_plan
from tests.privfair.small_runs import Desk

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NAMES = ("fedfdp", "fpfl", "mmd-fedavg")


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_is_whole(name: str) -> None:
    """Every key is known to calibration and to training, and the options are the ones written down."""
    file = read_plan_file(EXAMPLES / f"{name}.toml")
    assert plan_from_mapping(file.algorithm, file.privacy).rounds == file.privacy["rounds"]
    training = read_training_plan(EXAMPLES / f"{name}.toml")
    for key, value in file.training.items():
        own = getattr(training.own, key.replace("-", "_"), None)
        shared = getattr(training.training, key.replace("-", "_"), None)
        assert value in (own, shared, getattr(own, "value", None))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "at_least"), [("fedfdp", 0.80), ("fpfl", 0.78), ("mmd-fedavg", 0.80)])
def test_the_plan_trains(name: str, at_least: float, tmp_path: Path) -> None:
    """Calibrated to the written promise, signed, trained: better than always answering no (0.752)."""
    desk = Desk.at(tmp_path, (EXAMPLES / f"{name}.toml").read_text(encoding="utf-8"))
    result = desk.train(desk.budget())
    assert result.accuracy is not None
    assert result.accuracy > at_least
