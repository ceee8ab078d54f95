"""Reference values of the audit bounds, each with its source, to 1e-4 unless said otherwise."""

from __future__ import annotations

import math

import pytest
from scipy.special import ndtr

from audit.bounds import (
    ClopperPearson,
    CurveFamily,
    EpsilonDeltaCurve,
    ErrorCounts,
    FDPOneRun,
    GuessCounts,
    JointExact,
    OneRun,
)
from calibrate.accountants.gaussian import gaussian_mu
from tests.audit.published_one_run import PublishedOneRun

DELTA = 1e-5
PUBLISHED = PublishedOneRun()


@pytest.mark.parametrize(("runs", "epsilon"), [(100, 3.2813), (1000, 5.6006)])
def test_clopper_pearson_without_a_single_error(runs: int, epsilon: float) -> None:
    """Closed form: the upper rate is 1 - (alpha/2)^(1/n), so epsilon = log((1 - u) / u) at delta = 0."""
    bound = ClopperPearson().lower_bound(ErrorCounts(0, runs, 0, runs), delta=0.0)
    upper = 1 - 0.025 ** (1 / runs)
    assert bound.epsilon == pytest.approx(epsilon, abs=1e-4)
    assert bound.epsilon == pytest.approx(math.log((1 - upper) / upper), abs=1e-9)


@pytest.mark.parametrize(("epsilon", "mu"), [(0.5, 0.1422), (1.0, 0.2681), (2.0, 0.5016), (4.0, 0.9249), (8.0, 1.6660)])
def test_gaussian_parameter_of_an_epsilon(epsilon: float, mu: float) -> None:
    """Balle and Wang (2018), Theorem 8, at delta = 1e-5."""
    assert gaussian_mu(epsilon, DELTA) == pytest.approx(mu, abs=1e-4)


def test_debugging_dp() -> None:
    """Tramer, Terzis, Steinke, Song, Jagielski and Carlini, "Debugging Differential Privacy" (2022).

    100,000 models in each world, 4,922 true and 174 false positives, failure probability 1e-10, delta = 1e-5;
    printed: epsilon > 2.79.
    """
    counts = ErrorCounts(174, 100_000, 100_000 - 4_922, 100_000)
    bound = ClopperPearson().lower_bound(counts, DELTA, confidence=1 - 1e-10)
    assert bound.epsilon == pytest.approx(2.7950, abs=1e-4)
    assert bound.refutes(0.21), "the claim that the audited implementation made"


def test_one_run_all_correct_has_a_closed_form() -> None:
    """Steinke, Nasr and Jagielski (2023), the main theorem at delta = 0: q^r = alpha."""
    for method in (OneRun(), PUBLISHED):
        bound = method.lower_bound(GuessCounts(100, 100, 100), delta=0.0)
        assert bound.epsilon == pytest.approx(3.49297, abs=1e-5)
        assert bound.epsilon == pytest.approx(-math.log(0.05 ** (-1 / 100) - 1), abs=1e-8)


@pytest.mark.parametrize(
    ("coins", "guesses", "correct", "epsilon"), [(1000, 1000, 1000, 5.78228), (1000, 100, 95, 2.16518)]
)
def test_one_run_with_delta(coins: int, guesses: int, correct: int, epsilon: float) -> None:
    """Steinke, Nasr and Jagielski (2023): the p-value that their paper gives as code, inverted."""
    bound = PUBLISHED.lower_bound(GuessCounts(coins, guesses, correct), DELTA)
    assert bound.epsilon == pytest.approx(epsilon, abs=1e-5)
    assert OneRun().lower_bound(GuessCounts(coins, guesses, correct), DELTA).epsilon > bound.epsilon


def test_one_run_p_value_is_the_printed_sum() -> None:
    """The printed formula, summed term by term with exact binomial coefficients."""
    coins, guesses, correct, epsilon = 50, 30, 26, 1.2
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(guesses + 1)]
    largest = max(sum(mass[correct - i : correct]) / i for i in range(1, correct + 1))
    printed = sum(mass[correct:]) + 2 * coins * 1e-3 * largest
    found = PUBLISHED.p_value(GuessCounts(coins, guesses, correct), EpsilonDeltaCurve(epsilon, 1e-3))
    assert found == pytest.approx(printed, rel=1e-12)


@pytest.mark.parametrize(
    ("coins", "guesses", "correct", "mu", "epsilon"), [(100, 100, 100, 1.7032, 8.2162), (1000, 100, 95, 0.7868, 3.3233)]
)
def test_f_dp_one_run(coins: int, guesses: int, correct: int, mu: float, epsilon: float) -> None:
    """Mahloujifar, Melis and Chaudhuri (2024), "Auditing f-DP in one run": Gaussian curves, tau = 0.05."""
    bound = FDPOneRun(CurveFamily.GAUSSIAN).lower_bound(GuessCounts(coins, guesses, correct), DELTA)
    assert bound.mu == pytest.approx(mu, abs=1e-4)
    assert bound.epsilon == pytest.approx(epsilon, abs=1e-4)


def test_three_bounds_of_the_same_gaussian_release() -> None:
    """A release with epsilon = 4 at delta = 1e-5, 1,000 runs of each kind, every count at its expected value.

    The joint test reads about 3.54, the Gaussian box about 3.22, Clopper-Pearson, at the threshold that is best for
    it, about 1.29 (each value moves by a few hundredths with one run more or less).
    """
    mu = gaussian_mu(4.0, DELTA)
    middle = round(1000 * float(ndtr(-mu / 2)))
    counts = ErrorCounts(middle, 1000, middle, 1000)
    assert JointExact(CurveFamily.GAUSSIAN).lower_bound(counts, DELTA).epsilon == pytest.approx(3.54, abs=0.035)
    assert ClopperPearson(CurveFamily.GAUSSIAN).lower_bound(counts, DELTA).epsilon == pytest.approx(3.22, abs=0.035)
    strict = ErrorCounts(round(1000 * float(ndtr(-2.25))), 1000, round(1000 * float(ndtr(2.25 - mu))), 1000)
    assert ClopperPearson().lower_bound(strict, DELTA).epsilon == pytest.approx(1.29, abs=0.01)
