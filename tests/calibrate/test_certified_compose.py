"""Composing lattice laws: against plain convolution, against extended precision, and with bounds that bite."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from scipy import fft

from calibrate.accountants import compose as module
from calibrate.accountants.compose import LatticeComposition, Window, compose, log_normaliser
from calibrate.accountants.grid import LatticeLaw, lattice_edges, pessimistic
from calibrate.accountants.losses import normal_masses
from calibrate.accountants.sampled_losses import SubsampledRemoval
from calibrate.errors import NotCertified

STEP = 0.01


def small_law(seed: int, infinite: float = 0.0) -> LatticeLaw:
    """An irregular law on few lattice points."""
    rng = np.random.default_rng(seed)
    index = np.unique(rng.integers(-40, 60, 25))
    mass = rng.dirichlet(np.ones(len(index))) * (1 - infinite)
    return LatticeLaw(index, mass, infinite)


def convolved_delta(laws: list[tuple[LatticeLaw, int]], epsilon: float) -> float:
    """Delta by convolving probability vectors directly: no tilt, no wrap-around, no transform."""
    total, offset = np.ones(1), 0
    for law, count in laws:
        dense = np.zeros(law.index[-1] - law.index[0] + 1)
        dense[law.index - law.index[0]] = law.mass
        for _ in range(count):
            total, offset = np.convolve(total, dense), offset + int(law.index[0])
    losses = (offset + np.arange(len(total))) * STEP
    finite = math.fsum(total * np.maximum(0.0, -np.expm1(epsilon - losses)))
    return finite + 1 - math.prod((1 - law.infinite) ** count for law, count in laws)


def composed(laws: list[tuple[LatticeLaw, int]], tilt: float, epsilon: float) -> LatticeComposition:
    deviation = 0.3 * math.sqrt(sum(count for _, count in laws))
    return compose(laws, STEP, Window(epsilon, tilt, deviation, -12.0, 60 / tilt + 13 * deviation, 1e-9))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tilt", [1.0, 3.0, 9.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.313, 1.0, 2.5])
def test_equals_plain_convolution(seed: int, tilt: float, epsilon: float) -> None:
    laws = [(small_law(seed), 7), (small_law(seed + 100), 4)]
    truth = convolved_delta(laws, epsilon)
    result = composed(laws, tilt, epsilon)
    assert result.delta_lower(epsilon) <= truth * (1 + 1e-12)
    assert result.delta_upper(epsilon) >= truth * (1 - 1e-12)
    if tilt < 5:  # a tilt that does not fit the law costs tightness, not soundness
        assert result.delta_upper(epsilon) == pytest.approx(truth, rel=1e-6, abs=1e-14)
        assert result.delta_lower(epsilon) == pytest.approx(truth, rel=1e-6, abs=1e-14)


def test_infinite_mass_is_added_once_per_step() -> None:
    laws = [(small_law(1, infinite=1e-4), 9)]
    truth = convolved_delta(laws, 1.0)
    assert truth > 9e-4
    assert composed(laws, 3.0, 1.0).delta_upper(1.0) >= truth
    assert composed(laws, 3.0, 1.0).delta_upper(1.0) == pytest.approx(truth, rel=1e-3)


def test_loss_above_a_short_window_is_not_lost() -> None:
    """A window far too short for the law may make the upper side loose, never too small."""
    laws = [(small_law(3), 20)]
    truth = convolved_delta(laws, 0.2)
    short = compose(laws, STEP, Window(0.2, 2.0, 0.02, -2.0, 0.4, 1.0))
    assert short.period < 1.0
    assert short.delta_upper(0.2) >= truth
    assert short.delta_lower(0.2) <= truth


@pytest.mark.parametrize("epsilon", [1e-6, 6e-6, 1e-5])
def test_a_delta_far_below_the_tilted_bulk_keeps_its_digits(epsilon: float) -> None:
    """One step of a tiny rate: the tilted sum is 1e-9 and less, so sloppy series would drown it."""
    law, tilt, step = SubsampledRemoval(1e-7, 1.05), 19_000.0, 5e-8
    edges = lattice_edges(law.nodes(tilt), law.span(-60.0), step, tilt, narrowest=step)
    lattice = pessimistic(law, edges, step)
    truth = math.fsum(lattice.mass * np.maximum(0.0, -np.expm1(epsilon - lattice.index * step))) + lattice.infinite
    result = compose([(lattice, 1)], step, Window(epsilon, tilt, 1e-4, -28.0, 3.4e-3, 1e-12))
    assert truth * (1 - 1e-12) <= result.delta_upper(epsilon) <= truth * (1 + 1e-3)
    assert truth * (1 - 1e-3) <= result.delta_lower(epsilon) <= truth * (1 + 1e-12)


def test_rounding_stays_far_inside_the_stated_slack() -> None:
    """The same sum in extended precision, after a million steps of a real law."""
    law, tilt, step, count = SubsampledRemoval(0.01, 20.0), 6.0, 1e-5, 1_000_000
    edges = lattice_edges(law.nodes(tilt), law.span(-60.0), step, tilt, narrowest=step)
    lattice = pessimistic(law, edges, step)
    epsilon = 2.0
    result = compose([(lattice, count)], step, Window(epsilon, tilt, 0.5, -12.0, 9.0, 1e-6))
    double, bound = result._sum(epsilon)

    wide = np.longdouble
    exponent = wide(tilt) * wide(step) * lattice.index.astype(wide)
    weights = lattice.mass.astype(wide) * np.exp(exponent)
    normaliser = np.log(weights.sum()) * count
    centre = result.shift // count
    circle = np.zeros(result.length, dtype=wide)
    np.add.at(circle, (lattice.index - centre) % result.length, weights / weights.sum())
    spectrum = fft.rfft(circle)[result.frequency]
    transform = np.exp(count * np.log(spectrum))
    first = math.floor(epsilon / step) + 1
    start = wide(first) * wide(step) - wide(epsilon)
    turn = 2j * np.pi * result.frequency.astype(wide) / wide(result.length)
    phase = np.exp(turn * ((first - result.shift) % result.length))
    series = [np.exp(-c * start) / (1 - np.exp(-c * wide(step)) * np.exp(turn)) for c in (wide(tilt), wide(tilt + 1))]
    twice = np.where((result.frequency == 0) | (2 * result.frequency == result.length), 1, 2)
    extended = float((twice * (transform * (series[0] - series[1]) * phase)).real.sum() / result.length)
    slack = bound / extended + result.relative_slack
    together = abs(double / extended - 1) + abs(float(normaliser) - result.log_normaliser)
    assert together < slack / 5
    assert slack < 1e-6


def test_normal_masses_keep_their_error_bound() -> None:
    x = np.concatenate((np.linspace(-30, 30, 101), np.linspace(-0.01, 0.01, 21), np.linspace(-8, -7.9, 30)))
    x = np.unique(x)
    mass, error, below, above = normal_masses(x, 0.3, 0.9)
    with mp.workdps(400):  # enough for differences of numbers that close to 1
        cdf = [mp.ncdf((mp.mpf(float(v)) - mp.mpf(0.3)) / mp.mpf(0.9)) for v in x]
        for k in range(len(mass)):
            wrong = abs(mp.mpf(float(mass[k])) - (cdf[k + 1] - cdf[k]))
            assert wrong <= mp.mpf(float(error[k])) + mp.mpf(10) ** -305
        assert below >= cdf[0]
        assert above >= 1 - cdf[-1]


def test_log_normaliser_is_the_moment_of_the_composition() -> None:
    laws = [(small_law(5), 3), (small_law(6), 2)]
    direct = sum(n * math.log(math.fsum(law.mass * np.exp(4.0 * STEP * law.index))) for law, n in laws)
    assert log_normaliser(laws, STEP, 4.0) == pytest.approx(direct, rel=1e-13)


def test_a_lattice_beyond_memory_is_refused() -> None:
    with pytest.raises(NotCertified, match="lattice points"):
        compose([(small_law(1), 2)], 1e-9, Window(1.0, 2.0, 0.4, -12.0, 30.0, 1e-6))


@pytest.mark.parametrize("length", [2**14, 3**8, 5**6, 2 * 3 * 5 * 7**0 * 2**8, 2**5 * 3**4 * 5])
@pytest.mark.parametrize("shape", ["uniform", "spike", "steep"])
def test_a_fourier_coefficient_is_within_its_worst_case_bound(length: int, shape: str) -> None:
    rng = np.random.default_rng(length)
    x = {
        "uniform": rng.random(length),
        "spike": np.where(np.arange(length) == length // 3, 1.0, 1e-9 * rng.random(length)),
        "steep": np.exp(-np.arange(length) / 7.0) * rng.random(length),
    }[shape]
    x /= x.sum()
    exact = fft.rfft(x.astype(np.longdouble))
    error = np.abs(fft.rfft(x) - exact).max()
    assert error <= 32 * 2.0**-53 * math.log2(length)


def smooth_law(spread: float, holes: bool = False) -> LatticeLaw:
    """A bell on the lattice; with `holes` only every second point carries mass."""
    index = np.arange(-400, 401, 2 if holes else 1)
    mass = np.exp(-0.5 * (index / spread) ** 2) * np.random.default_rng(3).uniform(0.2, 1.0, len(index))
    return LatticeLaw(index, mass / mass.sum(), 0.0)


@pytest.mark.parametrize("spread", [0.7, 3.0, 40.0, 300.0])
@pytest.mark.parametrize("count", [300, 10_000])
def test_no_frequency_that_is_not_computed_exceeds_its_bound(spread: float, count: int) -> None:
    law, length = smooth_law(spread), 30_000
    centred = module._Centred(law.index, law.mass, 0, count)
    wanted = module._frequencies_worth_computing([centred], length)
    circle = np.bincount(law.index % length, weights=law.mass, minlength=length)
    sizes = np.abs(fft.rfft(circle)) ** count
    assert wanted is None or sizes[wanted:].max(initial=0.0) <= math.exp(-70)
    if count == 10_000 and spread > 1:
        assert wanted is not None
        assert wanted <= 1 + 4 * np.count_nonzero(sizes > math.exp(-70))


@pytest.mark.parametrize(
    "law", [smooth_law(40.0, holes=True), LatticeLaw(np.array([0, 7]), np.array([0.999, 1e-3]), 0.0)]
)
def test_where_the_bound_says_nothing_all_frequencies_are_computed(law: LatticeLaw) -> None:
    assert module._frequencies_worth_computing([module._Centred(law.index, law.mass, 0, 10_000)], 30_000) is None


def test_summing_few_frequencies_is_the_fast_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    laws = [(smooth_law(40.0), 900), (smooth_law(25.0), 300)]
    window = Window(20.0, 0.5, 15.0, -12.0, 300.0, 1e-9)
    direct = compose(laws, STEP, window)
    monkeypatch.setattr(module, "_LARGEST_DIRECT_WORK", 0)
    fast = compose(laws, STEP, window)
    assert fast.frequency.tolist() == direct.frequency.tolist()
    for epsilon in (0.0, 19.7, 25.0, 60.0):
        assert direct.delta_lower(epsilon) <= fast.delta_upper(epsilon)
        assert fast.delta_lower(epsilon) <= direct.delta_upper(epsilon)
        (value, error), (other, bound) = direct._sum(epsilon), fast._sum(epsilon)
        assert abs(value - other) <= error + bound < 1e-7


def test_transforming_back_is_the_sum_at_every_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    laws = [(small_law(1), 3), (small_law(2), 2)]
    one_by_one = composed(laws, 3.0, 1.0)
    assert one_by_one._all_places is None
    monkeypatch.setattr(module, "_FEW_TERMS", 1)
    together = composed(laws, 3.0, 1.0)
    assert together._all_places is not None
    for epsilon in np.random.default_rng(0).uniform(0.0, 2.5, 40).tolist():
        (value, error), (other, bound) = one_by_one._sum(epsilon), together._sum(epsilon)
        assert abs(value - other) <= error + bound
        assert error <= bound < 1e-9


@pytest.mark.parametrize("count", [1, 2, 7, 4096, 4097])
def test_a_power_is_right_to_its_stated_roundings(count: int) -> None:
    angles = np.random.default_rng(count).uniform(-3, 3, 50)
    values = (1 - 0.3 / count) * np.exp(1j * angles)
    exact = values.astype(np.clongdouble) ** count
    assert float(np.abs(module._power(values, count) / exact - 1).max()) <= 16 * 2.0**-53 * count
