"""Noisy kernels: quadrature against closed forms, and conditions that are tested rather than believed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.errors import InvalidInput
from calibrate.privacy_unit import NoiseKind
from calibrate.theorems.catalogue import theorem_named
from calibrate.theorems.mmd_fedavg import Kernel, noisy_kernel
from calibrate.theorems.theorem import Outcome

PROPOSITION, COROLLARY = theorem_named("mmd.proposition-5.2"), theorem_named("mmd.corollary-5.3")


@settings(max_examples=50, deadline=None)
@given(width=st.floats(0.05, 20), noise=st.floats(0.05, 20))
def test_gaussian_on_gaussian_shrinks_the_amplitude_and_widens(width: float, noise: float) -> None:
    printed = COROLLARY.judge({"width": width, "noise_scale": noise})
    repaired = COROLLARY.judge({"width": width, "noise_scale": noise, "reading": "with-amplitude"})
    assert printed.outcome is Outcome.FAILS
    assert repaired.outcome is Outcome.HOLDS
    details = repaired.finding.details
    assert details["amplitude"] == pytest.approx(width / math.hypot(width, noise), rel=1e-12)
    assert float(str(details["shape_gap"])) < 1e-10


def test_a_kernel_can_be_chosen_whose_noisy_version_is_the_one_wanted() -> None:
    chosen = COROLLARY.judge({"width": 1.0, "noise_scale": 0.6}).finding.details["kernel_to_choose"]
    assert isinstance(chosen, dict)
    assert chosen["width"] == pytest.approx(0.8)
    assert chosen["amplitude"] == pytest.approx(1.25)
    assert chosen["gap"] < 1e-12
    assert COROLLARY.judge({"width": 0.5, "noise_scale": 0.6}).finding.details["kernel_to_choose"] is None


def test_laplacian_kernel_with_laplace_noise_matches_its_closed_form() -> None:
    """exp(-|u|) convolved with the Laplace law of scale 1 is (1 + |u|) exp(-|u|) / 2."""
    u = np.linspace(-3, 3, 25)
    noisy = noisy_kernel(Kernel.LAPLACIAN, NoiseKind.LAPLACE, u, np.zeros_like(u), 1.0, 1.0, step=0.005)
    assert noisy == pytest.approx((1 + np.abs(u)) * np.exp(-np.abs(u)) / 2, abs=1e-5)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("scale", [0.05, 0.5, 3.0])
def test_bounded_shift_invariant_kernels_stay_positive(kernel: str, noise: str, scale: float) -> None:
    verdict = PROPOSITION.judge({"kernel": kernel, "noise": noise, "noise_scale": scale})
    assert verdict.outcome is Outcome.HOLDS
    assert float(str(verdict.finding.details["smallest_fourier_value"])) > -1e-9


def test_the_energy_kernel_is_not_covered_and_really_breaks() -> None:
    verdict = PROPOSITION.judge({"kernel": "energy"})
    assert verdict.outcome is Outcome.NOT_APPLICABLE
    assert "the energy kernel is bounded" in verdict.broken
    assert "the energy kernel is a function of x - y" in verdict.broken
    assert float(str(verdict.finding.details["asymmetry"])) > 0.01
    assert float(str(verdict.finding.details["smallest_eigenvalue"])) < -1e-4


def test_a_kernel_that_was_never_positive_is_not_covered() -> None:
    verdict = PROPOSITION.judge({"kernel": "box"})
    assert verdict.outcome is Outcome.NOT_APPLICABLE
    assert verdict.broken == ("the box kernel is positive semi-definite",)


def test_an_unresolvable_ratio_of_widths_is_refused() -> None:
    with pytest.raises(InvalidInput, match="noise_scale"):
        COROLLARY.judge({"width": 1e-6, "noise_scale": 1.0})
