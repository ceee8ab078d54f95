"""Kernels against quadrature, MMD against its definition, and what noise really does to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.spatial.distance import cdist

from calibrate.errors import InvalidInput, UnsupportedCombination
from privfair.fairness import mmd as kernel_mmd
from privfair.fairness.mmd import (
    EnergyKernel,
    GaussianKernel,
    GaussianSmoothing,
    Kernel,
    LaplaceKernel,
    LaplaceSmoothing,
    Noise,
    SharpenedGaussianKernel,
    kernel_before_noise,
    mmd_squared_v,
    witness_derivative,
)
from tests.privfair.convolved_kernels import GaussianLaplaceKernel, TwoLaplaceKernel, convolve, witness

KERNELS = [GaussianKernel(0.7, 2.0), LaplaceKernel(0.5, 3.0), EnergyKernel(1.5)]
NOISES = [GaussianSmoothing(0.4), LaplaceSmoothing(0.3), LaplaceSmoothing(0.5), LaplaceSmoothing(0.8)]


def _by_quadrature(kernel: Kernel, noise: Noise, u: float) -> float:
    law = (
        stats.norm(scale=noise.deviation) if isinstance(noise, GaussianSmoothing) else stats.laplace(scale=noise.scale)
    )

    def integrand(xi: float) -> float:
        return float(kernel.values(np.array([u + xi]))[0] * law.pdf(xi))

    kinks = sorted({0.0, -u})
    pieces = zip([-40.0, *kinks], [*kinks, 40.0], strict=True)
    return sum(integrate.quad(integrand, a, b, epsabs=1e-12, epsrel=1e-11, limit=400)[0] for a, b in pieces)


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_convolution_by_quadrature(kernel: Kernel, noise: Noise) -> None:
    after = convolve(kernel, noise)
    for u in (0.0, 0.01, -0.3, 0.5, 1.0, -2.5, 6.0):
        assert after.values(np.array([u]))[0] == pytest.approx(_by_quadrature(kernel, noise, u), rel=1e-8, abs=1e-10)


def test_corollary_5_3_with_its_amplitude() -> None:
    """Gaussian stays Gaussian: variance s^2 + t^2, and the amplitude shrinks by s / sqrt(s^2 + t^2)."""
    after = convolve(GaussianKernel(0.3), GaussianSmoothing(0.4))
    assert isinstance(after, GaussianKernel)
    assert (after.width, after.amplitude) == (pytest.approx(0.5), pytest.approx(0.6))


@pytest.mark.parametrize(
    ("wanted", "noise"), [(0.5, GaussianSmoothing(0.4)), (0.5, LaplaceSmoothing(0.4)), (0.5, LaplaceSmoothing(2))]
)
def test_the_chosen_kernel_becomes_the_wanted_one(wanted: float, noise: Noise) -> None:
    kernel = GaussianKernel(wanted, 1.7)
    before = kernel_before_noise(kernel, noise)
    for u in (0.0, 0.2, -0.9, 2.0):
        expected = kernel.values(np.array([u]))[0]
        assert _by_quadrature(before, noise, u) == pytest.approx(expected, rel=1e-8, abs=1e-10)
    again = convolve(before, noise)
    assert isinstance(again, GaussianKernel)
    assert (again.width, again.amplitude) == (pytest.approx(wanted), pytest.approx(1.7))


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="noise only ever widens"):
        kernel_before_noise(GaussianKernel(0.4), GaussianSmoothing(0.4))
    for wanted in (LaplaceKernel(1.0), EnergyKernel()):
        with pytest.raises(UnsupportedCombination, match="rounds off every kink"):
            kernel_before_noise(wanted, GaussianSmoothing(0.1))
    with pytest.raises(UnsupportedCombination, match="no closed form"):
        convolve(TwoLaplaceKernel(1, 1), GaussianSmoothing(1))
    with pytest.raises(UnsupportedCombination, match="no closed form"):
        convolve(SharpenedGaussianKernel(1, 2), LaplaceSmoothing(1))
    for make in (GaussianKernel, LaplaceKernel, EnergyKernel, GaussianSmoothing, LaplaceSmoothing):
        with pytest.raises(InvalidInput, match="greater than 0"):
            make(0.0)


ALL = [
    *KERNELS,
    *(convolve(kernel, noise) for kernel in KERNELS for noise in NOISES),
    kernel_before_noise(GaussianKernel(0.6), LaplaceSmoothing(0.4)),
]


@pytest.mark.parametrize("kernel", ALL, ids=str)
def test_derivatives_by_differences(kernel: Kernel) -> None:
    u = np.array([-3.0, -0.7, -0.05, 0.05, 0.4, 1.3, 4.0])
    step = 1e-6
    difference = (kernel.values(u + step) - kernel.values(u - step)) / (2 * step)
    np.testing.assert_allclose(kernel.derivative(u), difference, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(kernel.values(-u), kernel.values(u), rtol=1e-12)


@pytest.mark.parametrize("kernel", ALL, ids=str)
def test_kernels_are_positive_definite_on_weights_that_sum_to_zero(kernel: Kernel) -> None:
    points = np.random.default_rng(0).normal(size=25)
    gram = kernel.values(points[:, np.newaxis] - points)
    centre = np.eye(25) - 1 / 25
    assert np.linalg.eigvalsh(centre @ gram @ centre).min() > -1e-9
    if not (isinstance(kernel, EnergyKernel) or type(kernel).__name__ == "SmoothedEnergyKernel"):
        assert np.linalg.eigvalsh(gram).min() > -1e-9


@pytest.mark.parametrize("ratio", [1e-3, 0.1, 10.0, 1e3])
def test_extreme_widths_stay_finite(ratio: float) -> None:
    u = np.concatenate([[0.0], np.logspace(-6, 4, 60)])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for kernel in (GaussianLaplaceKernel(1.0, ratio), TwoLaplaceKernel(1.0, ratio)):
            values = kernel.values(u)
            assert np.isfinite(values).all()
            assert (np.diff(values) <= 1e-15).all()
            assert np.isfinite(kernel.derivative(u)).all()
    # Little noise leaves the kernel as it was.
    if ratio == 1e-3:
        np.testing.assert_allclose(
            GaussianLaplaceKernel(1.0, ratio).values(u), GaussianKernel(1.0).values(u), atol=1e-5
        )
        np.testing.assert_allclose(TwoLaplaceKernel(1.0, ratio).values(u), LaplaceKernel(1.0).values(u), atol=2e-3)


def test_equal_widths_are_the_limit_of_unequal_ones() -> None:
    u = np.linspace(-4, 4, 41)
    expected = 0.5 * (1 + np.abs(u)) * np.exp(-np.abs(u))
    np.testing.assert_allclose(TwoLaplaceKernel(1.0, 1.0).values(u), expected, rtol=1e-13)
    np.testing.assert_allclose(TwoLaplaceKernel(1.0, 1.0 + 1e-9).values(u), expected, rtol=1e-7)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_v_statistic_by_loops(kernel: Kernel) -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=7), rng.normal(0.5, size=5)

    def k(a: float, b: float) -> float:
        return float(kernel.values(np.array([a - b]))[0])

    cross = np.mean([k(a, b) for a in x for b in y])
    v = np.mean([k(a, b) for a in x for b in x]) + np.mean([k(a, b) for a in y for b in y]) - 2 * cross
    assert mmd_squared_v(x, y, kernel) == pytest.approx(v)


def test_energy_distance_equals_scipys() -> None:
    """scipy's energy_distance is the square root of 2 E|X-Y| - E|X-X'| - E|Y-Y'|."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=300), rng.normal(0.3, 2, size=200)
    assert mmd_squared_v(x, y, EnergyKernel()) == pytest.approx(stats.energy_distance(x, y) ** 2)
    gaussian = np.exp(-(cdist(x[:, None], y[:, None]) ** 2) / 2)
    assert witness(x, y, y + 1, GaussianKernel(1)) == pytest.approx(
        gaussian.mean(axis=1) - np.exp(-(cdist(x[:, None], y[:, None] + 1) ** 2) / 2).mean(axis=1)
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20), st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_v_statistic_is_a_squared_distance(a: list[float], b: list[float]) -> None:
    x, y = np.array(a), np.array(b)
    for kernel in ALL:
        assert mmd_squared_v(x, y, kernel) >= -1e-9
        assert mmd_squared_v(x, x, kernel) == pytest.approx(0, abs=1e-9)
        assert mmd_squared_v(x, y, kernel) == pytest.approx(mmd_squared_v(y, x, kernel), abs=1e-9)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=101), rng.normal(size=37)
    whole = mmd_squared_v(x, y, GaussianKernel(1)), mmd_squared_v(x, y, EnergyKernel())
    monkeypatch.setattr(kernel_mmd, "_BLOCK", 64)
    assert (mmd_squared_v(x, y, GaussianKernel(1)), mmd_squared_v(x, y, EnergyKernel())) == pytest.approx(whole)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_proposition_5_2_by_simulation(kernel: Kernel) -> None:
    """The witness on noisy scores has, on average, the value of the convolved kernel on clean scores."""
    rng = np.random.default_rng(6)
    y0, y1, z, noise = rng.random(8), rng.random(6), np.array([0.1, 0.8]), GaussianSmoothing(0.3)
    draws = np.array([witness(z, y0 + rng.normal(0, 0.3, 8), y1 + rng.normal(0, 0.3, 6), kernel) for _ in range(4000)])
    expected = witness(z, y0, y1, convolve(kernel, noise))
    assert (np.abs(draws.mean(axis=0) - expected) < 4.5 * draws.std(axis=0) / math.sqrt(len(draws))).all()


def test_witness_derivative_by_differences() -> None:
    rng = np.random.default_rng(7)
    z, x, y, step = rng.random(5), rng.random(9), rng.random(4), 1e-6
    for kernel in ALL:
        difference = (witness(z + step, x, y, kernel) - witness(z - step, x, y, kernel)) / (2 * step)
        np.testing.assert_allclose(witness_derivative(z, x, y, kernel), difference, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bad", [np.zeros(0), np.zeros((2, 2)), np.array([0.0, np.nan])])
def test_samples_are_checked(bad: np.ndarray) -> None:
    with pytest.raises(InvalidInput):
        mmd_squared_v(bad, np.zeros(3), GaussianKernel(1))
