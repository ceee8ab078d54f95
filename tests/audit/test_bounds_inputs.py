"""What the bounds refuse, by name, and what their answers carry."""

from __future__ import annotations

import json

import numpy as np
import pytest

from audit.bounds import (
    ClopperPearson,
    CurveFamily,
    EProcess,
    EpsilonDeltaCurve,
    ErrorCounts,
    FDPOneRun,
    GaussianCurve,
    GuessCounts,
    JointExact,
    Method,
    OneRun,
    ProfileCurve,
    RankedGuesses,
    Selection,
    bound_over,
    counts_at,
    curve_at,
)
from calibrate.errors import InvalidInput, UnsupportedCombination


@pytest.mark.parametrize("counts", [(5, 4, 0, 4), (0, 4, 5, 4), (-1, 4, 0, 4), (0, 0, 0, 4), (0.5, 4, 0, 4)])
def test_impossible_error_counts_are_refused(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidInput):
        ErrorCounts(*counts)


@pytest.mark.parametrize("counts", [(10, 11, 0), (10, 5, 6), (0, 0, 0), (10, 5, 5, 1)])
def test_impossible_guess_counts_are_refused(counts: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput):
        GuessCounts(*counts)


def test_a_gaussian_has_no_epsilon_at_delta_zero() -> None:
    with pytest.raises(UnsupportedCombination, match="delta = 0"):
        ClopperPearson(CurveFamily.GAUSSIAN).lower_bound(ErrorCounts(0, 10, 0, 10), delta=0.0)
    with pytest.raises(UnsupportedCombination, match="delta = 0"):
        FDPOneRun(CurveFamily.GAUSSIAN).lower_bound(GuessCounts(10, 10, 10), delta=0.0)
    assert FDPOneRun().lower_bound(GuessCounts(10, 10, 10), delta=0.0).epsilon > 0


@pytest.mark.parametrize("delta", [-1e-9, 1.0, float("nan")])
def test_a_delta_outside_the_unit_interval_is_refused(delta: float) -> None:
    with pytest.raises(InvalidInput, match="delta"):
        ClopperPearson().lower_bound(ErrorCounts(0, 10, 0, 10), delta)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_a_confidence_is_a_probability(confidence: float) -> None:
    with pytest.raises(InvalidInput, match="confidence"):
        OneRun().lower_bound(GuessCounts(10, 10, 10), 1e-5, confidence)


def test_the_joint_test_needs_room_for_its_nuisance_error() -> None:
    counts = ErrorCounts(0, 100, 0, 100)
    with pytest.raises(InvalidInput, match="nuisance"):
        JointExact().lower_bound(counts, 1e-5, confidence=0.9995)
    assert JointExact(nuisance_error=1e-5).lower_bound(counts, 1e-5, confidence=0.9995).epsilon > 0


def test_the_e_process_needs_room_for_the_price_of_delta() -> None:
    runs = (RankedGuesses(np.arange(3000.0), np.ones(3000, dtype=bool)),)
    with pytest.raises(InvalidInput, match="delta price"):
        EProcess().lower_bound(runs, 1e-5, confidence=0.995)
    assert EProcess(delta_price=1e-3).lower_bound(runs, 1e-5, confidence=0.995).epsilon > 4


def test_the_e_process_refuses_a_whole_profile() -> None:
    runs = (RankedGuesses(np.ones(3), np.ones(3, dtype=bool)),)
    with pytest.raises(UnsupportedCombination, match="one promise"):
        EProcess().p_value(runs, GaussianCurve(1.0))


def test_empty_declarations_are_refused() -> None:
    run = RankedGuesses(np.ones(2), np.ones(2, dtype=bool))
    for build in (lambda: bound_over(OneRun(), (), 0.0), lambda: ProfileCurve(()), lambda: counts_at((run,), 0)):
        with pytest.raises(InvalidInput):
            build()


