"""The analytic Gaussian: exact against 60-digit arithmetic, stable at the far ends, rounded outward."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.accountants.gaussian import (
    GaussianAccountant,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_epsilon_interval,
    gaussian_log_delta,
    gaussian_mu,
    log_delta_error,
)
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.releases import Gaussian


def exact_log_delta(mu: float, epsilon: float) -> mpmath.mpf:
    digits = 80 + int((epsilon / mu + mu / 2) ** 2 / 4)
    with mpmath.workdps(digits):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        upper = mpmath.erfc((e / m - m / 2) / mpmath.sqrt(2)) / 2
        lower = mpmath.erfc((e / m + m / 2) / mpmath.sqrt(2)) / 2
        return mpmath.log(upper - mpmath.exp(e) * lower)


@pytest.mark.parametrize("mu", [1e-7, 1e-3, 0.1, 0.499, 0.5, 1.0, 3.0, 12.0])
@pytest.mark.parametrize("deviations", [-5.0, -1.0, 0.0, 0.5, 3.0, 8.0, 14.0])
def test_log_delta_is_within_its_error_bound(mu: float, deviations: float) -> None:
    epsilon = max(0.0, mu * mu / 2 + deviations * mu)
    at = np.array([mu])
    computed = float(gaussian_log_delta(at, epsilon)[0])
    error = float(log_delta_error(at, epsilon)[0])
    with mpmath.workdps(60):
        assert abs(mpmath.mpf(computed) - exact_log_delta(mu, epsilon)) <= error
    assert error < 1e-11


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 20.0), st.floats(-60, -1))
def test_interval_encloses_the_exact_epsilon_and_is_narrow(mu: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    interval = gaussian_epsilon_interval(mu, mu, delta)
    assert interval.upper - interval.lower <= 1e-10 * max(1.0, interval.upper)
    with mpmath.workdps(60):
        target = mpmath.log(mpmath.mpf(delta))
        assert exact_log_delta(mu, interval.upper) <= target
        if interval.lower > 0:
            assert exact_log_delta(mu, interval.lower) >= target


@settings(max_examples=60, deadline=None)
@given(st.floats(0.001, 30.0), st.floats(-69, -2))
def test_mu_and_epsilon_are_inverse(epsilon: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta * (1 + 1e-12)
    assert gaussian_delta(mu * (1 + 1e-6), epsilon) > delta
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-9)


def test_far_ends() -> None:
    assert gaussian_epsilon(100.0, 1e-30) == pytest.approx(6145.4557783, abs=1e-6)
    assert gaussian_epsilon(1e-6, 1e-30) == pytest.approx(9.971408e-06, rel=1e-6)
    assert gaussian_delta(1e4, 1.0) == 1.0
    assert gaussian_delta(0.0, 0.0) == 0.0
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    assert gaussian_epsilon(1e-6, 1e-5) == 0.0, "total variation below delta needs no epsilon"


@pytest.mark.parametrize("mu", [-1.0, math.nan, math.inf])
def test_bad_mu_is_refused(mu: float) -> None:
    with pytest.raises(InvalidInput, match="mu"):
        gaussian_delta(mu, 1.0)
    with pytest.raises(InvalidInput, match="mu"):
        gaussian_epsilon(mu, 1e-5)


@pytest.mark.parametrize("epsilon", [-0.1, math.nan])
def test_bad_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(InvalidInput, match="epsilon"):
        gaussian_delta(1.0, epsilon)
    with pytest.raises(InvalidInput, match="epsilon"):
        gaussian_mu(epsilon, 1e-5)


def test_the_accountant_encloses_the_exact_composition() -> None:
    accountant = GaussianAccountant()
    cost = accountant.self_compose(accountant.price(Gaussian(3.0), PrivacyUnit.of(Relation.REPLACE_ONE)), 7)
    interval, mu = accountant.epsilon(cost, 1e-5), 2 * math.sqrt(7) / 3
    rounded = gaussian_epsilon_interval(mu, mu, 1e-5)
    assert interval.lower < rounded.lower <= rounded.upper < interval.upper
    assert interval.upper - interval.lower < 1e-12
