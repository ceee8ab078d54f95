"""One split of Adult: every rung of the ladder, trained by the engine and measured on the test records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from time import perf_counter

import numpy as np
import torch
from engine_run import Signed, promised, train, unpromised
from fpfl_settings import CENTRAL_BATCH, EPSILON, HIDDEN, RECORDS_PER_USER, TEST_FRACTION, TOLERANCE, Rung

from calibrate.budget import CertifiedBudget, calibrate_plan
from calibrate.plans.fpfl import CohortSampling, FpflPlan
from calibrate.privacy_unit import EpsilonDelta
from calibrate.sampling import Batch, FixedSize, Poisson
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.fpfl import Fpfl, FpflOptions
from privfair.data.benchmarks import Benchmark
from privfair.data.training_data import USERS, TrainingData, load_training_data
from privfair.fairness.constraints import FairnessNotion
from privfair.fairness.gaps import Comparison, Measure, count_confusion
from privfair.fairness.measurement import Measurement
from privfair.models.model import Model
from privfair.models.perceptron import Perceptron
from privfair.plan.data import BenchmarkSource, DataPlan, PoissonUsers


@dataclass(frozen=True)
class Row:
    """One trained model; `true_epsilon` is the certified upper bound, None without noise."""

    rung: str
    cohort: int | None
    split: int
    users: int
    true_epsilon: float | None
    noise_multiplier: float | None
    accuracy: float
    fnr_gap: float
    fnr_gap_training: float
    equalised_odds_gap: float
    demographic_parity_gap: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Split:
    data: TrainingData

    @cached_property
    def users(self) -> SiloTensors:
        (users,) = self.data.tensors(torch.float32)
        return users

    @property
    def number_of_users(self) -> int:
        return self.data.binding.silos[0].size

    def measure(self, model: Model, theta: torch.Tensor) -> tuple[Measurement, Measurement]:
        """On test and on training records; gaps are the paper's, each group against all records."""
        return tuple(  # type: ignore[return-value]
            _measured(model, theta, silos.pooled()) for silos in (self.data.test, self.data.parties)
        )


def load_split(seed: int) -> Split:
    plan = DataPlan(
        BenchmarkSource(Benchmark.ADULT), users=PoissonUsers(RECORDS_PER_USER), seed=seed, test_fraction=TEST_FRACTION
    )
    return Split(load_training_data(plan))


def run_rung(rung: Rung, split: Split, seed: int) -> Row:
    """Train one rung and measure its model."""
    start, (algorithm, silo) = perf_counter(), _built(rung, split, seed)
    budget = _budget(split.number_of_users, rung) if rung.private else None
    signed = _signed(algorithm, rung, split, silo, budget)
    theta = train(algorithm, signed, (silo,), seed)
    test, own = split.measure(algorithm.model, theta)
    return Row(
        rung=rung.name,
        cohort=rung.cohort,
        split=seed,
        users=split.number_of_users,
        true_epsilon=None if budget is None else budget.certified.upper,
        noise_multiplier=None if budget is None else budget.values[0].noise_multiplier,
        accuracy=test.accuracy,
        fnr_gap=test.false_negative_gap.value,
        fnr_gap_training=own.false_negative_gap.value,
        equalised_odds_gap=test.equalised_odds.value,
        demographic_parity_gap=test.demographic_parity.value,
        seconds=perf_counter() - start,
    )


def _built(rung: Rung, split: Split, seed: int) -> tuple[Fpfl, SiloTensors]:
    central = rung.cohort is None
    options = FpflOptions(
        learning_rate=rung.learning_rate,
        notion=FairnessNotion.FALSE_NEGATIVE_RATE if rung.fair else FairnessNotion.NONE,
        tolerance=TOLERANCE,
        multiplier_rate=rung.multiplier_rate,
        damping=rung.damping,
        choice=rung.choice,
        smoothing=rung.smoothing,
        records_per_user=1.0 if central else RECORDS_PER_USER,
    )
    model = Perceptron(split.users.x.shape[1], (HIDDEN,))
    cohort = float(CENTRAL_BATCH if rung.cohort is None else rung.cohort)
    # In one place every record is on its own.
    silo = replace(split.users, unit_of_row=None) if central else split.users
    return Fpfl(model, options, 2, cohort, rung.clip, seed), silo


@lru_cache
def _budget(users: int, rung: Rung) -> CertifiedBudget:
    assert rung.cohort is not None
    assert rung.clip is not None
    plan = FpflPlan(users, rung.cohort, rung.rounds, rung.clip, CohortSampling.POISSON)
    return calibrate_plan(plan, EpsilonDelta(EPSILON, 1 / users))


def _signed(algorithm: Fpfl, rung: Rung, split: Split, silo: SiloTensors, budget: CertifiedBudget | None) -> Signed:
    if budget is not None:
        return promised(algorithm, budget, {USERS: split.number_of_users})
    if rung.cohort is None:
        drawn = FixedSize(len(silo), CENTRAL_BATCH, Batch.REVEALED)
        return unpromised(algorithm, rung.rounds, {USERS: len(silo)}, drawn)
    users = split.number_of_users
    return unpromised(algorithm, rung.rounds, {USERS: users}, Poisson(rung.cohort / users, Batch.REVEALED))


def _measured(model: Model, theta: torch.Tensor, records: object) -> Measurement:
    features = torch.from_numpy(np.array(records.features)).to(torch.float32)
    with torch.no_grad():
        guess = model.logits(theta, features).argmax(dim=1).numpy()
    confusion = count_confusion(records.label, guess, records.group, records.class_names, records.group_names)
    return Measurement(confusion, 1, Measure(Comparison.OVERALL))
