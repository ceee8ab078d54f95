"""Solving for noise: the factor is safe, nearly smallest, and certified on both sides; any accountant can be used."""

from __future__ import annotations

import math

import pytest

from calibrate.accountants.certified import CertifiedAccountant
from calibrate.accountants.gaussian import GaussianAccountant, gaussian_mu
from calibrate.accountants.registry import epsilon_of
from calibrate.errors import InvalidInput, NotCertified, UnsupportedCombination
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit, Relation
from calibrate.questions import epsilon as priced
from calibrate.questions import rounds as most_rounds
from calibrate.questions import sigma
from calibrate.releases import (
    Gaussian,
    InSequence,
    Laplace,
    NonPrivate,
    RandomizedResponse,
    Release,
    Repeated,
    Sampled,
    Together,
    scale_noise,
)
from calibrate.sampling import Batch, FixedSize, Poisson, ShuffledEpochs, WithReplacement
from calibrate.solve import Certificate, solve_noise
from tests.calibrate.bisection_oracle import solve_noise_with

ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)
REPLACE_ONE = PrivacyUnit.of(Relation.REPLACE_ONE)
REPLACE_ATTRIBUTE = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE)
TARGET = EpsilonDelta(1.0, 1e-5)
FINE = CertifiedAccountant(1e-6)


def dp_sgd(rate: float, rounds: int, z: float = 1.0) -> Release:
    return Repeated(Sampled(Poisson(rate), Gaussian(z)), rounds)


TEMPLATES = {
    "Poisson, add-remove": (dp_sgd(0.01, 1000), ADD_REMOVE),
    "Poisson, replace-one": (dp_sgd(0.01, 1000), REPLACE_ONE),
    "few participations": (dp_sgd(0.001, 50), ADD_REMOVE),
    "two values of a batch": (
        Repeated(Sampled(Poisson(0.05), Together((Gaussian(1.0), Gaussian(2.5)))), 100),
        ADD_REMOVE,
    ),
    "revealed": (Repeated(Sampled(Poisson(0.05, Batch.REVEALED), Gaussian(1.0)), 200), REPLACE_ATTRIBUTE),
    "with replacement": (Repeated(Sampled(WithReplacement(1000, 50), Gaussian(1.0)), 200), REPLACE_ATTRIBUTE),
    "laplace": (Repeated(Laplace(1.0), 40), ADD_REMOVE),
    "one laplace": (Laplace(1.0), ADD_REMOVE),
    "mixed": (
        InSequence((dp_sgd(0.02, 200), Gaussian(5.0), RandomizedResponse(0.1, 3), Repeated(Laplace(30.0), 4))),
        REPLACE_ONE,
    ),
}


@pytest.mark.parametrize(("template", "unit"), TEMPLATES.values(), ids=TEMPLATES.keys())
def test_factor_is_safe_and_nearly_smallest(template: Release, unit: PrivacyUnit) -> None:
    solved = solve_noise(template, unit, TARGET)
    assert solved.factor_lower < solved.factor
    assert solved.gap < 5e-4
    assert solved.release == scale_noise(template, solved.factor)
    assert epsilon_of(FINE, solved.release, unit, TARGET.delta).upper <= TARGET.epsilon * (1 + 1e-9)
    broken = scale_noise(template, solved.factor_lower)
    assert epsilon_of(FINE, broken, unit, TARGET.delta).lower > TARGET.epsilon * (1 - 1e-9)
    assert solved.certified.upper == TARGET.epsilon
    assert TARGET.epsilon * (1 - 5e-3) < solved.certified.lower <= TARGET.epsilon


def test_the_template_scale_does_not_matter() -> None:
    small, large = (solve_noise(dp_sgd(0.01, 1000, z), ADD_REMOVE, TARGET) for z in (0.01, 100.0))
    assert small.factor * 0.01 == pytest.approx(large.factor * 100.0, rel=3e-5)


