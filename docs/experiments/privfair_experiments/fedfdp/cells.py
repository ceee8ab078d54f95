"""FedFDP's tables and figures cell by cell: a linear model on public features, and its baselines, on real schedules.

A private cell goes through the engine under a signed budget, with seeded noise; a cell of the tables without privacy
is the algorithm's own class in a plain loop. Rates were chosen on Fashion-MNIST split by seed 100, which is not
measured, and are used unchanged for all data sets (8, 32 and 128 gave DP-FedAvg 81.5, 85.4 and 87.6% there, 32 and 128
gave ALI-DPFL 79.3 and 82.1%; the others are `tuning`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrate.budget import CertifiedBudget, calibrate_plan
from calibrate.plans.clipped_sums import FedfdpPlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.privacy_unit import EpsilonDelta
from calibrate.questions import rounds
from privfair.algorithms.algorithm import Algorithm
from privfair.algorithms.ali_dpfl import AliDpfl, AliDpflOptions
from privfair.algorithms.baselines.averaging import FedAvg, FedAvgOptions
from privfair.algorithms.baselines.client_losses import QFfl, QFflOptions
from privfair.algorithms.baselines.drift import (
    FedDyn,
    FedDynOptions,
    FedProx,
    FedProxOptions,
    Scaffold,
    ScaffoldOptions,
)
from privfair.algorithms.baselines.fedfair import FedFair, FedFairOptions
from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.algorithms.fedfdp import FedFdp, FedFdpClips, FedFdpOptions
from privfair.algorithms.parts.clients import NOISY, ClippedPairs, ClippedSums
from privfair.plan.sections import GradientOptions
from privfair_experiments.engine_run import first_noise, promised, train
from privfair_experiments.images.clients import BETA, CLIENTS, Federation, Scores, free_round

RATE, ROUNDS, DELTA, SIGMA, LOSS_NOISE = 0.05, 763, 1e-5, 2.0, 5.0
"""Section VIII; 763 rounds are what a certified 3.52 affords with the loss charged, too."""
LOSS_CLIP = 2.5
PRINTED_ROUNDS = {1.0: 6, 1.5: 115, 2.0: 268, 2.5: 463, 3.0: 708}
"""Section VIII: what each sigma is said to support at epsilon 2."""
FEDFDP, FEDAVG, Q_FFL, ALI_DPFL = "FedFDP", "DP-FedAvg", "DP-q-FFL", "ALI-DPFL"
FEDDYN = "DP-FedDyn"
"""DP-FedProx and DP-SCAFFOLD are DP-FedAvg where every message is averaged (the page has the proof)."""
STEPS = {FEDFDP: 128.0, FEDAVG: 128.0, Q_FFL: 128.0, ALI_DPFL: 128.0, FEDDYN: 12.8}
LOCAL_STEPS, COMMUNICATIONS = 2, ROUNDS // 2
"""Of ALI-DPFL, which averages models now and then."""
MAIN, BESIDE = (FEDFDP, FEDAVG, Q_FFL), (FEDDYN, ALI_DPFL)
EQUAL_STEPS = "FedAvg, equal steps"
"""FedProx without its term: as many local steps for every client, as the corrected methods make."""
FREE_ROUNDS, FREE_BATCH = 20, 0.05
"""Without privacy: aggregations, each after one pass of every client over its images in 20 mini-batches."""
FREE_STEPS = {
    "FedAvg": 8.0,
    EQUAL_STEPS: 8.0,
    "SCAFFOLD": 8.0,
    "FedProx": 8.0,
    "FedDyn": 2.0,
    "q-FFL": 8.0,
    "FedFair": 2.0,
}
TUNING_SEED = 100
"""Of the partition on which rates are chosen; never measured."""


@dataclass(frozen=True)
class Cell:
    """One trained model of a table or figure; `noise_multiplier` is the gradient's, `epsilon` the one asked for."""

    item: str
    dataset: str
    method: str
    seed: int
    clients: int = CLIENTS
    beta: float = BETA
    epsilon: float | None = 3.52
    rounds: int = ROUNDS
    clip: float = 0.1
    fairness: float = 0.5
    loss_ratio: float = LOSS_NOISE / SIGMA
    """The loss's noise multiplier over the gradient's."""
    step: float = 0.0
    """The rate; 0 is the method's own of STEPS or FREE_STEPS."""


@dataclass(frozen=True)
class FedfdpRow(Cell):
    """A cell with what came out."""

    true_epsilon: float | None = None
    noise_multiplier: float | None = None
    accuracy: float = 0.0
    worst: float = 0.0
    spread: float = 0.0
    psi: float = 0.0
    loss: float = 0.0
    seconds: float = 0.0

    @property
    def cell(self) -> Cell:
        return Cell(**{field.name: getattr(self, field.name) for field in fields(Cell)})


