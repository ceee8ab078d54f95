"""Solving for rounds and for the sampling rate, of a release and of a plan."""

from __future__ import annotations

import pytest

from calibrate.accountants.certified import CertifiedAccountant
from calibrate.accountants.registry import epsilon_of
from calibrate.budget import solve_parameter
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Relation
from calibrate.questions import rounds
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
        with pytest.raises(InvalidInput, match="already at rounds = 1"):
            solve_parameter("rounds", "gaussian", {"rounds": 1, "sampling-rate": 1.0}, 0.5, TARGET)

    def test_rounds_that_cost_next_to_nothing_are_not_counted_for_ever(self) -> None:
        with pytest.raises(InvalidInput, match="more than 1000000000 rounds"):
            solve_parameter("rounds", "gaussian", {"rounds": 1, "sampling-rate": 1.0}, 1e9, TARGET)


class TestRate:
    def test_rate_is_safe_and_nearly_largest(self) -> None:
        solved = solve_parameter("rate", "gaussian", {"rounds": 200, "sampling-rate": 0.5}, 1.5, TARGET)

        def at(rate: float) -> Release:
            return Repeated(Sampled(Poisson(rate), Gaussian(1.5)), 200)

        assert solved.certified.upper <= 2.0 < solved.beyond
        assert epsilon(at(solved.value)) <= 2.0 * (1 + 1e-5)
        assert epsilon(at(solved.value * 1.001)) > 2.0

    def test_all_of_it(self) -> None:
        assert solve_parameter("rate", "gaussian", {"rounds": 1, "sampling-rate": 0.5}, 50.0, TARGET).value == 1.0

    def test_no_rate_is_small_enough(self) -> None:
        with pytest.raises(InvalidInput, match="already at cohort = 1"):
            solve_parameter("rate", "fpfl", {"users": 10, "cohort": 1, "rounds": 500, "clip": 1.0}, 0.5, TARGET)

    def test_an_algorithm_without_a_rate_says_so(self) -> None:
        with pytest.raises(InvalidInput, match="no sampling rate"):
            solve_parameter("rate", "pay-once", {}, 1.0, TARGET)


@pytest.mark.parametrize("z", [1.0, 2.0])
def test_a_plans_rounds_are_the_rounds_of_its_release(z: float) -> None:
    of_plan = solve_parameter("rounds", "gaussian", {"rounds": 1, "sampling-rate": 0.05}, z, TARGET)
    per_round = Sampled(Poisson(0.05), Gaussian(z))
    assert (
        of_plan.value
        == most_rounds(per_round)
        == rounds(epsilon=2.0, delta=1e-5, noise_multiplier=z, sampling_rate=0.05)
    )
    assert of_plan.certified.upper <= 2.0 < of_plan.beyond


def test_random_allocation_is_solved_in_whole_epochs_and_has_no_rate() -> None:
    given = {"sampling": "random-allocation", "batches": 20}
    solved = solve_parameter("rounds", "gaussian", given, 1.5, EpsilonDelta(2.0, 1e-5))
    assert solved.value % 20 == 0
    assert solved.certified.upper <= 2.0 < solved.beyond
    with pytest.raises(InvalidInput, match="batches per epoch"):
        solve_parameter("rate", "gaussian", given | {"rounds": 20}, 1.5, EpsilonDelta(2.0, 1e-5))
    with pytest.raises(InvalidInput, match="rounds = 20"):
        solve_parameter("rounds", "gaussian", given, 0.5, EpsilonDelta(0.1, 1e-5))
