"""One split of one data set: every method, every fairness weight, every epsilon, measured on the test records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import stacked
import torch
from numpy.typing import NDArray
from steffle_settings import (
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

from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.baselines.central_erm import CentralErm, CentralErmOptions
from privfair.algorithms.parts.local_models import towards_own_minimum
from privfair.contribution import Published
from privfair.data.benchmarks import load_benchmark
from privfair.data.dataset import Dataset
from privfair.data.partition import Heterogeneous, cut_into_silos, split_silos
from privfair.models.linear import LogisticRegression

PRINTED, CALIBRATED, PAY_ONCE = "SteFFLe as printed", "SteFFLe calibrated", "pay-once"
NON_PRIVATE, ERM = "SteFFLe without privacy", "central ERM"
RAISED, NEGATIVE = "threshold raised, s never seen", "always negative"


@dataclass(frozen=True)
class Job:
    setting: str
    h: float
    split: int


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
            return np.abs(first - second)

        parity, odds = gap(np.ones_like(label)), np.maximum(gap(label), gap(~label))
        return list(zip(errors.tolist(), parity.tolist(), odds.tolist(), strict=True))


def run_job(job: Job) -> list[Row]:
    """All rows of one split."""
    setting = next(one for one in SETTINGS if one.name == job.setting)
    split = load_split(setting, job.h, job.split)
    rows = [*_without_attribute(split)]
    rows += [*_steffle(setting, split, job.split), *_printed(setting, split, job.split)]
    rows += [*_pay_once(setting, split, job.split)]
    return [Row(job.setting, job.h, job.split, *row) for row in rows]


_Measured = tuple[str, float | None, float | None, float, float, float, float]


@lru_cache(maxsize=1)
def _whole(setting: Setting) -> Dataset:
    return load_benchmark(setting.benchmark, scaling=setting.scaling)


def load_split(setting: Setting, h: float, seed: int) -> Split:
    silos = cut_into_silos(_whole(setting), Heterogeneous(SILOS, setting.age, h), seed)
    parts = split_silos(silos, seed)

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
    return -np.mean(moves, axis=0)


def _without_attribute(split: Split) -> Iterator[_Measured]:
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
    raised = scores[:, None] - np.array(THRESHOLDS, dtype=np.float32)
    measured = split.errors_and_gaps(raised)
    yield (ERM, None, None, 0.0, *measured[0])
    for threshold, point in zip(THRESHOLDS, measured, strict=True):
        yield (RAISED, None, None, threshold, *point)
    yield (NEGATIVE, None, None, 0.0, *split.errors_and_gaps(np.full((len(split.test), 1), -1.0))[0])


def _rule(rate: float, rounds: int) -> stacked.Descent:
    return stacked.Descent(rounds, rate, momentum=0.9, decay=0.9, decay_every=rounds // 15 + 1)


def _steffle(setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...] = EPSILONS) -> Iterator[_Measured]:
    """Calibrated: full batches, W around independence, few rounds; and the same without noise, clipping or ball."""
    size, weights = split.silo_size, setting.steffle_fairness
    noises = [calibrated_noise(setting, size, epsilon) for epsilon in epsilons]
    columns = _columns(setting, size, weights, noises, setting.lipschitz, setting.w_radius)
    theta = stacked.steffle(split.train, columns, _rule(setting.learning_rate, ROUNDS), seed, start=split.start)
    points = iter(split.errors_and_gaps(split.test.x @ theta.astype(np.float32)))
    for epsilon, noise in zip(epsilons, noises, strict=True):
        for weight in weights:
            yield (CALIBRATED, epsilon, noise.true_epsilon, weight, *next(points))
    plain = _columns(setting, size, setting.plain_fairness, [Noise(0.0, 0.0, math.inf)], UNCLIPPED, UNBOUNDED)
    theta = stacked.steffle(split.train, plain, _rule(setting.learning_rate, ROUNDS), seed, start=split.start)
    measured = split.errors_and_gaps(split.test.x @ theta.astype(np.float32))
    for weight, point in zip(setting.plain_fairness, measured, strict=True):
        yield (NON_PRIVATE, None, None, weight, *point)


def _columns(
    setting: Setting, size: int, weights: tuple[float, ...], noises: list[Noise], lipschitz: float, radius: float
) -> stacked.SteffleColumns:
    return stacked.SteffleColumns(
        fairness=np.tile(weights, len(noises)),
        sigma_theta=np.repeat([noise.sigma_theta for noise in noises], len(weights)),
        sigma_w=np.repeat([noise.sigma_w for noise in noises], len(weights)),
        w_step=np.ones(len(weights) * len(noises)),
        frequencies=setting.frequencies,
        minority_fraction=setting.minority_fraction,
        batch_size=size,
        lipschitz=lipschitz,
        w_radius=radius,
    )


def _printed(setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...] = EPSILONS) -> Iterator[_Measured]:
    """Algorithm 1 with the paper's step sizes and Theorem 3.3's noise: shuffled batches of 256, W from zero."""
    size = split.silo_size
    noises = [noise_as_printed(setting, size, epsilon) for epsilon in epsilons]
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
    epochs = math.ceil(size / PRINTED_BATCH)
    rule = stacked.Descent(printed_rounds(size), 0.25, momentum=0.0, decay=0.8, decay_every=10 * epochs)
    batches = stacked.shuffled_batches(tuple(len(silo) for silo in split.train), PRINTED_BATCH, seed)
    theta = stacked.steffle(split.train, columns, rule, seed, batches)
    points = iter(split.errors_and_gaps(split.test.x @ theta.astype(np.float32)))
    for epsilon, noise in zip(epsilons, noises, strict=True):
        for weight in PRINTED_FAIRNESS:
            yield (PRINTED, epsilon, noise.true_epsilon, weight, *next(points))


def _pay_once(setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...] = EPSILONS) -> Iterator[_Measured]:
    weights = setting.pay_once_fairness
    keep = [1 / (1 + math.exp(-epsilon)) for epsilon in epsilons]
    columns = stacked.PayOnceColumns(np.tile(weights, len(keep)), np.repeat(keep, len(weights)))
    theta = stacked.pay_once(split.train, columns, _rule(setting.pay_once_rate, FREE_ROUNDS), seed, split.start)
    points = iter(split.errors_and_gaps(split.test.x @ theta.astype(np.float32)))
    for epsilon in epsilons:
        for weight in weights:
            yield (PAY_ONCE, epsilon, epsilon, weight, *next(points))