def test_scores_must_be_finite() -> None:
    with pytest.raises(InvalidInput, match="finite"):
        ErrorCounts.at(0.0, [0.0, float("nan")], [1.0])
    with pytest.raises(InvalidInput, match="finite"):
        RankedGuesses.from_scores([float("inf"), 1.0], [0, 1])


def test_guesses_from_scores_are_signs_ordered_by_size() -> None:
    guesses = RankedGuesses.from_scores([0.1, -3.0, 2.0, -0.5], [1, 0, 0, 0])
    assert guesses.correct.tolist() == [True, True, False, True]
    assert guesses.ordered().tolist() == [True, False, True, True]
    assert counts_at((guesses,), 2) == GuessCounts(4, 2, 1)


def test_guesses_from_log_likelihoods_lead_over_the_next_side() -> None:
    table = [[0.0, 1.0, 3.0], [5.0, 4.9, 0.0], [0.0, 0.0, 9.0]]
    guesses = RankedGuesses.from_log_likelihoods(table, [2, 1, 2])
    assert guesses.strength == pytest.approx([2.0, 0.1, 9.0])
    assert guesses.ordered().tolist() == [True, True, False]
    assert counts_at((guesses, guesses), 1) == GuessCounts(6, 2, 2, choices=3)


def test_more_guesses_than_coins_are_refused() -> None:
    run = RankedGuesses.from_scores([0.1, -3.0], [1, 0])
    with pytest.raises(InvalidInput, match="guesses per run"):
        counts_at((run,), 3)


def test_runs_with_different_coins_are_not_pooled() -> None:
    two = RankedGuesses(np.ones(2), np.ones(2, dtype=bool), 2)
    three = RankedGuesses(np.ones(2), np.ones(2, dtype=bool), 3)
    with pytest.raises(InvalidInput, match="sides"):
        EProcess().lower_bound((two, three), 0.0)


def test_an_answer_goes_into_a_report() -> None:
    bound = OneRun().lower_bound(GuessCounts(100, 50, 49), 1e-5)
    plain = json.loads(json.dumps(bound.as_json()))
    assert plain["method"] == Method.ONE_RUN.value
    assert plain["selection"] == Selection.FIXED.value
    assert plain["evidence"] == {"coins": 100, "guesses": 50, "correct": 49, "choices": 2}
    assert plain["epsilon"] == bound.epsilon
    assert bound.refutes(bound.epsilon - 1e-6)
    assert not bound.refutes(bound.epsilon)


def test_a_curve_has_its_ends() -> None:
    for curve in (GaussianCurve(1.0), EpsilonDeltaCurve(1.0, 0.1), ProfileCurve.of(((0.0, 0.4), (2.0, 0.01)))):
        assert curve.type_two_error(1.0) == pytest.approx(0.0, abs=1e-12)
        assert curve.least_probability(0.0) == pytest.approx(0.0, abs=1e-12)
    assert GaussianCurve(1.0).type_two_error(0.0) == 1.0
    assert EpsilonDeltaCurve(1.0, 0.1).type_two_error(0.0) == pytest.approx(0.9)


def test_the_curve_of_a_family_has_the_asked_epsilon() -> None:
    gaussian = curve_at(CurveFamily.GAUSSIAN, 4.0, 1e-5)
    assert isinstance(gaussian, GaussianCurve)
    assert gaussian.mu == pytest.approx(0.92493, abs=1e-5)
    assert curve_at(CurveFamily.EPSILON_DELTA, 4.0, 0.0) == EpsilonDeltaCurve(4.0, 0.0)


def test_an_extreme_tail_is_not_lost_to_rounding() -> None:
    assert GaussianCurve(3.0).least_probability(1e-12) == pytest.approx(5.7e-24, rel=0.01)
    steep = ProfileCurve.of(((0.0, 0.1), (20.0, 1e-9)))
    assert steep.least_probability(1 - 1e-10) == pytest.approx(
        EpsilonDeltaCurve(20.0, 1e-9).least_probability(1 - 1e-10)
    )
