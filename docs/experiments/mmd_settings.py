"""What the MMD experiment fixes. Schedules are shorter than the paper's (100 rounds of 50 local epochs) and say so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from privfair.data.benchmarks import Benchmark

SAMPLES = 100
"""Published scores of each group and round, as in the paper."""
EPSILON, DELTA = 3.0, 1e-5


class Method(Enum):
    OURS = "function tracking"
    CENTRAL = "records in one place"
    LOCAL = "local MMD"
    FAIRFED = "FairFed"
    AGNOSTIC = "agnostic FL"
    FEDFB = "FedFB"
    PRIVATE_SMALL = "function tracking, private, 10 clients"
    PRIVATE_LARGE = "function tracking, private, 200 clients"


@dataclass(frozen=True)
class Schedule:
    """Rounds, local epochs, local batch, local step; agnostic FL takes rounds * epochs single steps instead."""

    rounds: int
    epochs: int
    batch: int | None
    rate: float


@dataclass(frozen=True)
class PrivateSetting:
    """A private run on the synthetic task: who takes part, and the smaller group's size that is priced."""

    clients: int
    cohort: int
    group_size: int
    update_clip: float = 0.5
    update_noise_ratio: float = 2.0
    kernel_width: float = 1.0


SYNTHETIC_SEEDS, REAL_SEEDS = 5, 3
SYNTHETIC = Schedule(20, 5, None, 0.1)
SYNTHETIC_CLIENTS, SYNTHETIC_RECORDS = 10, 200
SYNTHETIC_WEIGHTS = (0.1, 1.0, 10.0, 50.0)
ABLATION_WEIGHT, ABLATION_OWN = 50.0, (0.5, 0.75, 1.0)
SYNTHETIC_METHODS = (Method.OURS, Method.CENTRAL, Method.LOCAL, Method.FAIRFED)
ABLATION_METHODS = (Method.OURS, Method.LOCAL, Method.FAIRFED)
PRIVATE = {Method.PRIVATE_SMALL: PrivateSetting(10, 10, 650), Method.PRIVATE_LARGE: PrivateSetting(200, 40, 14_000)}
PRIVATE_WEIGHTS = (0.0, 10.0)


@dataclass(frozen=True)
class RealTask:
    """A benchmark cut by a column; two layers with 16 hidden units, as in the paper."""

    name: str
    title: str
    benchmark: Benchmark
    column: str
    least: int
    schedule: Schedule
    weights: tuple[float, ...]


HIDDEN = 16
FEDFB_RATES = (0.002, 0.02)
REAL = (
    RealTask(
        "communities-crime",
        "Communities & Crime, clients are states",
        Benchmark.COMMUNITIES_CRIME,
        "state",
        4,
        Schedule(25, 2, 100, 0.2),
        (0.0, 0.3, 1.0, 2.0, 3.0),
    ),
    RealTask(
        "compas",
        "COMPAS, clients are age groups",
        Benchmark.COMPAS,
        "age-cat",
        1,
        Schedule(25, 3, 500, 0.3),
        (0.0, 0.3, 1.0, 3.0, 6.0, 12.0),
    ),
)
