"""Solving for rounds, for the sampling rate, and for the split of one multiplier."""

from __future__ import annotations

import pytest

from calibrate.accountants.accountant import epsilon_of
from calibrate.accountants.certified.accountant import CertifiedAccountant
from calibrate.errors import InvalidInput, NotCertified
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Relation
from calibrate.releases import Gaussian, InSequence, NonPrivate, Release, Repeated, Sampled, Together
from calibrate.sampling import FixedSize, Poisson
from tests.calibrate.rounds_oracle import solve_rate, solve_rounds

ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)
REPLACE_ONE = PrivacyUnit.of(Relation.REPLACE_ONE)
TARGET = EpsilonDelta(2.0, 1e-5)


def epsilon(release: Release, unit: PrivacyUnit = ADD_REMOVE) -> float:
    return epsilon_of(CertifiedAccountant(1e-6), release, unit, 1e-5).upper


class TestRounds:
    @pytest.mark.parametrize("z", [1.0, 1.5, 2.5])
    def test_one_more_round_breaks_the_target(self, z: float) -> None:
        per_round = Sampled(Poisson(0.05), Gaussian(z))
        solved = solve_rounds(per_round, ADD_REMOVE, TARGET)
        assert solved.too_many == solved.rounds + 1
        assert solved.release == Repeated(per_round, solved.rounds)
        assert epsilon(solved.release) <= 2.0 < epsilon(Repeated(per_round, solved.rounds + 1))

    def test_what_is_published_once_is_paid_for(self) -> None:
        per_round, once = Sampled(Poisson(0.05), Gaussian(1.5)), Gaussian(4.0)
        alone = solve_rounds(per_round, ADD_REMOVE, TARGET)
        beside = solve_rounds(per_round, ADD_REMOVE, TARGET, once=once)
        assert beside.rounds < alone.rounds
        assert beside.release == InSequence((once, Repeated(per_round, beside.rounds)))
        assert epsilon(beside.release) <= 2.0

    def test_charging_a_second_value_of_the_batch_costs_rounds(self) -> None:
        """FedFDP's setting: the loss with multiplier 5 beside the gradient with multiplier 2, q = 0.05."""
        gradient = solve_rounds(Sampled(Poisson(0.05), Gaussian(2.0)), ADD_REMOVE, TARGET).rounds
        both = Sampled(Poisson(0.05), Together((Gaussian(2.0), Gaussian(5.0))))
        assert (gradient, solve_rounds(both, ADD_REMOVE, TARGET).rounds) == (321, 265)

    def test_plain_gaussians(self) -> None:
        solved = solve_rounds(Gaussian(20.0), ADD_REMOVE, TARGET)
        assert solved.too_many == solved.rounds + 1

    def test_fixed_size_rounds_are_fewer_than_are_surely_too_many(self) -> None:
        solved = solve_rounds(Sampled(FixedSize(1000, 10), Gaussian(3.0)), REPLACE_ONE, TARGET)
        assert solved.too_many is not None
        assert solved.rounds + 1 < solved.too_many

    def test_no_more_than_asked(self) -> None:
        assert solve_rounds(Gaussian(200.0), ADD_REMOVE, TARGET, most=7).rounds == 7

    def test_not_even_one_round(self) -> None:
        with pytest.raises(NotCertified, match="not even one round"):
            solve_rounds(Gaussian(0.5), ADD_REMOVE, TARGET)

    def test_rounds_that_cost_nothing_have_no_limit_to_find(self) -> None:
        with pytest.raises(InvalidInput, match="costs nothing"):
            solve_rounds(NonPrivate("public", depends_on_unit=False), ADD_REMOVE, TARGET)


class TestRate:
    def test_rate_is_safe_and_nearly_largest(self) -> None:
        def at(rate: float) -> Release:
            return Repeated(Sampled(Poisson(rate), Gaussian(1.5)), 200)

        solved = solve_rate(at, ADD_REMOVE, TARGET)
        assert epsilon(solved.release) <= 2.0
        assert solved.too_much is not None
        assert solved.too_much / solved.rate < 1 + 1e-3
        assert epsilon(at(solved.rate * 1.001)) > 2.0

    def test_all_of_it(self) -> None:
        solved = solve_rate(lambda q: Sampled(Poisson(q), Gaussian(50.0)), ADD_REMOVE, TARGET)
        assert solved.rate == 1.0

    def test_no_rate_is_small_enough(self) -> None:
        def at(rate: float) -> Release:
            return InSequence((Gaussian(0.3), Sampled(Poisson(rate), Gaussian(1.0))))

        with pytest.raises(NotCertified, match="no sampling rate"):
            solve_rate(at, ADD_REMOVE, TARGET)