@lru_cache
def budget(method: str, epsilon: float, steps: int, clip: float, loss_ratio: float) -> CertifiedBudget:
    """The smallest noise with which the schedule keeps the promise; methods that publish losses pay for them."""
    target = EpsilonDelta(epsilon, DELTA)
    if method in (FEDFDP, Q_FFL):
        return calibrate_plan(FedfdpPlan(RATE, steps, clip, LOSS_CLIP, loss_ratio), target)
    return calibrate_plan(GaussianPlan(RATE, steps, clip=clip), target)


@lru_cache
def afforded_rounds(epsilon: float, sigma: float = SIGMA) -> int:
    """Rounds that this noise affords with the loss charged, certified."""
    noise = (sigma, LOSS_NOISE)
    return rounds(epsilon=epsilon, delta=DELTA, sampling_rate=RATE, noise_multiplier=noise)


def run(cell: Cell, on: Federation) -> FedfdpRow:
    """Train and measure."""
    start = time.process_time()
    if cell.method in FREE_STEPS:
        theta, found = _train_without_privacy(cell, on), None
    else:
        assert cell.epsilon is not None
        found = budget(cell.method, cell.epsilon, cell.rounds, cell.clip, cell.loss_ratio)
        algorithm = _private(cell, on, found)
        theta = train(algorithm, promised(algorithm, found, on.sizes), on.silos, cell.seed)
    scores: Scores = on.scores(theta)
    return FedfdpRow(
        **asdict(cell),
        true_epsilon=None if found is None else found.certified.upper,
        noise_multiplier=first_noise(found),
        **asdict(scores),
        seconds=time.process_time() - start,
    )


def _private(cell: Cell, on: Federation, signed: CertifiedBudget) -> Algorithm[Any]:
    model, shares, expected, seed = on.model, on.shares, on.expected(RATE), cell.seed
    step, sums = cell.step or STEPS[cell.method], ClippedSums(cell.clip, expected)
    match cell.method:
        case "FedFDP":
            options = FedFdpOptions(learning_rate=step, fairness=cell.fairness)
            return FedFdp(model, options, shares, expected, FedFdpClips(cell.clip, LOSS_CLIP), seed)
        case "DP-FedAvg":
            return DpFedSgd(model, GradientOptions(step), cell.clip, sum(expected.values()), seed)
        case "DP-q-FFL":
            return QFfl(model, QFflOptions(step), shares, ClippedPairs(cell.clip, LOSS_CLIP, expected), seed)
        case "ALI-DPFL":
            own = AliDpflOptions(step, communications=COMMUNICATIONS, first_steps=LOCAL_STEPS)
            sigma = signed.value(NOISY).sigma
            assert sigma is not None
            return AliDpfl(model, own, shares, sums, sigma, cell.rounds, seed)
        case "DP-FedDyn":
            return FedDyn(model, FedDynOptions(step, 1, 0.1 / step), shares, sums, seed)
    raise ValueError(cell.method)


def _train_without_privacy(cell: Cell, on: Federation) -> Tensor:
    """Mini-batches of a twentieth of each client's images, in an order of their own; one pass per aggregation."""
    passes = cell.method in ("FedAvg", "FedFair")
    algorithm = _free(cell, on)
    state, local = algorithm.start(), round(1 / FREE_BATCH)
    orders = np.random.default_rng([cell.seed, 1])
    for _ in range(cell.rounds):
        drawn = {silo.name: torch.from_numpy(orders.permutation(len(silo))) for silo in on.silos}
        for step in range(1 if passes else local):
            own = {name: rows if passes else rows.tensor_split(local)[step] for name, rows in drawn.items()}
            state = free_round(algorithm, state, step, ((silo, own[silo.name]) for silo in on.silos))
    return algorithm.theta(state)


def _free(cell: Cell, on: Federation) -> Algorithm[Any]:
    model, shares, seed = on.model, on.shares, cell.seed
    step, local = cell.step or FREE_STEPS[cell.method], round(1 / FREE_BATCH)
    batch = max(1, round(FREE_BATCH * sum(on.sizes.values()) / len(on.silos)))
    match cell.method:
        case "FedAvg":
            return FedAvg(model, FedAvgOptions(learning_rate=step, local_batch=batch), shares, seed)
        case "FedFair":
            own = FedFairOptions(learning_rate=step, local_batch=batch, fairness=cell.fairness)
            return FedFair(model, own, shares, seed)
        case "FedProx" | "FedAvg, equal steps":
            proximal = 0.0 if cell.method == EQUAL_STEPS else 0.1 / step
            return FedProx(model, FedProxOptions(step, local, proximal), shares, seed=seed)
        case "SCAFFOLD":
            return Scaffold(model, ScaffoldOptions(step, local), shares, seed=seed)
        case "FedDyn":
            return FedDyn(model, FedDynOptions(step, local, 0.1 / step), shares, seed=seed)
        case "q-FFL":
            return QFfl(model, QFflOptions(step, local), shares, seed=seed)
    raise ValueError(cell.method)