def test_upper_certificate_alone_gives_the_same_factor() -> None:
    quick = solve_noise(dp_sgd(0.01, 1000), ADD_REMOVE, TARGET, Certificate.UPPER)
    full = solve_noise(dp_sgd(0.01, 1000), ADD_REMOVE, TARGET, Certificate.TWO_SIDED)
    assert quick.factor == full.factor
    assert quick.factor_lower == 0
    assert quick.certified.lower == 0
    assert quick.gap == math.inf


@pytest.mark.parametrize("tolerance", [1e-3, 1e-4, 1e-6])
def test_tolerance_decides_the_gap(tolerance: float) -> None:
    solved = solve_noise(dp_sgd(0.01, 1000), ADD_REMOVE, TARGET, tolerance=tolerance)
    assert 0.2 * tolerance < solved.gap < 4 * tolerance


def test_plain_gaussians_are_solved_exactly() -> None:
    solved = solve_noise(Repeated(Gaussian(1.0), 9), ADD_REMOVE, TARGET)
    assert solved.factor == pytest.approx(3 / gaussian_mu(1.0, 1e-5), rel=1e-12)
    assert solved.gap < 1e-11
    epochs = Repeated(Sampled(ShuffledEpochs(7500, 256), Gaussian(1.0)), 40)
    assert solve_noise(epochs, REPLACE_ATTRIBUTE, TARGET).gap < 1e-11


def test_fixed_size_reports_its_honest_gap() -> None:
    template = Repeated(Sampled(FixedSize(100, 1), Gaussian(1.0)), 1000)
    solved = solve_noise(template, REPLACE_ONE, TARGET)
    assert 0.05 < solved.gap < 0.3
    assert epsilon_of(FINE, solved.release, REPLACE_ONE, 1e-5).upper <= 1.0
    assert epsilon_of(FINE, scale_noise(template, solved.factor_lower), REPLACE_ONE, 1e-5).lower > 1.0 - 1e-9


@pytest.mark.parametrize("delta", [1e-10, 1e-20, 1e-30])
def test_any_delta_down_to_1e_30(delta: float) -> None:
    solved = solve_noise(dp_sgd(0.01, 1000), ADD_REMOVE, EpsilonDelta(1.0, delta))
    assert solved.gap < 1e-4
    assert epsilon_of(FINE, solved.release, ADD_REMOVE, delta).upper <= 1.0


def test_where_any_noise_will_do() -> None:
    """A unit that hardly ever takes part is protected by that alone, up to delta."""
    solved = solve_noise(dp_sgd(1e-7, 10), ADD_REMOVE, TARGET, Certificate.UPPER)
    assert solved.factor < 0.05
    assert solved.factor_lower == 0


class TestOtherAccountants:
    def test_bisection_meets_the_target_with_any_accountant(self) -> None:
        solved = solve_noise_with(GaussianAccountant(), Repeated(Gaussian(1.0), 4), ADD_REMOVE, TARGET)
        exact = 2 / gaussian_mu(1.0, 1e-5)
        assert exact <= solved.factor <= exact * (1 + 1e-4)
        assert exact * (1 - 1e-4) <= solved.factor_lower <= exact
        assert solved.certified.upper <= TARGET.epsilon
        assert solved.accountant == "gaussian"

    def test_bisection_agrees_with_the_search(self) -> None:
        template = dp_sgd(0.02, 300)
        slow = solve_noise_with(CertifiedAccountant(), template, ADD_REMOVE, TARGET)
        fast = solve_noise(template, ADD_REMOVE, TARGET)
        assert slow.factor == pytest.approx(fast.factor, rel=2e-4)

    def test_bisection_gives_up_by_name(self) -> None:
        template = InSequence((RandomizedResponse(3.0, 2), Gaussian(1.0)))
        with pytest.raises(NotCertified, match="no noise factor"):
            solve_noise_with(CertifiedAccountant(1e-2), template, REPLACE_ATTRIBUTE, TARGET)


