"""A user's own min-max loss through the whole pipeline: plan, signature, training, prediction, audit's view of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from privfair.algorithms.fed_sgda import FedSgda
from privfair.models.alone_module import ISOLATION_ASSUMED
from privfair.plan.training import read_training_plan
from privfair.training import prepare
from tests.end_to_end.command_line import Outcome, privfair
from tests.privfair.small_runs import FEDSGD, Desk

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PLAN = """algorithm = "gaussian"
[target]
epsilon = 8.0
delta = 1e-5
[privacy]
sampling-rate = 1.0
rounds = 60
noise = {noise}
{privacy}
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
at-least = 100
[training]
learning-rate = 2.0
[training.min-max]
file = "worst-group.py"
w-size = 2
theta-clip = 1.0
w-clip = 1.0
{more}
"""


def desk_with(folder: Path, noise: str = "[1.0, 2.0]", privacy: str = "", more: str = "") -> Desk:
    desk = Desk.at(folder, PLAN.format(noise=noise, privacy=privacy, more=more))
    shutil.copy(EXAMPLES / "worst-group.py", folder)
    return desk


def signed(desk: Desk) -> Outcome:
    return privfair("calibrate", desk.plan, "--out", desk.folder / "budget.json", "--key", desk.key, "--json")


def trained(desk: Desk) -> Outcome:
    words = ("train", desk.plan, "--manifest", desk.folder / "budget.json", "--trust", desk.trust)
    return privfair(*words, "--ledger", desk.ledger, "--out", desk.folder / "run", "--json")


def test_a_loss_of_ones_own_is_trained_under_a_signed_budget(tmp_path: Path) -> None:
    desk = desk_with(tmp_path)
    priced = signed(desk)
    assert priced.code == 0, priced.err
    first, second = priced.json()["releases"]
    assert second["noise_multiplier"] == pytest.approx(2 * first["noise_multiplier"])
    outcome = trained(desk)
    assert outcome.code == 0, outcome.err
    assert outcome.json()["epsilon"] == 8.0
    run = prepare(desk.plan, desk.folder / "budget.json", desk.trust)
    assert isinstance(run.algorithm, FedSgda)
    assert ISOLATION_ASSUMED in run.document.accounting.assumptions
    folder = desk.folder / "run"
    assert (folder / "worst-group.py").read_bytes() == (EXAMPLES / "worst-group.py").read_bytes()
    # The copy is what an auditor loads: the run folder's plan must read by itself.
    assert read_training_plan(folder / "plan.toml").min_max is not None
    done = privfair("predict", folder, "--input", desk.folder / "north.csv", "--out", desk.folder / "p.csv")
    assert done.code == 0, done.err


@pytest.mark.slow
def test_without_noise_it_learns_and_w_weighs_the_worse_group_up(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, more="w-step = 0.5\nmomentum = 0.5")
    desk.plan.write_text(desk.plan.read_text().replace("at-least = 100", 'split = "position"'))
    why = ("--no-privacy", "a test of the method")
    key = ("--out", desk.folder / "budget.json", "--key", desk.key)
    assert privfair("calibrate", desk.plan, *why, *key).code == 0
    outcome = trained(desk)
    assert outcome.code == 0, outcome.err
    assert outcome.json()["accuracy"] > 0.75
    with np.load(desk.folder / "run" / "checkpoint.npz") as arrays:
        (name,) = (name for name in arrays.files if name.endswith("w"))
        w = arrays[name]
    assert np.abs(w).max() > 0.05
    assert np.linalg.norm(w) <= 1.0 + 1e-9


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"noise": "[1.0]"}, ("[privacy] noise", "two ratios")),
        ({"privacy": 'relation = "replace-attribute"'}, ("[privacy] noise", "whole records")),
        ({"more": 'function = "gain"'}, ("[training.min-max] function", "is not defined")),
        ({"more": "w-radius = 0"}, ("[training.min-max] w-radius", "greater than 0")),
        ({"more": "momentum = 1.0"}, ("[training.min-max] momentum", "[0, 1)")),
        ({"more": f'sha256 = "{"0" * 64}"'}, ("[training.min-max] sha256", "not the digest")),
        ({"more": "w-steps = 1"}, ("[training.min-max] w-steps", "did you mean w-step")),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, changes: dict[str, str], words: tuple[str, ...]) -> None:
    outcome = signed(desk_with(tmp_path, **changes))
    assert outcome.code == 2
    for word in words:
        assert word in outcome.err


def test_other_algorithms_do_not_know_the_table(tmp_path: Path) -> None:
    more = '[training.min-max]\nfile = "worst-group.py"\nw-size = 2\ntheta-clip = 1.0\nw-clip = 1.0\n'
    desk = Desk.at(tmp_path, FEDSGD.format(rounds=2, more=more))
    key = ("--out", desk.folder / "budget.json", "--key", desk.key)
    outcome = privfair("calibrate", desk.plan, "--no-privacy", "a test", *key)
    assert outcome.code == 2
    assert "[training.min-max]" in outcome.err
    assert "use gaussian" in outcome.err


def test_the_example_reads() -> None:
    plan = read_training_plan(EXAMPLES / "fed-sgda.toml")
    assert plan.min_max is not None
    assert plan.min_max.table.w_radius == 0.7
