"""One split of Adult: every rung of the ladder, trained by the engine and measured on the test records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from time import process_time

import numpy as np
import torch
from engine_run import Signed, promised, train, unpromised
from fpfl_settings import (
    CENTRAL_BATCH,
    EPSILON,
    MAJORITY,
    RECORDS_PER_USER,
    TEST_FRACTION,
    TOLERANCE,
    Everybody,
    PlugIn,
    Rung,
)
from scipy.special import expit

from calibrate.accountants.registry import best_epsilon
from calibrate.budget import CertifiedBudget, calibrate_plan, price_plan
from calibrate.plans.fair_plugin import FairPluginPlan
from calibrate.plans.fpfl import CohortSampling, FpflPlan
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Protected, Relation
from calibrate.sampling import Batch, FixedSize, Poisson
from calibrate.theorems.printed import fixed_size_sigma
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.fair_plugin import Clips, FairPlugin, FairPluginOptions
from privfair.algorithms.fpfl import Fpfl, FpflOptions
from privfair.algorithms.parts.descent import DescentRule, Iterate
from privfair.data.benchmark_files import BenchmarkScaling
from privfair.data.benchmarks import Benchmark
from privfair.data.training_data import USERS, TrainingData, load_training_data
from privfair.fairness.constraints import FairnessNotion
from privfair.fairness.fermi import Independence
from privfair.fairness.gaps import Comparison, Measure, count_confusion
from privfair.fairness.measurement import Measurement
from privfair.models.linear import LogisticRegression
from privfair.models.model import Model
from privfair.models.perceptron import Perceptron
from privfair.plan.data import BenchmarkSource, DataPlan, PoissonUsers

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
        return tuple(  # type: ignore[return-value]
            _measured(model, theta, silos.pooled()) for silos in (self.data.test, self.data.parties)
        )


@lru_cache(maxsize=2)
def load_split(seed: int, steps: bool = False) -> Split:
    """The same users and test records with and without steps."""
    scaling = BenchmarkScaling.PUBLIC_WITH_STEPS if steps else BenchmarkScaling.PUBLIC
    source = BenchmarkSource(Benchmark.ADULT, scaling=scaling)
    plan = DataPlan(source, users=PoissonUsers(RECORDS_PER_USER), seed=seed, test_fraction=TEST_FRACTION)
    return Split(load_training_data(plan))


def run_one(how: Rung | Everybody | PlugIn, split: Split, seed: int) -> list[Row]:
    """Train one way of any kind and measure what it gives."""
    if isinstance(how, Everybody):
        return run_everybody(how, split, seed)
    return run_plug_in(how, split, seed) if isinstance(how, PlugIn) else [run_rung(how, split, seed)]


def run_rung(rung: Rung, split: Split, seed: int) -> Row:
    """Train one rung and measure its model."""
    start, (algorithm, silo) = process_time(), _built(rung, split, seed)
    budget = _budget(split.number_of_users, rung) if rung.private else None
    signed = _signed(algorithm, rung, split, silo, budget)
    theta = train(algorithm, signed, (silo,), seed)
    return _row(rung.name, rung.cohort, seed, split, budget, split.measure(algorithm.model, theta), start)


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
    precision = test.predictive_parity
    return Row(
        rung=name,
        cohort=cohort,
        split=seed,
        users=split.number_of_users,
        true_epsilon=added,
        noise_multiplier=None if budget is None else budget.values[0].noise_multiplier,
        accuracy=test.accuracy,
        fnr_gap=test.false_negative_gap.value,
        fnr_gap_training=own.false_negative_gap.value,
        equalised_odds_gap=test.equalised_odds.value,
        demographic_parity_gap=test.demographic_parity.value,
        predictive_parity_gap=precision.value if precision.defined else None,
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


def run_everybody(how: Everybody, split: Split, seed: int) -> list[Row]:
    """Full participation: `rounds` sums over all users, each user's gradient clipped as a whole, noise on the sum."""
    start, users = process_time(), split.number_of_users
    budget = _everybody_budget(users, how) if how.private else None
    sigma = 0.0 if budget is None else budget.values[0].sigma
    assert sigma is not None
    x, y, s = split.users.x.numpy(), split.users.y.numpy().astype(np.float32), split.users.s.numpy()
    assert split.users.unit_of_row is not None
    order = np.argsort(split.users.unit_of_row.numpy(), kind="stable")
    owner = split.users.unit_of_row.numpy()[order]
    first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    wide = np.c_[x, np.ones(len(x))].astype(np.float32)[order]
    y, counted = y[order], np.where((y == 1) & (s == 0), how.weight, 1.0).astype(np.float32)[order]
    rule = DescentRule(how.learning_rate, how.momentum, iterate=Iterate.TAIL_AVERAGE, rounds=how.rounds, cosine=True)
    at, random = rule.start(torch.zeros(wide.shape[1], dtype=torch.float64)), np.random.default_rng((seed, 11))
    for _ in range(how.rounds):
        residual = (expit(wide @ at.theta.numpy().astype(np.float32)) - y) * counted
        of_users = np.add.reduceat(wide * residual[:, None], first, axis=0)
        lengths = np.linalg.norm(of_users, axis=1)
        total = np.minimum(1, how.clip / np.maximum(lengths, 1e-9)) @ of_users
        noisy = total + random.normal(0, sigma, len(total))
        at = rule.advance(at, torch.from_numpy(noisy / users))
    rows = []
    for threshold in how.thresholds:
        theta = rule.model(at).clone()
        theta[-1] -= threshold
        measured = split.measure(LogisticRegression(x.shape[1]), theta)
        name = how.name if how.name == MAJORITY else how.at(threshold)
        rows.append(_row(name, users, seed, split, budget, measured, start))
    return rows


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
    options = FairPluginOptions(
        notion=Independence.EQUAL_OPPORTUNITY,
        target_gap=how.target_gap,
        learning_rate=how.learning_rate,
        bins=how.bins,
        reach=how.reach,
    )
    model, clips = LogisticRegression(split.users.x.shape[1]), Clips(how.clip, how.group_clip, how.count_clip)
    return FairPlugin(model, model, options, split.number_of_users, how.rounds, clips, seed=seed)


