"""One split of one data set: every method, every fairness weight, every epsilon, measured on the test records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.baselines.central_erm import CentralErm, CentralErmOptions
from privfair.algorithms.parts.local_training import towards_own_minimum
from privfair.contribution import Published
from privfair.data.benchmarks import load_benchmark
from privfair.data.dataset import Dataset
from privfair.data.partition import cut_into_silos, split_silos
from privfair.models.linear import LogisticRegression
from privfair.plan.data import Heterogeneous
from privfair_experiments import stacked
from privfair_experiments.steffle.settings import (
    EPSILONS,
    FREE_ROUNDS,
    PRINTED_BATCH,
    PRINTED_CLIP,
    PRINTED_FAIRNESS,
    PRINTED_RADIUS,
    ROUNDS,
    SETTINGS,
    SILOS,
    THRESHOLDS,
    UNBOUNDED,
    UNCLIPPED,
    WARM_START,
    Noise,
    Setting,
    calibrated_noise,
    noise_as_printed,
    printed_rounds,
)

PRINTED, CALIBRATED, PAY_ONCE = "SteFFLe as printed", "SteFFLe calibrated", "pay-once"
NON_PRIVATE, ERM = "SteFFLe without privacy", "central ERM"
RAISED, NEGATIVE = "threshold raised, s never seen", "always negative"


@dataclass(frozen=True)
class Job:
    """One split of one cut into silos, and which methods are to be trained on it."""

    setting: str
    h: float
    split: int
    methods: tuple[str, ...]
    silos: int = SILOS


@dataclass(frozen=True)
class Row:
    """One trained model: `knob` is the fairness weight, or the threshold on the logit."""

    setting: str
    h: float
    split: int
    method: str
    epsilon: float | None
    true_epsilon: float | None
    knob: float
    error: float
    gap: float
    odds: float | None = None
    """The gap of equalised odds: the larger of the groups' differences in true and in false positive rates."""
    silos: int = SILOS


@dataclass(frozen=True, eq=False)
class Split:
    train: tuple[stacked.StackedSilo, ...]
    test: stacked.StackedSilo
    start: stacked.Wide
    """The mean of the silos' own minimisers of the loss."""

    @property
    def silo_size(self) -> int:
        return min(len(silo) for silo in self.train)

    def errors_and_gaps(self, scores: NDArray[np.floating]) -> list[tuple[float, float, float]]:
        """Error and the gaps of parity and of odds of predicting class 1 where the score is positive, by column."""
        positive, label, group = scores > 0, self.test.y > 0, self.test.s
        errors = (positive != label[:, None]).mean(axis=0)

        def gap(among: NDArray[np.bool_]) -> NDArray[np.float64]:
            first, second = (positive[among & (group == one)].mean(axis=0) for one in (0, 1))
            return np.asarray(np.abs(first - second))

        parity, odds = gap(np.ones_like(label)), np.maximum(gap(label), gap(~label))
        return list(zip(errors.tolist(), parity.tolist(), odds.tolist(), strict=True))


Measured = tuple[str, float | None, float | None, float, float, float, float]
Trainer = Callable[[Setting, Split, int, tuple[float, ...]], Iterator[Measured]]


def run_job(job: Job) -> list[Row]:
    return run_trainers(job, TRAINERS, EPSILONS)


def run_trainers(job: Job, trainers: Mapping[str, Trainer], epsilons: tuple[float, ...]) -> list[Row]:
    """The rows of the job's methods; each draws its own noise, so that no row depends on which others are wanted."""
    setting = next(one for one in SETTINGS if one.name == job.setting)
    split = load_split(setting, job.h, job.split, job.silos)
    found = [row for method in job.methods for row in trainers[method](setting, split, job.split, epsilons)]
    return [Row(job.setting, job.h, job.split, *row, silos=job.silos) for row in found]


def missing_methods(job: Job, rows: Iterable[Row]) -> Job:
    """The job with only those of its methods that have no row yet."""
    known = {row.method for row in rows if _cut(row) == _cut(job) and row.odds is not None}
    return replace(job, methods=tuple(method for method in job.methods if method not in known))


