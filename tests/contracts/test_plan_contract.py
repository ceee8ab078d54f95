"""What every plan promises, whatever the algorithm."""

from __future__ import annotations

import dataclasses
import json

import pytest

from calibrate.accountants.registry import best_epsilon
from calibrate.budget import CertifiedBudget, calibrate_plan, price_plan
from calibrate.errors import InvalidInput
from calibrate.plans import plan_from_mapping
from calibrate.plans.alternatives import explain
from calibrate.plans.clipped_sums import FedfdpPlan, FpflPlan
from calibrate.plans.fair_plugin import FairPluginPlan, PayOncePlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.mmd_fedavg import MmdFedavgPlan
from calibrate.plans.plan import Plan
from calibrate.plans.steffle import StefflePlan
from calibrate.privacy_unit import EpsilonDelta, NoiseKind, Protected, Relation
from calibrate.releases import scale_noise
from calibrate.sampling import SamplingName

TARGET = EpsilonDelta(2.0, 1e-5)

NOISY: dict[str, Plan] = {
    "steffle-shuffled": StefflePlan(1000, 100, 25, 0.4, 1.0, 2.0),
    "steffle-poisson": StefflePlan(1000, 100, 25, 0.4, 1.0, 2.0, SamplingName.POISSON),
    "steffle-full": StefflePlan(1000, 1000, 25, 0.4, 1.0, 2.0, SamplingName.FULL, histogram_noise_ratio=2.0),
    "steffle-with-replacement": StefflePlan(1000, 100, 25, 0.4, 1.0, 2.0, SamplingName.WITH_REPLACEMENT),
    "fedfdp": FedfdpPlan(0.05, 100, 0.1, 2.5, 2.5),
    "fedfdp-normalised": FedfdpPlan(0.05, 100, 0.1, 2.5, 2.5, normalisation_noise_ratio=3.0),
    "fpfl-fixed": FpflPlan(2000, 100, 50, 2.0),
    "fpfl-poisson": FpflPlan(2000, 100, 50, 2.0, SamplingName.POISSON),
    "mmd": MmdFedavgPlan(2000, 50, 20),
    "mmd-updates": MmdFedavgPlan(
        2000, 50, 20, users=300, cohort=30, update_clip=1.5, update_noise_ratio=0.7, histogram_noise_ratio=2.0
    ),
    "mmd-laplace": MmdFedavgPlan(2000, 50, 20, NoiseKind.LAPLACE),
    "gaussian": GaussianPlan(0.01, 200),
    "gaussian-two": GaussianPlan(0.05, 200, noise=(1.0, 2.5)),
    "gaussian-replace": GaussianPlan(0.1, 20, Relation.REPLACE_ONE),
    "gaussian-allocated": GaussianPlan(0.5, 5, sampling=SamplingName.RANDOM_ALLOCATION),
    "gaussian-full": GaussianPlan(1.0, 20, Relation.REPLACE_ATTRIBUTE),
    "gaussian-scales": GaussianPlan(1.0, 60, scale_columns=5, scale_share=0.1),
    "gaussian-replaced-scales": GaussianPlan(1.0, 60, Relation.REPLACE_ONE, scale_columns=5, scale_share=0.1),
    "fair-plugin": FairPluginPlan(100),
    "fair-plugin-scales": FairPluginPlan(100, scale_columns=5, scale_share=0.1, group_share=0.2, gap_share=0.15),
    "fair-plugin-users": FairPluginPlan(50, Protected.USER, count_clip=2.0),
}
ALL = NOISY | {"pay-once": PayOncePlan(3), "fair-plugin-attribute": FairPluginPlan(50, Protected.ATTRIBUTE, 3)}

KEYS = {"algorithm", "epsilon", "delta", "certified", "rounds", "releases", "joint_noise_multiplier", "assumptions"}


@pytest.fixture(scope="module")
def budgets() -> dict[str, CertifiedBudget]:
    return {name: calibrate_plan(plan, TARGET) for name, plan in ALL.items()}


@pytest.mark.parametrize("name", ALL)
def test_a_plan_is_frozen_and_made_again_from_its_parameters(name: str) -> None:
    plan = ALL[name]
    assert dataclasses.is_dataclass(plan)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.rounds = 7  # type: ignore[misc]
    told = json.loads(json.dumps(plan.parameters(), allow_nan=False))
    assert plan_from_mapping(plan.algorithm, told) == plan


