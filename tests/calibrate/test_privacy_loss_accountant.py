"""Loss distributions bracket the true hockey-stick curve of every pair, and what the composition does with them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from calibrate.accountants.gaussian import gaussian_epsilon
from calibrate.accountants.pld import PrivacyLossAccountant, optimistic_loss, pessimistic_loss
from calibrate.accountants.registry import PairCounts
from calibrate.accountants.support import (
    DominatingPair,
    FixedSizeReplacePair,
    Free,
    GaussianPair,
    LaplacePair,
    MixedGaussianPair,
    RandomizedResponsePair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
)
from calibrate.errors import InvalidInput, NotCertified
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.releases import Gaussian, Repeated, Sampled
from calibrate.sampling import Poisson

STEP = 0.01
EPSILONS = (0.0, 0.003, 0.1, 0.55, 1.0, 2.0)
X = np.linspace(-40.0, 40.0, 400_001)


def normal(mean: float, deviation: float) -> np.ndarray:
    return np.exp(-(((X - mean) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """Plain integration of (p - exp(epsilon) q)+ on a fine line; shares nothing with the code under test."""
    return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)) * (X[1] - X[0]))


def sampled(rate: float, z: float, mean: float = 1.0) -> np.ndarray:
    return (1 - rate) * normal(0, z) + rate * normal(mean, z)


def true_delta(pair: DominatingPair, epsilon: float) -> float:
    """The larger of both directions."""
    match pair:
        case GaussianPair(mu):
            return hockey_stick(normal(mu, 1), normal(0, 1), epsilon)
        case SubsampledGaussianPair(rate, z) | FixedSizeReplacePair(rate, z):
            pairs = (sampled(rate, z), normal(0, z))
            return max(hockey_stick(*pairs, epsilon), hockey_stick(*pairs[::-1], epsilon))
        case SubsampledReplacePair(rate, z):
            return hockey_stick(sampled(rate, z), sampled(rate, z, -1.0), epsilon)
        case MixedGaussianPair(components):
            return sum(w * hockey_stick(normal(mu, 1), normal(0, 1), epsilon) for w, mu in components)
        case LaplacePair(scale):
            return max(0.0, -math.expm1((epsilon - 1 / scale) / 2))
        case RandomizedResponsePair(own, categories):
            return max(0.0, math.exp(own) - math.exp(epsilon)) / (math.exp(own) + categories - 1)
        case _:
            raise AssertionError(pair)


PAIRS = (
    GaussianPair(0.7),
    SubsampledGaussianPair(0.1, 0.8),
    SubsampledGaussianPair(0.6, 2.0),
    SubsampledReplacePair(0.1, 0.8),
    SubsampledReplacePair(0.6, 2.0),
    FixedSizeReplacePair(0.1, 0.8),
    MixedGaussianPair(((0.8, 0.0), (0.15, 0.6), (0.05, 1.2))),
    LaplacePair(0.77),
    RandomizedResponsePair(1.234, 4),
)


@pytest.mark.parametrize("pair", PAIRS, ids=repr)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_both_sides_bracket_the_true_curve(pair: DominatingPair, epsilon: float) -> None:
    exact = true_delta(pair, epsilon)
    above = float(pessimistic_loss(pair, STEP).get_delta_for_epsilon(epsilon))
    below = float(optimistic_loss(pair, STEP).get_delta_for_epsilon(epsilon))
    assert above >= exact - 1e-9
    assert below <= exact + 1e-9
    assert above - below <= 2 * STEP, "and closely"


def composed_truth(mu: float, times: int, epsilon: float) -> float:
    total = mu * math.sqrt(times)
    return hockey_stick(normal(total, 1), normal(0, 1), epsilon)


@pytest.mark.parametrize("times", [2, 17, 100])
def test_composed_sides_bracket_a_composition_known_exactly(times: int) -> None:
    above = pessimistic_loss(GaussianPair(0.2), STEP).self_compose(times)
    below = optimistic_loss(GaussianPair(0.2), STEP).self_compose(times)
    for epsilon in (0.2, 1.0, 2.5):
        exact = composed_truth(0.2, times, epsilon)
        assert below.get_delta_for_epsilon(epsilon) - 1e-9 <= exact <= above.get_delta_for_epsilon(epsilon) + 1e-9


def test_merging_loses_far_less_than_rounding_down() -> None:
    """dp-accounting's optimistic estimate at the same step loses half a step a round."""
    from dp_accounting.pld import privacy_loss_distribution

    rounded = privacy_loss_distribution.from_gaussian_mechanism(
        5.0, pessimistic_estimate=False, value_discretization_interval=STEP, use_connect_dots=False
    ).self_compose(100)
    exact = PrivacyLossAccountant().epsilon(PairCounts(((GaussianPair(0.2), 100),)), 1e-5).upper
    merged = optimistic_loss(GaussianPair(0.2), STEP).self_compose(100).get_epsilon_for_delta(1e-5)
    assert exact - merged < 0.05 * (exact - rounded.get_epsilon_for_delta(1e-5))


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.5])
def test_fixed_size_curve_is_the_pointwise_maximum_and_symmetric(epsilon: float) -> None:
    pair = FixedSizeReplacePair(0.2, 0.9)
    curve = pessimistic_loss(pair, 0.001)
    p, q = sampled(0.2, 0.9), normal(0, 0.9)
    for e in (epsilon, -epsilon):
        maximum = max(hockey_stick(p, q, e), hockey_stick(q, p, e))
        assert float(curve.get_delta_for_epsilon(e)) == pytest.approx(maximum, abs=2e-4)