def with_found(rows: Iterable[Row], found: list[Row]) -> list[Row]:
    """All rows; what was found takes the place of older rows."""
    new = {(_cut(row), row.method) for row in found}
    return [row for row in rows if (_cut(row), row.method) not in new] + found


def _cut(one: Row | Job) -> tuple[str, float, int, int]:
    return one.setting, one.h, one.split, one.silos


@lru_cache(maxsize=1)
def whole_records(setting: Setting) -> Dataset:
    return load_benchmark(setting.benchmark, scaling=setting.scaling)


def load_split(setting: Setting, h: float, seed: int, silos: int = SILOS) -> Split:
    parts = split_silos(cut_into_silos(whole_records(setting), Heterogeneous(silos, setting.age, h), seed), seed)

    def stack(data: Dataset) -> stacked.StackedSilo:
        return stacked.StackedSilo.of(data.features, data.label, data.group)

    train = tuple(stack(silo.data) for silo in parts.train)
    return Split(train, stack(parts.test.pooled()), _warm_start(train))


def _warm_start(silos: tuple[stacked.StackedSilo, ...]) -> stacked.Wide:
    """What the first round's clear values make of theta = 0, silos of equal size."""
    model = LogisticRegression(silos[0].x.shape[1] - 1)
    moves = [
        towards_own_minimum(
            model,
            model.initial(0),
            torch.from_numpy(silo.x[:, :-1].astype(np.float64)),
            torch.from_numpy(silo.y.astype(np.int64)),
            WARM_START,
        )
        for silo in silos
    ]
    return np.asarray(-np.mean(moves, axis=0))


def without_attribute(
    setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...], thresholds: tuple[float, ...] = THRESHOLDS
) -> Iterator[Measured]:
    """Central ERM and the two controls; none of them ever sees a group."""
    x = torch.from_numpy(np.concatenate([silo.x[:, :-1] for silo in split.train]).astype(np.float64))
    y = torch.from_numpy(np.concatenate([silo.y for silo in split.train]).astype(np.int64))
    pooled = SiloTensors("central", x, y, torch.zeros_like(y))
    algorithm = CentralErm(LogisticRegression(x.shape[1]), CentralErmOptions(iterations=150))
    state = algorithm.start()
    message = algorithm.contribution(state, 0, pooled, torch.arange(len(y)))
    sent = {name: Published(0, "central", name, values) for name, values in (message.clear or {}).items()}
    theta = algorithm.theta(algorithm.update(state, {"central": sent})).numpy()
    scores = split.test.x @ theta.astype(np.float32)
    raised = scores[:, None] - np.array(thresholds, dtype=np.float32)
    measured = split.errors_and_gaps(raised)
    yield (ERM, None, None, 0.0, *measured[0])
    for threshold, point in zip(thresholds, measured, strict=True):
        yield (RAISED, None, None, threshold, *point)
    yield (NEGATIVE, None, None, 0.0, *split.errors_and_gaps(np.full((len(split.test), 1), -1.0))[0])


def rule(rate: float, rounds: int) -> stacked.Descent:
    return stacked.Descent(rounds, rate, momentum=0.9, decay=0.9, decay_every=rounds // 15 + 1)


def each_knob(
    method: str,
    split: Split,
    theta: stacked.Wide,
    promises: Sequence[tuple[float | None, float | None]],
    knobs: tuple[float, ...],
) -> Iterator[Measured]:
    """The rows of columns that run over promises (nominal and true epsilon), and within each over the knobs."""
    points = iter(split.errors_and_gaps(split.test.x @ theta.astype(np.float32)))
    for promise in promises:
        for knob in knobs:
            yield (method, *promise, knob, *next(points))


NO_NOISE = Noise(0.0, 0.0, math.inf)


def descend(
    setting: Setting,
    silos: tuple[stacked.StackedSilo, ...],
    start: stacked.Wide,
    weights: tuple[float, ...],
    noises: Sequence[Noise],
    seed: int,
) -> stacked.Wide:
    """SteFFLe as well as we know how: full batches, W around independence, few rounds.

    Without noise there is neither clip nor ball.
    """
    free = tuple(noises) == (NO_NOISE,)
    columns = stacked.SteffleColumns(
        fairness=np.tile(weights, len(noises)),
        sigma_theta=np.repeat([noise.sigma_theta for noise in noises], len(weights)),
        sigma_w=np.repeat([noise.sigma_w for noise in noises], len(weights)),
        w_step=np.ones(len(weights) * len(noises)),
        frequencies=setting.frequencies,
        minority_fraction=setting.minority_fraction,
        batch_size=min(len(silo) for silo in silos),
        lipschitz=UNCLIPPED if free else setting.lipschitz,
        w_radius=UNBOUNDED if free else setting.w_radius,
        notion=setting.notion,
    )
    return stacked.steffle(silos, columns, rule(setting.learning_rate, ROUNDS), seed, start=start)


def calibrated_steffle(
    setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...], method: str = CALIBRATED
) -> Iterator[Measured]:
    noises = [calibrated_noise(setting, split.silo_size, epsilon) for epsilon in epsilons]
    weights = setting.steffle_fairness
    theta = descend(setting, split.train, split.start, weights, noises, seed)
    promises = [(epsilon, noise.true_epsilon) for epsilon, noise in zip(epsilons, noises, strict=True)]
    yield from each_knob(method, split, theta, promises, weights)


