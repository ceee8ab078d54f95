"""Which assumption costs what, and budgets whose exact answer is known."""

from __future__ import annotations

import math

import pytest

from calibrate.accountants.gaussian import gaussian_mu
from calibrate.budget import calibrate_plan, price_plan
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.plans.alternatives import Alternative, explain
from calibrate.plans.clipped_sums import FedfdpPlan, FpflPlan
from calibrate.plans.fair_plugin import PayOncePlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.mmd_fedavg import MmdFedavgPlan
from calibrate.plans.plan import Plan
from calibrate.plans.steffle import H_THETA, H_W, StefflePlan
from calibrate.privacy_unit import EpsilonDelta, NoiseKind, Relation
from calibrate.sampling import SamplingName

TARGET = EpsilonDelta(1.0, 1e-5)


def alternative(plan: Plan, words: str, target: EpsilonDelta = TARGET) -> Alternative:
    (found,) = (other for other in explain(plan, target) if words in other.description)
    return found


def test_steffle_is_the_analytic_gaussian_over_its_epochs() -> None:
    plan = StefflePlan(7500, 256, 1200, 0.4, 3.0, 2.0)
    budget = calibrate_plan(plan, TARGET)
    exact = math.sqrt(40) / gaussian_mu(1.0, 1e-5)
    assert budget.joint_noise_multiplier == pytest.approx(exact, rel=1e-4)
    assert budget.joint_noise_multiplier is not None
    assert budget.joint_noise_multiplier >= exact * (1 - 1e-12)
    assert budget.optimality_gap == pytest.approx(0, abs=1e-3)
    theta, w = budget.value(H_THETA), budget.value(H_W)
    assert theta.noise_multiplier == pytest.approx(exact * math.sqrt(2), rel=1e-4)
    assert theta.sigma == pytest.approx(6 * (w.sigma or 0), rel=1e-12)
    with pytest.raises(InvalidInput, match="h_theta"):
        budget.value("theta")


def test_steffle_spending_less_on_theta_moves_noise_and_nothing_else() -> None:
    even = calibrate_plan(StefflePlan(7500, 256, 1200, 0.4, 3.0, 2.0), TARGET)
    skew = calibrate_plan(StefflePlan(7500, 256, 1200, 0.4, 3.0, 2.0, theta_share=0.2), TARGET)
    assert skew.joint_noise_multiplier == pytest.approx(even.joint_noise_multiplier, rel=1e-6)
    assert (skew.value(H_THETA).sigma or 0) > (even.value(H_THETA).sigma or 0)
    assert (skew.value(H_W).sigma or 0) < (even.value(H_W).sigma or 0)


def test_steffle_prices_its_assumptions() -> None:
    plan = StefflePlan(7500, 256, 1172, 0.4, 1.0, 1.0)
    secret = alternative(plan, "secret Poisson")
    assert secret.not_offered is not None
    assert secret.ratio < 0.25
    assert alternative(plan, "charging h_W alone").ratio == pytest.approx(1 / math.sqrt(2), rel=1e-3)
    assert alternative(plan, "histogram").ratio > 1
    assert alternative(plan, "poisson batches").ratio > 1
    assert alternative(plan, "full batches").not_offered is None


def test_fedfdp_prices_its_assumptions() -> None:
    plan, target = FedfdpPlan(0.05, 268, 0.1, 2.5, 2.5), EpsilonDelta(3.5, 1e-5)
    own = calibrate_plan(plan, target).values[0].noise_multiplier
    assert own == pytest.approx(1.3794367, rel=1e-4)
    separate = alternative(plan, "separate batches", target)
    assert separate.noise_multiplier == pytest.approx(1.3221233, rel=1e-4)
    assert separate.not_offered is not None
    assert alternative(plan, "gradient alone", target).ratio < separate.ratio < 1
    assert alternative(plan, "replacing a record", target).ratio > 1
    wrong = {"gradient": separate.noise_multiplier, "loss": 2.5 * separate.noise_multiplier}
    assert price_plan(plan, 1e-5, noise_multipliers=wrong).upper == pytest.approx(3.759, abs=2e-3)


