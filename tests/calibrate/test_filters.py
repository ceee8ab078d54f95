"""Totals that are kept by a Renyi filter hold against the best adaptive adversary; forged curves are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest

from calibrate.accountants.gaussian import GaussianAccountant
from calibrate.accountants.registry import epsilon_of, total_cost
from calibrate.accountants.renyi import RenyiAccountant
from calibrate.compose import (
    ORDERS,
    BudgetFilter,
    Cost,
    RenyiFilter,
    SignedCurve,
    Spent,
    UnitPromise,
    chosen_filter,
    compose,
    compose_beforehand,
    fixed_total,
    odometer,
    spent_for,
)
from calibrate.discrete_noise import NO_SLACK, ProfileSlack
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.releases import Gaussian, RandomizedResponse, Release, Repeated

RECORD, REPLACED = PrivacyUnit.of(Relation.ADD_REMOVE), PrivacyUnit.of(Relation.REPLACE_ONE)
NOTHING = Cost(Fraction(0), Fraction(0))


def claim(release: Release, slack: ProfileSlack = NO_SLACK, cost: Cost = NOTHING, steps: int = 1) -> Spent:
    unit = REPLACED if isinstance(release, RandomizedResponse) else RECORD
    values = total_cost(RenyiAccountant(ORDERS), release, unit).values
    points = tuple((order, value) for order, value in zip(ORDERS, values, strict=True) if value < math.inf)
    return Spent(cost, SignedCurve(points, slack), steps)


def filter_of(epsilon: float, delta: float) -> RenyiFilter:
    found = RenyiFilter.of(epsilon, delta)
    assert found is not None
    return found


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (2.0, 1e-6), (8.0, 1e-5), (20.0, 1e-3)])
def test_gaussian_claims_that_exhaust_a_filter_keep_its_budget(epsilon: float, delta: float) -> None:
    found = filter_of(epsilon, delta)
    one = claim(Gaussian(4.0 / math.sqrt(epsilon)))
    times = int(found.repeats(one))
    assert found.admits([one] * times)
    assert not found.admits([one] * (times + 1))
    if times:
        spent = epsilon_of(GaussianAccountant(), Repeated(Gaussian(4.0 / math.sqrt(epsilon)), times), RECORD, delta)
        assert 0.5 * epsilon < spent.upper <= epsilon


def _best_attack(found: RenyiFilter, menu: tuple[float, ...]) -> float:
    """The largest P0 - e^epsilon P1 over events that an adversary reaches by adaptively choosing from `menu`."""
    shares = [found.used([claim(RandomizedResponse(epsilon, 2))]) for epsilon in menu]

    @cache
    def value(counts: tuple[int, ...], loss: int) -> float:
        """Given none of the rest: (1 - e^(epsilon - loss))+ now, or more by going on; in units of P0."""
        best = max(0.0, 1 - math.exp(found.epsilon - loss * menu[0]))
        for place, epsilon in enumerate(menu):
            more = (*counts[:place], counts[place] + 1, *counts[place + 1 :])
            if sum(times * share for times, share in zip(more, shares, strict=True)) <= 1:
                step, right = round(epsilon / menu[0]), 1 / (1 + math.exp(-epsilon))
                best = max(best, right * value(more, loss + step) + (1 - right) * value(more, loss - step))
        return best

    return value((0,) * len(menu), 0)


def test_no_adaptive_adversary_gets_more_than_delta_out_of_a_filter() -> None:
    """Exact, by dynamic programming over all histories; with 1.3 times the allowance the same adversary succeeds."""
    found, menu = filter_of(3.0, 0.05), (0.5, 1.0)
    reached = _best_attack(found, menu)
    assert 0.2 * found.delta < reached <= found.delta
    assert _best_attack(replace(found, most=1.3 * found.most), menu) > found.delta


def test_two_steps_cost_at_least_what_a_shift_of_twice_the_length_does() -> None:
    one = claim(Gaussian(3.0), steps=2)
    for order in (2.0, 5.0, 16.0):
        assert one.divergence(order) >= order * (2 / 3) ** 2 / 2
    assert math.isinf(one.divergence(200.0)), "no divergence is known at order 400"
    assert spent_for(NOTHING, one.curve, REPLACED, RECORD) is None
    twice = spent_for(NOTHING, one.curve, RECORD, REPLACED)
    assert twice is not None
    assert twice.steps == 2


def test_a_claim_without_divergences_or_with_coarse_noise_is_not_admitted() -> None:
    found = filter_of(2.0, 1e-5)
    assert not found.admits([Spent(NOTHING, None)])
    assert found.admits([claim(Gaussian(20.0), ProfileSlack(1e-9, 2.0**-200))])
    assert not found.admits([claim(Gaussian(20.0), ProfileSlack(1e-3, 2.0**-200))])
    assert not found.admits([claim(Gaussian(20.0), ProfileSlack(1e-9, 1e-6))])
    assert found.repeats(Spent(NOTHING, None)) == 0
    assert found.repeats(Spent(NOTHING, SignedCurve(((256.0, 0.0),), NO_SLACK))) == math.inf


def test_budgets_without_a_proof_fall_back_to_basic_composition() -> None:
    assert RenyiFilter.of(1.0, 0.0) is None
    assert RenyiFilter.of(100.0, 1e-5) is None
    assert RenyiFilter.of(1e-3, 1e-300) is None, "no order of the list is high enough"
    assert chosen_filter(BudgetFilter.BASIC, 1.0, 1e-5, None) is None
    assert chosen_filter(BudgetFilter.RENYI, 1.0, 1e-5, None) is not None


def test_the_filter_is_chosen_by_the_first_claim_alone() -> None:
    """One large claim fits basic composition only; small ones are repeated more often under the Renyi filter."""
    small = claim(Gaussian(40.0), cost=Cost(Fraction(1, 10), Fraction(1, 10**6)))
    assert chosen_filter(BudgetFilter.SMALLER, 1.0, 1e-5, small) is not None
    whole = claim(Gaussian(3.8), cost=Cost(Fraction(1), Fraction(1, 10**5)))
    assert chosen_filter(BudgetFilter.SMALLER, 1.0, 1e-5, whole) is None
    pure = Spent(Cost(Fraction(0), Fraction(0)), None)
    assert chosen_filter(BudgetFilter.SMALLER, 1.0, 1e-5, pure) is None


def test_the_odometer_never_reads_less_than_the_truth() -> None:
    assert odometer([], 1e-6) == 0
    before = 0.0
    for times in (1, 4, 16, 64):
        read = odometer([claim(Gaussian(20.0))] * times, 1e-6)
        assert read * 4 == int(read * 4)
        assert read >= max(
            before, epsilon_of(GaussianAccountant(), Repeated(Gaussian(20.0), times), RECORD, 1e-6).lower
        )
        before = read
    assert math.isinf(odometer([Spent(NOTHING, None)], 1e-6))


def test_promises_fixed_beforehand_compose_to_less_than_their_sum() -> None:
    promise = UnitPromise(RECORD, 1.0, 1e-5, times=8)
    curve = claim(Gaussian(3.8), ProfileSlack(1e-12, 2.0**-250)).curve
    total = compose_beforehand([promise], [curve])
    exact = epsilon_of(GaussianAccountant(), Repeated(Gaussian(3.8), 8), RECORD, total.delta)
    assert exact.lower <= total.epsilon < 0.6 * compose([promise]).epsilon
    assert compose_beforehand([promise], [None]) == compose([promise])
    assert math.isinf(fixed_total([claim(Gaussian(1.0), ProfileSlack(0.0, 0.5))], 1e-5))


@pytest.mark.parametrize("points", [((2.0, 1.0), (1.5, 1.0)), ((1.0, 1.0),), ((2.0, -1.0),), ((2.0, math.inf),)])
def test_what_is_not_a_curve_is_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(InvalidInput, match="Renyi curve"):
        SignedCurve(points, NO_SLACK)
