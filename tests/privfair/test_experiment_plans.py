"""The plans of the comparison say what they mean, and the page of FedFDP's rounds is computed, not written."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from calibrate.plans.from_mapping import plan_from_mapping
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Protected, Relation
from calibrate.questions import rounds
from privfair.plan.file import read_plan_file
from privfair.plan.training import read_training_plan

DOCS = Path(__file__).parents[2] / "docs"
UNITS = {
    "attribute replaced": PrivacyUnit(Protected.ATTRIBUTE, Relation.REPLACE_ATTRIBUTE),
    "record added or removed": PrivacyUnit(Protected.RECORD, Relation.ADD_REMOVE),
    "record replaced": PrivacyUnit(Protected.RECORD, Relation.REPLACE_ONE),
    "user added or removed": PrivacyUnit(Protected.USER, Relation.ADD_REMOVE),
}


@pytest.fixture(scope="module")
def plans() -> ModuleType:
    sys.path.insert(0, str(DOCS / "experiments"))
    try:
        return importlib.import_module("comparison_plans")
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("number", [0, 1])
def test_every_method_of_the_comparison_is_a_whole_plan(plans: ModuleType, number: int, tmp_path: Path) -> None:
    """Every key is known to training and to calibration, and the unit in the table is the one that is priced."""
    setting = plans.SETTINGS[number]
    names = set()
    for method in plans.methods(setting):
        names.add(method.name)
        path = tmp_path / "plan.toml"
        path.write_text(plans.plan_text(method, setting, 3.0, 0), "utf-8")
        training, file = read_training_plan(path), read_plan_file(path)
        assert training.recipe.baseline == (method.unit is plans.Unit.NOBODY)
        if method.unit is plans.Unit.NOBODY:
            assert not file.target_section
            continue
        assert file.target() == EpsilonDelta(3.0, plans.DELTA)
        assert plan_from_mapping(file.algorithm, file.privacy).unit == UNITS[method.unit.value]
    assert {"SteFFLe", "pay-once", "DP-FedSGD", "FedFDP", "FPFL, FNR", "MMD-FedAvg", "ALI-DPFL"} <= names


def test_the_ali_dpfl_example_is_whole() -> None:
    training = read_training_plan(DOCS / "examples" / "ali-dpfl.toml")
    file = read_plan_file(DOCS / "examples" / "ali-dpfl.toml")
    assert plan_from_mapping(file.algorithm, file.privacy).rounds == 300
    assert training.own.communications == file.training["communications"]
    assert training.own.method.value == file.training["method"]


@pytest.mark.parametrize(
    ("sigma", "printed", "alone", "charged"), [(1.0, 6, 20, 17), (2.0, 268, 321, 265), (3.0, 708, 824, 584)]
)
def test_rounds_that_the_printed_noise_of_fedfdp_affords(sigma: float, printed: int, alone: int, charged: int) -> None:
    """FedFDP, Section VIII: epsilon 2, q = 0.05, delta = 1e-5, sigma_l = 5; the loss on the gradient's batch."""
    promise = {"epsilon": 2.0, "delta": 1e-5, "sampling_rate": 0.05}
    assert rounds(**promise, noise_multiplier=sigma) == alone
    found = rounds(**promise, noise_multiplier=(sigma, 5.0))
    assert found == charged
    assert (found < printed) == (sigma >= 2)
