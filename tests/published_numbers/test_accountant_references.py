"""Numbers that others published or that were derived independently; each accountant meets the ones it speaks of.

Sources: Abadi et al. 2016 (moments accountant); Balle and Wang 2018 (analytic Gaussian); FedFDP (Ling et al.),
Section VIII and Theorem 2 (rounds at epsilon 2); FPFL (Rodriguez-Galvez et al.), Algorithm 1 (Adult, 16,280 users);
SteFFLe (Gupta et al.), Theorem 3.3 (Credit Card, 7,500 records a silo); google/differential-privacy#378
(replace-one moves a clipped sum by two bounds).
"""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq

from calibrate.accountants.gaussian import gaussian_mu
from calibrate.accountants.registry import AccountantName, best_epsilon, price
from calibrate.accountants.renyi import epsilon_from_rdp, poisson_gaussian_rdp, rdp_of_pair
from calibrate.accountants.support import FixedSizeReplacePair
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit, Relation
from calibrate.releases import Gaussian, InSequence, RandomizedResponse, Release, Repeated, Sampled, Together
from calibrate.sampling import Batch, FixedSize, Poisson, ShuffledEpochs

A = AccountantName
ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)
REPLACE_ONE = PrivacyUnit.of(Relation.REPLACE_ONE)
REPLACE_ATTRIBUTE = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE)
TWO_SIDED = (A.CERTIFIED, A.PLD)


def dp_sgd(rate: float, rounds: int, *noise: float) -> Release:
    return Repeated(Sampled(Poisson(rate), Together(tuple(map(Gaussian, noise)))), rounds)


def interval(name: AccountantName, release: Release, unit: PrivacyUnit, delta: float) -> EpsilonInterval:
    return price(name, release, unit, delta).interval


def rounds_to(value: EpsilonInterval, expected: float, digits: int) -> bool:
    """Whether both ends, rounded, are the printed number (give or take the interval's own half digit)."""
    slack = 0.55 * 10**-digits
    return abs(value.lower - expected) <= slack and abs(value.upper - expected) <= slack


class TestSampledGaussian:
    SETTING = dp_sgd(0.01, 10_000, 4.0)

    def test_moments_accountant_of_2016(self) -> None:
        assert interval(A.MOMENTS, self.SETTING, ADD_REMOVE, 1e-5).upper == pytest.approx(1.26, abs=0.005)

    @pytest.mark.parametrize("name", TWO_SIDED)
    def test_tight(self, name: AccountantName) -> None:
        assert rounds_to(interval(name, self.SETTING, ADD_REMOVE, 1e-5), 0.947, 3)

    @pytest.mark.parametrize("name", TWO_SIDED)
    @pytest.mark.parametrize(("unit", "expected"), [(ADD_REMOVE, 0.798), (REPLACE_ONE, 1.253)])
    def test_both_relations(self, name: AccountantName, unit: PrivacyUnit, expected: float) -> None:
        assert rounds_to(interval(name, dp_sgd(0.1, 10, 2.0), unit, 1e-5), expected, 3)

    @pytest.mark.parametrize("name", TWO_SIDED)
    def test_exact_sigma(self, name: AccountantName) -> None:
        at_sigma = interval(name, dp_sgd(0.01, 1000, 1.4146194), ADD_REMOVE, 1e-5)
        assert at_sigma.lower <= 1.000001
        assert at_sigma.upper == pytest.approx(1.0, abs=1e-4)

    @pytest.mark.parametrize(("delta", "expected"), [(1e-14, 2.10425), (1e-30, 4.37476)])
    def test_tiny_delta(self, delta: float, expected: float) -> None:
        answer = best_epsilon(dp_sgd(0.01, 1000, 1.41463), ADD_REMOVE, delta)
        assert answer.accountant_name is A.CERTIFIED
        assert answer.interval.upper == pytest.approx(expected, rel=2e-3)
        assert answer.interval.lower <= expected * (1 + 1e-5)

    def test_tiny_delta_is_beyond_fft_accounting(self) -> None:
        assert interval(A.PLD, dp_sgd(0.01, 1000, 1.41463), ADD_REMOVE, 1e-30).upper == math.inf


class TestAnalyticGaussian:
    def test_sigma(self) -> None:
        assert 1 / gaussian_mu(1.0, 1e-5) == pytest.approx(3.730631635, abs=1e-9)

    @pytest.mark.parametrize(
        ("epsilon", "mu"), [(0.5, 0.1422), (1.0, 0.2681), (2.0, 0.5016), (4.0, 0.9249), (8.0, 1.6660)]
    )
    def test_mu(self, epsilon: float, mu: float) -> None:
        assert gaussian_mu(epsilon, 1e-5) == pytest.approx(mu, abs=5e-5)


