"""The 2016 moments accountant: its moments, and its place above the Renyi accountant."""

from __future__ import annotations

import math

import pytest

from calibrate.accountants.renyi import LARGEST_MOMENT, MomentsAccountant, log_mixture_moment, poisson_gaussian_rdp
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.releases import Gaussian, Sampled
from calibrate.sampling import Poisson

ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)


@pytest.mark.parametrize(("rate", "z"), [(0.01, 4.0), (0.1, 1.0), (0.5, 2.0), (0.02, 0.5)])
def test_integrated_moments_equal_the_binomial_sum(rate: float, z: float) -> None:
    """Two derivations that share no code: numerical integration here, the closed form there."""
    moments = MomentsAccountant().price(Sampled(Poisson(rate), Gaussian(z)), ADD_REMOVE)
    orders = tuple(range(2, LARGEST_MOMENT + 2))
    closed = [rdp * (a - 1) for a, rdp in zip(orders, poisson_gaussian_rdp(rate, z, orders), strict=True)]
    assert list(moments.values) == pytest.approx(closed, rel=1e-8, abs=1e-12)
    assert all(ours >= theirs for ours, theirs in zip(moments.values, closed, strict=True)), "rounded up"


def test_full_batch_has_the_gaussian_moments() -> None:
    moments = MomentsAccountant().price(Gaussian(2.0), ADD_REMOVE)
    assert list(moments.values) == pytest.approx([k * (k + 1) / 8 for k in range(1, LARGEST_MOMENT + 1)])


def test_the_mirror_image_is_computed_too() -> None:
    """E_Q[(Q/P)^l] is never the larger one for a sampled Gaussian, but it is not taken on trust."""
    for order in (1.0, 5.0, 32.0):
        mirrored = log_mixture_moment(0.2, 1.5, 1.0, 0.0, -order)
        assert 0 < mirrored < log_mixture_moment(0.2, 1.5, 1.0, 0.0, order + 1)


def test_a_grid_too_large_is_an_infinite_moment_not_a_wrong_one() -> None:
    assert log_mixture_moment(0.1, 1e-3, 1.0, 0.0, 33.0) == math.inf
