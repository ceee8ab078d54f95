"""What each plan publishes: sensitivities, sampling, the unit, and what it admits not to protect."""

from __future__ import annotations

import math

import numpy as np
import pytest

from calibrate.budget import price_plan
from calibrate.plans import plan_from_mapping
from calibrate.plans.clipped_sums import COHORTS, FedfdpPlan, FpflPlan
from calibrate.plans.fair_plugin import PayOncePlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.mmd_fedavg import PREDICTIONS, MmdFedavgPlan
from calibrate.plans.steffle import StefflePlan
from calibrate.privacy_unit import NoiseKind, Protected, Relation
from calibrate.releases import (
    Gaussian,
    InSequence,
    Laplace,
    RandomizedResponse,
    Repeated,
    Sampled,
    Together,
    multiplicities,
)
from calibrate.sampling import (
    Batch,
    FixedSize,
    Poisson,
    RandomAllocation,
    SamplingName,
    ShuffledEpochs,
    WithReplacement,
)

STEFFLE = StefflePlan(7500, 256, 1172, 0.4, 3.0, 2.0)


def test_steffle_divides_by_the_batch_size_and_scales_theta_by_l_and_d() -> None:
    theta, w = STEFFLE.values()
    assert w.sensitivity == pytest.approx(2 * math.sqrt(2) / (256 * math.sqrt(0.4)), rel=1e-14)
    assert theta.sensitivity == pytest.approx(6 * w.sensitivity, rel=1e-14)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_steffles_share_splits_the_inverse_squares_and_leaves_the_joint_multiplier(share: float) -> None:
    plan = StefflePlan(7500, 256, 1172, 0.4, 3.0, 2.0, theta_share=share)
    theta, w = plan.values()
    assert plan.joint_noise_ratio() == pytest.approx(1.0, rel=1e-14)
    assert theta.noise_multiplier**-2 == pytest.approx(share, rel=1e-14)
    assert w.noise_multiplier**-2 == pytest.approx(1 - share, rel=1e-14)


def test_steffles_batches_are_revealed_whatever_the_sampling() -> None:
    for sampling in (SamplingName.SHUFFLED, SamplingName.POISSON, SamplingName.WITH_REPLACEMENT):
        plan = StefflePlan(7500, 256, 1172, 0.4, 3.0, 2.0, sampling)
        (leaf,) = multiplicities(plan.template())
        assert isinstance(leaf, Sampled)
        assert leaf.sampling.batch is Batch.REVEALED
        assert isinstance(leaf.release, Together)


def test_steffle_counts_a_started_epoch_whole_and_reaches_the_begun_part() -> None:
    template, reached = STEFFLE.template(), STEFFLE.attained(STEFFLE.values(), ())
    assert isinstance(template, Repeated)
    assert template.times == 40
    assert isinstance(reached, InSequence)
    whole, begun = reached.releases
    assert isinstance(whole, Repeated)
    assert whole.times == 39
    assert isinstance(begun, Sampled)
    assert begun.sampling == FixedSize(7500, 2 * 256, Batch.REVEALED)


def test_steffle_with_whole_epochs_reaches_its_template() -> None:
    plan = StefflePlan(1000, 100, 30, 0.4, 1.0, 1.0)
    reached = plan.attained(plan.values(), ())
    assert multiplicities(reached) == multiplicities(plan.template())


def test_steffle_samplings_are_what_their_names_say() -> None:
    def leaf(sampling: SamplingName, batch: int) -> object:
        (found,) = multiplicities(StefflePlan(1000, batch, 30, 0.4, 1.0, 1.0, sampling).template())
        return found.sampling if isinstance(found, Sampled) else type(found)

    assert leaf(SamplingName.SHUFFLED, 100) == ShuffledEpochs(1000, 100, Batch.REVEALED)
    assert leaf(SamplingName.POISSON, 100) == Poisson(0.1, Batch.REVEALED)
    assert leaf(SamplingName.WITH_REPLACEMENT, 100) == WithReplacement(1000, 100, Batch.REVEALED)
    assert leaf(SamplingName.FULL, 1000) is Together


def test_fedfdp_publishes_both_values_of_one_secret_poisson_batch() -> None:
    plan = FedfdpPlan(0.05, 268, 0.1, 2.5, 2.5)
    assert plan.template() == Repeated(
        Sampled(Poisson(0.05, Batch.SECRET), Together((Gaussian(1.0), Gaussian(2.5)))), 268
    )
    assert [value.sensitivity for value in plan.values()] == [0.1, 2.5]
    assert plan.joint_noise_ratio() == pytest.approx((1 + 1 / 2.5**2) ** -0.5, rel=1e-14)


def test_fpfls_sampling_decides_its_adjacency() -> None:
    fixed, poisson = (FpflPlan(16280, 200, 1000, 2.0, sampling) for sampling in COHORTS)
    assert (fixed.unit.protected, fixed.unit.relation) == (Protected.USER, Relation.REPLACE_ONE)
    assert (poisson.unit.protected, poisson.unit.relation) == (Protected.USER, Relation.ADD_REMOVE)
    assert fixed.template() == Repeated(Sampled(FixedSize(16280, 200), Gaussian(1.0)), 1000)
    assert poisson.template() == Repeated(Sampled(Poisson(200 / 16280), Gaussian(1.0)), 1000)


def test_mmd_charges_both_groups_every_round_and_reaches_one() -> None:
    plan = MmdFedavgPlan(2000, 50, 100)
    one_set = Sampled(FixedSize(2000, 50), Gaussian(1.0))
    assert multiplicities(plan.template()) == {one_set: 200}
    reached = plan.attained(plan.values(), ())
    assert reached is not None
    assert multiplicities(reached) == {Sampled(FixedSize(2000, 50), Gaussian(math.sqrt(50))): 100}
    assert {value.sensitivity for value in plan.values()} == {0.5}


