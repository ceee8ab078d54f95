"""Laws of trusted noise: rounding never grows a norm, outputs lie on the grid, noise and privacy round the safe way."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from calibrate.discrete_noise import (
    STEPS_PER_SCALE,
    combined,
    gaussian_distance_slack,
    laplace_distance_slack,
    profile_slack,
)
from calibrate.privacy_unit import EpsilonDelta, Norm
from privfair.noise import ExactNoise, Grid, NoiseScale
from privfair.noise.lattice_sampler import exponential_enclosure
from privfair.noise.source import ResponseLaw

scales = st.floats(min_value=1e-200, max_value=1e200)
rational_scales = st.fractions(min_value=Fraction(1, 10**9), max_value=10**9)
vectors = arrays(np.float64, array_shapes(max_dims=2, max_side=6), elements=st.floats(-1e6, 1e6))


def _exact_norms(numbers: list[Fraction]) -> tuple[Fraction, Fraction, Fraction]:
    sizes = [abs(number) for number in numbers]
    return sum(sizes, Fraction(0)), sum((size**2 for size in sizes), Fraction(0)), max(sizes)


@settings(deadline=None)
@given(values=vectors, bits=st.integers(-15, 25))
def test_rounding_toward_zero_never_increases_any_norm(values: np.ndarray, bits: int) -> None:
    grid = Grid(bits)
    rounded = grid.round_toward_zero(values)
    before = [Fraction(float(v)) for v in values.ravel()]
    after = [int(steps) * grid.step for steps in rounded.ravel()]
    assert all(b >= a for b, a in zip(_exact_norms(before), _exact_norms(after), strict=True))
    assert all(abs(b) - abs(a) < grid.step and a * b >= 0 for b, a in zip(before, after, strict=True))


@settings(deadline=None)
@given(values=vectors, bits=st.integers(-15, 25))
def test_values_on_the_grid_are_fixed_points(values: np.ndarray, bits: int) -> None:
    grid = Grid(bits)
    once = grid.round_toward_zero(values)
    np.testing.assert_array_equal(grid.round_toward_zero(grid.to_floats(once)), once)


@settings(deadline=None)
@given(rows=arrays(np.float64, (5, 3), elements=st.floats(-1e3, 1e3)))
def test_contributions_rounded_one_by_one_add_up_exactly(rows: np.ndarray) -> None:
    grid = Grid(25)
    whole = grid.round_toward_zero(rows)
    in_floats = grid.to_floats(whole).sum(axis=0)
    np.testing.assert_array_equal(grid.round_toward_zero(in_floats), whole.sum(axis=0))


@settings(deadline=None)
@given(
    first=arrays(np.float64, 7, elements=st.floats(-1e3, 1e3)),
    second=arrays(np.float64, 7, elements=st.floats(-1e3, 1e3)),
    bits=st.integers(-5, 20),
)
def test_rounding_a_sum_moves_it_by_no_more_than_the_stated_sensitivity(
    first: np.ndarray, second: np.ndarray, bits: int
) -> None:
    grid = Grid(bits)
    apart = [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(first, second, strict=True)]
    if not any(apart):
        return
    moved = [int(k) * grid.step for k in grid.round_toward_zero(first) - grid.round_toward_zero(second)]
    l1, squared, _ = _exact_norms(apart)
    moved_l1, moved_squared, _ = _exact_norms(moved)
    assert moved_l1 <= grid.rounded_sensitivity(l1, 7, Norm.L1)
    at_least_l2 = Fraction(math.isqrt(math.ceil(squared * 4**40)) + 1, 2**40)
    assert moved_squared <= grid.rounded_sensitivity(at_least_l2, 7, Norm.L2) ** 2


@settings(deadline=None)
@given(scale=st.one_of(scales, rational_scales))
def test_a_scale_is_never_rounded_down_and_hardly_up(scale: float | Fraction) -> None:
    used, asked = NoiseScale.at_least(scale), Fraction(scale)
    assert asked <= used.exact < asked * (1 + Fraction(1, STEPS_PER_SCALE))
    assert STEPS_PER_SCALE <= used.in_steps <= 2 * STEPS_PER_SCALE


@settings(max_examples=60, deadline=None)
@given(values=arrays(np.float64, 5, elements=st.floats(-1e3, 1e3)), scale=st.floats(0.01, 1e6), gaussian=st.booleans())
def test_what_is_published_lies_on_the_grid(values: np.ndarray, scale: float, gaussian: bool) -> None:
    source, grid = ExactNoise(), Grid.for_scale(scale)
    published = source.gaussian(values, scale) if gaussian else source.laplace(values, scale)
    assert all((Fraction(float(y)) / grid.step).denominator == 1 for y in published)


@settings(deadline=None)
@given(k=st.integers(2, 1 << 15), epsilon=st.floats(2.0**-40, 60.0))
def test_randomised_response_never_costs_more_than_asked(k: int, epsilon: float) -> None:
    law = ResponseLaw.for_epsilon(k, epsilon)
    inverse_at_most = exponential_enclosure(Fraction(epsilon), 80)[1]
    assert law.odds * inverse_at_most <= 1 + Fraction(1, 10**60)  # odds <= exp(epsilon)
    assert 1 / law.odds <= law.odds  # and answering falsely is never the likelier way
    # The reported epsilon is at least the true one: exp(-reported) <= 1 / odds.
    assert exponential_enclosure(Fraction(law.epsilon), 80)[1] <= 1 / law.odds
    one_slot_more = law.keep + Fraction(1, 1 << 62)
    if one_slot_more < 1:
        assert one_slot_more * (k - 1) / (1 - one_slot_more) * inverse_at_most > 1  # and it is the largest


@settings(deadline=None)
@given(
    sigma=st.integers(1, 1 << 40),
    dimension=st.integers(1, 10**7),
    rounds=st.integers(1, 10**5),
    epsilon=st.floats(0.01, 20),
    delta=st.floats(1e-12, 0.01),
)
def test_slack_grows_with_values_shrinks_with_sigma_and_never_helps(
    sigma: int, dimension: int, rounds: int, epsilon: float, delta: float
) -> None:
    for slack in (profile_slack, gaussian_distance_slack, laplace_distance_slack):
        here = slack(sigma, dimension, rounds)
        assert here == slack(sigma, rounds, dimension)
        finer, longer = slack(2 * sigma, dimension, rounds), slack(sigma, dimension, rounds + 1)
        assert finer.epsilon <= here.epsilon <= longer.epsilon
        assert finer.mass <= here.mass <= longer.mass
    promise = EpsilonDelta(epsilon, delta)
    fine = profile_slack(STEPS_PER_SCALE, dimension, rounds).certified(promise)
    assert epsilon < fine.epsilon
    assert delta <= fine.delta


@settings(deadline=None)
@given(parts=st.lists(st.tuples(st.integers(1, 10**4), st.integers(1, 10**4)), min_size=1, max_size=5))
def test_combined_slack_covers_its_parts(parts: list[tuple[int, int]]) -> None:
    slacks = [gaussian_distance_slack(1 << 30, d, t) for d, t in parts]
    together = gaussian_distance_slack(1 << 30, sum(d * t for d, t in parts), 1)
    assert combined(slacks).mass >= together.mass * (1 - 2.0**-50)
