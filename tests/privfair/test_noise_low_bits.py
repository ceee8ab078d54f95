"""The low-bit attack: floating-point noise gives its data away, noise on the grid does not.

An attacker sees x + noise, where x is 0 or 1 and sigma is 1, and looks *only* at bits far below the noise:
how often 2 divides the published number. It learns on one half of the data which counts speak for x = 1 and
is scored on the other half, so an attack without a signal is right half of the time. To leave nothing but
the low bits, both worlds are conditioned on |y| < 1/4.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from privfair.noise import ExactNoise, NoiseAdder, UnsafeNoiseWarning, UnsafeSeededResearchNoise

PER_WORLD = 40_000
FALSE_ALARM = 1e-12
CHANCE_MARGIN = 7.2 * 0.5 / math.sqrt(PER_WORLD)
"""7.2 standard errors of the balanced accuracy on a held-out half of both worlds: false alarm 6e-13."""


def _published(source: NoiseAdder, x: float, adder: str) -> np.ndarray:
    published = getattr(source, adder)(np.full(16 * PER_WORLD, x), 1.0)
    inside = published[np.abs(published) < 0.25]
    assert inside.size >= PER_WORLD
    return inside[:PER_WORLD]


def _low_bit_feature(published: np.ndarray) -> np.ndarray:
    """The exponent of the largest power of two that divides the number, as a small index."""
    mantissa, exponent = np.frexp(np.where(published == 0, 1.0, published))
    integer = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    trailing = np.frexp((integer & -integer).astype(np.float64))[1] - 1
    return np.clip(exponent - 53 + trailing + 64, 0, 63)


def _held_out_accuracy(zero: np.ndarray, one: np.ndarray) -> float:
    half = PER_WORLD // 2
    counts = [np.bincount(_low_bit_feature(world[:half]), minlength=64) for world in (zero, one)]
    says_one = counts[1] > counts[0]
    right_on_zero = ~says_one[_low_bit_feature(zero[half:])]
    right_on_one = says_one[_low_bit_feature(one[half:])]
    return float((right_on_zero.mean() + right_on_one.mean()) / 2)


def _floating_point() -> NoiseAdder:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeNoiseWarning)
        return UnsafeSeededResearchNoise(seed=2024)


@pytest.mark.parametrize("adder", ["gaussian", "laplace"])
def test_floating_point_noise_loses_to_the_low_bits(adder: str) -> None:
    zero, one = (_published(_floating_point(), x, adder) for x in (0.0, 1.0))
    assert _held_out_accuracy(zero, one) > 0.8


def test_some_floating_point_publications_prove_which_data_they_came_from() -> None:
    """Numbers finer than 2^-53 cannot come from x = 1 at all: an infinite privacy loss, and not a rare one."""
    zero, one = (_published(_floating_point(), x, "gaussian") for x in (0.0, 1.0))
    finer = [np.ldexp(world, 53) != np.trunc(np.ldexp(world, 53)) for world in (zero, one)]
    assert finer[0].mean() > 0.5
    assert not finer[1].any()


@pytest.mark.true_noise
@pytest.mark.parametrize("adder", ["gaussian", "laplace"])
def test_the_same_attack_is_at_chance_against_exact_noise(adder: str) -> None:
    zero, one = (_published(ExactNoise(), x, adder) for x in (0.0, 1.0))
    assert abs(_held_out_accuracy(zero, one) - 0.5) < CHANCE_MARGIN


@pytest.mark.true_noise
@pytest.mark.parametrize("x", [1.0, 1 / 3, math.pi / 4, 1e-9])
def test_low_bits_of_exact_noise_do_not_depend_on_the_data(x: float) -> None:
    """Eight lowest bits on the grid, two worlds: one law."""
    source = ExactNoise()
    bits = [np.ldexp(_published(source, value, "gaussian"), 30).astype(np.int64) & 255 for value in (0.0, x)]
    table = np.array([np.bincount(part, minlength=256) for part in bits])
    assert chi2_contingency(table).pvalue > FALSE_ALARM


@pytest.mark.parametrize("x", [0.0, 1.0, 1 / 3, -1e-12, 12345.678])
def test_everything_published_is_a_whole_number_of_steps(x: float) -> None:
    published = ExactNoise().gaussian(np.full(10_000, x), 1.0)
    steps = np.ldexp(published, 30)
    np.testing.assert_array_equal(steps, np.trunc(steps))
