"""Grid and noise sources: what is published is exact, on the grid, and says where its noise came from."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest

from calibrate.discrete_noise import STEPS_PER_SCALE
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import Norm
from privfair.noise import ExactNoise, Grid, NoiseAdder, NoiseScale, UnsafeNoiseWarning, UnsafeSeededResearchNoise
from privfair.noise.source import EXACT_LABEL, UNSAFE_LABEL

ADDERS = ["gaussian", "laplace"]


def test_the_grid_gives_the_scale_at_least_two_to_the_thirty_steps() -> None:
    assert Grid.for_scale(1.0) == Grid(30)
    assert Grid.for_scale(1.999) == Grid(30)
    assert Grid.for_scale(0.999) == Grid(31)
    assert Grid.for_scale(2.0**40) == Grid(-10)
    assert Grid.for_scale(Fraction(1, 3)).step == Fraction(1, 1 << 32)


def test_rounding_goes_toward_zero_on_both_sides() -> None:
    grid = Grid(2)
    rounded = grid.round_toward_zero([0.24, 0.25, 0.49, -0.24, -0.49, -0.5, 3.99, 5e-324, -5e-324])
    np.testing.assert_array_equal(rounded, [0, 1, 1, 0, -1, -2, 15, 0, 0])


def test_a_sum_rounded_as_a_whole_may_move_by_one_step_more() -> None:
    """Why `rounded_sensitivity` exists: 0.24 and 0.26 are 0.02 apart and a whole step of 0.25 after rounding."""
    grid = Grid(2)
    moved = float(np.ptp(grid.to_floats(grid.round_toward_zero([0.24, 0.26]))))
    assert moved == 0.25 > 0.02
    assert moved <= grid.rounded_sensitivity(0.02, 1, Norm.L2)
    assert grid.rounded_sensitivity(1, 9, Norm.L1) == 1 + Fraction(9, 4)
    assert grid.rounded_sensitivity(1, 9, Norm.L2) == pytest.approx(1 + 3 / 4, rel=1e-6)


@pytest.mark.parametrize("adder", ADDERS)
def test_shape_is_kept_and_input_untouched(adder: str) -> None:
    values = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)
    before = values.copy()
    published = getattr(ExactNoise(), adder)(values, 0.5)
    assert published.shape == (2, 3, 4)
    assert published.dtype == np.float64
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize("adder", ADDERS)
@pytest.mark.parametrize("shape", [(300, 250), (250, 30, 10)])
def test_every_number_gets_noise_however_it_is_stored(adder: str, shape: tuple[int, ...]) -> None:
    """More numbers than are drawn at once; noise is zero once in 2^30, so 10 zeros have a probability below 1e-40."""
    for values in (np.zeros(shape, order="F"), np.zeros(shape[::-1]).T, np.zeros((*shape, 2))[..., 0]):
        assert np.count_nonzero(getattr(ExactNoise(), adder)(values, 1.0) == 0) < 10


@pytest.mark.parametrize("adder", ADDERS)
def test_single_numbers_and_empty_vectors(adder: str) -> None:
    add = getattr(ExactNoise(), adder)
    single, empty = add(0.25, 1.0), add(np.zeros((0, 3)), 1.0)
    assert isinstance(single, np.ndarray)
    assert single.shape == ()
    assert empty.shape == (0, 3)


@pytest.mark.parametrize("adder", ADDERS)
def test_every_publication_draws_afresh(adder: str) -> None:
    source = ExactNoise()
    add = getattr(source, adder)
    assert not np.intersect1d(add(np.zeros(50), 1.0), add(np.zeros(50), 1.0)).size


@pytest.mark.true_noise  # fails by chance with probability 4 * norm.sf(7.2) = 1.2e-12
@pytest.mark.parametrize(("adder", "deviation"), [("gaussian", 1.0), ("laplace", math.sqrt(2))])
@pytest.mark.parametrize("scale", [1e-200, 0.003, 1.0, 1e30])
def test_mean_and_spread(adder: str, deviation: float, scale: float) -> None:
    n = 200_000
    published = getattr(ExactNoise(), adder)(np.full(n, 5 * scale), scale) / scale
    assert abs(published.mean() - 5) < 7.2 * deviation / math.sqrt(n)
    assert abs(published.std() / deviation - 1) < 7.2 * 1.2 / math.sqrt(n)


@pytest.mark.parametrize("adder", ADDERS)
@pytest.mark.parametrize(
    "values",
    [[math.nan], [math.inf], [1e300], ["a"], [1j], [True], [None], [2**60], np.ones(2, dtype=np.longdouble)],
    ids=str,
)
def test_values_that_are_refused(adder: str, values: object) -> None:
    with pytest.raises(InvalidInput, match="values"):
        getattr(ExactNoise(), adder)(values, 1.0)


@pytest.mark.parametrize("adder", ADDERS)
@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e-310, "1", None])
def test_scales_that_are_refused(adder: str, scale: object) -> None:
    for source in (ExactNoise(), _research(1)):
        if scale == 1e-310 and not isinstance(source, ExactNoise):
            continue
        with pytest.raises(InvalidInput):
            getattr(source, adder)([0.0], scale)


def test_the_largest_allowed_values_are_published_exactly() -> None:
    limit = 2.0**52 / STEPS_PER_SCALE
    published = ExactNoise().gaussian([limit, -limit] * 200, 1.0)
    assert np.all(np.abs(np.abs(published) - limit) < 10)
    with pytest.raises(InvalidInput, match="2\\^52 grid steps"):
        ExactNoise().gaussian([np.nextafter(limit, math.inf)], 1.0)


def test_a_total_beyond_exact_doubles_is_cut_not_wrapped() -> None:
    grid = Grid(0)
    np.testing.assert_array_equal(grid.to_floats(np.array([1 << 60, -(1 << 60)])), [2.0**53, -(2.0**53)])


def test_the_scale_in_use_is_on_record() -> None:
    scale = NoiseScale.at_least(0.1)
    assert scale.exact >= Fraction(0.1)
    assert scale.exact < Fraction(0.1) * (1 + Fraction(1, STEPS_PER_SCALE))
    assert scale.in_steps >= STEPS_PER_SCALE


def _research(seed: int) -> UnsafeSeededResearchNoise:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeNoiseWarning)
        return UnsafeSeededResearchNoise(seed)


def test_research_noise_announces_itself() -> None:
    with pytest.warns(UnsafeNoiseWarning, match="protects no one"):
        source = UnsafeSeededResearchNoise(seed=1)
    assert source.label == UNSAFE_LABEL
    assert "UNSAFE" in source.label
    assert ExactNoise().label == EXACT_LABEL != source.label


def test_research_noise_needs_a_seed() -> None:
    for seed in (-1, 1.5, None, True):
        with pytest.raises(InvalidInput, match="seed"):
            UnsafeSeededResearchNoise(seed)  # type: ignore[arg-type]


def test_research_noise_repeats_with_its_seed_and_trusted_noise_never() -> None:
    def everything(source: NoiseAdder) -> bytes:
        parts = (
            source.gaussian(np.zeros(20), 2.0),
            source.laplace(np.zeros(20), 2.0),
            source.randomized_response(np.zeros(80, dtype=int), 4, 1.0),
        )
        return b"".join(part.tobytes() for part in parts)

    assert everything(_research(5)) == everything(_research(5)) != everything(_research(6))
    assert everything(ExactNoise()) != everything(ExactNoise())


def test_research_noise_has_the_asked_spread() -> None:
    source = _research(9)
    assert source.gaussian(np.zeros(100_000), 3.0).std() == pytest.approx(3.0, rel=0.02)
    assert source.laplace(np.zeros(100_000), 3.0).std() == pytest.approx(3.0 * math.sqrt(2), rel=0.02)
    kept = (source.randomized_response(np.zeros(100_000, dtype=int), 3, 1.0) == 0).mean()
    assert kept == pytest.approx(math.e / (math.e + 2), abs=0.01)
