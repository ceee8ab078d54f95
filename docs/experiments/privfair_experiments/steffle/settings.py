"""What the experiment fixes: data, silos, promises, fairness weights, step sizes, noise.

Hyper-parameters of the calibrated SteFFLe and of pay-once were chosen on splits 100 to 103, the experiment measures
splits 0, 1, 2, ...; they are the same for every epsilon and every h. The data sets are public, so that choice is not
charged to anybody; on private data it would have to be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from calibrate.budget import calibrate_plan, price_plan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.plan import NoisyValue
from calibrate.plans.steffle import H_THETA, H_W, StefflePlan
from calibrate.privacy_unit import EpsilonDelta
from calibrate.sampling import SamplingName
from privfair.fairness.fermi import Independence
from privfair.plan.data import Benchmark, BenchmarkScaling

SILOS = 3
EPSILONS = (1.0, 3.0, 9.0)
DELTA = 1e-5
HETEROGENEITY = (0.0, 0.75)
THRESHOLDS = tuple(np.round(np.arange(0.0, 3.01, 0.05), 2).tolist())
ROUNDS, FREE_ROUNDS = 80, 400
"""Of SteFFLe, which pays for each; of pay-once, which does not. Both after a first round with the warm start."""
WARM_START = 100
PRINTED_BATCH, PRINTED_EPOCHS, PRINTED_RADIUS, PRINTED_CLIP = 256, 40, 1.0, 1.0
PRINTED_FAIRNESS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)
UNCLIPPED, UNBOUNDED = 1e6, 5.0


@dataclass(frozen=True)
class Setting:
    """One data set with one set of features."""

    name: str
    title: str
    benchmark: Benchmark
    age: str
    scaling: BenchmarkScaling
    splits: int
    heterogeneity: tuple[float, ...]
    frequencies: tuple[tuple[float, float], ...]
    """Public group shares, rounded, block by block of `notion`: they could have been known without the data."""
    minority_fraction: float
    steffle_fairness: tuple[float, ...]
    pay_once_fairness: tuple[float, ...]
    w_radius: float
    lipschitz: float = 0.3
    learning_rate: float = 4.0
    pay_once_rate: float = 4.0
    """The learning rate of pay-once: small where large fairness weights make the objective steep."""
    notion: Independence = Independence.DEMOGRAPHIC_PARITY
    """What SteFFLe is trained for; pay-once only for parity."""

    @property
    def plain_fairness(self) -> tuple[float, ...]:
        """The weights of SteFFLe without privacy, which descends with the larger rate."""
        return tuple(weight for weight in self.pay_once_fairness if weight <= 100)


SETTINGS = (
    Setting(
        "credit-card",
        "Credit Card, 85 features",
        Benchmark.CREDIT_CARD,
        "AGE",
        BenchmarkScaling.PUBLIC,
        12,
        HETEROGENEITY,
        ((0.4, 0.6),),
        0.35,
        (0.0, 8.0, 16.0, 32.0, 64.0, 128.0),
        (0.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0),
        w_radius=0.05,
        pay_once_rate=1.0,
    ),
    Setting(
        "adult",
        "Adult, 102 features",
        Benchmark.ADULT,
        "age",
        BenchmarkScaling.PUBLIC,
        12,
        HETEROGENEITY,
        ((0.325, 0.675),),
        0.3,
        (0.0, 1.0, 2.0, 3.0, 5.0, 8.0),
        (0.0, 1.0, 2.0, 4.0, 6.0, 7.0, 10.0),
        w_radius=0.2,
    ),
    Setting(
        "adult-steps",
        "Adult, 102 features and 44 steps",
        Benchmark.ADULT,
        "age",
        BenchmarkScaling.PUBLIC_WITH_STEPS,
        12,
        HETEROGENEITY,
        ((0.325, 0.675),),
        0.3,
        (0.0, 2.0, 4.0, 6.0, 9.0, 13.0),
        (0.0, 1.0, 2.0, 4.0, 7.0, 10.0, 14.0),
        w_radius=0.2,
    ),
)


@dataclass(frozen=True)
class Noise:
    """Standard deviations of the two noisy values, and what they truly cost."""

    sigma_theta: float
    sigma_w: float
    true_epsilon: float


@lru_cache
def calibrated_noise(setting: Setting, silo_size: int, epsilon: float) -> Noise:
    """Full batches, a warm start and ROUNDS rounds, the budget shared equally between the two values."""
    plan = StefflePlan(
        silo_size,
        silo_size,
        1 + ROUNDS,
        setting.minority_fraction,
        setting.lipschitz,
        setting.w_radius,
        SamplingName.FULL,
    )
    return _noise_of(plan, epsilon)


@lru_cache
def printed_but_paid(setting: Setting, silo_size: int, epsilon: float) -> Noise:
    """What Algorithm 1 as printed would have to add for a true epsilon."""
    return _noise_of(_printed_plan(setting, silo_size), epsilon)


def _noise_of(plan: StefflePlan, epsilon: float) -> Noise:
    budget = calibrate_plan(plan, EpsilonDelta(epsilon, DELTA))
    theta, w = budget.value(H_THETA).sigma, budget.value(H_W).sigma
    assert theta is not None
    assert w is not None
    return Noise(theta, w, budget.certified.upper)


def printed_rounds(silo_size: int) -> int:
    """40 epochs of batches of 256, as the paper counts them: 1172 on Credit Card."""
    return math.ceil(PRINTED_EPOCHS * silo_size / PRINTED_BATCH)


def _printed_plan(setting: Setting, silo_size: int) -> StefflePlan:
    return StefflePlan(
        silo_size, PRINTED_BATCH, printed_rounds(silo_size), setting.minority_fraction, PRINTED_CLIP, PRINTED_RADIUS
    )


@lru_cache
def noise_as_printed(setting: Setting, silo_size: int, epsilon: float) -> Noise:
    """Theorem 3.3's noise, and the certified epsilon of the transcript it is added to."""
    plan = _printed_plan(setting, silo_size)
    multipliers = plan.printed(EpsilonDelta(epsilon, DELTA)).noise_multipliers
    theta, w = plan.claims()
    true = price_plan(plan, DELTA, noise_multipliers=multipliers).upper
    return Noise(multipliers[H_THETA] * theta.bound, multipliers[H_W] * w.bound, true)


@lru_cache
def gaussian_multiplier(rounds: int, epsilon: float) -> tuple[float, float]:
    """Of one Gaussian value in each of so many full-batch rounds, and the certified epsilon."""
    budget = calibrate_plan(GaussianPlan(1.0, rounds), EpsilonDelta(epsilon, DELTA))
    (value,) = budget.values
    assert isinstance(value, NoisyValue)
    assert value.noise_multiplier is not None
    return value.noise_multiplier, budget.certified.upper
