"""Three lines in anybody's training: the bound holds, a leak is seen, and what is not known is not claimed."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest

import audit.coins.one_run
from audit.coins.one_run import coin_flip, one_run
from audit.report.results import Conclusion
from calibrate.errors import InvalidInput

DELTA = 1e-5


def test_the_examples_of_the_docstrings_are_true() -> None:
    assert doctest.testmod(audit.coins.one_run, verbose=False).failed == 0


def test_coins_are_fair_and_follow_their_seed() -> None:
    coins = coin_flip(20_000, seed=5)
    assert np.array_equal(coins, coin_flip(20_000, seed=5))
    assert abs(coins.mean() - 0.5) < 0.02
    assert set(coin_flip(1000, seed=5, sides=4).tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(("epsilon", "sides"), [(0.0, 2), (1.0, 2), (1.0, 4)])
def test_the_bound_exceeds_the_truth_at_most_as_often_as_it_says(epsilon: float, sides: int) -> None:
    """Randomised response on every coin; seeded, 400 runs, three standard errors above 5%."""
    random = np.random.default_rng(17)
    right, above = math.exp(epsilon) / (math.exp(epsilon) + sides - 1), 0
    for number in range(400):
        coins = coin_flip(120, seed=number, sides=sides)
        told = np.where(random.random(120) < right, coins, (coins + random.integers(1, sides, 120)) % sides)
        scores = told if sides == 2 else np.eye(sides)[told]
        above += one_run(scores, coins, delta=0.0).epsilon_lower > epsilon
    assert above / 400 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_answers_of_two_values_are_as_good_as_scores() -> None:
    coins = coin_flip(300, seed=2)
    for scores in (coins, 7.0 * coins - 100.0):
        report = one_run(scores, coins, epsilon=3.0, delta=DELTA)
        assert report.verdict is Conclusion.VIOLATED
        assert report.epsilon_lower > 4


def test_without_a_control_nothing_is_called_consistent() -> None:
    coins = coin_flip(300, seed=2)
    silent = np.random.default_rng(0).normal(size=300)
    assert one_run(silent, coins, epsilon=1.0, delta=DELTA).verdict is Conclusion.INCONCLUSIVE
    weak = silent + 0.2 * coins
    assert one_run(silent, coins, epsilon=1.0, delta=DELTA, controls=weak).verdict is Conclusion.INCONCLUSIVE
    assert one_run(silent, coins, epsilon=1.0, delta=DELTA, controls=coins).verdict is Conclusion.CONSISTENT


def test_a_pure_claim_is_tested_without_a_delta() -> None:
    coins = coin_flip(300, seed=2)
    assert one_run(coins, coins, epsilon=1.0, delta=0.0).verdict is Conclusion.VIOLATED


def test_a_high_confidence_leaves_room_for_delta() -> None:
    coins = coin_flip(5000, seed=3)
    assert one_run(coins, coins, delta=DELTA, confidence=0.999).epsilon_lower > 3.5


@pytest.mark.parametrize(
    ("scores", "coins"), [([0.1], [0, 1]), ([0.1, math.nan], [0, 1]), ([0.1, 0.2], [0, 2]), ([[[0.0]]], [0]), ([], [])]
)
def test_scores_that_fit_no_coins_are_refused(scores: list[float], coins: list[int]) -> None:
    with pytest.raises(InvalidInput):
        one_run(scores, coins, delta=DELTA)
