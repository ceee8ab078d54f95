"""Psi of Equation 2 and lambda* of Section VI of the FedFDP paper."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from calibrate.errors import InvalidInput
from privfair.fairness.clipping import ConvergenceConstants, coefficients, optimal_fairness
from privfair.fairness.measurement import psi

NOISY = ConvergenceConstants(
    smoothness=1.0,
    strong_convexity=0.5,
    gradient_bound=0.1,
    heterogeneity=0.05,
    lowest_excess=0.2,
    highest_excess=0.6,
    start_distance=3.0,
    noise_multiplier=2.0,
    clip=1.0,
    dimension=1000,
    smallest_batch=50.0,
)


def bound(constants: ConvergenceConstants, x: float) -> float:
    """A(1 + Q_1 x) / (1 + 2 Q_0 x) of Theorem 1, written out without the a_i."""
    c, squared = 1 + constants.highest_excess * x, constants.gradient_bound**2
    drift = 2 * constants.smoothness * constants.heterogeneity
    top = squared * c**3 + 3 * squared * c**2 + drift * c + constants.noise_term
    return top / (1 + 2 * constants.lowest_excess * x)


def test_psi_is_the_weighted_variance() -> None:
    losses, weights = {"a": 1.0, "b": 2.0, "c": 4.0}, {"a": 0.5, "b": 0.25, "c": 0.25}
    mean = 0.5 + 0.5 + 1.0
    by_hand = 0.5 * (1 - mean) ** 2 + 0.25 * 0 + 0.25 * (4 - mean) ** 2
    assert psi(losses, weights) == pytest.approx(by_hand)
    assert psi({"a": 3.0, "b": 3.0}, {"a": 0.9, "b": 0.1}) == 0
    assert psi(losses, {"a": 2.0, "b": 1.0, "c": 1.0}) == pytest.approx(by_hand)
    with pytest.raises(InvalidInput, match="weights"):
        psi(losses, {"a": 1.0})


def test_the_printed_coefficients_are_the_expanded_bound() -> None:
    """The a_i of Equation 17 are those of numerator and denominator, the start distance included."""
    a1, a2, a3, a4, a5 = coefficients(NOISY)
    for x in (0.0, 0.3, 1.0, 7.0):
        printed = (a1 * x**3 + a2 * x**2 + a3 * x + a4) / (a5 * x + 1)
        assert printed == pytest.approx(bound(NOISY, x) + NOISY.start_distance, rel=1e-12)


def test_the_root_minimises_the_bound() -> None:
    found = optimal_fairness(NOISY)
    assert all(holds for _, holds in found.conditions)
    assert found.value > 0
    roots = np.roots(found.cubic)
    real = roots[np.isclose(roots.imag, 0)].real
    assert found.value == pytest.approx(real[real > 0].item(), rel=1e-9)
    at = bound(NOISY, found.value)
    for x in np.linspace(0, 10 * found.value, 400):
        assert bound(NOISY, float(x)) >= at * (1 - 1e-12)


def test_the_papers_inconsistent_factors_do_not_move_it() -> None:
    """1/mu, 1/mu^2, 4/mu^2 on A, and the start distance, are a scale and a constant: the minimiser stays."""
    value = optimal_fairness(NOISY).value
    assert optimal_fairness(replace(NOISY, start_distance=0.0)).value == pytest.approx(value, rel=1e-9)
    grid = np.linspace(0, 3 * value, 2001)
    for scale in (1.0, 2.0, 4.0, 16.0):
        best = grid[np.argmin([scale * bound(NOISY, float(x)) + NOISY.start_distance for x in grid])]
        assert best == pytest.approx(value, abs=float(grid[1]))


def test_records_below_the_mean_leave_nothing_to_gain() -> None:
    """Q_0 <= 0, as on any real data: the bound is smallest at lambda = 0, and the conditions say why."""
    found = optimal_fairness(replace(NOISY, lowest_excess=-0.4))
    assert found.value == 0
    assert not all(holds for _, holds in found.conditions)
    broken = [text for text, holds in found.conditions if not holds]
    assert any("Q_0" in text for text in broken)
    below = replace(NOISY, lowest_excess=-0.4)
    values = [bound(below, x) for x in np.linspace(0, 1.2, 50)]
    assert all(b >= a for a, b in pairwise(values))


def test_a_clip_that_acts_is_reported() -> None:
    found = optimal_fairness(replace(NOISY, clip=0.05, noise_multiplier=40.0))
    assert found.value > 0
    assert [text for text, holds in found.conditions if not holds] == ["(1 + Q_1 lambda) G <= C: the clip never acts"]


@settings(max_examples=100, deadline=None)
@given(
    gradient=st.floats(1e-3, 10),
    low=st.floats(1e-3, 2),
    spread=st.floats(0, 2),
    noise=st.floats(1e-3, 1e3),
    drift=st.floats(0, 5),
)
def test_the_cubic_vanishes_at_a_positive_root(
    gradient: float, low: float, spread: float, noise: float, drift: float
) -> None:
    constants = replace(
        NOISY,
        gradient_bound=gradient,
        lowest_excess=low,
        highest_excess=low + spread,
        noise_multiplier=noise,
        heterogeneity=drift,
    )
    found = optimal_fairness(constants)
    assume(found.value > 0)
    scale = sum(abs(c) * found.value ** (3 - i) for i, c in enumerate(found.cubic))
    assert abs(np.polyval(found.cubic, found.value)) <= 1e-9 * scale
