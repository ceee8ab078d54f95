"""Renyi divergences against numerical integration and dp-accounting, and the conversion to epsilon."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from scipy.integrate import quad

from calibrate.accountants.registry import AccountantName, price
from calibrate.accountants.renyi import (
    RenyiAccountant,
    epsilon_at_order,
    epsilon_from_rdp,
    poisson_gaussian_rdp,
    rdp_of_pair,
)
from calibrate.accountants.support import (
    DominatingPair,
    FixedSizeReplacePair,
    GaussianPair,
    LaplacePair,
    MixedGaussianPair,
    RandomizedResponsePair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
)
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.releases import Gaussian, Repeated, Sampled
from calibrate.sampling import FixedSize, Poisson

ORDERS = (1.25, 2.0, 3.5, 8.0, 20.0)


def normal(x: float, mean: float, deviation: float) -> float:
    return math.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))


def integrated(p, q, order: float, reach: float) -> float:  # type: ignore[no-untyped-def]
    """log of the integral of p^order q^(1-order) / (order - 1), by adaptive quadrature."""

    def integrand(x: float) -> float:
        below = q(x)
        return 0.0 if below == 0 else (p(x) / below) ** order * below

    value, _ = quad(integrand, -reach, reach, limit=500, points=[0.0, 1.0, order], epsabs=0, epsrel=1e-11)
    return math.log(value) / (order - 1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("rate", "z"), [(0.01, 1.0), (0.2, 2.0), (0.7, 4.0)])
def test_sampled_gaussian_in_its_worse_direction(rate: float, z: float, order: float) -> None:
    def plain(x: float) -> float:
        return normal(x, 0, z)

    def mixed(x: float) -> float:
        return (1 - rate) * normal(x, 0, z) + rate * normal(x, 1, z)

    divergence = float(rdp_of_pair(SubsampledGaussianPair(rate, z), (order,))[0])
    reach = order + 12 * z
    assert divergence == pytest.approx(integrated(mixed, plain, order, reach), rel=1e-6, abs=1e-12)
    assert divergence >= integrated(plain, mixed, order, reach) * (1 - 1e-6) - 1e-12


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("rate", "z"), [(0.01, 1.0), (0.2, 2.0), (0.7, 4.0)])
def test_replaced_in_a_poisson_batch(rate: float, z: float, order: float) -> None:
    def mixed(mean: float):  # type: ignore[no-untyped-def]
        return lambda x: (1 - rate) * normal(x, 0, z) + rate * normal(x, mean, z)

    divergence = float(rdp_of_pair(SubsampledReplacePair(rate, z), (order,))[0])
    assert divergence == pytest.approx(integrated(mixed(1), mixed(-1), order, 2 * order + 12 * z), rel=1e-6)


@pytest.mark.parametrize("order", ORDERS)
def test_laplace(order: float) -> None:
    scale = 1.5

    def laplace(mean: float):  # type: ignore[no-untyped-def]
        return lambda x: math.exp(-abs(x - mean) / scale) / (2 * scale)

    divergence = float(rdp_of_pair(LaplacePair(scale), (order,))[0])
    assert divergence == pytest.approx(integrated(laplace(1.0), laplace(0.0), order, 60.0), rel=1e-6)


@pytest.mark.parametrize("categories", [2, 3, 12])
def test_randomised_response(categories: int) -> None:
    epsilon = 1.3
    p = np.ones(categories)
    p[0] = math.exp(epsilon)
    q = np.roll(p, 1)
    for order in ORDERS:
        expected = math.log(np.sum((p / p.sum()) ** order * (q / q.sum()) ** (1 - order))) / (order - 1)
        value = float(rdp_of_pair(RandomizedResponsePair(epsilon, categories), (order,))[0])
        assert value == pytest.approx(expected, rel=1e-12)


def test_revealed_mixture_is_the_mean_of_its_gaussian_moments() -> None:
    weights, shifts, order = (0.7, 0.2, 0.1), (0.0, 0.5, 1.0), 6.0
    moments = [math.exp(order * (order - 1) * mu**2 / 2) for mu in shifts]
    expected = math.log(sum(w * m for w, m in zip(weights, moments, strict=True))) / (order - 1)
    pair = MixedGaussianPair(tuple(zip(weights, shifts, strict=True)))
    assert float(rdp_of_pair(pair, (order,))[0]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("rate", "z"), [(0.01, 1.0), (0.3, 2.0)])
def test_against_dp_accounting(rate: float, z: float) -> None:
    orders = (2, 3, 17, 64, 256)
    theirs = rdp_privacy_accountant._compute_rdp_poisson_subsampled_gaussian(rate, z, orders)
    assert poisson_gaussian_rdp(rate, z, orders) == pytest.approx(list(theirs), rel=1e-9)


def test_tiny_rates_keep_their_relative_accuracy() -> None:
    """Leading term q^2 (exp(1/z^2) - 1) at order 2 is exact; a plain log-sum would lose it below 1e-8."""
    assert poisson_gaussian_rdp(1e-9, 1.0, (2,))[0] == pytest.approx(1e-18 * math.expm1(1.0), rel=1e-12)


def test_orders_must_be_whole_and_at_least_two() -> None:
    for bad in (1, 2.5, 0):
        with pytest.raises(InvalidInput, match="order"):
            poisson_gaussian_rdp(0.1, 1.0, (bad,))  # type: ignore[arg-type]


def test_conversion_is_the_printed_formula() -> None:
    printed = 0.3 + math.log(7 / 8) - (math.log(1e-5) + math.log(8)) / 7
    assert epsilon_at_order(0.3, 8.0, 1e-5) == pytest.approx(printed, rel=1e-14)
    assert epsilon_from_rdp((2, 8), (0.1, 0.3), 1e-5) == pytest.approx(printed, rel=1e-14)
    assert epsilon_from_rdp((2,), (0.0,), 0.9) == 0.0


@pytest.mark.parametrize("pair", [GaussianPair(0.5), LaplacePair(2.0), FixedSizeReplacePair(0.1, 1.0)])
def test_divergence_grows_with_the_order(pair: DominatingPair) -> None:
    values = rdp_of_pair(pair, (2.0, 3.0, 5.0, 9.0))
    assert np.all(np.diff(values) > 0)


def test_replace_one_is_charged_for_two_bounds() -> None:
    """google/differential-privacy#378: forgetting the factor halves the noise that fixed-size sampling needs."""
    unit = PrivacyUnit.of(Relation.REPLACE_ONE)
    curve = RenyiAccountant((8.0,)).price(Sampled(FixedSize(100, 5), Gaussian(2.0)), unit)
    theirs = rdp_privacy_accountant._compute_rdp_sample_wor_gaussian(0.05, 1.0, (8.0,))[0]
    assert curve.values[0] == pytest.approx(float(theirs), rel=1e-9)


def test_fixed_size_never_borrows_the_poisson_price() -> None:
    fixed = Repeated(Sampled(FixedSize(100, 5), Gaussian(2.0)), 50)
    poisson = Repeated(Sampled(Poisson(0.05), Gaussian(2.0)), 50)
    dear = price(AccountantName.RENYI, fixed, PrivacyUnit.of(Relation.REPLACE_ONE), 1e-5).interval.upper
    cheap = price(AccountantName.RENYI, poisson, PrivacyUnit.of(Relation.ADD_REMOVE), 1e-5).interval.upper
    assert dear > 2 * cheap


def test_orders_of_the_accountant_are_checked() -> None:
    with pytest.raises(InvalidInput, match="orders"):
        RenyiAccountant((1.0, 2.0))
    with pytest.raises(InvalidInput, match="orders"):
        RenyiAccountant(())