RATES = "Rates"
TABLE_2, TABLE_3, TABLE_4, TABLE_5, TABLE_6 = "Table II", "Table III", "Table IV", "Table V", "Table VI"
FIGURE_3, FIGURE_4, FIGURE_5 = "Figure 3", "Figure 4", "Figure 5"
FASHION, DIGITS, COLOUR = "fashion-mnist", "mnist", "cifar-10"
_WITHOUT: dict[str, Any] = {"epsilon": None, "rounds": FREE_ROUNDS}
_OTHER_CLIENTS: tuple[dict[str, Any], ...] = (
    {"dataset": FASHION, "beta": 1.0},
    {"dataset": DIGITS, "beta": 0.5},
    {"dataset": COLOUR, "clients": 20},
    {"dataset": COLOUR, "clients": 50},
)


def cells(seeds: int) -> Iterator[Cell]:
    """What the page shows, the most wanted first: everything over three seeds, then over `seeds`."""
    yield from tuning()
    for span in (range(min(3, seeds)), range(3, seeds)):
        yield from epsilons(span, MAIN)
        yield from _without_privacy(FASHION, span)
        yield from _at_printed_epsilon(FASHION, span, tuple(STEPS))
        yield from _without_privacy(DIGITS, span)
        yield from _at_printed_epsilon(DIGITS, span, MAIN)
        yield from (cell for seed in span for cell in figures(seed))
        yield from _without_privacy(COLOUR, span)
        yield from _at_printed_epsilon(COLOUR, span, MAIN)
        yield from epsilons(span, BESIDE)
        for dataset in (DIGITS, COLOUR):
            yield from _at_printed_epsilon(dataset, span, BESIDE)
        for own in _OTHER_CLIENTS:
            without = own | _WITHOUT
            yield from (Cell(TABLE_3, method=method, seed=seed, **without) for seed in span for method in FREE_STEPS)
            yield from (Cell(TABLE_5, method=method, seed=seed, **own) for seed in span for method in STEPS)


def _without_privacy(dataset: str, span: range) -> Iterator[Cell]:
    return (Cell(TABLE_2, dataset, method, seed, **_WITHOUT) for seed in span for method in FREE_STEPS)


def _at_printed_epsilon(dataset: str, span: range, methods: tuple[str, ...]) -> Iterator[Cell]:
    return (Cell(TABLE_4, dataset, method, seed) for seed in span for method in methods)


def tuning() -> Iterator[Cell]:
    """Rates on a partition that is not measured; at 8 FedFair's losses grow until they are infinite."""
    for method, steps in ((FEDDYN, (4.0, 12.8, 40.0)), (ALI_DPFL, (8.0, 64.0))):
        yield from (Cell(RATES, FASHION, method, TUNING_SEED, step=step) for step in steps)
    for method in FREE_STEPS:
        tried: tuple[float, ...] = (2.0,) if method == "FedFair" else (2.0, 8.0)
        tried = (0.5, *tried) if method in ("FedAvg", EQUAL_STEPS, "FedFair") else tried
        yield from (Cell(RATES, FASHION, method, TUNING_SEED, step=step, **_WITHOUT) for step in tried)


def epsilons(span: range, methods: tuple[str, ...]) -> Iterator[Cell]:
    """Table VI: as many rounds as each epsilon affords."""
    for seed in span:
        for epsilon, sigma in ((1.0, SIGMA), (2.0, SIGMA), (3.0, SIGMA), (4.0, 1.65)):
            own = _afforded(epsilon, sigma)
            yield from (Cell(TABLE_6, FASHION, method, seed, epsilon=epsilon, **own) for method in methods)


def figures(seed: int) -> Iterator[Cell]:
    """FedFDP's sweeps of lambda, of C and of sigma; their middles are in Tables IV and VI."""
    for sigma in PRINTED_ROUNDS:
        if sigma != SIGMA:
            yield Cell(FIGURE_5, FASHION, FEDFDP, seed, epsilon=2.0, **_afforded(2.0, sigma))
    yield from (Cell(FIGURE_4, FASHION, FEDFDP, seed, clip=clip) for clip in (0.01, 1.0, 5.0, 10.0))
    yield from (Cell(FIGURE_3, FASHION, FEDFDP, seed, fairness=fairness) for fairness in (0.0, 1.0, 5.0))


def _afforded(epsilon: float, sigma: float) -> dict[str, Any]:
    """The rounds of this noise; the ratio is rounded as rows are when they are stored."""
    return {"rounds": afforded_rounds(epsilon, sigma), "loss_ratio": round(LOSS_NOISE / sigma, 5)}
