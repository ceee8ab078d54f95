"""Randomised response: exact probabilities, never more than the epsilon that was asked for."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare

from calibrate.errors import InvalidInput
from privfair.noise import ExactNoise
from privfair.noise.lattice_sampler import SecureStream
from privfair.noise.source import ResponseLaw, randomized_response

FALSE_ALARM = 1e-12
"""A p-value below this fails a test: it happens by chance with about this probability, whatever is drawn."""


@pytest.mark.true_noise
@pytest.mark.parametrize("k", [2, 3, 7])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_answers_have_the_laws_frequencies(k: int, epsilon: float) -> None:
    law, n = ResponseLaw.for_epsilon(k, epsilon), 100_000
    for truth in range(k):
        answers = randomized_response(np.full(n, truth), law, SecureStream())
        expected = np.full(k, n * float((1 - law.keep) / (k - 1)))
        expected[truth] = n * float(law.keep)
        assert chisquare(np.bincount(answers, minlength=k), expected).pvalue > FALSE_ALARM


@pytest.mark.parametrize(("k", "epsilon"), [(2, 1.0), (2, 0.5), (5, 1.0), (100, 4.0)])
def test_keep_probability_is_the_textbook_one(k: int, epsilon: float) -> None:
    textbook = math.exp(epsilon) / (math.exp(epsilon) + k - 1)
    assert float(ResponseLaw.for_epsilon(k, epsilon).keep) == pytest.approx(textbook, rel=1e-14)


@pytest.mark.true_noise
def test_answers_are_drawn_independently_for_each_record() -> None:
    law = ResponseLaw.for_epsilon(2, 1.0)
    answers = randomized_response(np.zeros(100_001, dtype=int), law, SecureStream())
    pairs = 2 * answers[:-1:2] + answers[1::2]
    keep = float(law.keep)
    expected = np.array([keep * keep, keep * (1 - keep), (1 - keep) * keep, (1 - keep) ** 2]) * pairs.size
    assert chisquare(np.bincount(pairs, minlength=4), expected).pvalue > FALSE_ALARM


def test_a_huge_epsilon_keeps_a_probability_of_lying() -> None:
    law = ResponseLaw.for_epsilon(2, 1000.0)
    assert law.keep == 1 - Fraction(1, 1 << 62)
    assert law.epsilon == pytest.approx(62 * math.log(2))


def test_shape_is_kept_and_the_source_agrees() -> None:
    truth = np.arange(12).reshape(3, 4) % 3
    answers = ExactNoise().randomized_response(truth, 3, 40.0)
    np.testing.assert_array_equal(answers, truth)  # one lie in 10^16
    assert answers.dtype == np.int64


@pytest.mark.parametrize(
    ("categories", "k", "epsilon"),
    [
        ([0, 3], 3, 1.0),
        ([-1, 0], 3, 1.0),
        ([0.0, 1.0], 3, 1.0),
        ([True, False], 2, 1.0),
        ([0], 1, 1.0),
        ([0], (1 << 15) + 1, 1.0),
        ([0], 2, 0.0),
        ([0], 2, -1.0),
        ([0], 2, math.nan),
        ([0], 2, 2.0**-41),
    ],
)
def test_refusals(categories: list[float], k: int, epsilon: float) -> None:
    with pytest.raises(InvalidInput):
        ExactNoise().randomized_response(categories, k, epsilon)
