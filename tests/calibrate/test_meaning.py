"""Epsilon in words: never more comforting than the promise, exact where the answer is known, met by real mechanisms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from calibrate.accountants.gaussian import gaussian_epsilon_interval
from calibrate.errors import InvalidInput
from calibrate.meaning import RISK, Meaning
from calibrate.privacy_unit import EpsilonDelta
from tests.end_to_end.command_line import privfair

PROMISES = st.builds(EpsilonDelta, st.floats(1e-6, 300.0), st.floats(1e-30, 0.5))


def test_epsilon_one_is_73_percent() -> None:
    meaning = Meaning(EpsilonDelta(1.0, 1e-5))
    assert meaning.right_guesses == pytest.approx(math.e / (math.e + 1), abs=1e-5)
    assert "at most 73.2% of the time" in meaning.sentences("one record")[0]
    assert meaning.posterior(0.5) == pytest.approx(math.e / (math.e + 0.9), rel=1e-9)
    assert "except with probability 0.0001." in meaning.sentences("one record")[1]


@given(PROMISES, st.floats(0, 1))
def test_no_point_of_the_trade_off_curve_breaks_the_promise(promise: EpsilonDelta, a: float) -> None:
    b = Meaning(promise).least_misses(a)
    growth = math.exp(promise.epsilon)
    assert 0 <= b <= 1
    assert a + growth * b >= (1 - promise.delta) * (1 - 1e-9) or b == 0
    # The least misses really are the least: nothing smaller is promised away.
    assert b <= 1e-12 + max(0.0, 1 - promise.delta - growth * a, (1 - promise.delta - a) / growth)


@given(PROMISES, st.floats(0.01, 0.99), st.floats(1.01, 3.0))
def test_more_epsilon_never_sounds_safer(promise: EpsilonDelta, prior: float, factor: float) -> None:
    weaker = Meaning(EpsilonDelta(promise.epsilon * factor, promise.delta))
    meaning = Meaning(promise)
    assert weaker.right_guesses >= meaning.right_guesses
    assert weaker.posterior(prior) >= meaning.posterior(prior) >= prior * (1 - 1e-12)


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_the_best_observer_of_gaussian_noise_is_within_it(mu: float, delta: float) -> None:
    """The likelihood-ratio test between N(0, 1) and N(mu, 1) guesses right with probability Phi(mu / 2)."""
    epsilon = gaussian_epsilon_interval(mu, mu, delta).upper
    meaning = Meaning(EpsilonDelta(epsilon, delta))
    assert norm.cdf(mu / 2) <= meaning.right_guesses
    for threshold in (-1.0, 0.0, 0.5, 2.0):
        false_alarms, misses = norm.sf(threshold), norm.cdf(threshold - mu)
        assert misses >= meaning.least_misses(false_alarms) - 1e-12


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_beliefs_exceed_what_is_said_as_rarely_as_is_said(mu: float, delta: float) -> None:
    """Gaussian noise: beliefs grow beyond e^epsilon more often than delta, but hardly beyond what is said."""
    epsilon = gaussian_epsilon_interval(mu, mu, delta).upper
    meaning = Meaning(EpsilonDelta(epsilon, delta))
    said = meaning.posterior(0.01)
    log_growth = math.log(said / (1 - said) / (0.01 / 0.99))

    def chance(growth: float) -> float:
        return float(norm.sf(growth / mu - mu / 2))  # the loss is normal with mean mu^2/2 and deviation mu

    assert chance(log_growth) <= RISK * delta
    assert chance(epsilon) > delta


def test_the_command_explains_a_number_and_refuses_half_a_question() -> None:
    told = privfair("budget", "show", "--epsilon", 1, "--delta", 1e-5)
    assert told.code == 0
    assert "73.2%" in told.out
    assert max(map(len, told.out.splitlines())) <= 80
    assert privfair("budget", "show", "--epsilon", 1, "--delta", 1e-5, "--json").json()["right_guesses"] < 0.7311
    assert privfair("budget", "show", "--epsilon", 1).code == 2
    assert privfair("budget", "show").code == 2
    with pytest.raises(InvalidInput):
        Meaning(EpsilonDelta(1.0, 1e-5)).posterior(0.0)
