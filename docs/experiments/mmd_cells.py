"""Every cell of the MMD experiment for one seed: what is named here is trained, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from mmd_settings import (
    ABLATION_METHODS,
    ABLATION_OWN,
    ABLATION_WEIGHT,
    FEDFB_RATES,
    HIDDEN,
    PRIVATE,
    PRIVATE_WEIGHTS,
    REAL,
    REAL_SEEDS,
    SYNTHETIC,
    SYNTHETIC_CLIENTS,
    SYNTHETIC_METHODS,
    SYNTHETIC_RECORDS,
    SYNTHETIC_WEIGHTS,
    Method,
)
from mmd_training import Cell, Clients, Row, run_cell

from privfair.data.benchmarks import load_benchmark
from privfair.data.partition import ByColumn, cut_into_silos
from privfair.data.synthetic_mmd import DIMENSIONS, synthetic_mmd_clients
from privfair.models.linear import LogisticRegression
from privfair.models.perceptron import Perceptron

SYNTHETIC_TASK = "synthetic"


@dataclass(frozen=True)
class Job:
    task: str
    method: Method
    knob: float
    own: float
    seed: int

    def is_in(self, rows: list[Row]) -> bool:
        key = (self.task, self.method.value, self.knob, self.own, self.seed)
        return any(key == (row.task, row.method, row.knob, row.own, row.seed) for row in rows)


def jobs_of(seed: int) -> Iterator[Job]:
    """Real data first: they take longest."""
    for task in REAL if seed < REAL_SEEDS else ():
        fair = (Method.OURS, Method.LOCAL, Method.FAIRFED)
        yield from (Job(task.name, method, weight, 1.0, seed) for method in fair for weight in task.weights)
        yield from (Job(task.name, Method.FEDFB, rate, 1.0, seed) for rate in FEDFB_RATES)
        yield Job(task.name, Method.AGNOSTIC, 0.0, 1.0, seed)
    for own in ABLATION_OWN:
        if own == 1.0:
            for method in SYNTHETIC_METHODS:
                yield from (Job(SYNTHETIC_TASK, method, w, own, seed) for w in SYNTHETIC_WEIGHTS)
        else:
            yield from (Job(SYNTHETIC_TASK, m, ABLATION_WEIGHT, own, seed) for m in ABLATION_METHODS)
    for method in PRIVATE:
        yield from (Job(SYNTHETIC_TASK, method, weight, 1.0, seed) for weight in PRIVATE_WEIGHTS)


def run_job(job: Job) -> Row:
    clients = PRIVATE[job.method].clients if job.method in PRIVATE else SYNTHETIC_CLIENTS
    cell = _synthetic(job.seed, job.own, clients) if job.task == SYNTHETIC_TASK else _real(job.task, job.seed)
    measured = run_cell(cell, job.method, job.knob)
    return Row(job.task, job.method.value, job.knob, job.own, job.seed, *measured)


@lru_cache(maxsize=1)
def _synthetic(seed: int, own: float, clients: int) -> Cell:
    silos = synthetic_mmd_clients(seed, clients, SYNTHETIC_RECORDS, own)
    return Cell(Clients.of(silos, seed, torch.float64), LogisticRegression(DIMENSIONS), SYNTHETIC, seed)


@lru_cache(maxsize=1)
def _real(name: str, seed: int) -> Cell:
    (task,) = (each for each in REAL if each.name == name)
    silos = cut_into_silos(load_benchmark(task.benchmark), ByColumn(task.column, task.least), seed)
    clients = Clients.of(silos, seed, torch.float32)
    return Cell(clients, Perceptron(clients.x.shape[1], (HIDDEN,)), task.schedule, seed)
