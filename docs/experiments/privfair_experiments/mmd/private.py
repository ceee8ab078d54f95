"""Private MMD-fair FedAvg on real data, beside the fair plug-in at the same epsilon for a replaced record.

Both have one trusted collector of all clients' records and a logistic model, and run through the engine. Schedules and
clips were chosen on seeds 200 to 202 (`make experiments NAME=mmd OPTIONS=--tune`), which are not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from calibrate.accountants.registry import best_epsilon
from calibrate.budget import CertifiedBudget, calibrate_plan
from calibrate.plans.fair_plugin import FairPluginPlan
from calibrate.plans.mmd_fedavg import MmdFedavgPlan
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Protected, Relation
from privfair.algorithms.fair_plugin import Clips, FairPlugin, FairPluginOptions
from privfair.algorithms.mmd_fedavg import (
    PREDICTIONS,
    MmdFedAvg,
    MmdFedAvgOptions,
    MmdTerms,
    NoiseCorrection,
    PaidCounts,
)
from privfair.fairness.constraints import KernelKind
from privfair.fairness.mmd import GaussianSmoothing
from privfair.models.linear import LogisticRegression
from privfair_experiments.engine_run import promised, train, unpromised
from privfair_experiments.mmd.cells import real_cell
from privfair_experiments.mmd.settings import DELTA, SAMPLES
from privfair_experiments.mmd.training import CENTRAL
from privfair_experiments.seed_intervals import Interval

TRACKING, PLUG_IN = "function tracking, private", "fair-plugin"
EPSILONS = (1.0, 3.0, 8.0)
TUNING_SEEDS = (200, 201, 202)
REPLACED = PrivacyUnit(Protected.RECORD, Relation.REPLACE_ONE)
WEIGHTS = (0.0, 1.0, 5.0, 20.0)
KERNEL_WIDTH, HISTOGRAM_RATIO = 1.0, 4.0


@dataclass(frozen=True)
class PrivateRow:
    """One trained model; `knob` is the weight of the penalty, or the plug-in's target gap (1: no rule)."""

    task: str
    method: str
    epsilon: float | None
    knob: float
    seed: int
    true_epsilon: float | None
    accuracy: float
    parity_gap: float

    @property
    def own(self) -> float:
        """As on the paper's own clients."""
        return 1.0


@dataclass(frozen=True)
class Tracking:
    """A schedule of private function tracking."""

    rounds: int
    clip: float
    noise_ratio: float
    """Noise of the updates relative to that of the predictions."""
    epochs: int = 10
    rate: float = 1.0


@dataclass(frozen=True)
class RealPrivate:
    """What one data set is trained with, by epsilon; `group_size` is a public lower bound of the smaller group."""

    task: str
    group_size: int
    targets: tuple[float, ...]
    tracking: dict[float, Tracking]
    steps: dict[float | None, float]
    """Of the plug-in, which is not clipped otherwise than by default."""


CHOSEN: tuple[RealPrivate, ...] = (
    RealPrivate(
        "communities-crime",
        650,
        (1.0, 0.15, 0.05),
        {1.0: Tracking(1, 0.3, 1.0), 3.0: Tracking(1, 3.0, 0.3), 8.0: Tracking(10, 1.0, 0.3)},
        {None: 12.0, 1.0: 0.3, 3.0: 1.0, 8.0: 3.0},
    ),
    RealPrivate(
        "compas",
        1450,
        (1.0, 0.1, 0.05),
        {1.0: Tracking(3, 0.3, 0.3), 3.0: Tracking(1, 0.3, 0.3), 8.0: Tracking(3, 0.3, 0.3)},
        {None: 1.0, 1.0: 0.3, 3.0: 1.0, 8.0: 1.0},
    ),
)
CANDIDATES = tuple(Tracking(*one) for one in product((1, 3, 10), (0.3, 1.0, 3.0), (0.3, 1.0)))
STEP_CANDIDATES = (0.3, 1.0, 3.0, 12.0)


def run_seed(setting: RealPrivate, seed: int) -> list[PrivateRow]:
    """All private models of one data set on one seed, and the plug-in without noise."""
    rows = list(run_plug_in(setting, setting.steps[None], None, setting.targets, seed))
    for epsilon, how in setting.tracking.items():
        rows += run_tracking(setting, how, epsilon, WEIGHTS, seed)
        rows += run_plug_in(setting, setting.steps[epsilon], epsilon, setting.targets, seed)
    return rows


