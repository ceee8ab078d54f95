"""Reference points for the exact noise of DP-SGD and its relatives, to the digits given.

Sources: the exact sigmas and the small-delta values were derived with an independent contour-integral sketch
and agree with dp-accounting's privacy-loss accountant where that is precise enough; 1.26 and 0.947 are the
setting of Abadi et al. 2016 (q = 0.01, sigma = 4, T = 10,000); the analytic Gaussian is Balle and Wang 2018; the
fixed-size settings are FPFL (Adult, 16,280 users); the revealed-batch settings are SteFFLe (Credit Card, 7,500
records a silo).
"""

from __future__ import annotations

import pytest

from calibrate.accountants.certified import CertifiedAccountant
from calibrate.accountants.registry import epsilon_of
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit, Relation
from calibrate.releases import Gaussian, InSequence, Release, Repeated, Sampled, Together
from calibrate.sampling import Batch, FixedSize, Poisson, ShuffledEpochs
from calibrate.solve import solve_noise

ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)
REPLACE_ONE = PrivacyUnit.of(Relation.REPLACE_ONE)
REPLACE_ATTRIBUTE = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE)


def dp_sgd(rate: float, rounds: int, *noise: float, batch: Batch = Batch.SECRET) -> Release:
    return Repeated(Sampled(Poisson(rate, batch), Together(tuple(map(Gaussian, noise)))), rounds)


def fixed(population: int, size: int, rounds: int, z: float) -> Release:
    return Repeated(Sampled(FixedSize(population, size), Gaussian(z)), rounds)


def interval(release: Release, unit: PrivacyUnit, delta: float) -> EpsilonInterval:
    return epsilon_of(CertifiedAccountant(1e-6), release, unit, delta)


TOGETHER = dp_sgd(0.05, 268, 1.0, 2.5)
AS_IF_INDEPENDENT = InSequence((dp_sgd(0.05, 268, 1.0), dp_sgd(0.05, 268, 2.5)))


@pytest.mark.parametrize(
    ("template", "unit", "target", "sigma", "digit"),
    [
        (dp_sgd(0.01, 1000, 1.0), ADD_REMOVE, EpsilonDelta(1.0, 1e-5), 1.4146194, 1e-7),
        (dp_sgd(0.001, 100_000, 1.0), ADD_REMOVE, EpsilonDelta(2.0, 1e-6), 0.9608010, 1e-7),
        (Gaussian(1.0), ADD_REMOVE, EpsilonDelta(1.0, 1e-5), 3.730631635, 1e-9),
        (TOGETHER, ADD_REMOVE, EpsilonDelta(3.5, 1e-5), 1.3794367, 1e-7),
        (AS_IF_INDEPENDENT, ADD_REMOVE, EpsilonDelta(3.5, 1e-5), 1.3221233, 1e-7),
        (dp_sgd(200 / 16280, 1000, 1.0), ADD_REMOVE, EpsilonDelta(2.0, 1 / 16280), 0.997, 1e-3),
    ],
    ids=["q=0.01", "q=0.001", "analytic", "same cohort", "as if independent", "FPFL with Poisson cohorts"],
)
def test_exact_sigma(template: Release, unit: PrivacyUnit, target: EpsilonDelta, sigma: float, digit: float) -> None:
    """The certified enclosure contains the printed number, and is no wider than a few units of its last digit."""
    solved = solve_noise(template, unit, target, tolerance=min(1e-5, 0.5 * digit))
    assert solved.factor_lower - 0.5 * digit <= sigma <= solved.factor + 0.5 * digit
    assert solved.factor - solved.factor_lower < 6 * digit


@pytest.mark.parametrize(
    ("release", "unit", "delta", "epsilon", "digit"),
    [
        (dp_sgd(0.01, 1000, 1.41463), ADD_REMOVE, 1e-14, 2.10425, 1e-5),
        (dp_sgd(0.01, 1000, 1.41463), ADD_REMOVE, 1e-30, 4.37476, 1e-5),
        (dp_sgd(0.01, 10_000, 4.0), ADD_REMOVE, 1e-5, 0.947, 1e-3),
        (dp_sgd(0.1, 10, 2.0), ADD_REMOVE, 1e-5, 0.798, 1e-3),
        (dp_sgd(0.1, 10, 2.0), REPLACE_ONE, 1e-5, 1.253, 1e-3),
        (dp_sgd(0.05, 268, 1.3221233, 2.5 * 1.3221233), ADD_REMOVE, 1e-5, 3.759, 1e-3),
        (dp_sgd(256 / 7500, 1172, 3.965, batch=Batch.REVEALED), REPLACE_ATTRIBUTE, 1e-5, 8.10, 1e-2),
    ],
    ids=["delta 1e-14", "delta 1e-30", "moments", "add-remove", "replace-one", "true cost", "revealed"],
)
def test_exact_epsilon(release: Release, unit: PrivacyUnit, delta: float, epsilon: float, digit: float) -> None:
    found = interval(release, unit, delta)
    assert found.lower - 0.5 * digit <= epsilon <= found.upper + 0.5 * digit
    assert found.upper - found.lower < 2 * digit


@pytest.mark.parametrize(
    ("z", "epsilon", "digit"), [(3.965, 7.59, 1e-2), (23.59, 1.000, 1e-3)], ids=["printed", "needed"]
)
def test_shuffled_epochs_with_revealed_batches(z: float, epsilon: float, digit: float) -> None:
    release = Repeated(Sampled(ShuffledEpochs(7500, 256), Gaussian(z)), 40)
    found = interval(release, REPLACE_ATTRIBUTE, 1e-5)
    assert abs(found.lower - epsilon) < 0.5 * digit
    assert abs(found.upper - epsilon) < 0.5 * digit


def test_joint_multiplier_needed_for_shuffled_epochs() -> None:
    template = Repeated(Sampled(ShuffledEpochs(7500, 256), Gaussian(1.0)), 40)
    solved = solve_noise(template, REPLACE_ATTRIBUTE, EpsilonDelta(1.0, 1e-5))
    assert solved.factor == pytest.approx(23.59, abs=5e-3)


@pytest.mark.parametrize(
    ("release", "delta", "lower", "upper"),
    [
        (fixed(100, 1, 1000, 1.41463), 1e-5, 4.48, 5.13),
        (fixed(16280, 200, 1000, 1.705), 1 / 16280, 2.85, 3.44),
        (fixed(16280, 200, 250, 1.001), 1 / 16280, 7.93, 8.45),
        (fixed(16280, 1000, 250, 3.959), 1 / 16280, 1.96, 2.21),
    ],
    ids=["q=0.01", "m=200, T=1000", "m=200, T=250", "m=1000, T=250"],
)
def test_fixed_size_intervals(release: Release, delta: float, lower: float, upper: float) -> None:
    """The printed sigmas are rounded to three decimals, which moves epsilon by up to 0.1 per cent."""
    found = interval(release, REPLACE_ONE, delta)
    assert found.lower == pytest.approx(lower, rel=2.5e-3)
    assert found.upper == pytest.approx(upper, rel=2.5e-3)
