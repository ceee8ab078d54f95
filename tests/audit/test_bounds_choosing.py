"""Choosing a threshold or a number of guesses: what each rule does, and that its price is paid."""

from __future__ import annotations

import numpy as np
import pytest

from audit.bounds import (
    ClopperPearson,
    EProcess,
    EpsilonDeltaCurve,
    ErrorCounts,
    FDPOneRun,
    GaussianCurve,
    JointExact,
    OneRun,
    ProfileCurve,
    RankedGuesses,
    Selection,
    bound_over,
    counts_at,
    p_value_over,
)
from calibrate.accountants.gaussian import gaussian_delta

DELTA = 1e-5


@pytest.fixture(scope="module")
def scores() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.normal(0, 1, 400), rng.normal(2, 1, 400)


@pytest.fixture(scope="module")
def runs() -> tuple[RankedGuesses, ...]:
    rng = np.random.default_rng(8)
    coins = rng.integers(0, 2, (4, 300))
    seen = 2 * (coins - 0.5) + rng.normal(size=coins.shape)
    return tuple(RankedGuesses.from_scores(row, truth) for row, truth in zip(seen, coins, strict=True))


def test_counts_at_a_threshold_include_it() -> None:
    counted = ErrorCounts.at(1.0, [0.0, 1.0, 2.0], [1.0, 2.0, 0.0])
    assert (counted.false_positives, counted.false_negatives) == (2, 1)


def test_a_grid_of_one_is_a_fixed_threshold(scores: tuple[np.ndarray, np.ndarray]) -> None:
    counts = ErrorCounts.at(1.0, *scores)
    fixed, grid = ClopperPearson().lower_bound(counts, DELTA), bound_over(ClopperPearson(), (counts,), DELTA)
    assert grid.epsilon == pytest.approx(fixed.epsilon, rel=1e-12)
    assert fixed.selection is grid.selection is Selection.FIXED


def test_declaring_more_thresholds_costs_confidence(scores: tuple[np.ndarray, np.ndarray]) -> None:
    method, counts = ClopperPearson(), ErrorCounts.at(1.0, *scores)
    alone = bound_over(method, (counts,), DELTA)
    declared = (counts, *(ErrorCounts.at(float(x), *scores) for x in range(50, 69)))
    crowd = bound_over(method, declared, DELTA)
    assert crowd.selection is Selection.BONFERRONI
    assert crowd.epsilon < alone.epsilon
    assert crowd.evidence == alone.evidence
    assert (crowd.comparisons, crowd.confidence) == (20, 0.95)
    claim = GaussianCurve(1.0)
    assert p_value_over(method, declared, claim) == pytest.approx(20 * method.p_value(counts, claim))


def test_guess_rules_count_what_they_say(runs: tuple[RankedGuesses, ...]) -> None:
    fixed = bound_over(OneRun(), (counts_at(runs, 50),), DELTA)
    assert fixed.evidence == counts_at(runs, 50)
    assert (fixed.evidence.coins, fixed.evidence.guesses) == (1200, 200)
    grid = bound_over(OneRun(), [counts_at(runs, number) for number in (50, 300)], DELTA)
    assert (grid.selection, grid.comparisons) == (Selection.BONFERRONI, 2)
    assert grid.epsilon < fixed.epsilon


def test_p_values_of_guess_rules(runs: tuple[RankedGuesses, ...]) -> None:
    claim = EpsilonDeltaCurve(1.0, DELTA)
    declared = [counts_at(runs, number) for number in (50, 300)]
    each = [OneRun().p_value(counts, claim) for counts in declared]
    assert p_value_over(OneRun(), declared, claim) == pytest.approx(2 * min(each))


def test_a_claim_is_tested_with_its_own_curve(runs: tuple[RankedGuesses, ...]) -> None:
    """A profile sampled from a Gaussian is tested almost as sharply as the Gaussian, and far more than one point."""
    counts = counts_at(runs, 50)
    mu = 1.0
    grid = np.linspace(0, 8, 200)
    profile = ProfileCurve.of(tuple((float(e), gaussian_delta(mu, float(e))) for e in grid))
    point = EpsilonDeltaCurve(4.377, DELTA)
    exact = FDPOneRun().p_value(counts, GaussianCurve(mu))
    assert exact <= FDPOneRun().p_value(counts, profile) <= 1.2 * exact
    assert exact < FDPOneRun().p_value(counts, point) / 100
    assert OneRun().p_value(counts, profile) < OneRun().p_value(counts, point)


def test_the_joint_test_takes_any_curve(scores: tuple[np.ndarray, np.ndarray]) -> None:
    counts = ErrorCounts.at(1.0, *scores)
    for curve in (GaussianCurve(1.0), EpsilonDeltaCurve(0.5, DELTA), ProfileCurve.of(((0.0, 0.3), (1.0, 0.01)))):
        assert JointExact().refutes(counts, curve)
        assert JointExact().p_value(counts, curve) < 0.01
    assert not JointExact().refutes(counts, GaussianCurve(3.0))


def test_starting_the_e_process_higher_forgives_less(runs: tuple[RankedGuesses, ...]) -> None:
    delta = 1e-3
    low = EProcess().lower_bound(runs, delta)
    high = EProcess(least_epsilon=1.0).lower_bound(runs, delta)
    assert high.epsilon > low.epsilon > 1.0
    assert EProcess(least_epsilon=9.0).lower_bound(runs, delta).epsilon == 0.0
    assert low.selection is Selection.SEQUENTIAL


def test_delta_makes_the_e_process_more_careful(runs: tuple[RankedGuesses, ...]) -> None:
    epsilons = [EProcess().lower_bound(runs, delta).epsilon for delta in (0.0, 1e-5, 1e-4, 1e-3, 1e-2)]
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[0] > epsilons[-1]
