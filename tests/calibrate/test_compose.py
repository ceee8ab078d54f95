"""Promises about one person add up, exactly, and hold for finer units, never for coarser ones."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from calibrate.compose import UNITS, UnitPromise, compose, cost_for, steps_between
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation

USER, RECORD = (PrivacyUnit(who, Relation.ADD_REMOVE) for who in (Protected.USER, Protected.RECORD))
REPLACED = PrivacyUnit.of(Relation.REPLACE_ONE)
ATTRIBUTE = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE)


def test_ten_promises_of_a_tenth_are_one() -> None:
    total = compose(UnitPromise(RECORD, 0.1, 1e-6) for _ in range(10))
    assert (total.epsilon, total.delta) == (1.0, 1e-5)


def test_a_person_in_three_silos_pays_three_times() -> None:
    total = compose([UnitPromise(REPLACED, 1.0, 1e-6, times=3), UnitPromise(REPLACED, 0.5, 0.0)])
    assert (total.unit, total.epsilon, total.delta) == (REPLACED, 3.5, 3e-6)


def test_beside_an_attribute_promise_the_sum_speaks_of_the_attribute() -> None:
    total = compose([UnitPromise(REPLACED, 1.0, 1e-6), UnitPromise(ATTRIBUTE, 2.0, 0.0)])
    assert (total.unit, total.epsilon, total.delta) == (ATTRIBUTE, 3.0, 1e-6)


def test_replacing_costs_adding_and_removing() -> None:
    total = compose([UnitPromise(RECORD, 1.0, 1e-6), UnitPromise(REPLACED, 1.0, 0.0)])
    assert total.unit == REPLACED
    assert total.epsilon == 3.0
    assert total.delta == pytest.approx((1 + math.e) * 1e-6)
    assert total.delta >= (1 + math.e) * 1e-6


def test_a_fine_promise_says_nothing_about_a_coarse_unit() -> None:
    coarseness = [Protected.ATTRIBUTE, Protected.RECORD, Protected.USER]
    for promised, wanted in product(UNITS, UNITS):
        if coarseness.index(promised.protected) < coarseness.index(wanted.protected):
            assert steps_between(promised, wanted) is None
    assert steps_between(REPLACED, RECORD) is None
    assert steps_between(USER, ATTRIBUTE) == 2


def test_steps_can_be_chained() -> None:
    """A finer unit never costs less by a detour over a unit in between."""
    for first, second, third in product(UNITS, repeat=3):
        direct, one, two = steps_between(first, third), steps_between(first, second), steps_between(second, third)
        if one is not None and two is not None:
            assert direct is not None
            assert direct <= one * two


def test_two_steps_of_randomised_response_cost_what_is_said() -> None:
    """The extreme mechanism of basic composition, on three data sets in a row: the bound is attained."""
    epsilon, delta = 0.7, 1e-3
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    cost = cost_for(epsilon, delta, RECORD, ATTRIBUTE)
    assert cost is not None
    # Data sets 0, 1, 2; from one to the next the share of "yes" may grow by e^eps and by delta.
    shares = [(1 - keep) / math.exp(epsilon)]
    for _ in range(2):
        shares.append(math.exp(epsilon) * shares[-1] + delta)
    assert shares[2] == pytest.approx(math.exp(float(cost.epsilon)) * shares[0] + float(cost.delta))
    assert np.all(np.diff(shares) > 0)


def test_nothing_in_common_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one promise"):
        compose([])


def test_huge_promises_do_not_overflow() -> None:
    total = compose([UnitPromise(RECORD, 1e6, 1e-6), UnitPromise(REPLACED, 1.0, 0.0)])
    assert (total.epsilon, total.delta) == (2e6 + 1, 1.0)
