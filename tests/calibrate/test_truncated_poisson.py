"""Truncated Poisson batches: the tail, the price from both sides, an attack where cuts are frequent, and refusals."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from calibrate import questions
from calibrate.accountants.registry import agree, best_epsilon, epsilon_of, second_opinion
from calibrate.accountants.renyi import RenyiAccountant
from calibrate.accountants.support import SubsampledGaussianPair, TruncatedPair, dominating_pairs
from calibrate.errors import InvalidInput
from calibrate.plans import plan_from_mapping
from calibrate.plans.gaussian import GaussianPlan
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Relation
from calibrate.releases import Gaussian, InSequence, Repeated, Sampled, decode_sampling, encode_sampling
from calibrate.sampling import Batch, Poisson, SamplingName, TruncatedPoisson
from calibrate.solve import solve_noise

ADD_REMOVE, REPLACE_ONE = (PrivacyUnit.of(each) for each in (Relation.ADD_REMOVE, Relation.REPLACE_ONE))
CUT = TruncatedPoisson(0.01, 10_000, 180)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 5000), q=st.floats(1e-4, 0.999), share=st.floats(0.0, 1.0))
def test_the_chance_of_a_full_batch_is_never_understated_and_sharp(n: int, q: float, share: float) -> None:
    limit = min(max(1, round(share * n)), n - 1)
    bound, exact = TruncatedPoisson(q, n, limit).cut_chance, float(binom.sf(limit - 1, n - 1, q))
    assert exact * (1 - 1e-9) <= bound <= exact * (1 + 1e-8) + 1e-300


@pytest.mark.parametrize(
    ("n", "q", "limit"), [(4, 0.5, 2), (10_000, 0.01, 128), (10_000, 0.01, 400), (60_000, 1e-4, 30), (300, 0.9, 290)]
)
def test_the_chance_of_a_full_batch_has_the_stated_error(n: int, q: float, limit: int) -> None:
    with mp.workdps(40):
        terms = (mp.binomial(n - 1, k) * mp.mpf(q) ** k * (1 - mp.mpf(q)) ** (n - 1 - k) for k in range(limit, n))
        exact = mp.mpf(0)
        for term in terms:
            exact += term
            if term < exact * mp.mpf(10) ** -35:
                break
    assert exact <= TruncatedPoisson(q, n, limit).cut_chance <= exact * (1 + mp.mpf(2e-9))


def _delta(one: np.ndarray, other: np.ndarray, epsilon: float) -> float:
    return max(float(np.maximum(a - math.exp(epsilon) * b, 0).sum()) for a, b in ((one, other), (other, one)))


def _law(joined: bool, units: int, rate: float, limit: int, z: float, grid: np.ndarray) -> np.ndarray:
    """Of one published sum, exactly: the unit (if it is in the data) contributes +1, every other unit -1."""
    density = np.zeros_like(grid)
    for others in range(units):
        chance = float(binom.pmf(others, units - 1, rate))
        parts = [(1 - rate if joined else 1.0, -min(others, limit))]
        if joined and others < limit:
            parts.append((rate, 1 - others))
        elif joined:  # too many: the unit is kept in place of another one, or is cut itself
            kept = limit / (others + 1)
            parts += [(rate * kept, 1 - (limit - 1)), (rate * (1 - kept), -limit)]
        for share, mean in parts:
            density += chance * share * np.exp(-((grid - mean) ** 2) / (2 * z * z))
    return np.asarray(density / (z * math.sqrt(2 * math.pi)) * (grid[1] - grid[0]))


def _exact(units: int, rate: float, limit: int, z: float, epsilon: float) -> float:
    grid = np.linspace(-units - 10 * z, 2 + 10 * z, 20_001)
    return _delta(*(_law(joined, units, rate, limit, z, grid) for joined in (False, True)), epsilon)


def _bound(pair: SubsampledGaussianPair, epsilon: float) -> float:
    """The larger profile of the two directions, by the same plain quadrature."""
    grid = np.linspace(-12 * pair.noise_multiplier, 1 + 12 * pair.noise_multiplier, 20_001)
    z, step = pair.noise_multiplier, grid[1] - grid[0]
    apart, joined = (
        np.exp(-((grid - mean) ** 2) / (2 * z * z)) * step / (z * math.sqrt(2 * math.pi)) for mean in (0, 1)
    )
    return _delta(apart, (1 - pair.rate) * apart + pair.rate * joined, epsilon)


SETTINGS = np.random.default_rng(11).uniform((2, 0.02, 0, 0.2), (12, 0.98, 1, 3), (50, 4))


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: f"{row[0]:.0f}-{row[1]:.2f}-{row[2]:.2f}-{row[3]:.2f}")
def test_the_pair_bounds_every_data_set_of_at_most_that_many_units(row: np.ndarray) -> None:
    """All other units' parts are opposite to this one's, and cuts are frequent."""
    most, rate, z = round(row[0]), float(row[1]), float(row[3])
    limit = min(most - 1, 1 + int(row[2] * (most - 1)))
    pair = dominating_pairs(Sampled(TruncatedPoisson(rate, most, limit), Gaussian(z)), ADD_REMOVE)[0]
    assert isinstance(pair, TruncatedPair)
    assert isinstance(pair.whole, SubsampledGaussianPair)
    assert isinstance(pair.cut, SubsampledGaussianPair)
    for epsilon in (0.0, 0.3, 1.0, 2.5):
        promised = (1 - pair.cut_chance) * _bound(pair.whole, epsilon) + pair.cut_chance * _bound(pair.cut, epsilon)
        for units in range(1, most + 1):
            assert _exact(units, rate, limit, z, epsilon) <= promised * (1 + 1e-6) + 1e-9


def test_cutting_is_not_free() -> None:
    """Where it happens in nearly every round a unit takes another one's place, which moves the sum by two."""
    units, rate, limit, z, epsilon = 6, 0.95, 3, 1.0, 3.0
    assert _exact(units, rate, limit, z, epsilon) > _bound(SubsampledGaussianPair(rate, z), epsilon)


