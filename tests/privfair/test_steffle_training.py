"""SteFFLe and pay-once from plan file to run folder: other notions, paid frequencies, warm starts, networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrate.errors import InvalidInput
from privfair.run.folder import RunFolder
from privfair.training import prepare
from privfair.transcript import Transcript
from tests.privfair.small_runs import Desk

STEFFLE = """algorithm = "steffle"
[target]
epsilon = 4.0
delta = 1e-5
[privacy]
silo-size = 120
{privacy}
minority-fraction = 0.3
lipschitz = 0.5
w-radius = 0.3
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
[training]
learning-rate = 1.0
{training}
"""
PAY_ONCE = """algorithm = "pay-once"
[target]
epsilon = 2.0
delta = 1e-5
[privacy]
rounds = 16
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
[training]
fairness = 3.0
{training}
"""
FULL = 'batch-size = 120\nrounds = 12\nsampling = "full"'
SHUFFLED = "batch-size = 40\nrounds = 12"


def _rounds(folder: Path, name: str) -> list[int]:
    return Transcript.read(RunFolder(folder / "run").transcript).rounds("north", name).tolist()


@pytest.mark.parametrize("notion", ["demographic-parity", "equalised-odds", "equal-opportunity"])
def test_steffle_buys_its_frequencies_in_the_first_round(tmp_path, notion) -> None:
    plan = STEFFLE.format(
        privacy=f"{SHUFFLED}\nhistogram-noise-ratio = 1.0", training=f'notion = "{notion}"\nwarm-start = 20'
    )
    desk = Desk.at(tmp_path, plan)
    manifest = desk.budget()
    result = desk.train(manifest)
    assert result.summary["rounds"]["steps"] == 12
    assert _rounds(tmp_path, "attribute_histogram") == [0]
    assert _rounds(tmp_path, "h_theta") == _rounds(tmp_path, "h_W") == list(range(1, 12))
    assert _rounds(tmp_path, "g") == list(range(12))
    blocks = 2 if notion == "equalised-odds" else 1
    assert prepare(desk.plan, manifest, desk.trust).algorithm.shapes()["h_W"] == (blocks, 2, 2)


def test_full_batches_of_unequal_silos_follow_the_pooled_mean(tmp_path) -> None:
    """Silos of 120, 150 and 135 training records, divided by 120: the weights must make up for it."""
    desk = Desk.at(tmp_path, STEFFLE.format(privacy=FULL, training="group-frequencies = [0.5, 0.5]"))
    run = prepare(desk.plan, desk.budget(), desk.trust)
    algorithm, sizes = run.algorithm, {silo.name: len(silo) for silo in run.silos}
    assert sorted(sizes.values()) == [120, 135, 150]
    assert algorithm.weights == pytest.approx(dict.fromkeys(sizes, 120 / 405))


def test_a_network_trains_under_the_same_plan(tmp_path) -> None:
    training = 'group-frequencies = [0.5, 0.5]\n[training.model]\nkind = "perceptron"\nhidden = [4]'
    desk = Desk.at(tmp_path, STEFFLE.format(privacy=SHUFFLED, training=training))
    result = desk.train(desk.budget())
    assert np.isfinite(result.accuracy)


@pytest.mark.parametrize(
    ("privacy", "training"), [(FULL, ""), (f"{FULL}\nhistogram-noise-ratio = 1.0", "group-frequencies = [0.5, 0.5]")]
)
def test_frequencies_are_either_public_or_paid_for(tmp_path, privacy, training) -> None:
    desk = Desk.at(tmp_path, STEFFLE.format(privacy=privacy, training=training))
    with pytest.raises(InvalidInput, match="noisy histogram"):
        desk.budget()


def test_frequencies_below_the_priced_floor_are_refused(tmp_path) -> None:
    desk = Desk.at(tmp_path, STEFFLE.format(privacy=FULL, training="group-frequencies = [0.2, 0.8]"))
    with pytest.raises(InvalidInput, match="minority"):
        desk.budget()


@pytest.mark.parametrize("penalty", ["squared-gap", "fermi"])
def test_pay_once_for_equalised_odds_in_mini_batches_from_a_warm_start(tmp_path, penalty) -> None:
    training = f'penalty = "{penalty}"\nnotion = "equalised-odds"\nmini-batch = 30\nmemory = 0.7\nwarm-start = 20'
    desk = Desk.at(tmp_path, PAY_ONCE.format(training=training))
    result = desk.train(desk.budget())
    assert _rounds(tmp_path, "randomised_attribute") == [0]
    assert _rounds(tmp_path, "g") == list(range(16))
    assert _rounds(tmp_path, "joint") == list(range(1, 16))
    assert result.to_json()["epsilon"] == 2.0
    assert result.accuracy > 0.6