def run_tracking(
    setting: RealPrivate, how: Tracking, epsilon: float, weights: Iterable[float], seed: int
) -> Iterator[PrivateRow]:
    """Private function tracking with each weight of the penalty."""
    cell = real_cell(setting.task, seed)
    collector, model = cell.clients.collected(), LogisticRegression(cell.clients.x.shape[1])
    budget = _tracking_budget(setting.group_size, len(cell.clients.train), how, epsilon)
    noise = budget.value(PREDICTIONS[0]).sigma
    assert noise is not None
    terms = MmdTerms(
        tuple(cell.clients.sizes.values()),
        SAMPLES,
        len(cell.clients.train),
        PaidCounts(),
        how.clip,
        GaussianSmoothing(noise),
        setting.group_size,
    )
    for weight in weights:
        options = MmdFedAvgOptions(
            local_rate=how.rate,
            local_epochs=how.epochs,
            fairness=weight,
            kernel=KernelKind.GAUSSIAN,
            kernel_width=KERNEL_WIDTH,
            # Where noise is wider than the kernel, no kernel undoes it, and the convolved one has to do.
            correction=NoiseCorrection.EXACT if noise < KERNEL_WIDTH else NoiseCorrection.NONE,
        )
        algorithm = MmdFedAvg(model, options, terms, seed)
        theta = train(algorithm, promised(algorithm, budget, {CENTRAL: len(collector)}), (collector,), seed)
        measured = cell.clients.measure(model, theta)
        yield PrivateRow(setting.task, TRACKING, epsilon, weight, seed, budget.certified.upper, *measured)


@lru_cache
def _tracking_budget(group_size: int, clients: int, how: Tracking, epsilon: float) -> CertifiedBudget:
    plan = MmdFedavgPlan(
        group_size,
        SAMPLES,
        how.rounds,
        users=clients,
        cohort=clients,
        update_clip=how.clip,
        update_noise_ratio=how.noise_ratio,
        histogram_noise_ratio=HISTOGRAM_RATIO,
    )
    return calibrate_plan(plan, EpsilonDelta(epsilon, DELTA))


def run_plug_in(
    setting: RealPrivate, step: float, epsilon: float | None, targets: Iterable[float], seed: int
) -> Iterator[PrivateRow]:
    """The fair plug-in on the same records; its noise is as large as a replaced record needs."""
    cell = real_cell(setting.task, seed)
    collector = cell.clients.collected()
    model, plan = LogisticRegression(collector.x.shape[1]), FairPluginPlan(100, Protected.RECORD)
    clips, units = Clips(plan.clip, plan.group_clip, plan.count_clip), {CENTRAL: len(collector)}
    cost, budget = (None, None) if epsilon is None else _plug_in_budget(epsilon)
    for target in targets:
        options = FairPluginOptions(target_gap=target, learning_rate=step)
        algorithm = FairPlugin(model, model, options, len(collector), plan.rounds, clips, seed=seed)
        signed = unpromised(algorithm, plan.rounds, units) if budget is None else promised(algorithm, budget, units)
        theta = train(algorithm, signed, (collector,), seed)
        yield PrivateRow(
            setting.task, PLUG_IN, epsilon, target, seed, cost, *cell.clients.measure(algorithm.rule, theta)
        )


@lru_cache
def _plug_in_budget(epsilon: float) -> tuple[float, CertifiedBudget]:
    """The largest budget for an added record whose noise costs a replaced one at most `epsilon`."""
    low, high = epsilon / 3, epsilon
    best: tuple[float, CertifiedBudget] | None = None
    for _ in range(12):
        middle = (low + high) / 2
        budget = calibrate_plan(FairPluginPlan(100, Protected.RECORD), EpsilonDelta(middle, DELTA))
        cost = best_epsilon(budget.release, REPLACED, DELTA).interval.upper
        if cost <= epsilon:
            low, best = middle, (cost, budget)
        else:
            high = middle
    assert best is not None
    return best


def tune() -> None:
    """Print the best schedule of each data set and epsilon, by accuracy without a penalty, on the tuning seeds."""
    for setting in CHOSEN:
        for epsilon in EPSILONS:
            found = {
                how: _mean(run_tracking(setting, how, epsilon, (0.0,), seed) for seed in TUNING_SEEDS)
                for how in CANDIDATES
            }
            for how in sorted(found, key=lambda how: -found[how])[:4]:
                print(setting.task, epsilon, how, found[how], flush=True)
        for each in (None, *EPSILONS):
            steps = {
                step: _mean(run_plug_in(setting, step, each, (1.0,), seed) for seed in TUNING_SEEDS)
                for step in STEP_CANDIDATES
            }
            print(setting.task, PLUG_IN, each, steps, flush=True)


def _mean(runs: Iterable[Iterator[PrivateRow]]) -> float:
    return Interval.of(row.accuracy for run in runs for row in run).mean
