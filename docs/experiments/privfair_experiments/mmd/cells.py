"""Every cell of the MMD experiment: what is named here is trained, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from privfair.data.benchmarks import load_benchmark
from privfair.data.dataset import Silos
from privfair.data.partition import cut_into_silos
from privfair.models.linear import LogisticRegression
from privfair.models.perceptron import Perceptron
from privfair.plan.data import ByColumn
from privfair_experiments.mmd.clients import DIMENSIONS, synthetic_mmd_clients
from privfair_experiments.mmd.settings import (
    ABLATION_METHODS,
    ABLATION_OWN,
    ABLATION_WEIGHT,
    FEDFB_RATES,
    FEWER_SAMPLES,
    FEWER_SEEDS,
    HIDDEN,
    PRIVATE,
    PRIVATE_WEIGHTS,
    REAL,
    REAL_SEEDS,
    SAMPLES,
    SEEDS,
    SYNTHETIC,
    SYNTHETIC_CLIENTS,
    SYNTHETIC_METHODS,
    SYNTHETIC_RECORDS,
    SYNTHETIC_WEIGHTS,
    THRESHOLDS,
    UNEQUAL_RECORDS,
    Method,
    RealTask,
)
from privfair_experiments.mmd.stacked import Column, run_columns, run_thresholds
from privfair_experiments.mmd.training import Cell, Clients, Row, run_cell

SYNTHETIC_TASK, UNEQUAL_TASK = "synthetic", "synthetic, unequal clients"


@dataclass(frozen=True)
class Job:
    """One run of the engine; without a method, all weights of the methods that are trained side by side."""

    task: str
    method: Method | None
    knob: float
    own: float
    seed: int

    def is_in(self, rows: list[Row]) -> bool:
        mine = (self.task, (self.method or Method.OURS).value, self.knob, self.own, self.seed)
        return any(mine == (row.task, row.method, row.knob, row.own, row.seed) for row in rows)


def jobs() -> Iterator[Job]:
    """Real data first: they decide most."""
    for seed in REAL_SEEDS:
        yield from (Job(task.name, None, 0.0, 1.0, seed) for task in REAL)
    for seed in REAL_SEEDS:
        for task in REAL:
            yield Job(task.name, Method.BLIND, THRESHOLDS[0], 1.0, seed)
            if seed < FEWER_SEEDS:
                yield from (Job(task.name, Method.FEDFB, rate, 1.0, seed) for rate in FEDFB_RATES)
                yield Job(task.name, Method.AGNOSTIC, 0.0, 1.0, seed)
    for seed in range(SEEDS):
        yield from _synthetic_jobs(seed)


def _synthetic_jobs(seed: int) -> Iterator[Job]:
    for method in PRIVATE if seed < FEWER_SEEDS else (Method.PRIVATE_SMALL,):
        yield from (Job(SYNTHETIC_TASK, method, weight, 1.0, seed) for weight in PRIVATE_WEIGHTS)
    for method in SYNTHETIC_METHODS:
        yield from (Job(SYNTHETIC_TASK, method, weight, 1.0, seed) for weight in SYNTHETIC_WEIGHTS)
    for method in ABLATION_METHODS:
        yield from (Job(UNEQUAL_TASK, method, ABLATION_WEIGHT, own, seed) for own in ABLATION_OWN)
        yield from (Job(SYNTHETIC_TASK, method, ABLATION_WEIGHT, own, seed) for own in ABLATION_OWN if own != 1.0)


def run_job(job: Job) -> list[Row]:
    if job.method is None:
        return _side_by_side(next(task for task in REAL if task.name == job.task), job.seed)
    if job.method is Method.BLIND:
        found = run_thresholds(_cell(job), THRESHOLDS)
        return [Row(job.task, job.method.value, *row) for row in ((b, 1.0, job.seed, None, *m) for b, m in found)]
    measured = run_cell(_cell(job), job.method, job.knob)
    return [Row(job.task, job.method.value, job.knob, job.own, job.seed, *measured)]


def _side_by_side(task: RealTask, seed: int) -> list[Row]:
    """All weights of function tracking, of own penalties, of FairFed and of records in one place."""
    scores = {Method.OURS: SAMPLES}
    if task is REAL[0] and seed < SEEDS:  # Figure 5
        scores |= {Method(name): fewer for name, fewer in FEWER_SAMPLES.items()}
    kinds = [(method, Column(Method.OURS, 0.0, samples)) for method, samples in scores.items()]
    kinds += [(method, Column(method, 0.0)) for method in (Method.LOCAL, Method.FAIRFED, Method.CENTRAL)]
    runs = [(method, replace(column, weight=weight)) for method, column in kinds for weight in task.weights]
    found = run_columns(real_cell(task.name, seed), tuple(column for _, column in runs))
    return [
        Row(task.name, method.value, column.weight, 1.0, seed, None, *measured)
        for (method, column), measured in zip(runs, found, strict=True)
    ]


def _cell(job: Job) -> Cell:
    if job.task not in (SYNTHETIC_TASK, UNEQUAL_TASK):
        return real_cell(job.task, job.seed)
    if job.task == UNEQUAL_TASK:
        return _synthetic(job.seed, job.own, UNEQUAL_RECORDS)
    clients = PRIVATE[job.method].clients if job.method in PRIVATE else SYNTHETIC_CLIENTS
    return _synthetic(job.seed, job.own, (SYNTHETIC_RECORDS,) * clients)


@lru_cache(maxsize=1)
def _synthetic(seed: int, own: float, records: tuple[int, ...]) -> Cell:
    silos = synthetic_mmd_clients(seed, len(records), max(records), own)
    pairs = zip(silos, records, strict=True)
    cut = Silos(tuple(replace(silo, data=silo.data.rows(np.arange(size))) for silo, size in pairs))
    return Cell(Clients.of(cut, seed, torch.float64), LogisticRegression(DIMENSIONS), SYNTHETIC, seed)


@lru_cache(maxsize=1)
def real_cell(name: str, seed: int) -> Cell:
    """A benchmark's clients and the network that is trained on them."""
    (task,) = (each for each in REAL if each.name == name)
    silos = cut_into_silos(load_benchmark(task.benchmark), ByColumn(task.column, task.least), seed)
    clients = Clients.of(silos, seed, torch.float32)
    return Cell(clients, Perceptron(clients.x.shape[1], (HIDDEN,)), task.schedule, seed)
