"""One split of Adult: every rung of the ladder, trained by the engine and measured on the test records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from time import process_time

import numpy as np
import torch

from calibrate.accountants.registry import best_epsilon
from calibrate.budget import CertifiedBudget, calibrate_plan, price_plan
from calibrate.plans.clipped_sums import FpflPlan
from calibrate.plans.fair_plugin import FairPluginPlan
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Protected, Relation
from calibrate.sampling import Batch, FixedSize, Poisson, SamplingName
from calibrate.theorems.printed import fixed_size_sigma
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.fair_plugin import Clips, FairPlugin, FairPluginOptions
from privfair.algorithms.fpfl import Fpfl, FpflOptions
from privfair.data.dataset import Dataset
from privfair.data.training_data import USERS, TrainingData, load_training_data
from privfair.fairness.constraints import FairnessNotion
from privfair.fairness.fermi import Independence
from privfair.fairness.measurement import Comparison, Measurement, count_confusion
from privfair.models.linear import LogisticRegression
from privfair.models.model import Model
from privfair.models.perceptron import Perceptron
from privfair.plan.data import Benchmark, BenchmarkScaling, BenchmarkSource, DataPlan, PoissonUsers
from privfair_experiments.engine_run import Signed, first_noise, promised, train, unpromised
from privfair_experiments.fpfl.settings import (
    CENTRAL_BATCH,
    EPSILON,
    RECORDS_PER_USER,
    TEST_FRACTION,
    TOLERANCE,
    PlugIn,
    Rung,
)

_LARGEST_ORDER = 64
"""Of the Renyi orders that the paper's accountant tries."""


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
    predictive_parity_gap: float | None
    replaced_epsilon: float | None
    """The certified upper bound if a user is replaced instead of added or removed."""
    seconds: float | None
    """Of the processor; None in rows that are older than this column and than predictive parity."""


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
        assert self.data.test is not None
        test, train = self.data.test.pooled(), self.data.parties.pooled()
        return _measured(model, theta, test), _measured(model, theta, train)


@lru_cache(maxsize=2)
def load_split(seed: int, steps: bool = False) -> Split:
    """The same users and test records with and without steps."""
    scaling = BenchmarkScaling.PUBLIC_WITH_STEPS if steps else BenchmarkScaling.PUBLIC
    source = BenchmarkSource(Benchmark.ADULT, scaling=scaling)
    plan = DataPlan(source=source, users=PoissonUsers(RECORDS_PER_USER), seed=seed, test_fraction=TEST_FRACTION)
    return Split(load_training_data(plan))


def run_one(how: Rung | PlugIn, split: Split, seed: int) -> list[Row]:
    """Train one way of either kind and measure what it gives."""
    return run_plug_in(how, split, seed) if isinstance(how, PlugIn) else run_rung(how, split, seed)


def run_rung(rung: Rung, split: Split, seed: int) -> list[Row]:
    """Train one rung and measure its model, at each of its thresholds."""
    start, (algorithm, silo) = process_time(), _built(rung, split, seed)
    budget = _budget(split.number_of_users, rung) if rung.private else None
    signed = _signed(algorithm, rung, split, silo, budget)
    theta, rows = train(algorithm, signed, (silo,), seed), []
    for threshold in rung.thresholds:
        shifted = theta.clone()
        shifted[-1] -= threshold  # the last parameter moves the log-odds where there is more than one threshold
        measured = split.measure(algorithm.model, shifted if threshold else theta)
        rows.append(_row(rung.at(threshold), rung.cohort, seed, split, budget, measured, start))
    return rows


def _row(
    name: str,
    cohort: int | None,
    seed: int,
    split: Split,
    budget: CertifiedBudget | None,
    measured: tuple[Measurement, Measurement],
    start: float,
) -> Row:
    test, own = measured
    added, replaced = (None, None) if budget is None else _costs(budget)
    gaps = test.gaps
    return Row(
        rung=name,
        cohort=cohort,
        split=seed,
        users=split.number_of_users,
        true_epsilon=added,
        noise_multiplier=first_noise(budget),
        accuracy=test.accuracy,
        fnr_gap=gaps["false_negative_gap"].value,
        fnr_gap_training=own.gaps["false_negative_gap"].value,
        equalised_odds_gap=gaps["equalised_odds"].value,
        demographic_parity_gap=gaps["demographic_parity"].value,
        predictive_parity_gap=gaps["predictive_parity"].value if gaps["predictive_parity"].defined else None,
        replaced_epsilon=replaced,
        seconds=process_time() - start,
    )


@lru_cache
def _costs(budget: CertifiedBudget) -> tuple[float, float]:
    """What the budget's noise costs a user who is added or removed, and one who is replaced."""
    delta = budget.continuous.delta
    added, replaced = (
        budget.certified.upper
        if relation is budget.plan.unit.relation
        else best_epsilon(budget.release, PrivacyUnit(Protected.USER, relation), delta).interval.upper
        for relation in (Relation.ADD_REMOVE, Relation.REPLACE_ONE)
    )
    return added, replaced


