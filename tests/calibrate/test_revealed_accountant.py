"""Revealed batches: exact weights, exact tails, and sums of different pairs rounded outward."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from calibrate.accountants.gaussian import RevealedAccountant, gaussian_delta, squared_shifts
from calibrate.accountants.registry import epsilon_of, total_cost
from calibrate.accountants.support import MixedGaussianPair
from calibrate.errors import NotCertified
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.releases import Gaussian, InSequence, Release, Repeated, Sampled
from calibrate.sampling import Batch, FixedSize, Poisson, WithReplacement

UNIT = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE)
ACCOUNTANT = RevealedAccountant()


def poisson(rate: float, z: float, rounds: int) -> Release:
    return Repeated(Sampled(Poisson(rate, Batch.REVEALED), Gaussian(z)), rounds)


def delta_of(release: Release, epsilon: float) -> float:
    return ACCOUNTANT.delta(total_cost(ACCOUNTANT, release, UNIT), epsilon)


@pytest.mark.parametrize(("rate", "rounds"), [(0.03, 1172), (0.5, 40), (0.9, 10), (1e-4, 5000)])
def test_weights_are_binomial_far_into_the_tails(rate: float, rounds: int) -> None:
    law = squared_shifts(MixedGaussianPair(((1 - rate, 0.0), (rate, 0.25))), rounds)
    counts = np.arange(law.start, law.start + len(law.weights))
    expected = binom.pmf(counts, rounds, rate)
    assert law.weights == pytest.approx(expected, rel=1e-10)
    assert law.relative_error < 1e-9
    assert law.lost < 1e-55
    assert math.fsum(law.weights) == pytest.approx(1.0, abs=1e-12)


def test_delta_is_the_binomial_mixture() -> None:
    rate, z, rounds, epsilon = 0.1, 3.0, 50, 2.0
    mixture = sum(binom.pmf(k, rounds, rate) * gaussian_delta(math.sqrt(k) / z, epsilon) for k in range(1, rounds + 1))
    assert delta_of(poisson(rate, z, rounds), epsilon) == pytest.approx(mixture, rel=1e-9)


def test_fixed_size_batches_mix_like_poisson_ones() -> None:
    fixed = Repeated(Sampled(FixedSize(100, 10, Batch.REVEALED), Gaussian(3.0)), 50)
    assert delta_of(fixed, 2.0) == pytest.approx(delta_of(poisson(0.1, 3.0, 50), 2.0), rel=1e-12)


def test_draws_with_replacement_count_squared_multiplicities() -> None:
    """Exact sum over all multiplicities of two rounds of three draws from four records."""
    z, epsilon = 1.0, 0.7
    weight = [binom.pmf(j, 3, 0.25) for j in range(4)]
    exact = sum(
        weight[i] * weight[j] * gaussian_delta(math.sqrt(i * i + j * j) / z, epsilon)
        for i in range(4)
        for j in range(4)
        if i + j
    )
    release = Repeated(Sampled(WithReplacement(4, 3), Gaussian(z)), 2)
    assert delta_of(release, epsilon) == pytest.approx(exact, rel=1e-9)


def test_drawing_with_replacement_costs_more_than_fixed_size() -> None:
    drawn = Repeated(Sampled(WithReplacement(100, 10), Gaussian(3.0)), 50)
    fixed = Repeated(Sampled(FixedSize(100, 10, Batch.REVEALED), Gaussian(3.0)), 50)
    dear, cheap = (epsilon_of(ACCOUNTANT, release, UNIT, 1e-5) for release in (drawn, fixed))
    assert dear.lower > cheap.upper


def test_plain_gaussian_terms_join_every_component() -> None:
    rate, rounds, epsilon = 0.2, 5, 1.0
    release = InSequence((poisson(rate, 2.0, rounds), Gaussian(1.5)))
    exact = sum(
        binom.pmf(k, rounds, rate) * gaussian_delta(math.sqrt(k / 4 + 1 / 2.25), epsilon) for k in range(rounds + 1)
    )
    assert delta_of(release, epsilon) == pytest.approx(exact, rel=1e-9)


def test_two_different_revealed_batches_are_enclosed() -> None:
    epsilon = 1.2
    release = InSequence((poisson(0.2, 2.0, 30), poisson(0.5, 5.0, 40)))
    exact = sum(
        binom.pmf(i, 30, 0.2) * binom.pmf(j, 40, 0.5) * gaussian_delta(math.sqrt(i / 4 + j / 25), epsilon)
        for i in range(31)
        for j in range(41)
        if i + j
    )
    delta = delta_of(release, epsilon)
    assert exact * (1 - 1e-9) <= delta <= exact * 1.001
    interval = epsilon_of(ACCOUNTANT, release, UNIT, exact)
    assert interval.lower <= epsilon <= interval.upper
    assert interval.upper - interval.lower < 1e-3


@pytest.mark.parametrize("delta", [1e-5, 1e-15, 1e-30])
def test_tiny_delta_keeps_a_narrow_interval(delta: float) -> None:
    interval = epsilon_of(ACCOUNTANT, poisson(256 / 7500, 3.965, 1172), UNIT, delta)
    assert 0 < interval.lower <= interval.upper
    assert interval.upper / interval.lower - 1 < 1e-9


def test_a_rare_batch_may_cost_nothing_at_a_large_delta() -> None:
    assert epsilon_of(ACCOUNTANT, poisson(1e-6, 5.0, 1), UNIT, 1e-5).upper == 0.0


def test_shifts_off_the_lattice_are_not_guessed() -> None:
    odd = MixedGaussianPair(((0.5, 0.0), (0.25, 1.0), (0.25, 1.3)))
    with pytest.raises(NotCertified, match="multiple"):
        squared_shifts(odd, 3)
