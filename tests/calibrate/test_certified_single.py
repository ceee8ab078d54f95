"""One release in closed form, few rounds with little noise, and rare large losses: certified, small and quick."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

from calibrate.accountants.certified import CertifiedAccountant, single_interval
from calibrate.accountants.grid import optimistic_with_merged_bulk
from calibrate.accountants.losses import GaussianLoss, MixedGaussianLoss, PrivacyLossLaw
from calibrate.accountants.registry import PairCounts
from calibrate.accountants.sampled_losses import (
    LargerOfBothDirections,
    SubsampledAddition,
    SubsampledRemoval,
    SubsampledReplacement,
)
from calibrate.accountants.support import (
    FixedSizeReplacePair,
    GaussianPair,
    LaplacePair,
    MixedGaussianPair,
    PricedPair,
    RandomizedResponsePair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
)

Mixture = tuple[tuple[float, float], ...]


def mixtures(pair: PricedPair) -> tuple[Mixture, Mixture, float]:
    """P and Q as (weight, mean) and their deviation; for fixed size the direction that is larger for e >= 0."""
    match pair:
        case GaussianPair(mu):
            return ((1.0, mu),), ((1.0, 0.0),), 1.0
        case SubsampledGaussianPair(q, z) | FixedSizeReplacePair(q, z):
            return ((1 - q, 0.0), (q, 1.0)), ((1.0, 0.0),), z
        case SubsampledReplacePair(q, z):
            return ((1 - q, 0.0), (q, 1.0)), ((1 - q, 0.0), (q, -1.0)), z
        case _:
            raise AssertionError(pair)


def exact_delta(pair: PricedPair, epsilon: float) -> float:
    """P(x > t) - e^eps Q(x > t) at the threshold t where the likelihood ratio is e^eps, with 60 digits."""
    p, q, z = mixtures(pair)
    with mp.workdps(60):

        def excess(x: mp.mpf) -> mp.mpf:
            densities = [mp.fsum(mp.mpf(w) * mp.npdf(x, m, z) for w, m in side) for side in (p, q)]
            return mp.log(densities[0]) - mp.log(densities[1]) - mp.mpf(epsilon)

        low, high = mp.mpf(-60 * z), mp.mpf(1 + 60 * z + 60 * z * z * (1 + epsilon))
        for _ in range(220):
            middle = (low + high) / 2
            low, high = (low, middle) if excess(middle) > 0 else (middle, high)
        tails = [mp.fsum(mp.mpf(w) * mp.ncdf((m - low) / z) for w, m in side) for side in (p, q)]
        return float(tails[0] - mp.exp(mp.mpf(epsilon)) * tails[1])


@pytest.mark.parametrize(
    "pair",
    [
        GaussianPair(0.7),
        *(kind(q, z) for kind in (SubsampledGaussianPair, SubsampledReplacePair) for q, z in ((0.2, 0.3), (1e-6, 0.3))),
        SubsampledGaussianPair(0.01, 0.05),
        SubsampledReplacePair(0.3, 5.0),
        SubsampledReplacePair(1.0, 4.0),
        FixedSizeReplacePair(0.1, 1.5),
        SubsampledReplacePair(0.9, 0.1),
        SubsampledReplacePair(1e-4, 100.0),
    ],
)
@pytest.mark.parametrize("delta", [1e-3, 1e-12, 1e-30])
def test_one_release_is_priced_to_ten_digits(pair: PricedPair, delta: float) -> None:
    if isinstance(pair, SubsampledGaussianPair | SubsampledReplacePair | FixedSizeReplacePair) and pair.rate <= delta:
        assert single_interval(pair, delta).lower == 0
        return
    found = single_interval(pair, delta)
    assert found.upper <= found.lower * (1 + 1e-9) + 1e-15
    if found.upper > 0:
        assert exact_delta(pair, found.lower) >= delta * (1 - 1e-12)
        assert exact_delta(pair, found.upper) <= delta * (1 + 1e-12)
    assert CertifiedAccountant().epsilon(PairCounts(((pair, 1),)), delta).overlaps(found)


def test_closed_forms_without_a_gaussian() -> None:
    assert single_interval(LaplacePair(0.5), 1e-3).upper == pytest.approx(2 + 2 * math.log1p(-1e-3), rel=1e-12)
    assert single_interval(LaplacePair(5.0), 0.3).upper == pytest.approx(0, abs=1e-14)
    response = single_interval(RandomizedResponsePair(1.0, 3), 1e-2).upper
    assert math.exp(response) == pytest.approx(math.e - 1e-2 * (math.e + 2), rel=1e-12)
    mixed = single_interval(MixedGaussianPair(((0.9, 0.0), (0.1, 1.0))), 1e-5)
    alone = single_interval(GaussianPair(1.0), 1e-4)
    assert mixed.upper == pytest.approx(alone.upper, rel=1e-9)


@pytest.mark.parametrize(
    ("z", "rate", "times", "delta"),
    [
        (0.3, 0.2, 1, 1e-12),
        (0.3, 0.01, 1, 1e-10),
        (0.05, 0.01, 1, 1e-10),
        (0.3, 0.2, 2, 1e-12),
        (0.3, 1e-6, 5, 1e-10),
        (0.05, 0.01, 2, 1e-10),
    ],
)
def test_few_rounds_with_little_noise_are_answered_within_a_thousandth(
    z: float, rate: float, times: int, delta: float
) -> None:
    found = CertifiedAccountant().epsilon(PairCounts(((SubsampledGaussianPair(rate, z), times),)), delta)
    assert found.upper <= found.lower * 1.001
    once = single_interval(SubsampledGaussianPair(rate, z), delta)
    assert once.lower <= found.upper
    assert found.lower <= times * single_interval(SubsampledGaussianPair(rate, z), delta / 2**times).upper


@pytest.mark.parametrize(
    "law",
    [
        SubsampledRemoval(1e-8, 0.05),
        SubsampledRemoval(0.5, 100.0),
        SubsampledAddition(0.2, 0.3),
        SubsampledAddition(0.999, 0.05),
        SubsampledReplacement(1e-6, 0.05),
        LargerOfBothDirections(1e-6, 0.05),
        GaussianLoss(20.0),
        MixedGaussianLoss.of(((0.9, 0.0), (0.1, 20.0))),
    ],
)
@pytest.mark.parametrize("tilt", [1.0, 1e3, 1e7])
def test_the_number_of_quadrature_nodes_has_a_cap_whatever_the_tilt(law: PrivacyLossLaw, tilt: float) -> None:
    largest = law.span(-100.0)[1]
    nodes = law.nodes(tilt, largest)
    assert len(nodes.losses) < 300_000
    everything = law.nodes(1.0)
    kept = everything.losses <= largest
    mass, expected = (
        float(np.exp(each).sum()) for each in (nodes.log_weights[nodes.losses <= largest], everything.log_weights[kept])
    )
    assert mass == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "z"), [(1e-8, 0.1), (1e-5, 0.3), (3e-5, 0.86)])
@pytest.mark.parametrize("step", [1e-3, 1e-2, 0.1])
def test_merging_the_bulk_never_raises_the_profile(rate: float, z: float, step: float) -> None:
    law = SubsampledRemoval(rate, z)
    span = law.span(-60.0)
    merged = optimistic_with_merged_bulk(law, law.nodes(5.0, span[1]), span, step, 5.0, step)
    if merged is None:
        assert span[1] < 8 * step
        return
    assert merged.offset < 0
    losses = merged.offset + merged.index * step
    pair = SubsampledGaussianPair(rate, z)
    for epsilon in (1e-9, 1e-6, step / 3, step, 3.3 * step, 0.3 * span[1], 0.8 * span[1]):
        profile = float(merged.mass @ np.maximum(-np.expm1(epsilon - losses), 0.0))
        assert profile <= exact_delta(pair, epsilon) * (1 + 1e-9)


def _replaced(rate: float, z: float, epsilon: float) -> mp.mpf:
    """delta of one Poisson batch under replace-one, with 60 digits: the losses at a threshold found by halving."""
    with mp.workdps(60):
        q, mu, log_factor = mp.mpf(rate), 1 / mp.mpf(z), mp.mpf(epsilon)
        low, high = mp.mpf(0), mp.mpf(10) ** 5
        for _ in range(260):
            u = (low + high) / 2
            above, below = (1 - q + q * mp.exp(sign * mu * u - mu * mu / 2) for sign in (1, -1))
            low, high = (u, high) if mp.log(above) - mp.log(below) < log_factor else (low, u)
        tail, near, far = (mp.erfc((low + shift) / mp.sqrt(2)) / 2 for shift in (0, -mu, mu))
        with_unit, without = q * near + (1 - q) * tail, q * far + (1 - q) * tail
        return with_unit - mp.exp(log_factor) * without


@pytest.mark.parametrize("z", [0.01, 0.02, 0.05, 0.5])
@pytest.mark.parametrize(("rate", "delta"), [(0.1, 1e-30), (1e-6, 1e-30), (0.9, 1e-5)])
def test_a_replaced_unit_with_next_to_no_noise_is_not_priced_too_low(z: float, rate: float, delta: float) -> None:
    interval = single_interval(SubsampledReplacePair(rate, z), delta)
    assert _replaced(rate, z, interval.upper) <= delta
    assert _replaced(rate, z, interval.lower) >= delta
    assert interval.upper - interval.lower <= 1e-9 * interval.upper