def test_a_coarser_grid_gives_a_wider_interval_around_the_same_truth() -> None:
    release = Repeated(Sampled(Poisson(0.1), Gaussian(1.0)), 30)
    unit = PrivacyUnit.of(Relation.ADD_REMOVE)
    fine, coarse = PrivacyLossAccountant(1e-3), PrivacyLossAccountant(3e-2)
    cost = fine.self_compose(fine.price(release.release, unit), 30)  # type: ignore[arg-type]
    narrow, wide = fine.epsilon(cost, 1e-5), coarse.epsilon(cost, 1e-5)
    assert wide.lower < narrow.lower <= narrow.upper < wide.upper


def test_losses_beyond_the_exponential_never_give_a_false_lower_bound() -> None:
    """Where exp(-loss) underflows dp-accounting returns a loss, which exceeds the true epsilon."""
    pair = LaplacePair(0.585619076142995)
    interval = PrivacyLossAccountant().epsilon(PairCounts(((pair, 959),)), 3.545e-4)
    assert interval.lower <= 971.45 <= interval.upper


def test_free_has_no_distribution() -> None:
    for build in (pessimistic_loss, optimistic_loss):
        with pytest.raises(NotCertified):
            build(Free(), STEP)


def test_interval_must_be_positive() -> None:
    with pytest.raises(InvalidInput, match="discretization"):
        PrivacyLossAccountant(0.0)


def test_blocks_of_a_long_composition_add_up_to_every_round() -> None:
    """200 blocks of 200 rounds and a rest: the exact answer for 40,009 rounds lies inside, for 40,000 outside."""
    mu, rounds = 0.001, 40_009
    pair = SubsampledGaussianPair(1 - 1e-12, 1 / mu)
    interval = PrivacyLossAccountant().epsilon(PairCounts(((pair, rounds),)), 1e-5)
    exact = gaussian_epsilon(mu * math.sqrt(rounds), 1e-5)
    assert interval.lower <= exact * (1 + 1e-7)
    assert exact * (1 - 1e-7) <= interval.upper
    assert interval.upper - interval.lower < 1e-4
    assert interval.lower > gaussian_epsilon(mu * math.sqrt(40_000), 1e-5)
