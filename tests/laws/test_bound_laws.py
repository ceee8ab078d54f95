"""Laws of the epsilon lower bounds: against the worst mechanism there is, against each other, and in order."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import lil_matrix

from audit.bounds.binomial import at_least, log_masses
from audit.bounds.e_process import EProcess, log_odds
from audit.bounds.guesses import RankedGuesses
from audit.bounds.lower_bound import ErrorCounts, GuessCounts
from audit.bounds.one_run import FDPOneRun, OneRun, wrong_rate
from audit.bounds.repeated_runs import ClopperPearson, JointExact
from audit.bounds.trade_off import CurveFamily, EpsilonDeltaCurve, GaussianCurve, ProfileCurve, curve_at
from calibrate.accountants.gaussian import gaussian_delta
from tests.audit.published_one_run import PublishedOneRun

ABSTAIN = -1


# --- the worst mechanism: a linear program over all mechanisms that keep the promise --------------------------


class Worst:
    """All mechanisms from `coins` coins to guesses of exactly `guesses` of them that are (eps, delta) private."""

    def __init__(self, coins: int, guesses: int, choices: int, epsilon: float, delta: float) -> None:
        self.inputs = list(itertools.product(range(choices), repeat=coins))
        self.outputs = [
            output
            for output in itertools.product((ABSTAIN, *range(choices)), repeat=coins)
            if sum(side != ABSTAIN for side in output) == guesses
        ]
        self.pairs = [
            (i, j)
            for i, first in enumerate(self.inputs)
            for j, second in enumerate(self.inputs)
            if sum(a != b for a, b in zip(first, second, strict=True)) == 1
        ]
        self._limits, self._limit_values = self._privacy(epsilon, delta)
        self._sums = self._normalisation()

    def _cell(self, which: int, output: int) -> int:
        return which * len(self.outputs) + output

    def _privacy(self, epsilon: float, delta: float) -> tuple[object, np.ndarray]:
        """For each ordered neighbouring pair: P - e^eps Q <= excess in every cell, excesses sum to <= delta."""
        width, offset = len(self.outputs), len(self.inputs) * len(self.outputs)
        rows = lil_matrix((len(self.pairs) * (width + 1), offset + len(self.pairs) * width))
        limits = np.zeros(len(self.pairs) * (width + 1))
        for pair, (first, second) in enumerate(self.pairs):
            for output in range(width):
                row = pair * (width + 1) + output
                rows[row, self._cell(first, output)] = 1
                rows[row, self._cell(second, output)] = -math.exp(epsilon)
                rows[row, offset + pair * width + output] = -1
                rows[pair * (width + 1) + width, offset + pair * width + output] = 1
            limits[pair * (width + 1) + width] = delta
        return rows.tocsr(), limits

    def _normalisation(self) -> object:
        rows = lil_matrix((len(self.inputs), self._limits.shape[1]))
        for which in range(len(self.inputs)):
            for output in range(len(self.outputs)):
                rows[which, self._cell(which, output)] = 1
        return rows.tocsr()

    def largest(self, event: object) -> float:
        """The largest probability, over the coins and the mechanism, of event(right or wrong in order)."""
        gain = np.zeros(self._limits.shape[1])
        for which, coins in enumerate(self.inputs):
            for index, output in enumerate(self.outputs):
                marks = tuple(a == b for a, b in zip(coins, output, strict=True) if b != ABSTAIN)
                gain[self._cell(which, index)] = event(marks) / len(self.inputs)
        answer = linprog(-gain, self._limits, self._limit_values, self._sums, np.ones(len(self.inputs)))
        assert answer.status == 0
        return -answer.fun


SETTINGS = [
    (2, 2, 2, 0.5, 0.05),
    (3, 3, 2, 1.0, 0.02),
    (3, 2, 2, 0.5, 0.1),
    (3, 1, 2, 1.0, 0.1),
    (4, 4, 2, 0.3, 0.01),
    (2, 2, 3, 0.7, 0.05),
    (2, 1, 3, 1.0, 0.1),
]


@cache
def worst(*setting: object) -> Worst:
    return Worst(*setting)


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_mechanism_beats_the_one_run_bounds(setting: tuple[int, int, int, float, float]) -> None:
    coins, guesses, choices, epsilon, delta = setting
    claim = EpsilonDeltaCurve(epsilon, delta)
    for correct in range(1, guesses + 1):
        counts = GuessCounts(coins, guesses, correct, choices)
        truth = worst(*setting).largest(lambda marks, least=correct: sum(marks) >= least)
        assert truth <= OneRun().p_value(counts, claim) + 1e-9
        assert truth <= FDPOneRun().p_value(counts, claim) * (1 + 2e-6) + 1e-9
        if choices == 2:
            assert truth <= PublishedOneRun().p_value(counts, claim) + 1e-9


def test_the_sharp_term_is_attained() -> None:
    """All right of all coins: some mechanism is as bad as the bound, so it cannot be improved there."""
    for coins, epsilon, delta in ((2, 0.5, 0.05), (3, 1.0, 0.02)):
        truth = worst(coins, coins, 2, epsilon, delta).largest(all)
        bound = OneRun().p_value(GuessCounts(coins, coins, coins), EpsilonDeltaCurve(epsilon, delta))
        assert truth == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("forgiven", [0, 1])
def test_no_mechanism_beats_the_e_process(setting: tuple[int, int, int, float, float], forgiven: int) -> None:
    coins, guesses, choices, epsilon, delta = setting
    price = coins * delta * wrong_rate(epsilon, choices) / (forgiven + 1)
    gain, loss = log_odds(epsilon, 1.0, choices)

    def largest_wealth(marks: tuple[bool, ...]) -> float:
        rights = [sum(marks[:k]) - forgiven for k in range(len(marks) + 1)]
        return max(0.0, *(right * gain + (k - right) * loss for k, right in enumerate(rights)))

    levels = {largest_wealth(marks) for marks in itertools.product((True, False), repeat=guesses)} - {0.0}
    for level in levels:
        truth = worst(*setting).largest(lambda marks, level=level: largest_wealth(marks) >= level - 1e-12)
        assert truth <= math.exp(-level) + price + 1e-9


def test_the_worst_mechanism_can_be_worse_than_pure_privacy() -> None:
    """The linear program is not vacuous: without the delta term the bound would be wrong."""
    setting = (3, 3, 2, 1.0, 0.02)
    truth = worst(*setting).largest(all)
    assert truth > at_least(3, 3, wrong_rate(1.0, 2)) + 0.01


# --- the price of delta ----------------------------------------------------------------------------------------


@given(
    st.integers(1, 300).flatmap(lambda r: st.tuples(st.just(r), st.integers(1, r))),
    st.floats(0.01, 6),
    st.integers(2, 5),
)
def test_the_sharp_price_is_a_gap_of_means(counts: tuple[int, int], epsilon: float, choices: int) -> None:
    """tail (1 - tail) / (v P[W = v]) = (1 - q) / (E[W | W >= v] - E[W | W < v])."""
    guesses, correct = counts
    wrong = wrong_rate(epsilon, choices)
    values = np.arange(guesses + 1, dtype=float)
    mass = np.exp(log_masses(values, guesses, wrong))
    above, below = mass[correct:].sum(), mass[:correct].sum()
    if min(above, below) < 1e-9:
        return
    gap = values[correct:] @ mass[correct:] / above - values[:correct] @ mass[:correct] / below
    claim = EpsilonDeltaCurve(epsilon, 1e-6)
    found = OneRun().p_value(GuessCounts(10 * guesses, guesses, correct, choices), claim)
    tail = at_least(correct, guesses, wrong)
    if found == 1:
        return
    assert (found - tail) / (10 * guesses * 1e-6) == pytest.approx(wrong / gap, rel=1e-3, abs=1e-9)


@given(st.integers(1, 400).flatmap(lambda r: st.tuples(st.just(r), st.integers(1, r))), st.floats(0, 6))
def test_the_sharp_term_is_never_above_the_printed_one(counts: tuple[int, int], epsilon: float) -> None:
    """2 max_i P[v - i <= W < v] / i, summed here, is the larger one wherever P[W >= v] <= 1/2."""
    guesses, correct = counts
    wrong = wrong_rate(epsilon, 2)
    tail, delta = at_least(correct, guesses, wrong), 1e-6
    if tail > 0.5:
        return
    mass = np.exp(log_masses(np.arange(guesses + 1, dtype=float), guesses, wrong))
    printed = 2 * float(np.max(np.cumsum(mass[:correct][::-1]) / np.arange(1, correct + 1)))
    sharp = OneRun().p_value(GuessCounts(guesses, guesses, correct), EpsilonDeltaCurve(epsilon, delta))
    assert (sharp - tail) / (guesses * delta) <= printed + 1e-9


# --- trade-off curves --------------------------------------------------------------------------------------------

promises = st.builds(EpsilonDeltaCurve, st.floats(0, 8), st.floats(0, 0.5))
curves = st.one_of(
    promises,
    st.builds(GaussianCurve, st.floats(0, 5)),
    st.builds(ProfileCurve, st.lists(promises, min_size=1, max_size=8).map(tuple)),
)
rates = st.floats(0, 1)


@given(curves, rates, rates, rates)
def test_a_curve_is_convex_falling_and_below_guessing(
    curve: object, first: float, second: float, weight: float
) -> None:
    f = curve.type_two_error
    assert 0 <= f(first) <= 1 - first + 1e-12
    low, high = sorted((first, second))
    assert f(high) <= f(low) + 1e-12
    between = weight * first + (1 - weight) * second
    assert f(between) <= weight * f(first) + (1 - weight) * f(second) + 1e-9


@given(curves, st.floats(1e-6, 1 - 1e-6))
def test_a_curve_is_symmetric(curve: object, rate: float) -> None:
    """Where f is positive, f(f(a)) = a: a test and its complement obey the same promise."""
    value = curve.type_two_error(rate)
    if value > 1e-6 and rate < curve.type_two_error(0.0) - 1e-6:
        assert curve.type_two_error(value) == pytest.approx(rate, abs=1e-6)


@given(curves, rates)
def test_two_readings_of_a_curve_agree(curve: object, p: float) -> None:
    assert curve.least_probability(p) == pytest.approx(curve.type_two_error(1 - p), abs=1e-7)


@given(st.lists(promises, min_size=1, max_size=8), rates)
def test_a_profile_is_the_largest_of_its_promises(listed: list[EpsilonDeltaCurve], p: float) -> None:
    largest = max(promise.least_probability(p) for promise in listed)
    assert ProfileCurve(tuple(listed)).least_probability(p) == pytest.approx(largest, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.05, 4), rates)
def test_a_sampled_profile_lies_below_its_gaussian_and_close(mu: float, rate: float) -> None:
    grid = np.linspace(0, 8 * mu + mu**2, 400)
    profile = ProfileCurve.of(tuple((float(eps), gaussian_delta(mu, float(eps))) for eps in grid))
    exact = GaussianCurve(mu).type_two_error(rate)
    assert exact - 2e-3 <= profile.type_two_error(rate) <= exact + 1e-9


# --- order and consistency ----------------------------------------------------------------------------------------

GAUSSIAN = CurveFamily.GAUSSIAN
REPEATED = [ClopperPearson(), ClopperPearson(GAUSSIAN), JointExact(), JointExact(GAUSSIAN)]
ONE_RUN = [PublishedOneRun(), OneRun(), FDPOneRun(), FDPOneRun(GAUSSIAN)]


def error_counts(most: int = 60) -> st.SearchStrategy[ErrorCounts]:
    def of(runs: int) -> st.SearchStrategy[ErrorCounts]:
        errors = st.integers(0, runs)
        return st.builds(ErrorCounts, errors, st.just(runs), errors, st.just(runs))

    return st.integers(1, most).flatmap(of)


def guess_counts(most: int = 120) -> st.SearchStrategy[GuessCounts]:
    def of(guesses: int) -> st.SearchStrategy[GuessCounts]:
        return st.builds(GuessCounts, st.just(2 * guesses), st.just(guesses), st.integers(0, guesses))

    return st.integers(1, most).flatmap(of)


@pytest.mark.parametrize("method", REPEATED, ids=repr)
@settings(max_examples=25, deadline=None)
@given(counts=error_counts(), claimed=st.floats(0.05, 6))
def test_bound_and_test_agree_on_repeated_runs(method: object, counts: ErrorCounts, claimed: float) -> None:
    _check_agreement(method, counts, claimed)


@pytest.mark.parametrize("method", ONE_RUN, ids=repr)
@settings(max_examples=40, deadline=None)
@given(counts=guess_counts(), claimed=st.floats(0.05, 6))
def test_bound_and_test_agree_on_one_run(method: object, counts: GuessCounts, claimed: float) -> None:
    _check_agreement(method, counts, claimed)


def _check_agreement(method: object, counts: object, claimed: float) -> None:
    """The lower bound exceeds an epsilon exactly when the test refutes it (the joint test: to 3%)."""
    delta = 1e-4
    bound = method.lower_bound(counts, delta).epsilon
    slack = 0.03 if isinstance(method, JointExact) else 1e-4
    if bound > claimed * (1 + slack):
        assert method.p_value(counts, curve_at(method.family, claimed, delta)) < 0.05
        assert method.refutes(counts, curve_at(method.family, claimed, delta))
    if bound < claimed * (1 - slack):
        assert method.p_value(counts, curve_at(method.family, claimed, delta)) > 0.05
        assert not method.refutes(counts, curve_at(method.family, claimed, delta))


@pytest.mark.parametrize("method", [ClopperPearson(), ClopperPearson(GAUSSIAN)], ids=repr)
@given(counts=error_counts())
def test_more_errors_never_raise_a_box_bound(method: object, counts: ErrorCounts) -> None:
    if counts.false_positives == counts.runs_without:
        return
    worse = ErrorCounts(counts.false_positives + 1, counts.runs_without, counts.false_negatives, counts.runs_with)
    assert method.lower_bound(worse, 1e-5).epsilon <= method.lower_bound(counts, 1e-5).epsilon + 1e-9


@pytest.mark.parametrize("method", ONE_RUN, ids=repr)
@settings(max_examples=40, deadline=None)
@given(counts=guess_counts())
def test_more_right_guesses_never_lower_a_bound(method: object, counts: GuessCounts) -> None:
    if counts.correct == counts.guesses:
        return
    better = GuessCounts(counts.coins, counts.guesses, counts.correct + 1)
    assert method.lower_bound(better, 1e-5).epsilon >= method.lower_bound(counts, 1e-5).epsilon - 1e-6


@pytest.mark.parametrize("method", [*REPEATED, *ONE_RUN], ids=repr)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_more_confidence_means_a_lower_bound(method: object, data: st.DataObject) -> None:
    counts = data.draw(error_counts() if method in REPEATED else guess_counts())
    loose = method.lower_bound(counts, 1e-5, confidence=0.9).epsilon
    assert method.lower_bound(counts, 1e-5, confidence=0.99).epsilon <= loose * 1.01 + 1e-6


@settings(max_examples=20, deadline=None)
@given(counts=error_counts(30), claim=curves)
def test_the_joint_maximum_is_certified(counts: ErrorCounts, claim: object) -> None:
    """No false-positive rate of a fine grid has a larger tail probability than the certified maximum."""
    method = JointExact()
    certified = method.p_value(counts, claim)
    tail = method._tail(counts)
    fine = np.linspace(tail._rates[0], tail._rates[-1], 3001)
    found = min(1.0, method.nuisance_error + float(tail._probability(claim, fine, fine).max()))
    assert found - 1e-12 <= certified <= 1.05 * found + 1e-6


@given(st.lists(st.booleans(), min_size=1, max_size=80), st.floats(0, 4), st.integers(2, 4))
def test_the_e_process_looks_at_every_prefix(marks: list[bool], epsilon: float, choices: int) -> None:
    """The hull gives the same p-value as a product carried over all guesses."""
    method = EProcess()
    strength = np.arange(len(marks), 0, -1, dtype=float)
    found = method.p_value((RankedGuesses(strength, np.array(marks), choices),), EpsilonDeltaCurve(epsilon, 0.0))
    wealth, largest = np.full(len(method.leads), 1.0), 1.0
    odds = np.exp([log_odds(epsilon, lead, choices) for lead in method.leads])
    for mark in marks:
        wealth = wealth * odds[:, 0 if mark else 1]
        largest = max(largest, float(wealth.mean()))
    assert found == pytest.approx(1 / largest, rel=1e-9)