def test_mmd_charges_two_sets_however_many_groups_there_are() -> None:
    two, five = MmdFedavgPlan(2000, 50, 100), MmdFedavgPlan(2000, 50, 100, groups=5)
    assert five.template() == two.template()
    assert [value.name for value in five.values()] == [f"predictions_group_{number}" for number in range(5)]
    assert {value.family for value in five.values()} == {"predictions"}
    assert {value.family for value in two.values()} == {None}
    assert any("touches two of the 5 sets" in said for said in five.assumptions())


def test_mmd_prices_laplace_noise_without_amplification_and_claims_no_lower_end() -> None:
    plan = MmdFedavgPlan(2000, 50, 100, NoiseKind.LAPLACE)
    assert multiplicities(plan.template()) == {Laplace(1.0): 200}
    assert plan.attained(plan.values(), ()) is None
    everybody = MmdFedavgPlan(50, 50, 100, NoiseKind.LAPLACE)
    assert everybody.attained(everybody.values(), ()) is None


def test_mmds_lower_end_speaks_of_random_order_as_its_upper_end_does() -> None:
    """All others predict 0: the exact cost of one full ordered set of two lies between the two ends."""
    plan, sigma, delta = MmdFedavgPlan(2, 2, 1), 1.0, 1e-3
    assert any("uniformly random order" in text for text in plan.assumptions())
    priced = price_plan(plan, delta, noise_multipliers=dict.fromkeys(PREDICTIONS, 2 * sigma))
    # P: entry 1 or 2 is N(1, sigma^2), Q: both are N(0, sigma^2); delta(eps) on a grid fine enough for 1e-6.
    x = np.linspace(-9, 10, 1500)
    density = np.exp(-0.5 * (x / sigma) ** 2) / math.sqrt(2 * math.pi) / sigma * (x[1] - x[0])
    ratio = np.exp((2 * x - 1) / (2 * sigma**2))
    mixed = (ratio[:, None] + ratio[None, :]) / 2

    def profile(epsilon: float) -> float:
        return float((np.outer(density, density) * np.maximum(mixed - math.exp(epsilon), 0)).sum())

    assert profile(priced.lower) >= delta >= profile(priced.upper)


def test_mmd_with_updates_adds_the_cohort_and_without_them_says_so_first() -> None:
    bare = MmdFedavgPlan(2000, 50, 100)
    full = MmdFedavgPlan(2000, 50, 100, users=300, cohort=30, update_clip=1.5, update_noise_ratio=0.5)
    assert "NOT the trained model" in bare.unprotected()[0]
    assert not any("NOT the trained model" in text for text in full.unprotected())
    assert multiplicities(full.template())[Sampled(FixedSize(300, 30), Gaussian(0.5))] == 100
    assert full.values()[-1].sensitivity == 1.5


@pytest.mark.parametrize(
    ("plan", "bound"),
    [
        (StefflePlan(7500, 256, 10, 0.4, 1.0, 1.0, histogram_noise_ratio=3.0), math.sqrt(2)),
        (MmdFedavgPlan(2000, 50, 100, histogram_noise_ratio=3.0), math.sqrt(2) / 2),
    ],
)
def test_a_paid_histogram_is_published_once_and_no_longer_unprotected(
    plan: StefflePlan | MmdFedavgPlan, bound: float
) -> None:
    (histogram,) = plan.once()
    assert histogram.sensitivity == pytest.approx(bound, rel=1e-14)
    assert multiplicities(plan.template())[Gaussian(3.0)] == 1
    assert not any("histogram-noise-ratio" in text for text in plan.unprotected())


@pytest.mark.parametrize(
    "plan",
    [
        FedfdpPlan(0.05, 268, 0.1, 2.5, 2.5, normalisation_noise_ratio=4.0, normalisation_clip=7.0),
        FpflPlan(16280, 200, 1000, 2.0, normalisation_noise_ratio=4.0, normalisation_clip=7.0),
    ],
)
def test_paid_normalisation_is_published_once_and_no_longer_unprotected(plan: FedfdpPlan | FpflPlan) -> None:
    (statistics,) = plan.once()
    assert statistics.sensitivity == 7.0
    assert multiplicities(plan.template())[Gaussian(4.0)] == 1
    assert not any("normalisation" in text.lower() for text in plan.unprotected())


def test_full_rate_needs_no_sampling() -> None:
    allocated = GaussianPlan(0.1, 25, sampling=SamplingName.RANDOM_ALLOCATION)
    assert plan_from_mapping("gaussian", {"batches": 10, "rounds": 25, "sampling": "random-allocation"}) == allocated
    assert multiplicities(allocated.template()) == {
        Sampled(RandomAllocation(10), Gaussian(1.0)): 2,
        Sampled(RandomAllocation(10, 5), Gaussian(1.0)): 1,
    }
    assert GaussianPlan(1.0, 10, Relation.REPLACE_ONE).template() == Repeated(Gaussian(1.0), 10)
    assert GaussianPlan(0.5, 10, noise=(1.0, 2.0)).template() == Repeated(
        Sampled(Poisson(0.5), Together((Gaussian(1.0), Gaussian(2.0)))), 10
    )


@pytest.mark.parametrize("groups", [2, 5])
def test_pay_once_keeps_the_ratio_of_probabilities_at_exp_epsilon(groups: int) -> None:
    plan, epsilon = PayOncePlan(groups), 1.3
    keep = plan.at(epsilon).keep_probability
    other = (1 - keep) / (groups - 1)
    assert keep / other == pytest.approx(math.exp(epsilon), rel=1e-12)
    assert plan.at(epsilon).response == RandomizedResponse(epsilon, groups)