@lru_cache
def _plug_in_budget(users: int, how: PlugIn) -> CertifiedBudget:
    clips = (how.clip, how.group_clip, how.count_clip)
    return calibrate_plan(FairPluginPlan(how.rounds, Protected.USER, 2, *clips, *how.shares), _target(users))


@lru_cache
def _everybody_budget(users: int, how: Everybody) -> CertifiedBudget:
    return calibrate_plan(FpflPlan(users, users, how.rounds, how.clip, CohortSampling.POISSON), _target(users))


def _target(users: int) -> EpsilonDelta:
    return EpsilonDelta(EPSILON, 1 / users)


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
    model = Perceptron(split.users.x.shape[1], rung.hidden)
    cohort = float(CENTRAL_BATCH if rung.cohort is None else rung.cohort)
    # In one place every record is on its own.
    silo = replace(split.users, unit_of_row=None) if central else split.users
    return Fpfl(model, options, 2, cohort, rung.clip, seed), silo


@lru_cache
def _budget(users: int, rung: Rung) -> CertifiedBudget:
    assert rung.cohort is not None
    assert rung.clip is not None
    if not rung.printed:
        return calibrate_plan(
            FpflPlan(users, rung.cohort, rung.rounds, rung.clip, CohortSampling.POISSON), _target(users)
        )
    sigma = fixed_size_sigma(rung.cohort / users, rung.rounds, EPSILON, 1 / users, _LARGEST_ORDER)
    plan = FpflPlan(users, rung.cohort, rung.rounds, rung.clip, CohortSampling.FIXED)
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


def _measured(model: Model, theta: torch.Tensor, records: object) -> Measurement:
    features = torch.from_numpy(np.array(records.features)).to(torch.float32)
    with torch.no_grad():
        guess = model.logits(theta, features).argmax(dim=1).numpy()
    confusion = count_confusion(records.label, guess, records.group, records.class_names, records.group_names)
    return Measurement(confusion, 1, Measure(Comparison.OVERALL))
