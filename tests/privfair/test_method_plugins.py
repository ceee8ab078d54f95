"""A package adds a method to an algorithm that is built in: its keys, its code in the budget, its training."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.errors import InvalidInput, Refused
from calibrate.manifest.verify import read_unverified
from calibrate.plugins import PluginGroup
from privfair.algorithms.registry import methods_of, recipe_named
from privfair.plan.training import read_training_plan
from tests.installed_packages import Install, forget
from tests.privfair.small_runs import GAUSSIAN, Desk

METHOD = """
from dataclasses import dataclass, replace
from privfair.algorithms.dp_fedsgd import RECIPES, PrivateStepOptions
from privfair.plan.sections import Positive

@dataclass(frozen=True)
class SlowOptions(PrivateStepOptions):
    slowness: Positive = 2.0

def build(blueprint):
    own = blueprint.options
    return RECIPES[0].build(replace(blueprint, options=replace(own, learning_rate=own.learning_rate / own.slowness)))

RECIPE = replace(RECIPES[0], options=SlowOptions, build=build, method="slow")
"""


@pytest.fixture
def package(install: Install) -> Path:
    return install("own_method", METHOD, {(PluginGroup.ALGORITHMS, "gaussian.slow"): "own_method:RECIPE"})


def _desk(folder: Path, more: str) -> Desk:
    return Desk.at(folder, GAUSSIAN.format(rate=0.1, rounds=3, more=more))


def test_a_method_of_a_package_trains_under_a_budget_that_names_its_code(package: Path, tmp_path: Path) -> None:
    desk = _desk(tmp_path / "desk", 'method = "slow"\nslowness = 4.0')
    plan = read_training_plan(desk.plan)
    assert (plan.recipe.key, plan.algorithm) == ("gaussian.slow", "gaussian")
    budget = desk.budget()
    signed = {code.name: code.sha256 for code in read_unverified(budget.read_bytes()).document.code}
    assert signed == plan.code_digests()
    assert list(signed) == ["package own_method"]
    assert desk.train(budget).to_json()["rounds"] == 3


def test_another_package_than_the_signed_one_is_refused(package: Path, tmp_path: Path) -> None:
    desk = _desk(tmp_path / "desk", 'method = "slow"')
    budget = desk.budget()
    (package / "__init__.py").write_text(METHOD.replace("2.0", "3.0"), encoding="utf-8")
    forget("own_method")
    with pytest.raises(Refused, match="own_method"):
        desk.train(budget)
    assert not (desk.folder / "run").exists()


def test_a_key_of_a_packages_method_is_refused_elsewhere_with_its_name(package: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"slowness = 4.0: is not used by method = 'fedsgd'.*method = 'slow'"):
        read_training_plan(_desk(tmp_path / "desk", "slowness = 4.0").plan)
    with pytest.raises(InvalidInput, match="did you mean slow"):
        read_training_plan(_desk(tmp_path / "another", 'method = "slwo"').plan)


def test_no_package_takes_the_place_of_a_method(install: Install) -> None:
    entries = {(PluginGroup.ALGORITHMS, f"gaussian.{name}"): "own_method:RECIPE" for name in ("fedsgd", "min-max")}
    install("own_method", METHOD, entries)
    assert methods_of("gaussian") == ("fedsgd", "fedprox", "scaffold", "feddyn", "ali-dpfl", "min-max")
    assert recipe_named("gaussian", "fedsgd") is recipe_named("gaussian")
