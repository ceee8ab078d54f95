"""The printed Rényi formulas against independent evaluations of the same quantities."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad

from calibrate.theorems.printed import (
    best_order,
    epsilon_from_renyi,
    fixed_size_epsilon,
    fixed_size_log_moments,
    fixed_size_sigma,
    poisson_log_moment,
)


@pytest.mark.parametrize(("order", "rate", "sigma"), [(2, 0.05, 2.0), (7, 0.3, 1.0), (16, 0.01, 0.8), (5, 1.0, 2.0)])
def test_the_poisson_moment_is_the_moment_of_the_likelihood_ratio(order: int, rate: float, sigma: float) -> None:
    def integrand(x: float) -> float:
        ratio = (1 - rate) + rate * math.exp((2 * x - 1) / (2 * sigma**2))
        return ratio**order * math.exp(-(x**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

    moment, _ = quad(integrand, -12 * sigma, order + 12 * sigma, epsabs=0, epsrel=1e-11, limit=400)
    assert poisson_log_moment(order, rate, sigma) == pytest.approx(math.log(moment), rel=1e-9)


@pytest.mark.parametrize(("rate", "sigma"), [(0.0123, 1.7), (0.06, 3.9), (0.01, 0.5), (0.3, 1.0)])
def test_the_fixed_size_moments_are_those_of_dp_accounting(rate: float, sigma: float) -> None:
    """dp-accounting evaluates the same theorem by alternating sums in extended logarithms; ours by quadrature."""
    from dp_accounting.rdp import rdp_privacy_accountant as peer

    theirs = [peer._compute_rdp_sample_wor_gaussian_int(rate, sigma, order) for order in range(2, 65)]
    assert fixed_size_log_moments(rate, sigma, 64) == pytest.approx(np.array(theirs), rel=1e-9)


def test_the_fixed_size_sigma_inverts_the_fixed_size_epsilon() -> None:
    sigma = fixed_size_sigma(0.02, 500, 1.5, 1e-6, 64)
    assert fixed_size_epsilon(0.02, sigma, 500, 1e-6, 64) == pytest.approx(1.5, abs=1e-6)


def test_the_best_order_is_no_worse_than_any_other() -> None:
    def divergence(order: int) -> float:
        return 100 * poisson_log_moment(order, 0.05, 2.0) / (order - 1)

    best, order = best_order(divergence, 1e-5, 64)
    assert best == min(epsilon_from_renyi(a, divergence(a), 1e-5) for a in range(2, 65))
    assert best == epsilon_from_renyi(order, divergence(order), 1e-5)
