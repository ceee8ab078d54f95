"""Metrics of a step against fairlearn and scikit-learn, and the log that a crash cannot spoil."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fairlearn.metrics import demographic_parity_difference, equalized_odds_difference
from sklearn.metrics import accuracy_score, log_loss, precision_score

from calibrate.errors import InvalidInput
from privfair.data.training_data import TrainingData, load_training_data
from privfair.models.linear import LogisticRegression
from privfair.plan.data import DataPlan, FileSource
from privfair.run.metrics import HeldOutRecords, MetricsLog
from tests.privfair.small_runs import FEATURES, write_silos

FILES = ("north.csv", "south.csv", "west.csv")


@pytest.fixture
def data(tmp_path: Path) -> TrainingData:
    write_silos(tmp_path)
    source = FileSource(tuple(tmp_path / name for name in FILES), tmp_path / "schema.toml")
    return load_training_data(DataPlan(source=source))


MODEL = LogisticRegression(FEATURES)
THETA = torch.tensor([-2.0, -0.8, 0.3, -0.2, 0.1, 1.5], dtype=torch.float64)


def test_every_number_agrees_with_its_oracle(data: TrainingData) -> None:
    found = HeldOutRecords(data.test, torch.float64).measure(MODEL, THETA, 3, 7).as_json()
    assert (found["step"], found["round"], found["private"]) == (3, 7, False)
    parts = {**{silo.name: silo.data for silo in data.test}, "": data.test.pooled()}
    for name, part in parts.items():
        numbers = found["silos"][name] if name else found["overall"]
        p = MODEL.probabilities(THETA, torch.tensor(part.features)).numpy()
        guess = p.argmax(axis=1)
        assert numbers["records"] == len(part)
        assert numbers["accuracy"] == pytest.approx(accuracy_score(part.label, guess))
        assert numbers["loss"] == pytest.approx(log_loss(part.label, p))
        gap = demographic_parity_difference(part.label, guess, sensitive_features=part.group)
        assert numbers["demographic_parity"] == pytest.approx(gap)
        odds = equalized_odds_difference(part.label, guess, sensitive_features=part.group)
        assert numbers["equalised_odds"] == pytest.approx(odds)
        misses = [1 - guess[(part.label == 1) & (part.group == g)].mean() for g in (0, 1)]
        assert numbers["false_negative_gap"] == pytest.approx(abs(misses[0] - misses[1]))
        rate = guess[part.group == 1].mean()
        assert numbers["groups"]["male"]["selection_rates"][1] == pytest.approx(rate)
        precise = [precision_score(part.label[part.group == g], guess[part.group == g]) for g in (0, 1)]
        assert numbers["predictive_parity"] == pytest.approx(abs(precise[0] - precise[1]))
        assert numbers["groups"]["male"]["precision"] == pytest.approx(precise[1])
    assert sum(found["silos"][name]["records"] for name in ("north", "south", "west")) == 135


def test_the_papers_own_gaps_and_spreads(data: TrainingData) -> None:
    """FPFL's distances from the overall rate; FedFDP's Psi, and the worst client: from their definitions."""
    found = HeldOutRecords(data.test, torch.float64).measure(MODEL, THETA, 1, 0).as_json()
    pooled = data.test.pooled()
    guess = MODEL.logits(THETA, torch.tensor(pooled.features)).argmax(dim=1).numpy()
    y, s, against = pooled.label, pooled.group, found["overall"]["against_overall"]
    missed = [1 - guess[(y == 1) & (s == g)].mean() - (1 - guess[y == 1].mean()) for g in (0, 1)]
    assert against["false_negative_gap"] == pytest.approx(max(map(abs, missed)))
    precision = [y[(guess == 1) & (s == g)].mean() - y[guess == 1].mean() for g in (0, 1)]
    assert against["predictive_parity"] == pytest.approx(max(map(abs, precision)))
    right = [(guess == y)[s == g].mean() - (guess == y).mean() for g in (0, 1)]
    assert against["accuracy_gap"] == pytest.approx(max(map(abs, right)))
    of = {name: found["silos"][name] for name in ("north", "south", "west")}
    shares = np.array([one["records"] for one in of.values()]) / 135
    losses, accuracy = (np.array([one[key] for one in of.values()]) for key in ("loss", "accuracy"))
    assert found["clients"]["psi"] == pytest.approx(float(shares @ (losses - shares @ losses) ** 2))
    assert found["clients"]["worst"] == {"silo": list(of)[int(accuracy.argmin())], "accuracy": accuracy.min()}
    assert found["clients"]["accuracy_deviation"] == pytest.approx(accuracy.std())
    assert found["clients"]["accuracy_range"] == pytest.approx(np.ptp(accuracy))


def test_the_positive_class_is_named_or_refused(data: TrainingData) -> None:
    no = HeldOutRecords(data.test, torch.float64, "no").measure(MODEL, THETA, 1, 0).as_json()
    pooled = data.test.pooled()
    guess = MODEL.logits(THETA, torch.tensor(pooled.features)).argmax(dim=1).numpy()
    misses = [1 - (guess[(pooled.label == 0) & (pooled.group == g)] == 0).mean() for g in (0, 1)]
    assert no["overall"]["false_negative_gap"] == pytest.approx(abs(misses[0] - misses[1]))
    with pytest.raises(InvalidInput, match="is not a class of the data"):
        HeldOutRecords(data.test, torch.float64, "maybe")


def test_parameters_that_are_no_numbers_are_measured_as_zeros(data: TrainingData) -> None:
    """A diverged model is used as the exact arithmetic uses it, so its metrics are finite and valid JSON."""
    records = HeldOutRecords(data.test, torch.float64)
    found = records.measure(MODEL, THETA * float("nan"), 1, 0).as_json()
    assert found == records.measure(MODEL, torch.zeros_like(THETA), 1, 0).as_json()
    assert found["overall"]["loss"] == pytest.approx(np.log(2))
    assert found["clients"]["psi"] == pytest.approx(0.0, abs=1e-12)
    far = records.measure(MODEL, torch.full_like(THETA, float("inf")), 1, 0).as_json()
    assert far["overall"]["loss"] > 1.0
    for numbers in (found, far):
        json.dumps(numbers, allow_nan=False)


def test_the_log_goes_on_after_a_crash_and_writes_no_step_twice(data: TrainingData, tmp_path: Path) -> None:
    path, records = tmp_path / "metrics.jsonl", HeldOutRecords(data.test, torch.float64)
    log = MetricsLog(path)
    assert log.last_step == -1
    for step in (1, 2):
        log.append(records.measure(MODEL, THETA, step, step - 1))
    log.close()
    path.write_bytes(path.read_bytes() + b'{"step": 3, "rou')
    log = MetricsLog(path)
    assert log.last_step == 2
    for step in (2, 3):
        log.append(records.measure(MODEL, THETA, step, step - 1))
    log.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
