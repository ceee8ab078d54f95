"""SteFFLe, pay-once and descents of the fair plug-in for many runs at once: logistic, two groups, two classes.

The same rounds as `privfair.algorithms.steffle.Steffle` and `privfair.algorithms.pay_once.PayOnce`, for a whole row of
fairness weights and noise levels in one matrix product (tests/privfair/test_experiment_stacked.py holds the two against
each other). Noise is numpy's Gaussian in floating point: equal in distribution to the gate's up to its grid, but
research noise all the same. It protects nobody, and the data here are public.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, assert_never

import numpy as np
from numpy.typing import NDArray
from scipy import special

from calibrate.arrays import Floats
from privfair.algorithms.parts.descent import DescentRule
from privfair.fairness.fermi import Independence

Wide = NDArray[np.float64]
_UNDER_THE_BOUND = 1.0 / (1.0 + 2.0**-16)
Step = TypeVar("Step")


@dataclass(frozen=True, eq=False)
class StackedSilo:
    """One silo's records; `x` has a last column of ones."""

    x: Floats
    y: Floats
    s: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)

    @classmethod
    def of(cls, features: NDArray[np.floating], y: NDArray[np.integer], s: NDArray[np.int64]) -> StackedSilo:
        x = np.concatenate((features, np.ones((len(features), 1))), axis=1).astype(np.float32)
        return cls(np.ascontiguousarray(x), y.astype(np.float32), np.asarray(s))