def run_plug_in(how: PlugIn, split: Split, seed: int) -> list[Row]:
    """The engine's run of `fair-plugin` for users: its rule, and its model of the outcome without the rule."""
    start, users = process_time(), split.number_of_users
    budget, algorithm = _plug_in_budget(users, how), plug_in(how, split, seed)
    theta = train(algorithm, promised(algorithm, budget, {USERS: users}), (split.users,), seed)
    alone = theta.clone()
    alone[-algorithm.groups :] = 0.0
    return [
        _row(name, users, seed, split, budget, split.measure(algorithm.rule, found), start)
        for name, found in ((how.name, theta), (how.without_rule, alone))
    ]


def plug_in(how: PlugIn, split: Split, seed: int) -> FairPlugin:
    """The algorithm as `how` sets it up for the users of this split."""
    options = plug_in_options(how)
    model, clips = LogisticRegression(split.users.x.shape[1]), Clips(how.clip, how.group_clip, how.count_clip)
    return FairPlugin(model, model, options, split.number_of_users, how.rounds, clips, seed=seed)


def plug_in_options(how: PlugIn) -> FairPluginOptions:
    """What a plan's [training] would say of it."""
    return FairPluginOptions(
        notion=Independence.EQUAL_OPPORTUNITY,
        target_gap=how.target_gap,
        learning_rate=how.learning_rate,
        bins=how.bins,
        reach=how.reach,
    )


def plug_in_plan(how: PlugIn) -> FairPluginPlan:
    """What a plan's [privacy] would say of it."""
    clips = (how.clip, how.group_clip, how.count_clip)
    return FairPluginPlan(how.rounds, Protected.USER, 2, *clips, *how.shares)


@lru_cache
def _plug_in_budget(users: int, how: PlugIn) -> CertifiedBudget:
    return calibrate_plan(plug_in_plan(how), _target(users))


def _target(users: int) -> EpsilonDelta:
    return EpsilonDelta(EPSILON, 1 / users)


def options_of(rung: Rung) -> FpflOptions:
    """What a plan's [training] would say of this rung."""
    return FpflOptions(
        learning_rate=rung.learning_rate,
        momentum=rung.momentum,
        cosine=rung.cosine,
        notion=FairnessNotion.FALSE_NEGATIVE_RATE if rung.fair else FairnessNotion.NONE,
        tolerance=TOLERANCE,
        multiplier_rate=rung.multiplier_rate,
        damping=rung.damping,
        choice=rung.choice,
        smoothing=rung.smoothing,
        records_per_user=1.0 if rung.cohort is None else RECORDS_PER_USER,
        group_weight=((1.0, 1.0), (rung.weight, 1.0)) if rung.weight != 1 else (),
    )


def plan_of(rung: Rung, users: int) -> FpflPlan:
    """What a plan's [privacy] would say of this rung."""
    assert rung.cohort is not None
    assert rung.clip is not None
    sampling = SamplingName.FIXED if rung.printed else SamplingName.POISSON
    return FpflPlan(users, rung.cohort, rung.rounds, rung.clip, sampling)


def _built(rung: Rung, split: Split, seed: int) -> tuple[Fpfl, SiloTensors]:
    central, width = rung.cohort is None, split.users.x.shape[1]
    model = Perceptron(width, rung.hidden) if rung.hidden else LogisticRegression(width)
    cohort = float(CENTRAL_BATCH if rung.cohort is None else rung.cohort)
    # In one place every record is on its own.
    silo = replace(split.users, unit_of_row=None) if central else split.users
    return Fpfl(model, options_of(rung), 2, cohort, rung.clip, seed, rung.rounds), silo


@lru_cache
def _budget(users: int, rung: Rung) -> CertifiedBudget:
    plan = plan_of(rung, users)
    if not rung.printed:
        return calibrate_plan(plan, _target(users))
    assert rung.cohort is not None
    sigma = fixed_size_sigma(rung.cohort / users, rung.rounds, EPSILON, 1 / users, _LARGEST_ORDER)
    cost = price_plan(plan, 1 / users, noise_multipliers={plan.values()[0].name: sigma}).upper
    return calibrate_plan(plan, EpsilonDelta(cost, 1 / users))


def _signed(algorithm: Fpfl, rung: Rung, split: Split, silo: SiloTensors, budget: CertifiedBudget | None) -> Signed:
    if budget is not None:
        return promised(algorithm, budget, {USERS: split.number_of_users})
    if rung.cohort is None:
        drawn = FixedSize(len(silo), CENTRAL_BATCH, Batch.REVEALED)
        return unpromised(algorithm, rung.rounds, {USERS: len(silo)}, drawn)
    users = split.number_of_users
    return unpromised(algorithm, rung.rounds, {USERS: users}, Poisson(rung.cohort / users, Batch.REVEALED))


def _measured(model: Model, theta: torch.Tensor, records: Dataset) -> Measurement:
    features = torch.from_numpy(np.array(records.features)).to(torch.float32)
    with torch.no_grad():
        guess = model.logits(theta, features).argmax(dim=1).numpy()
    confusion = count_confusion(records.label, guess, records.group, records.class_names, records.group_names)
    return Measurement(confusion, 1, Comparison.OVERALL)