class TestFedFDP:
    """epsilon = 2, q = 0.05, delta = 1e-5; integer orders up to 64."""

    ORDERS = tuple(range(2, 65))
    LOSS = poisson_gaussian_rdp(0.05, 5.0, ORDERS)

    def rounds_within_two(self, rdp: list[float]) -> int:
        rounds = 0
        while epsilon_from_rdp(self.ORDERS, [(rounds + 1) * value for value in rdp], 1e-5) <= 2:
            rounds += 1
        return rounds

    @pytest.mark.parametrize(
        ("sigma", "printed", "alone", "with_loss", "cost"),
        [
            (1, 6, 6, 5, 2.00),
            (1.5, 115, 114, 108, 2.06),
            (2, 268, 267, 237, 2.13),
            (2.5, 463, 463, 379, 2.23),
            (3, 708, 702, 525, 2.35),
        ],
    )
    def test_rounds(self, sigma: float, printed: int, alone: int, with_loss: int, cost: float) -> None:
        model = list(poisson_gaussian_rdp(0.05, sigma, self.ORDERS))
        both = [a + b for a, b in zip(model, self.LOSS, strict=True)]
        assert self.rounds_within_two(model) == alone
        assert self.rounds_within_two(both) == with_loss
        at_printed = epsilon_from_rdp(self.ORDERS, [printed * value for value in both], 1e-5)
        assert at_printed == pytest.approx(cost, abs=0.0051)

    @pytest.mark.parametrize("name", TWO_SIDED)
    def test_one_batch_two_releases(self, name: AccountantName) -> None:
        alone = interval(name, dp_sgd(0.05, 268, 2.0), ADD_REMOVE, 1e-5)
        independent = InSequence((dp_sgd(0.05, 268, 2.0), dp_sgd(0.05, 268, 5.0)))
        assert rounds_to(alone, 1.818, 3)
        assert rounds_to(interval(name, independent, ADD_REMOVE, 1e-5), 1.940, 3)
        assert rounds_to(interval(name, dp_sgd(0.05, 268, 2.0, 5.0), ADD_REMOVE, 1e-5), 2.009, 3)

    @pytest.mark.parametrize("name", TWO_SIDED)
    @pytest.mark.parametrize(("sigma", "expected"), [(1.3794367, 3.5), (1.3221233, 3.759)])
    def test_same_cohort(self, name: AccountantName, sigma: float, expected: float) -> None:
        release = dp_sgd(0.05, 268, sigma, 2.5 * sigma)
        assert rounds_to(interval(name, release, ADD_REMOVE, 1e-5), expected, 3)


class TestFixedSize:
    @pytest.mark.parametrize("name", TWO_SIDED)
    def test_costs_far_more_than_poisson(self, name: AccountantName) -> None:
        fixed = Repeated(Sampled(FixedSize(100, 1), Gaussian(1.41463)), 1000)
        answer = interval(name, fixed, REPLACE_ONE, 1e-5)
        assert answer.lower == pytest.approx(4.48, abs=0.005)
        assert answer.upper == pytest.approx(5.13, abs=0.005)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", TWO_SIDED)
    @pytest.mark.parametrize(
        ("cohort", "rounds", "sigma", "lower", "upper"),
        [(200, 1000, 1.705, 2.85, 3.44), (200, 250, 1.001, 7.93, 8.45), (1000, 250, 3.959, 1.96, 2.21)],
    )
    def test_fpfl_on_adult(
        self, name: AccountantName, cohort: int, rounds: int, sigma: float, lower: float, upper: float
    ) -> None:
        """Noise from the analytical moments accountant with sensitivity C, priced with the true 2C."""
        users, orders = 16_280, tuple(float(order) for order in range(2, 65))

        def excess(noise: float) -> float:
            rdp = rdp_of_pair(FixedSizeReplacePair(cohort / users, noise), orders)
            return epsilon_from_rdp(orders, list(rounds * rdp), 1 / users) - 2

        papers = float(brentq(excess, 0.9 * sigma, 1.1 * sigma, xtol=1e-6))
        assert papers == pytest.approx(sigma, abs=5e-4)
        fixed = Repeated(Sampled(FixedSize(users, cohort), Gaussian(papers)), rounds)
        answer = interval(name, fixed, REPLACE_ONE, 1 / users)
        assert answer.lower == pytest.approx(lower, abs=0.0055)
        assert answer.upper == pytest.approx(upper, abs=0.0055)


class TestSteFFLe:
    """Credit Card: 7,500 records, batches of 256, 1,172 rounds (40 epochs), delta = 1e-5."""

    @pytest.mark.parametrize("name", [A.GAUSSIAN, A.REVEALED, A.CERTIFIED, A.PLD])
    def test_shuffled_batches_that_the_server_sees(self, name: AccountantName) -> None:
        release = Repeated(Sampled(ShuffledEpochs(7500, 256), Gaussian(3.965)), 40)
        assert rounds_to(interval(name, release, REPLACE_ATTRIBUTE, 1e-5), 7.59, 2)

    @pytest.mark.parametrize("name", [A.REVEALED, A.CERTIFIED, A.PLD])
    def test_poisson_batches_that_the_server_sees(self, name: AccountantName) -> None:
        release = Repeated(Sampled(Poisson(256 / 7500, Batch.REVEALED), Gaussian(3.965)), 1172)
        assert rounds_to(interval(name, release, REPLACE_ATTRIBUTE, 1e-5), 8.10, 2)

    def test_noise_for_the_promise(self) -> None:
        assert math.sqrt(40) / gaussian_mu(1.0, 1e-5) == pytest.approx(23.59, abs=0.005)


@pytest.mark.parametrize("name", [A.PLD, A.CERTIFIED])
def test_randomised_response_is_counted_every_time(name: AccountantName) -> None:
    """dp-accounting's event forgets the count and says 1.61; its noise parameter 0.5 of 4 is epsilon = ln 5."""
    hundred = Repeated(RandomizedResponse(math.log(5), 4), 100)
    assert rounds_to(interval(name, hundred, REPLACE_ONE, 1e-5), 123.9, 1)
