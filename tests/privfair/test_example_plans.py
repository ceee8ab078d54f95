"""The plans of docs/examples: all are read and priced, and (slow) signed and trained for two rounds."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from calibrate.plans import plan_from_mapping
from privfair.data.images import DEBIAN_FOLDER
from privfair.plan.plan import Plan, Unprotected
from privfair.plan.training import read_training_plan
from tests.privfair.small_runs import Desk

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PLANS = sorted(path.name for path in EXAMPLES.glob("*.toml"))


pytestmark = pytest.mark.usefixtures("installed_experiments")


@pytest.mark.parametrize("name", PLANS)
def test_an_example_is_a_plan_and_says_how_to_sign_it(name: str) -> None:
    path = EXAMPLES / name
    file, text = Plan.read(path), path.read_text(encoding="utf-8")
    plan = read_training_plan(path)
    assert f"privfair budget sign {name} " in text
    unpromised = isinstance(file.guarantee, Unprotected)
    assert unpromised == (not file.target_section)
    if not unpromised:
        assert plan_from_mapping(file.algorithm, file.privacy).rounds == plan.planned_rounds


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_an_example_is_signed_and_trained(name: str, tmp_path: Path) -> None:
    """Two of its rounds (the rest stay signed and unused)."""
    text = re.sub(r"(?m)^measure-every.*\n", "", (EXAMPLES / name).read_text(encoding="utf-8"))
    if not re.search(r"(?m)^rounds = 1$", text):  # of [training]; central ERM has one
        text = re.sub(r"(?ms)(^\[training\].*?)^rounds = \d+\n", r"\1", text)
        text = text.replace("[training]", "[training]\nrounds = 2", 1)
    if "fashion-mnist" in text and not DEBIAN_FOLDER.is_dir():
        pytest.skip("apt install dataset-fashion-mnist")
    desk = Desk.at(tmp_path, text)
    for module in EXAMPLES.glob("*.py"):
        shutil.copy(module, tmp_path)
    result = desk.train(desk.budget())
    assert result.accuracy is not None