@dataclass(frozen=True)
class Descent:
    """`privfair.algorithms.parts.descent.DescentRule` for columns of theta."""

    rounds: int
    learning_rate: float
    momentum: float = 0.9
    decay: float = 1.0
    decay_every: int = 10

    def rate(self, step: int) -> float:
        return self.learning_rate * self.decay ** (step // self.decay_every)


@dataclass(frozen=True, eq=False)
class SteffleColumns:
    """One run per column: its fairness weight, its noise, its W step; and what all columns share.

    `frequencies` are the groups' shares, block by block of `notion`.
    """

    fairness: Wide
    sigma_theta: Wide
    sigma_w: Wide
    w_step: Wide
    frequencies: tuple[tuple[float, float], ...]
    minority_fraction: float
    batch_size: int
    lipschitz: float
    w_radius: float
    around_independence: bool = True
    notion: Independence = Independence.DEMOGRAPHIC_PARITY

    @property
    def reach(self) -> float:
        """How far apart one record's two parts of m h_theta may be."""
        bound = 2 * math.sqrt(2) * self.lipschitz * self.w_radius / math.sqrt(self.minority_fraction)
        return bound * _UNDER_THE_BOUND

    def blocks(self, y: Floats) -> list[slice | NDArray[np.bool_]]:
        """The records of each block."""
        match self.notion:
            case Independence.DEMOGRAPHIC_PARITY:
                return [slice(None)]
            case Independence.EQUALISED_ODDS:
                return [y < 0.5, y > 0.5]
            case Independence.EQUAL_OPPORTUNITY:
                return [y > 0.5]
            case _:
                assert_never(self.notion)


@dataclass(eq=False)
class Theta:
    """Columns of parameters on their way."""

    rule: Descent
    values: Wide
    velocity: Wide = field(init=False)

    def __post_init__(self) -> None:
        self.velocity = np.zeros_like(self.values)

    def advance(self, step: int, gradient: Wide) -> None:
        self.velocity = self.rule.momentum * self.velocity + gradient
        self.values = self.values - self.rule.rate(step) * (1 - self.rule.momentum) * self.velocity


def _columns_from(start: Wide | None, size: int, runs: int) -> Wide:
    return np.zeros((size, runs)) if start is None else np.repeat(start[:, None], runs, axis=1)


def sigmoid(scores: Floats) -> Floats:
    return np.asarray(np.float32(1.0) / (np.float32(1.0) + np.exp(-scores)))


def steffle(
    silos: tuple[StackedSilo, ...],
    columns: SteffleColumns,
    rule: Descent,
    seed: int,
    batches: Iterator[tuple[NDArray[np.int64], ...]] | None = None,
    start: Wide | None = None,
) -> Wide:
    """The last theta of every column, (features + 1, columns); full batches unless `batches` yields rows.

    All columns begin at `start`, or at zero.
    """
    noise = np.random.default_rng(seed)
    runs = len(columns.fairness)
    theta = Theta(rule, _columns_from(start, silos[0].x.shape[1], runs))
    frequencies = np.array(columns.frequencies)
    centre = np.sqrt(frequencies)[:, :, None] * np.ones((1, 2)) * columns.around_independence
    deviation = np.zeros((runs, len(frequencies), 2, 2))
    lengths = [np.linalg.norm(silo.x, axis=1).astype(np.float32) for silo in silos]
    for step in range(rule.rounds):
        w = centre + deviation
        clear, noisy, of_w = np.zeros_like(theta.values), np.zeros_like(theta.values), np.zeros_like(w)
        drawn = next(batches) if batches is not None else (None,) * len(silos)
        for silo, length, rows in zip(silos, lengths, drawn, strict=True):
            part = silo if rows is None else StackedSilo(silo.x[rows], silo.y[rows], silo.s[rows])
            own = length if rows is None else length[rows]
            g, h_theta, h_w = _steffle_message(part, own, theta.values, w, frequencies, columns)
            clear += g / len(silos)
            noisy += (h_theta + noise.normal(size=h_theta.shape) * columns.sigma_theta) / len(silos)
            of_w += (h_w + noise.normal(size=h_w.shape) * columns.sigma_w[:, None, None, None]) / len(silos)
        theta.advance(step, clear + columns.fairness * noisy)
        deviation = deviation + columns.w_step[:, None, None, None] * of_w
        norms = np.sqrt(np.square(deviation).sum(axis=(2, 3), keepdims=True))
        inside = columns.w_radius * (1 - 2.0**-40)
        deviation = deviation * (inside / np.maximum(norms, inside))
    return theta.values


def _steffle_message(
    silo: StackedSilo, lengths: Floats, theta: Wide, w: Wide, frequencies: Wide, columns: SteffleColumns
) -> tuple[Wide, Wide, Wide]:
    """g, h_theta and h_W of one silo, every column at once."""
    m, x = columns.batch_size, silo.x
    probability = sigmoid(x @ theta.astype(np.float32))
    steepness = probability * (1 - probability)
    free, pull, h_w = probability - silo.y[:, None], np.zeros_like(probability), np.zeros_like(w)
    for number, rows in enumerate(columns.blocks(silo.y)):
        of_block, shares, s = w[:, number], frequencies[number], silo.s[rows]
        # Only differences of the two classes' slopes act on the score.
        slopes = 2 * (of_block[:, :, 1] - of_block[:, :, 0]) / np.sqrt(shares)
        mean = slopes @ (shares / shares.sum())
        squares = np.square(of_block).sum(axis=1)
        common = squares[:, 0] - squares[:, 1] + mean
        apart = np.abs(slopes[:, 0] - slopes[:, 1]).astype(np.float32)
        distances = steepness[rows] * lengths[rows, None] * apart
        reach = np.float32(columns.reach)
        own = (slopes - mean[:, None]).T.astype(np.float32)[s]
        pull[rows] = steepness[rows] * own * (reach / np.maximum(distances, reach))
        free[rows] += steepness[rows] * (columns.fairness * common).astype(np.float32)
        inside = probability[rows]
        of_one = np.stack([inside[s == group].sum(axis=0, dtype=np.float64) for group in (0, 1)], axis=1)
        counts = np.array([(s == group).sum() for group in (0, 1)], dtype=np.float64)
        joint = np.stack((counts - of_one, of_one), axis=2)
        h_w[:, number] = 2 * joint / np.sqrt(shares)[:, None] - 2 * of_block * joint.sum(axis=1)[:, None, :]
    return (x.T @ free).astype(np.float64) / m, (x.T @ pull).astype(np.float64) / m, h_w / m


@dataclass(frozen=True, eq=False)
class PublicCodeColumns:
    """SteFFLe's public code, one run per column: the noise on its sum in theta and on its mean in W; what all share.

    `first` is the group that counts as the first one; None for that of each silo's first record, as in the code.
    """

    fairness: Wide
    sigma_theta: Wide
    sigma_w: Wide
    first_share: float
    clip: float
    w_radius: float
    w_step: float = 1e-5
    first: int | None = None


def public_code(
    silos: tuple[StackedSilo, ...],
    columns: PublicCodeColumns,
    rule: Descent,
    batches: Iterator[tuple[NDArray[np.int64], ...]],
    seed: int,
) -> Wide:
    """The last theta of every column, as `privfair.algorithms.baselines.steffle_public_code` computes it, and noise."""
    fairness = columns.fairness
    theta = Theta(rule, np.zeros((silos[0].x.shape[1], len(fairness))))
    w, random, scale = np.zeros(len(fairness)), np.random.default_rng((seed, 7)), columns.first_share**-0.5
    for step in range(rule.rounds):
        moved, lifted = np.zeros_like(theta.values), np.zeros_like(w)
        for silo, rows in zip(silos, next(batches), strict=True):
            group = silo.s[0] if columns.first is None else columns.first
            x, first = silo.x[rows], (silo.s[rows] == group)[:, None]
            p = sigmoid(x @ theta.values.astype(np.float32))
            pull = fairness * (2 * w * first * scale - w * w) * p * (1 - p)
            lengths = np.abs(pull) * np.linalg.norm(x, axis=1)[:, None]
            pull = pull * (columns.clip / np.maximum(lengths, columns.clip))
            moved += x.T @ (p - silo.y[rows][:, None]) / len(x) + x.T @ pull
            moved += columns.sigma_theta * random.standard_normal(moved.shape)
            lifted += (fairness * (2 * p * first * scale - 2 * w * p)).mean(axis=0)
            lifted += columns.sigma_w * random.standard_normal(len(w))
        theta.advance(step, moved / len(silos))
        w = np.clip(w + columns.w_step * lifted / len(silos), -columns.w_radius, columns.w_radius)
    return theta.values


@dataclass(frozen=True, eq=False)
class PayOnceColumns:
    """One run a column: its fairness weight and which of the `keep` probabilities its responses come from."""

    fairness: Wide
    keep: Wide
    """Each column's probability of a true answer; 1 for no privacy."""
    least_share: float = 0.01


def pay_once(
    silos: tuple[StackedSilo, ...], columns: PayOnceColumns, rule: Descent, seed: int, start: Wide | None = None
) -> Wide:
    """The last theta of every column; `rule.rounds` counts training rounds, after the responses of round 0.

    Columns of the same `keep` share their responses, as runs that differ in the fairness weight may.
    """
    draw = np.random.default_rng(seed)
    levels, level_of = np.unique(columns.keep, return_inverse=True)
    members = [_memberships(silo.s, levels, draw) for silo in silos]
    total = sum(len(silo) for silo in silos)
    theta = Theta(rule, _columns_from(start, silos[0].x.shape[1], len(columns.fairness)))
    pull = None
    for step in range(rule.rounds):
        gradient, ones = np.zeros_like(theta.values), np.zeros((len(columns.fairness), 2))
        masses = np.zeros_like(ones)
        for silo, first in zip(silos, members, strict=True):
            probability = sigmoid(silo.x @ theta.values.astype(np.float32))
            in_first = first[:, level_of]
            first_ones = (in_first * probability).sum(axis=0, dtype=np.float64)
            ones += np.stack((first_ones, probability.sum(axis=0, dtype=np.float64) - first_ones), axis=1) / total
            mass = first.sum(axis=0, dtype=np.float64)[level_of]
            masses += np.stack((mass, len(silo) - mass), axis=1) / total
            score = probability - silo.y[:, None]
            if pull is not None:
                slope = pull[1] + in_first * (pull[0] - pull[1])
                score = score + probability * (1 - probability) * slope
            gradient += (silo.x.T @ score).astype(np.float64) / total
        theta.advance(step, gradient)
        pull = _gap_pull(ones, masses, columns)
    return theta.values


def _memberships(s: NDArray[np.int64], keeps: Wide, draw: np.random.Generator) -> Floats:
    """The unbiased membership in group 0 for each level of `keep`, from fresh responses."""
    levels = []
    for keep in keeps:
        answers = np.where(draw.random(len(s)) < keep, s, 1 - s)
        levels.append(((answers == 0) - (1 - keep)) / (2 * keep - 1))
    return np.stack(levels, axis=1).astype(np.float32)


def _gap_pull(ones: Wide, masses: Wide, columns: PayOnceColumns) -> tuple[Floats, Floats]:
    """fairness * (slope of class 1 - slope of class 0) of the squared gap for either group.

    The gap of class 0 is minus that of class 1, so each class adds gap / mass to its own side.
    """
    masses = np.maximum(masses, columns.least_share)
    gap = ones[:, 0] / masses[:, 0] - ones[:, 1] / masses[:, 1]
    first, second = 2 * gap / masses[:, 0], -2 * gap / masses[:, 1]
    return (columns.fairness * first).astype(np.float32), (columns.fairness * second).astype(np.float32)


def shuffled_batches(sizes: tuple[int, ...], batch_size: int, seed: int) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """Rows of every silo, epoch after epoch in a new order; the last batch of an epoch is shorter."""
    draw = np.random.default_rng(seed)
    while True:
        orders = [draw.permutation(size) for size in sizes]
        for start in range(0, max(sizes), batch_size):
            yield tuple(order[start : start + batch_size] for order in orders)


def logistic_descents(
    x: NDArray[np.floating],
    targets: NDArray[np.floating],
    clip: float | None,
    sigmas: NDArray[np.floating],
    rule: DescentRule,
    random: np.random.Generator,
    units: int | None = None,
    softmax: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Many logistic descents at once, one per column of `targets`: the means of the last quarter of the iterates.

    They are returned before and after the last step. `sigmas` are of the sum over all silos, one per column; sums are
    divided by `units`, or by the number of records. With `softmax` the columns are the classes of one model.
    """
    wide = np.c_[x, np.ones(len(x))].astype(np.float32)
    chances = partial(special.softmax, axis=1) if softmax else special.expit
    norms = np.linalg.norm(wide, axis=1)[:, None]
    theta = np.zeros((wide.shape[1], targets.shape[1]))
    velocity, mean, kept, before = np.zeros_like(theta), np.zeros_like(theta), 0, theta
    for step in range(rule.rounds):
        residual = chances(wide @ theta.astype(np.float32)) - targets
        if clip is not None:
            lengths = np.linalg.norm(residual, axis=1, keepdims=True) if softmax else np.abs(residual)
            residual *= np.minimum(1, clip / np.maximum(lengths * norms, 1e-12))
        gradient = (wide.T @ residual).astype(np.float64) + random.normal(0, 1, theta.shape) * sigmas
        velocity = rule.momentum * velocity + gradient / (units or len(x))
        theta = theta - rule.rate(step) * (1 - rule.momentum) * velocity
        if step + 1 > rule.rounds - max(1, rule.rounds // 4):
            before, kept = mean, kept + 1
            mean = mean + (theta - mean) / kept
    return before, mean
