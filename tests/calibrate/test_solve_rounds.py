"""Solving for rounds and for the sampling rate."""

from __future__ import annotations

import pytest

from calibrate.accountants.certified import CertifiedAccountant
from calibrate.accountants.registry import epsilon_of
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Relation
from calibrate.questions import Solved, price, rounds, solve_missing
from calibrate.releases import Gaussian, InSequence, Release, Repeated, Sampled, Together
from calibrate.sampling import FixedSize, Poisson
from calibrate.solve import solve_rounds

ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)
REPLACE_ONE = PrivacyUnit.of(Relation.REPLACE_ONE)
TARGET = EpsilonDelta(2.0, 1e-5)


def epsilon(release: Release, unit: PrivacyUnit = ADD_REMOVE) -> float:
    return epsilon_of(CertifiedAccountant(1e-6), release, unit, 1e-5).upper


def most_rounds(per_round: Release, unit: PrivacyUnit = ADD_REMOVE, most: int = 10**9) -> int:
    return solve_rounds(lambda rounds: Repeated(per_round, rounds), unit, TARGET, most)


class TestRounds:
    @pytest.mark.parametrize("z", [1.0, 1.5, 2.5])
    def test_one_more_round_breaks_the_target(self, z: float) -> None:
        per_round = Sampled(Poisson(0.05), Gaussian(z))
        found = most_rounds(per_round)
        assert epsilon(Repeated(per_round, found)) <= 2.0 < epsilon(Repeated(per_round, found + 1))

    def test_what_is_published_once_is_paid_for(self) -> None:
        per_round, once = Sampled(Poisson(0.05), Gaussian(1.5)), Gaussian(4.0)

        def beside(rounds: int) -> Release:
            return InSequence((once, Repeated(per_round, rounds)))

        found = solve_rounds(beside, ADD_REMOVE, TARGET)
        assert found < most_rounds(per_round)
        assert epsilon(beside(found)) <= 2.0

    def test_charging_a_second_value_of_the_batch_costs_rounds(self) -> None:
        """FedFDP's setting: the loss with multiplier 5 beside the gradient with multiplier 2, q = 0.05."""
        both = Sampled(Poisson(0.05), Together((Gaussian(2.0), Gaussian(5.0))))
        assert (most_rounds(Sampled(Poisson(0.05), Gaussian(2.0))), most_rounds(both)) == (321, 265)

    def test_plain_gaussians(self) -> None:
        found = most_rounds(Gaussian(20.0))
        assert epsilon(Repeated(Gaussian(20.0), found)) <= 2.0 < epsilon(Repeated(Gaussian(20.0), found + 1))

    def test_fixed_size_rounds_are_on_the_safe_side_of_the_gap(self) -> None:
        per_round = Sampled(FixedSize(1000, 10), Gaussian(3.0))
        found = most_rounds(per_round, REPLACE_ONE)
        accountant = CertifiedAccountant()
        assert epsilon_of(accountant, Repeated(per_round, found), REPLACE_ONE, 1e-5).upper <= 2.0 * (1 + 1e-5)
        assert epsilon_of(accountant, Repeated(per_round, found + 1), REPLACE_ONE, 1e-5).upper > 2.0

    def test_no_more_than_asked(self) -> None:
        assert most_rounds(Gaussian(200.0), most=7) == 7

    def test_not_even_one_round(self) -> None:
        assert most_rounds(Gaussian(0.5)) == 0
        with pytest.raises(InvalidInput, match="in its first round"):
            rounds(epsilon=2.0, delta=1e-5, noise_multiplier=0.5)

    def test_rounds_that_cost_next_to_nothing_are_not_counted_for_ever(self) -> None:
        assert rounds(epsilon=2.0, delta=1e-5, noise_multiplier=1e9) == 10**12


class TestRate:
    def test_rate_is_safe_and_nearly_largest(self) -> None:
        kind, rate, described = solve_missing(2.0, 1e-5, (1.5,), 200)

        def at(rate: float) -> Release:
            return Repeated(Sampled(Poisson(rate), Gaussian(1.5)), 200)

        assert kind is Solved.RATE
        assert price(described, 1e-5)[0].upper <= 2.0
        assert epsilon(at(rate)) <= 2.0 * (1 + 1e-5)
        assert epsilon(at(rate * 1.001)) > 2.0

    def test_all_of_it(self) -> None:
        assert solve_missing(2.0, 1e-5, (50.0,), 1)[1] == 1.0

    def test_no_rate_is_small_enough(self) -> None:
        with pytest.raises(InvalidInput, match="already at a sampling rate of 1e-06"):
            solve_missing(1e-4, 1e-12, (0.1,), 10**6)

    def test_only_what_is_left_out_can_be_solved_for(self) -> None:
        with pytest.raises(InvalidInput, match="nothing to solve for"):
            solve_missing(2.0, 1e-5, (1.5,), 200, sampling_rate=0.1)
        with pytest.raises(InvalidInput, match="Poisson batches only"):
            solve_missing(2.0, 1e-5, (1.5,), 200, sampling="shuffled")


@pytest.mark.parametrize("z", [1.0, 2.0])
def test_rounds_left_out_are_the_most_of_the_release(z: float) -> None:
    kind, most, described = solve_missing(2.0, 1e-5, (z,), None, sampling_rate=0.05)
    assert kind is Solved.ROUNDS
    assert most == described.rounds == most_rounds(Sampled(Poisson(0.05), Gaussian(z)))
    assert most == rounds(epsilon=2.0, delta=1e-5, noise_multiplier=z, sampling_rate=0.05)


def test_random_allocation_is_solved_in_whole_epochs() -> None:
    _, most, described = solve_missing(2.0, 1e-5, (1.5,), None, sampling="random-allocation", batches=20)
    assert most % 20 == 0
    assert price(described, 1e-5)[0].upper <= 2.0
    with pytest.raises(InvalidInput, match="in its first round"):
        solve_missing(0.1, 1e-5, (0.5,), None, sampling="random-allocation", batches=20)
