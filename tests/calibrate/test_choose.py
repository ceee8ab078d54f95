"""The chooser: each answer is an algorithm that exists, protects the asked unit, and its plan can be priced."""

from __future__ import annotations

import tomllib
from itertools import product

import pytest

from calibrate.choose import Fair, Need, Observer, choose
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.meaning import Protection
from calibrate.plans import plan_from_mapping
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Protected, Relation


@pytest.mark.parametrize(("protect", "observer", "sites", "fair"), list(product(Protected, Observer, (1, 3), Fair)))
def test_every_answer_protects_the_unit_that_was_asked_for(
    protect: Protected, observer: Observer, sites: int, fair: Fair
) -> None:
    by_collector = protect is Protected.USER and observer is Observer.COORDINATOR and sites > 1
    if by_collector or (protect is Protected.ATTRIBUTE and fair is Fair.SITES):
        with pytest.raises(UnsupportedCombination, match="protect records"):
            choose(Need(protect, observer, sites, fair))
        return
    choice = choose(Need(protect, observer, sites, fair))
    assert choice.unit is protect
    plan = plan_from_mapping(choice.algorithm, tomllib.loads(choice.privacy))
    assert plan.unit.protected is protect
    assert choice.why
    assert choice.to_json()["algorithm"] == choice.algorithm


def test_users_are_not_promised_privacy_from_a_collector() -> None:
    with pytest.raises(UnsupportedCombination, match="is trusted"):
        choose(Need(Protected.USER, Observer.COORDINATOR, 3))
    assert choose(Need(Protected.RECORD, Observer.COORDINATOR, 3, Fair.SITES)).algorithm == "fedfdp"
    with pytest.raises(InvalidInput):
        Need(Protected.RECORD, sites=0)


@pytest.mark.parametrize("unit", list(Protected))
def test_both_sides_of_a_promise_are_said(unit: Protected) -> None:
    relation = Relation.REPLACE_ATTRIBUTE if unit is Protected.ATTRIBUTE else Relation.ADD_REMOVE
    protection = Protection(PrivacyUnit(unit, relation), EpsilonDelta(1.0, 1e-5))
    first, second = protection.lines()
    assert "at most 73.2% of the time" in first
    assert second.startswith("NOT protected: ")
    assert set(protection.to_json()) == {"protected", "not_protected"}
    nobody = Protection(PrivacyUnit(unit, relation), None)
    assert nobody.protected.startswith("no one")
    assert nobody.not_protected == "everything in the files"