def test_fpfl_fixed_size_costs_much_more_than_poisson() -> None:
    fixed = FpflPlan(16280, 200, 250, 2.0)
    poisson = alternative(fixed, "poisson cohorts")
    assert poisson.not_offered is None
    assert poisson.ratio < 0.6
    printed = alternative(fixed, "sensitivity C")
    assert printed.ratio == pytest.approx(0.5, rel=1e-3)
    assert alternative(fixed, "known to the observer").ratio > 1
    back = alternative(FpflPlan(16280, 200, 250, 2.0, SamplingName.POISSON), "fixed cohorts")
    assert back.ratio == pytest.approx(1 / poisson.ratio, rel=1e-3)


@pytest.mark.slow
def test_mmd_prices_its_assumptions() -> None:
    plan = MmdFedavgPlan(2000, 50, 50, users=200, cohort=20, update_clip=1.0)
    assert alternative(plan, "one group").ratio < 1
    assert alternative(plan, "updates unprotected").ratio < 1
    assert alternative(plan, "without amplification").ratio > 2
    assert alternative(plan, "laplace").not_offered is None


def test_mmd_laplace_on_a_full_group_of_one_round_is_pure() -> None:
    """Both sets of one round: two Laplace releases, together pure with epsilon 2/b at distance 1."""
    plan = MmdFedavgPlan(50, 50, 1, NoiseKind.LAPLACE)
    numbers = dict.fromkeys((value.name for value in plan.values()), 50)
    budget = calibrate_plan(plan, EpsilonDelta(1.0, 1e-12), numbers)
    assert budget.values[0].sigma == pytest.approx(2.0, rel=1e-2)
    assert (budget.values[0].sigma or 0) <= 2.0 * (1 + 1e-4)


def test_gaussian_prices_its_assumptions() -> None:
    plan = GaussianPlan(0.05, 268, noise=(1.0, 2.5))
    assert alternative(plan, "replace-one").ratio > 1
    assert alternative(plan, "full data").ratio > 1
    assert alternative(plan, "separate batches").ratio < 1


def test_attribute_replacement_with_secret_batches_is_refused_with_the_remedy() -> None:
    with pytest.raises(UnsupportedCombination, match="revealed"):
        calibrate_plan(GaussianPlan(0.05, 100, Relation.REPLACE_ATTRIBUTE), TARGET)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_pay_once_is_pure_and_rounds_are_free(epsilon: float) -> None:
    few, many = (calibrate_plan(PayOncePlan(2, rounds), EpsilonDelta(epsilon, 1e-5)) for rounds in (1, 10_000))
    assert few.certified == many.certified
    assert few.certified.upper == epsilon
    assert few.certified.lower == pytest.approx(epsilon, rel=1e-3)
    assert few.values[0].keep_probability == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)), rel=1e-10)
    assert explain(few.plan, TARGET) == ()
    with pytest.raises(InvalidInput, match="pay-once"):
        price_plan(few.plan, 1e-5, sigmas={"randomised_attribute": 1.0})


def test_steffle_with_full_batches_uses_the_whole_silo() -> None:
    plan = StefflePlan(7500, 7500, 40, 0.4, 1.0, 1.0, SamplingName.FULL)
    budget = calibrate_plan(plan, TARGET)
    assert budget.joint_noise_multiplier == pytest.approx(math.sqrt(40) / gaussian_mu(1.0, 1e-5), rel=1e-4)
    assert budget.value(H_W).sensitivity == pytest.approx(2 * math.sqrt(2) / (7500 * math.sqrt(0.4)), rel=1e-12)


def test_a_target_that_protects_nobody_is_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="at most 1000"):
        calibrate_plan(GaussianPlan(rounds=1000, sampling_rate=0.01), EpsilonDelta(1e5, 1e-5))