class TestRefusals:
    def test_a_target_that_fixed_parts_already_break(self) -> None:
        template = InSequence((RandomizedResponse(3.0, 2), Gaussian(1.0)))
        with pytest.raises(NotCertified, match="no noise factor"):
            solve_noise(template, REPLACE_ATTRIBUTE, TARGET)

    def test_in_the_clear(self) -> None:
        template = InSequence((NonPrivate("exact counts", depends_on_unit=True), Gaussian(1.0)))
        with pytest.raises(NotCertified, match="in the clear"):
            solve_noise(template, ADD_REMOVE, TARGET)

    @pytest.mark.parametrize("template", [RandomizedResponse(0.1, 2), NonPrivate("x", depends_on_unit=False)])
    def test_nothing_to_solve_for(self, template: Release) -> None:
        with pytest.raises(InvalidInput, match="no Gaussian or Laplace noise"):
            solve_noise(template, REPLACE_ATTRIBUTE, TARGET)

    def test_unsupported_combination(self) -> None:
        template = Sampled(WithReplacement(10, 2), Gaussian(1.0))
        with pytest.raises(UnsupportedCombination):
            solve_noise(template, ADD_REMOVE, TARGET)

    @pytest.mark.parametrize("tolerance", [0.0, -1e-5, math.nan])
    def test_bad_tolerance(self, tolerance: float) -> None:
        with pytest.raises(InvalidInput):
            solve_noise(Gaussian(1.0), ADD_REMOVE, TARGET, tolerance=tolerance)


@pytest.mark.parametrize("loss_noise_ratio", [1.0, 2.5])
def test_a_unit_that_hardly_ever_takes_part_needs_no_noise(loss_noise_ratio: float) -> None:
    """delta is at most the chance of taking part: 6 rounds at 1e-9 are far below 1e-5."""
    both = Together((Gaussian(1.0), Gaussian(loss_noise_ratio)))
    template = Repeated(Sampled(Poisson(1e-9), both), 6)
    solved = solve_noise(template, ADD_REMOVE, EpsilonDelta(8.0, 1e-5))
    assert solved.factor < 0.05
    assert solved.certified.lower == 0
    assert epsilon_of(CertifiedAccountant(), solved.release, ADD_REMOVE, 1e-5).upper == 0


NARROW = 1e-4
ONE_CERTIFICATE = [
    (1.58e-6, 799_679, 1e-8, 0.01311),
    (1.28e-4, 187, 1e-3, 0.1693),
    (1.45e-8, 1, 9e-27, 3.928),
    (3.57e-7, 6, 9.57e-13, 0.0302),
    (1.0, 163_208, 1.97e-9, 0.00294),
    (0.013, 20_000, 1e-6, 3.0),
    (0.4, 12, 1e-4, 60.0),
]
"""Rate, rounds, delta and epsilon, most of which one search answered with noise that another bound refused."""


@pytest.mark.parametrize(("rate", "rounds", "delta", "epsilon"), ONE_CERTIFICATE)
def test_one_certificate_answers_noise_and_epsilon(rate: float, rounds: int, delta: float, epsilon: float) -> None:
    noise = sigma(epsilon=epsilon, delta=delta, sampling_rate=rate, rounds=rounds)
    at, below = (
        priced(noise_multiplier=z, delta=delta, sampling_rate=rate, rounds=rounds)
        for z in (noise, noise * (1 - NARROW))
    )
    assert at.upper <= epsilon < below.upper


@pytest.mark.parametrize(("rate", "rounds", "delta", "epsilon"), ONE_CERTIFICATE[1:4])
def test_one_certificate_answers_rounds_and_epsilon(rate: float, rounds: int, delta: float, epsilon: float) -> None:
    noise = sigma(epsilon=epsilon, delta=delta, sampling_rate=rate, rounds=rounds)
    found = most_rounds(epsilon=epsilon, delta=delta, sampling_rate=rate, noise_multiplier=noise)
    assert found >= rounds
    more = priced(noise_multiplier=noise, delta=delta, sampling_rate=rate, rounds=2 * found)
    assert more.upper > epsilon


def test_no_noise_is_needed_where_delta_exceeds_the_chance_of_taking_part() -> None:
    noise = sigma(epsilon=0.01, delta=1e-3, sampling_rate=1e-6, rounds=100)
    assert priced(noise_multiplier=noise, delta=1e-3, sampling_rate=1e-6, rounds=100) == EpsilonInterval(0, 0)
