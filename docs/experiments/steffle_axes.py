"""SteFFLe's competitors on its own axes, many runs at once: DP-FERMI, Tran's multipliers and FedFDP.

Each at a certified epsilon, with full batches, so that no price rests on a secret batch. Logistic regression, two
groups, research noise, as in `stacked`. Step sizes were chosen on split 100, which is not measured, the same for
every epsilon and h.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import stacked
from numpy.typing import NDArray
from scipy.stats import norm
from steffle_settings import (
    DELTA,
    EPSILONS,
    PRINTED_BATCH,
    PRINTED_CLIP,
    PRINTED_EPOCHS,
    PRINTED_FAIRNESS,
    PRINTED_RADIUS,
    ROUNDS,
    SETTINGS,
    Noise,
    Setting,
    calibrated_noise,
    noise_as_printed,
)
from steffle_split import Split, _columns, _pay_once, _printed, _rule, _steffle, _without_attribute, load_split

from calibrate.budget import calibrate_plan
from calibrate.plans.fedfdp import GRADIENT, LOSS, FedfdpPlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.plan import NoisyValue
from calibrate.privacy_unit import EpsilonDelta

FERMI, TRAN, FEDFDP = "DP-FERMI, central", "Tran, central", "FedFDP"
PUBLIC_CODE = "SteFFLe, public code"
PROTECTED = {FERMI: "attribute, trusted centre", TRAN: "attribute, trusted centre", FEDFDP: "record, per silo"}
PROTECTED[PUBLIC_CODE] = "nobody, in effect"
TRAN_ROUNDS, TRAN_CLIP, TRAN_RATE, TRAN_MULTIPLIER_RATE = 80, 2.0, 1.0, 0.5
TRAN_LARGEST = (0.0, 0.15, 0.3, 0.5, 1.0, 2.0)
FEDFDP_ROUNDS, FEDFDP_CLIP, FEDFDP_LOSS_CLIP, FEDFDP_RATIO, FEDFDP_RATE = 100, 2.0, 2.5, 2.5, 4.0
FEDFDP_FAIRNESS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class AxesRow:
    """One trained model; `knob` is the fairness weight, the largest multiplier, or lambda."""

    setting: str
    h: float
    split: int
    method: str
    epsilon: float | None
    true_epsilon: float | None
    knob: float
    error: float
    gap: float
    odds: float
    seconds: float | None
    """Of processor time, where it was measured."""


@dataclass(frozen=True)
class AxesJob:
    setting: str
    h: float
    split: int
    epsilons: tuple[float, ...] = EPSILONS


_Found = tuple[str, float | None, float | None, float, float, float, float, float | None]


def run_axes(job: AxesJob) -> list[AxesRow]:
    """All rows of one split: the rivals, SteFFLe, pay-once and the controls."""
    setting = next(one for one in SETTINGS if one.name == job.setting)
    split, epsilons = load_split(setting, job.h, job.split), job.epsilons
    found: list[_Found] = []
    for train in (dp_fermi, tran, fedfdp, public_code):
        found += train(setting, split, job.split, epsilons)
    found += [(*row, None) for row in _without_attribute(split)]
    for measured in (_steffle, _printed, _pay_once):
        found += [(*row, None) for row in measured(setting, split, job.split, epsilons)]
    return [AxesRow(job.setting, job.h, job.split, *row) for row in found]


def _rows(
    method: str,
    split: Split,
    theta: stacked.Wide,
    epsilons: tuple[float, ...],
    certified: list[float],
    knobs: tuple[float, ...],
    start: float,
) -> Iterator[_Found]:
    """The rows of columns that run over epsilons, and within each over the knobs."""
    points = iter(split.errors_and_gaps(split.test.x @ theta.astype(np.float32)))
    seconds = (time.process_time() - start) / theta.shape[1]
    for epsilon, true in zip(epsilons, certified, strict=True):
        for knob in knobs:
            yield (method, epsilon, true, knob, *next(points), seconds)


def _pooled(split: Split) -> stacked.StackedSilo:
    parts = [(silo.x, silo.y, silo.s) for silo in split.train]
    return stacked.StackedSilo(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def dp_fermi(setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...]) -> Iterator[_Found]:
    """SteFFLe calibrated with one silo of all records: its noise is that of all of them together."""
    start, whole = time.process_time(), _pooled(split)
    noises = [calibrated_noise(setting, len(whole), epsilon) for epsilon in epsilons]
    weights = setting.steffle_fairness
    columns = _columns(setting, len(whole), weights, noises, setting.lipschitz, setting.w_radius)
    theta = stacked.steffle((whole,), columns, _rule(setting.learning_rate, ROUNDS), seed, start=split.start)
    yield from _rows(FERMI, split, theta, epsilons, [noise.true_epsilon for noise in noises], weights, start)


@lru_cache
def _multiplier(rounds: int, epsilon: float) -> tuple[float, float]:
    """Of one Gaussian value in each of so many full-batch rounds, and the certified epsilon."""
    budget = calibrate_plan(GaussianPlan(1.0, rounds), EpsilonDelta(epsilon, DELTA))
    (value,) = budget.values
    assert isinstance(value, NoisyValue)
    assert value.noise_multiplier is not None
    return value.noise_multiplier, budget.certified.upper


def tran(setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...]) -> Iterator[_Found]:
    """Lagrange multipliers on the gap of soft rates, of all records in one place (Tran et al. 2021, parity).

    A record's group part is (rate, its gradient, 1), clipped to norm TRAN_CLIP; another attribute moves it from one
    group to the other, a distance of sqrt(2) TRAN_CLIP, which the noise of every round is calibrated to. The gradient
    of the loss uses no attribute and is exact. The gap's gradient has the gap's sign.
    """
    start, whole = time.process_time(), _pooled(split)
    priced = [_multiplier(TRAN_ROUNDS, epsilon) for epsilon in epsilons]
    knobs, random = TRAN_LARGEST, np.random.default_rng((seed, 3))
    sigma = np.repeat([z * math.sqrt(2) * TRAN_CLIP for z, _ in priced], len(knobs))
    largest = np.tile(knobs, len(priced))
    x, y, n = whole.x, whole.y, len(whole)
    norms = np.square(np.linalg.norm(x, axis=1))[:, None]
    theta = stacked._Theta(_rule(TRAN_RATE, TRAN_ROUNDS), np.repeat(split.start[:, None], len(sigma), axis=1))
    multiplier = np.zeros(len(sigma))
    members = [(whole.s == group).astype(np.float32)[:, None] for group in (0, 1)]
    for step in range(TRAN_ROUNDS):
        p = stacked.sigmoid(x @ theta.values.astype(np.float32))
        slope = p * (1 - p)
        shrink = np.minimum(1, TRAN_CLIP / np.sqrt(1 + p * p + slope * slope * norms)).astype(np.float32)
        rates, gradients = [], []
        for member in members:
            own = member * shrink
            count = own.sum(axis=0, dtype=np.float64) + sigma * random.standard_normal(len(sigma))
            total = (own * p).sum(axis=0, dtype=np.float64) + sigma * random.standard_normal(len(sigma))
            noisy = (x.T @ (own * slope)).astype(np.float64) + sigma * random.standard_normal(theta.values.shape)
            count = np.maximum(count, 0.01 * n)
            rates.append(total / count)
            gradients.append(noisy / count)
        gap = rates[0] - rates[1]
        multiplier = np.minimum(multiplier + TRAN_MULTIPLIER_RATE * np.abs(gap) * (largest > 0), largest)
        loss = (x.T @ (p - y[:, None])).astype(np.float64) / n
        theta.advance(step, loss + multiplier * np.sign(gap) * (gradients[0] - gradients[1]))
    yield from _rows(TRAN, split, theta.values, epsilons, [true for _, true in priced], knobs, start)


@lru_cache
def _fedfdp_noise(epsilon: float) -> tuple[float, float, float]:
    plan = FedfdpPlan(1.0, FEDFDP_ROUNDS, FEDFDP_CLIP, FEDFDP_LOSS_CLIP, FEDFDP_RATIO)
    budget = calibrate_plan(plan, EpsilonDelta(epsilon, DELTA))
    gradient, loss = budget.value(GRADIENT).sigma, budget.value(LOSS).sigma
    assert gradient is not None
    assert loss is not None
    return gradient, loss, budget.certified.upper


def fedfdp(setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...]) -> Iterator[_Found]:
    """FedFDP with full batches: every silo sends its clipped, weighted gradients and its clipped losses with noise.

    The factor 1 + lambda Delta, Delta being the record's loss minus the published mean loss, is clipped with the
    gradient (`privfair.fairness.clipping.fair_clipping`); the server's momentum is post-processing.
    """
    start, random = time.process_time(), np.random.default_rng((seed, 5))
    priced = [_fedfdp_noise(epsilon) for epsilon in epsilons]
    knobs = FEDFDP_FAIRNESS
    sigma, sigma_loss = (np.repeat([one[k] for one in priced], len(knobs)) for k in (0, 1))
    fairness, total = np.tile(knobs, len(priced)).astype(np.float32), sum(len(silo) for silo in split.train)
    theta = stacked._Theta(_rule(FEDFDP_RATE, FEDFDP_ROUNDS), np.zeros((split.train[0].x.shape[1], len(sigma))))
    mean = np.full(len(sigma), math.log(2))
    for step in range(FEDFDP_ROUNDS):
        gradient, losses = np.zeros_like(theta.values), np.zeros(len(sigma))
        for silo in split.train:
            scores = silo.x @ theta.values.astype(np.float32)
            residual = stacked.sigmoid(scores) - silo.y[:, None]
            own = np.logaddexp(0, scores) - silo.y[:, None] * scores
            weighted = residual * (1 + fairness * (own - mean.astype(np.float32)))
            weighted *= _shrunk(weighted, np.linalg.norm(silo.x, axis=1))
            gradient += silo.x.T @ weighted + sigma * random.standard_normal(gradient.shape)
            clipped = np.minimum(own, FEDFDP_LOSS_CLIP).sum(axis=0, dtype=np.float64)
            losses += clipped + sigma_loss * random.standard_normal(len(sigma))
        theta.advance(step, gradient / total)
        mean = np.clip(losses / total, 0.0, FEDFDP_LOSS_CLIP)
    yield from _rows(FEDFDP, split, theta.values, epsilons, [true for _, _, true in priced], knobs, start)


def public_code(setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...]) -> Iterator[_Found]:
    """The round of SteFFLe's public code (`privfair.algorithms.baselines.steffle_public_code`) with the noise it adds.

    That noise is Theorem 3.3's for a *mean* over the batch, beside a sum, which one attribute moves by up to twice the
    clip. The true epsilon is that of 40 such Gaussian releases (Dong, Roth, Su 2022), rounded up.
    """
    start, size = time.process_time(), split.silo_size
    noises = [noise_as_printed(setting, size, epsilon) for epsilon in epsilons]
    knobs = PRINTED_FAIRNESS
    fairness = np.tile(knobs, len(noises))
    sigma, sigma_w = (
        np.repeat([getattr(noise, name) for noise in noises], len(knobs)) for name in ("sigma_theta", "sigma_w")
    )
    epochs = math.ceil(size / PRINTED_BATCH)
    rule = stacked.Descent(PRINTED_EPOCHS * epochs, 0.25, momentum=0.0, decay=0.8, decay_every=10 * epochs)
    batches = stacked.shuffled_batches(tuple(len(silo) for silo in split.train), PRINTED_BATCH, seed)
    columns = stacked.PublicCodeColumns(fairness, sigma, sigma_w, setting.frequencies[0], PRINTED_CLIP, PRINTED_RADIUS)
    theta = stacked.public_code(split.train, columns, rule, batches, seed)
    true = [_summed_epsilon(noise, _printed_z(size, epsilon)) for noise, epsilon in zip(noises, epsilons, strict=True)]
    yield from _rows(PUBLIC_CODE, split, theta, epsilons, true, knobs, start)


def _printed_z(size: int, epsilon: float) -> float:
    """Theorem 3.3's multiplier of either release, relative to the mean's sensitivity (docs/theorems/steffle.md)."""
    rounds = math.ceil(PRINTED_EPOCHS * size / PRINTED_BATCH)
    return PRINTED_BATCH / size * math.sqrt(2 * rounds * math.log(1 / DELTA)) / epsilon


def _summed_epsilon(noise: Noise, z: float) -> float:
    """An epsilon that the sum in theta and the mean in W keep: the first term of the Gaussian curve alone is DELTA."""
    mu = math.sqrt(PRINTED_EPOCHS * ((2 * PRINTED_CLIP / noise.sigma_theta) ** 2 + z**-2))
    return mu * mu / 2 + mu * float(norm.isf(DELTA))


def _shrunk(weighted: NDArray[np.floating], norms: NDArray[np.floating]) -> NDArray[np.floating]:
    lengths = np.abs(weighted) * norms[:, None]
    return np.minimum(1, FEDFDP_CLIP / np.maximum(lengths, 1e-9)).astype(np.float32)
