"""A paper's own noise, as it can be run: Theorem 3.3 of SteFFLe, and nothing made up for the others."""

from __future__ import annotations

import math

import pytest

from calibrate.budget import price_plan
from calibrate.errors import UnsupportedCombination
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.steffle import StefflePlan
from calibrate.privacy_unit import EpsilonDelta
from calibrate.theorems.catalogue import theorem_named

PAPER = StefflePlan(silo_size=7500, batch_size=256, rounds=1172, minority_fraction=0.5, lipschitz=1.0, w_radius=1.0)


def test_it_is_the_noise_that_the_catalogue_judges() -> None:
    """Credit Card: the paper promises 1, the catalogue finds 7.59."""
    printed = PAPER.printed(EpsilonDelta(1.0, 1e-5))
    verdict = theorem_named("steffle.theorem-3.3").judge({})
    assert printed.noise_multipliers["h_W"] == pytest.approx(verdict.finding.details["noise_multiplier_h_W"])
    true = price_plan(PAPER, 1e-5, noise_multipliers=printed.noise_multipliers)
    assert true.upper == pytest.approx(7.59, abs=0.01)
    assert "Theorem 3.3" in printed.place


def test_sigma_is_the_printed_formula() -> None:
    plan = StefflePlan(silo_size=1000, batch_size=50, rounds=80, minority_fraction=0.3, lipschitz=2.0, w_radius=0.5)
    printed = plan.printed(EpsilonDelta(0.5, 1e-6))
    sigma_w = math.sqrt(16 * 80 * math.log(1e6) / (0.5**2 * 1000**2 * 0.3))
    theta, w = plan.values()
    assert printed.noise_multipliers["h_W"] * w.sensitivity == pytest.approx(sigma_w)
    assert printed.noise_multipliers["h_theta"] * theta.sensitivity == pytest.approx(2.0 * 0.5 * sigma_w)


def test_what_no_paper_prints_is_refused() -> None:
    with pytest.raises(UnsupportedCombination, match="gaussian as printed"):
        GaussianPlan(sampling_rate=1.0, rounds=1).printed(EpsilonDelta(1.0, 1e-5))
    paid = StefflePlan(7500, 256, 1172, 0.5, 1.0, 1.0, histogram_noise_ratio=1.0)
    with pytest.raises(UnsupportedCombination, match="frequencies as known"):
        paid.printed(EpsilonDelta(1.0, 1e-5))
