"""prv-accountant as a third opinion: both directions, its own error bounds, and honest refusals."""

from __future__ import annotations

import numpy as np
import pytest
from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

from calibrate.accountants.pld import PrvAccountant, _addition_variable
from calibrate.accountants.registry import epsilon_of
from calibrate.errors import InvalidInput, NotCertified
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.releases import Gaussian, Repeated, Sampled
from calibrate.sampling import Poisson

ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)


def test_the_added_direction_has_the_right_law() -> None:
    rate, z = 0.3, 1.5
    variable = _addition_variable(rate, z, PoissonSubsampledGaussianMechanism(rate, z))
    x = np.random.default_rng(1).normal(0, z, 400_000)
    losses = -np.log(1 - rate + rate * np.exp((2 * x - 1) / (2 * z * z)))
    for t in (-1.0, -0.2, 0.0, 0.1, 0.3):
        assert float(variable.cdf(t)) == pytest.approx(float(np.mean(losses <= t)), abs=4e-3)
    assert float(variable.cdf(-np.log(1 - rate) + 1e-9)) == 1.0


def test_interval_has_the_promised_width() -> None:
    release = Repeated(Sampled(Poisson(0.1), Gaussian(2.0)), 10)
    interval = epsilon_of(PrvAccountant(epsilon_error=0.005), release, ADD_REMOVE, 1e-5)
    assert interval.lower <= 0.79847 <= interval.upper
    assert interval.upper - interval.lower < 0.011


def test_a_delta_below_floating_point_is_not_certified() -> None:
    release = Repeated(Sampled(Poisson(0.1), Gaussian(2.0)), 10)
    with pytest.raises(NotCertified, match="prv-accountant"):
        epsilon_of(PrvAccountant(), release, ADD_REMOVE, 1e-18)


def test_epsilon_error_must_be_positive() -> None:
    with pytest.raises(InvalidInput, match="epsilon error"):
        PrvAccountant(epsilon_error=0.0)