def plain_steffle(
    setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...], method: str = NON_PRIVATE
) -> Iterator[Measured]:
    """The same without noise, clipping or ball."""
    weights = setting.plain_fairness
    theta = descend(setting, split.train, split.start, weights, [NO_NOISE], seed)
    yield from each_knob(method, split, theta, [(None, None)], weights)


def printed_steffle(
    setting: Setting,
    split: Split,
    seed: int,
    epsilons: tuple[float, ...],
    method: str = PRINTED,
    noise_of: Callable[[Setting, int, float], Noise] = noise_as_printed,
) -> Iterator[Measured]:
    """Algorithm 1 with the paper's step sizes, by default Theorem 3.3's noise: shuffled batches of 256, W from zero."""
    size = split.silo_size
    noises = [noise_of(setting, size, epsilon) for epsilon in epsilons]
    weights = np.tile(PRINTED_FAIRNESS, len(noises))
    columns = stacked.SteffleColumns(
        fairness=weights,
        sigma_theta=np.repeat([noise.sigma_theta for noise in noises], len(PRINTED_FAIRNESS)),
        sigma_w=np.repeat([noise.sigma_w for noise in noises], len(PRINTED_FAIRNESS)),
        w_step=1e-5 * weights,
        frequencies=setting.frequencies,
        minority_fraction=setting.minority_fraction,
        batch_size=PRINTED_BATCH,
        lipschitz=PRINTED_CLIP,
        w_radius=PRINTED_RADIUS,
        around_independence=False,
    )
    theta = stacked.steffle(split.train, columns, printed_rule(size), seed, printed_batches(split, seed))
    promises = [(epsilon, noise.true_epsilon) for epsilon, noise in zip(epsilons, noises, strict=True)]
    yield from each_knob(method, split, theta, promises, PRINTED_FAIRNESS)


def printed_rule(size: int) -> stacked.Descent:
    epoch = math.ceil(size / PRINTED_BATCH)
    return stacked.Descent(printed_rounds(size), 0.25, momentum=0.0, decay=0.8, decay_every=10 * epoch)


def printed_batches(split: Split, seed: int) -> Iterator[tuple[NDArray[np.int64], ...]]:
    return stacked.shuffled_batches(tuple(len(silo) for silo in split.train), PRINTED_BATCH, seed)


def pay_once(setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...]) -> Iterator[Measured]:
    weights = setting.pay_once_fairness
    keep = [1 / (1 + math.exp(-epsilon)) for epsilon in epsilons]
    columns = stacked.PayOnceColumns(np.tile(weights, len(keep)), np.repeat(keep, len(weights)))
    theta = stacked.pay_once(split.train, columns, rule(setting.pay_once_rate, FREE_ROUNDS), seed, split.start)
    yield from each_knob(PAY_ONCE, split, theta, [(epsilon, epsilon) for epsilon in epsilons], weights)


TRAINERS: dict[str, Trainer] = {
    ERM: without_attribute,
    CALIBRATED: calibrated_steffle,
    NON_PRIVATE: plain_steffle,
    PRINTED: printed_steffle,
    PAY_ONCE: pay_once,
}
"""By the method that each is known by; the first one's rows are those of the controls as well."""