PRICED = [
    (10_000, 0.01, 1000, 1.0, 180, 1e-5, 1.828244),
    (10_000, 0.01, 1000, 1.0, 160, 1e-5, 1.828267),
    (10_000, 0.01, 1000, 1.0, 128, 1e-5, 4.012820),
    (4, 0.5, 1, 1.0, 2, 1e-5, 8.317309),
    (4, 0.5, 10, 2.0, 2, 1e-5, 8.072826),
    (1000, 0.1, 50, 2.0, 101, 1e-6, 5.613317),
]
"""Population, rate, rounds, noise, limit, delta, and what dp_accounting 0.6.0 answers for exactly that population."""


@pytest.mark.parametrize(("most", "rate", "rounds", "z", "limit", "delta", "theirs"), PRICED)
def test_whatever_a_peer_prices_is_priced(
    most: int, rate: float, rounds: int, z: float, limit: int, delta: float, theirs: float
) -> None:
    release = Repeated(Sampled(TruncatedPoisson(rate, most, limit), Gaussian(z)), rounds)
    plain = best_epsilon(Repeated(Sampled(Poisson(rate), Gaussian(z)), rounds), ADD_REMOVE, delta).interval
    first = best_epsilon(release, ADD_REMOVE, delta)
    assert first.interval.lower == pytest.approx(plain.lower, rel=1e-4)
    assert first.interval.upper <= 1.06 * theirs
    assert agree(first, second_opinion(release, ADD_REMOVE, delta, first))
    replaced = best_epsilon(release, REPLACE_ONE, delta).interval
    assert first.interval.upper < replaced.upper
    assert epsilon_of(RenyiAccountant(), release, ADD_REMOVE, delta).upper > first.interval.upper


def test_the_price_is_poissons_where_cuts_are_rare() -> None:
    priced, plain = (
        best_epsilon(Repeated(Sampled(each, Gaussian(1.0)), 1000), ADD_REMOVE, 1e-5).interval
        for each in (CUT, Poisson(0.01))
    )
    assert priced.lower == pytest.approx(plain.lower, rel=1e-5)
    assert plain.upper < priced.upper < plain.upper * 1.0001


def test_revealed_truncated_batches_are_refused() -> None:
    with pytest.raises(InvalidInput, match="not priced for truncated"):
        TruncatedPoisson(0.1, 100, 20, Batch.REVEALED)


def test_a_limit_that_cuts_nothing_is_answered_with_poisson() -> None:
    with pytest.raises(InvalidInput, match=r"batch-limit = 250: is not below most-units = 250.*; use poisson sampling"):
        GaussianPlan(
            sampling_rate=0.2, rounds=5, sampling=SamplingName.TRUNCATED_POISSON, batch_limit=250, most_units=250
        ).template()


def test_noise_is_solved_slightly_above_poissons() -> None:
    target = EpsilonDelta(1.0, 1e-5)
    release = InSequence((Gaussian(50.0), Repeated(Sampled(CUT, Gaussian(1.0)), 500)))
    solved = solve_noise(release, ADD_REMOVE, target)
    assert best_epsilon(solved.release, ADD_REMOVE, 1e-5).interval.upper <= 1.0 * (1 + 1e-9)
    assert 0 < solved.gap < 1e-3


def test_python_and_plans_ask_for_it() -> None:
    told = {"sampling_rate": 0.05, "sampling": "truncated-poisson", "batch_limit": 100, "most_units": 1000}
    asked = questions.noisy_rounds((1.0,), 20, 0.05, "truncated-poisson", batch_limit=100, most_units=1000)
    assert asked.sampling == TruncatedPoisson(0.05, 1000, 100)
    plan = plan_from_mapping("gaussian", told | {"rounds": 20})
    assert plan.template() == asked.published
    assert any("a random 100 are kept" in each for each in plan.assumptions())
    assert decode_sampling(encode_sampling(CUT)) == CUT
    assert questions.rounds(epsilon=2.0, delta=1e-5, noise_multiplier=2.0, **told) > 100  # type: ignore[arg-type]
    for wrong, why in (({"most_units": None}, "is needed"), ({"sampling": "poisson"}, "is (only )?for")):
        with pytest.raises(InvalidInput, match=why):
            questions.epsilon(noise_multiplier=1.0, delta=1e-5, **(told | wrong))  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=why):
            plan_from_mapping("gaussian", told | wrong | {"rounds": 20})
