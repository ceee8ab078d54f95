"""Truncated Poisson batches: the tail, the price from both sides, an attack where cuts are frequent, and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from calibrate import questions
from calibrate.accountants.certified import CertifiedAccountant
from calibrate.accountants.registry import best_epsilon, epsilon_of
from calibrate.accountants.renyi import RenyiAccountant
from calibrate.errors import InvalidInput, NotCertified, UnsupportedCombination
from calibrate.plans import plan_from_mapping
from calibrate.plans.gaussian import GaussianPlan
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Relation
from calibrate.releases import Gaussian, InSequence, Repeated, Sampled, decode_sampling, encode_sampling, untruncated
from calibrate.sampling import Batch, Poisson, SamplingName, TruncatedPoisson
from calibrate.solve import solve_noise

ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)
CUT = TruncatedPoisson(0.01, 10_000, 180)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 5000), q=st.floats(1e-4, 0.999), share=st.floats(0.0, 1.0))
def test_the_tail_is_never_understated_and_nearly_sharp_far_out(n: int, q: float, share: float) -> None:
    limit = min(max(1, round(share * n)), n - 1)
    bound, exact = TruncatedPoisson(q, n, limit).overflow, float(binom.sf(limit, n, q))
    assert bound >= exact * (1 - 1e-9)
    if limit + 1 > n * q + 6 * math.sqrt(n * q * (1 - q)) + 6 and exact > 1e-250:
        assert bound <= 1.5 * exact


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


def _poisson_delta(rate: float, z: float, epsilon: float) -> float:
    """The price of a Poisson batch: one unit alone."""
    return _exact(1, rate, 1, z, epsilon)


@pytest.mark.parametrize(("units", "rate", "limit", "z"), [(7, 0.15, 2, 0.7), (12, 0.3, 6, 0.5), (8, 0.2, 4, 0.25)])
def test_the_promise_holds_where_cuts_are_frequent(units: int, rate: float, limit: int, z: float) -> None:
    release, tau = untruncated(Sampled(TruncatedPoisson(rate, units, limit), Gaussian(z)))
    assert release == Sampled(Poisson(rate), Gaussian(z))
    assert tau > 1e-3
    for epsilon in (0.1, 0.5, 1.0):
        promised = _poisson_delta(rate, z, epsilon) + (1 + math.exp(epsilon)) * tau
        assert _exact(units, rate, limit, z, epsilon) <= promised


def test_cutting_is_not_free() -> None:
    """Where it happens in nearly every round a unit takes another one's place, which moves the sum by two."""
    units, rate, limit, z, epsilon = 6, 0.95, 3, 1.0, 3.0
    assert _exact(units, rate, limit, z, epsilon) > _poisson_delta(rate, z, epsilon)
    assert TruncatedPoisson(rate, units, limit).overflow == 1.0


def test_the_price_is_poissons_with_room_for_the_cuts() -> None:
    release = Repeated(Sampled(CUT, Gaussian(1.0)), 1000)
    poisson = Repeated(Sampled(Poisson(0.01), Gaussian(1.0)), 1000)
    priced, plain = (best_epsilon(each, ADD_REMOVE, 1e-5).interval for each in (release, poisson))
    assert priced.lower == plain.lower
    assert plain.upper < priced.upper < plain.upper * 1.0001
    tau = 1000 * CUT.overflow
    at_less = best_epsilon(poisson, ADD_REMOVE, 1e-5 - (1 + math.exp(plain.upper)) * tau).interval.upper
    assert priced.upper == pytest.approx(at_less, rel=1e-6)
    assert epsilon_of(RenyiAccountant(), release, ADD_REMOVE, 1e-5).upper > priced.upper


def test_too_small_a_batch_is_refused_with_the_remedy() -> None:
    small = Repeated(Sampled(TruncatedPoisson(0.01, 10_000, 150), Gaussian(1.0)), 1000)
    for refused in (
        lambda: best_epsilon(small, ADD_REMOVE, 1e-5),
        lambda: solve_noise(small, ADD_REMOVE, EpsilonDelta(1.0, 1e-5)),
    ):
        with pytest.raises(NotCertified, match="raise the batch limit"):
            refused()
    with pytest.raises(UnsupportedCombination, match="price the whole release"):
        CertifiedAccountant().price(Sampled(CUT, Gaussian(1.0)), ADD_REMOVE)
    with pytest.raises(InvalidInput, match="not priced for truncated"):
        TruncatedPoisson(0.1, 100, 20, Batch.REVEALED)


def test_a_limit_that_cuts_nothing_is_answered_with_poisson() -> None:
    with pytest.raises(InvalidInput, match=r"batch-limit = 250: is not below most-units = 250.*; use poisson sampling"):
        GaussianPlan(
            sampling_rate=0.2, rounds=5, sampling=SamplingName.TRUNCATED_POISSON, batch_limit=250, most_units=250
        ).template()


def test_noise_is_solved_a_hair_above_poissons() -> None:
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