@pytest.mark.parametrize("name", ALL)
def test_a_plan_says_what_it_assumes_and_what_it_leaves_unprotected(name: str) -> None:
    for sentence in (*ALL[name].assumptions(), *ALL[name].unprotected()):
        assert sentence[0].isupper()
        assert sentence.endswith(".")
    assert ALL[name].assumptions()
    assert ALL[name].unprotected()


@pytest.mark.parametrize("name", ALL)
def test_a_budget_keeps_its_promise_and_says_so_in_the_agreed_keys(
    name: str, budgets: dict[str, CertifiedBudget]
) -> None:
    budget = budgets[name]
    assert 0 <= budget.certified.lower <= budget.certified.upper <= TARGET.epsilon
    told = json.loads(json.dumps(budget.to_json(), allow_nan=False))
    assert set(told) >= KEYS
    assert told["algorithm"] == ALL[name].algorithm.value
    for release in told["releases"]:
        assert {"name", "sensitivity", "noise_multiplier", "sigma"} <= set(release)


@pytest.mark.parametrize("name", NOISY)
def test_the_calibrated_release_is_priced_within_the_target_again(
    name: str, budgets: dict[str, CertifiedBudget]
) -> None:
    budget = budgets[name]
    again = best_epsilon(budget.release, budget.plan.unit, TARGET.delta).interval
    assert again.upper <= TARGET.epsilon * (1 + 1e-9)
    less = best_epsilon(scale_noise(budget.release, 0.98), budget.plan.unit, TARGET.delta).interval
    assert less.upper > TARGET.epsilon, "two percent less noise would also have been enough"


@pytest.mark.parametrize("name", NOISY)
def test_sigma_is_sensitivity_times_multiplier_and_prices_back(name: str, budgets: dict[str, CertifiedBudget]) -> None:
    budget = budgets[name]
    sigmas, multipliers = {}, {}
    for value in budget.values:
        assert value.sigma is not None
        assert value.noise_multiplier is not None
        assert value.sigma == pytest.approx(value.sensitivity * value.noise_multiplier, rel=1e-12)
        sigmas[value.name], multipliers[value.name] = value.sigma, value.noise_multiplier
    by_sigma = price_plan(budget.plan, TARGET.delta, sigmas=sigmas)
    by_multiplier = price_plan(budget.plan, TARGET.delta, noise_multipliers=multipliers)
    assert by_sigma.upper == pytest.approx(by_multiplier.upper, rel=1e-6)
    assert by_multiplier.upper == pytest.approx(budget.certified.upper, rel=1e-3)
    assert by_multiplier.upper <= TARGET.epsilon * (1 + 1e-6)


@pytest.mark.parametrize("name", NOISY)
def test_what_is_attained_never_costs_more_than_what_is_published(name: str) -> None:
    plan = NOISY[name]
    reached = plan.attained(plan.values(), plan.once())
    if reached is None:
        return
    published = best_epsilon(scale_noise(plan.template(), 3.0), plan.unit, TARGET.delta).interval
    assert best_epsilon(scale_noise(reached, 3.0), plan.unit, TARGET.delta).interval.lower <= published.upper


@pytest.mark.parametrize("name", NOISY)
def test_explaining_starts_with_the_plan_and_gives_a_reason_for_what_is_not_offered(name: str) -> None:
    own, *others = explain(NOISY[name], TARGET)
    assert own.ratio == 1
    assert own.not_offered is None
    for other in others:
        assert other.sigma > 0
        assert other.not_offered is None or len(other.not_offered) > 10
        json.dumps(other.to_json(), allow_nan=False)


def test_price_plan_needs_the_noise_of_every_value_and_of_nothing_else() -> None:
    plan = NOISY["fedfdp"]
    with pytest.raises(InvalidInput, match="exactly one"):
        price_plan(plan, 1e-5)
    with pytest.raises(InvalidInput, match="loss"):
        price_plan(plan, 1e-5, noise_multipliers={"gradient": 1.0})
    with pytest.raises(InvalidInput, match="is not a value"):
        price_plan(plan, 1e-5, noise_multipliers={"gradient": 1.0, "loss": 1.0, "weights": 1.0})
    with pytest.raises(InvalidInput, match="gradient"):
        price_plan(plan, 1e-5, sigmas={"gradient": -1.0, "loss": 1.0})
