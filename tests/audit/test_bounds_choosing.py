"""Choosing a threshold or a number of guesses: what each rule does, and that its price is paid."""

from __future__ import annotations

import numpy as np
import pytest

from audit.bounds import (
    ClopperPearson,
    EProcess,
    EpsilonDeltaCurve,
    FDPOneRun,
    FixedGuesses,
    FixedThreshold,
    GaussianBox,
    GaussianCurve,
    GuessGrid,
    JointExact,
    OneRun,
    ProfileCurve,
    RankedGuesses,
    RunScores,
    Selection,
    SplitGuesses,
    SplitRuns,
    ThresholdGrid,
    bound_from_guesses,
    bound_from_scores,
    counts_at,
    p_value_from_guesses,
    p_value_from_scores,
)
from audit.bounds.thresholds import split_threshold
from calibrate.accountants.gaussian import gaussian_delta
from calibrate.errors import InvalidInput

DELTA = 1e-5


@pytest.fixture(scope="module")
def scores() -> RunScores:
    rng = np.random.default_rng(7)
    return RunScores(rng.normal(0, 1, 400), rng.normal(2, 1, 400))


@pytest.fixture(scope="module")
def runs() -> tuple[RankedGuesses, ...]:
    rng = np.random.default_rng(8)
    coins = rng.integers(0, 2, (4, 300))
    seen = 2 * (coins - 0.5) + rng.normal(size=coins.shape)
    return tuple(RankedGuesses.from_scores(row, truth) for row, truth in zip(seen, coins, strict=True))


def test_counts_at_a_threshold_include_it() -> None:
    counted = RunScores.of([0.0, 1.0, 2.0], [1.0, 2.0, 0.0]).counts_at(1.0)
    assert (counted.false_positives, counted.false_negatives) == (2, 1)


def test_a_grid_of_one_is_a_fixed_threshold(scores: RunScores) -> None:
    fixed = bound_from_scores(ClopperPearson(), FixedThreshold(1.0), scores, DELTA)
    grid = bound_from_scores(ClopperPearson(), ThresholdGrid((1.0,)), scores, DELTA)
    assert grid.epsilon == pytest.approx(fixed.epsilon, rel=1e-12)
    assert fixed.selection is Selection.FIXED
    assert grid.selection is Selection.BONFERRONI


def test_declaring_more_thresholds_costs_confidence(scores: RunScores) -> None:
    alone = bound_from_scores(GaussianBox(), FixedThreshold(1.0), scores, DELTA)
    useless = tuple(float(x) for x in range(50, 69))
    crowd = bound_from_scores(GaussianBox(), ThresholdGrid((1.0, *useless)), scores, DELTA)
    assert crowd.epsilon < alone.epsilon
    assert crowd.evidence == alone.evidence
    assert (crowd.comparisons, crowd.confidence) == (20, 0.95)
    claim = GaussianCurve(1.0)
    assert p_value_from_scores(GaussianBox(), ThresholdGrid((1.0, *useless)), scores, claim) == pytest.approx(
        20 * p_value_from_scores(GaussianBox(), FixedThreshold(1.0), scores, claim)
    )


def test_a_split_counts_only_the_runs_that_did_not_choose(scores: RunScores) -> None:
    rule = SplitRuns(choosing_share=0.25, seed=3)
    bound = bound_from_scores(GaussianBox(), rule, scores, DELTA)
    assert bound.evidence.runs_without == bound.evidence.runs_with == 300
    assert bound.selection is Selection.SPLIT
    threshold, rest = split_threshold(rule, scores, GaussianBox().family, DELTA, 0.95)
    assert not set(rest.without) - set(scores.without)
    assert 0 < threshold < 2, "near the middle of two normals at 0 and 2"


def test_the_choice_of_a_split_ignores_the_counted_runs(scores: RunScores) -> None:
    """Corrupting the runs that are left over must not move the threshold."""
    rule = SplitRuns(seed=5)
    before, rest = split_threshold(rule, scores, GaussianBox().family, DELTA, 0.95)
    left_over = np.isin(scores.with_canary, rest.with_canary)
    corrupted = RunScores(scores.without, np.where(left_over, scores.with_canary + 100, scores.with_canary))
    after, _ = split_threshold(rule, corrupted, GaussianBox().family, DELTA, 0.95)
    assert after == before


def test_a_split_is_reproducible_and_depends_on_its_seed(scores: RunScores) -> None:
    first = bound_from_scores(ClopperPearson(), SplitRuns(seed=1), scores, DELTA)
    assert bound_from_scores(ClopperPearson(), SplitRuns(seed=1), scores, DELTA) == first
    assert bound_from_scores(ClopperPearson(), SplitRuns(seed=2), scores, DELTA) != first


def test_one_run_cannot_be_split() -> None:
    with pytest.raises(InvalidInput, match="too few"):
        bound_from_scores(ClopperPearson(), SplitRuns(), RunScores.of([0.0], [1.0]), DELTA)


def test_guess_rules_count_what_they_say(runs: tuple[RankedGuesses, ...]) -> None:
    fixed = bound_from_guesses(OneRun(), FixedGuesses(50), runs, DELTA)
    assert fixed.evidence == counts_at(runs, 50)
    assert (fixed.evidence.coins, fixed.evidence.guesses) == (1200, 200)
    grid = bound_from_guesses(OneRun(), GuessGrid((50, 300)), runs, DELTA)
    assert (grid.selection, grid.comparisons) == (Selection.BONFERRONI, 2)
    assert grid.epsilon < fixed.epsilon
    split = bound_from_guesses(OneRun(), SplitGuesses((20, 50, 300), choosing_runs=1), runs, DELTA)
    assert split.evidence.coins == 900
    assert split.selection is Selection.SPLIT


def test_p_values_of_guess_rules(runs: tuple[RankedGuesses, ...]) -> None:
    claim = EpsilonDeltaCurve(1.0, DELTA)
    each = [p_value_from_guesses(OneRun(), FixedGuesses(number), runs, claim, DELTA) for number in (50, 300)]
    grid = p_value_from_guesses(OneRun(), GuessGrid((50, 300)), runs, claim, DELTA)
    assert grid == pytest.approx(2 * min(each))
    assert p_value_from_guesses(OneRun(), SplitGuesses((50, 300), 2), runs, claim, DELTA) < 0.05


def test_all_runs_cannot_choose(runs: tuple[RankedGuesses, ...]) -> None:
    with pytest.raises(InvalidInput, match="choosing runs"):
        bound_from_guesses(OneRun(), SplitGuesses((50,), choosing_runs=4), runs, DELTA)


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


def test_the_joint_test_takes_any_curve(scores: RunScores) -> None:
    counts = scores.counts_at(1.0)
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
