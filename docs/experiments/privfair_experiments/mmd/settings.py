"""What the MMD experiment fixes. Schedules are shorter than the paper's (100 rounds of 50 local epochs) and say so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from privfair.plan.data import Benchmark

SAMPLES = 100
"""Published scores of each group and round, as in the paper."""
FEWER_SAMPLES = {"function tracking, 50 scores": 50, "function tracking, 20 scores": 20}
"""Of the paper's Figure 5."""
EPSILON, DELTA = 3.0, 1e-5


class Method(Enum):
    OURS = "function tracking"
    OURS_50 = "function tracking, 50 scores"
    OURS_20 = "function tracking, 20 scores"
    CENTRAL = "records in one place"
    LOCAL = "local MMD"
    FAIRFED = "FairFed"
    AGNOSTIC = "agnostic FL"
    FEDFB = "FedFB"
    BLIND = "a threshold for all"
    PRIVATE_SMALL = "function tracking, private, 10 clients"
    PRIVATE_LARGE = "function tracking, private, 200 clients"


@dataclass(frozen=True)
class Schedule:
    """Rounds, local epochs, local batch, local step; agnostic FL takes rounds * epochs single steps instead."""

    rounds: int
    epochs: int
    batch: int | None
    rate: float
    factor: float = 1.0
    """By which the local step shrinks from round to round; 0.99 in the paper's runs on real data."""

    def step(self, round_number: int) -> float:
        """The length of a local step in this round."""
        return self.rate * self.factor**round_number


@dataclass(frozen=True)
class PrivateSetting:
    """A private run on the synthetic task: who takes part, and the smaller group's size that is priced."""

    clients: int
    cohort: int
    group_size: int
    update_clip: float = 0.5
    update_noise_ratio: float = 2.0
    kernel_width: float = 1.0


SEEDS, FEWER_SEEDS = 10, 5
"""All methods are trained on the first five; FedFB, agnostic FL and 200 private clients on no more."""
REAL_SEEDS = (*range(SEEDS), 100, 101, 102)
SYNTHETIC = Schedule(20, 5, None, 0.1)
SYNTHETIC_CLIENTS, SYNTHETIC_RECORDS = 10, 200
UNEQUAL_RECORDS = (50, 150, 250, 100, 50, 100)
"""Records of the six clients of the paper's Figure 9."""
CURVE_WEIGHT = 0.5
"""Of the curves of Figures 6 and 7, on Communities & Crime."""
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
    limits: tuple[float, ...]
    """Parity gaps at which methods are compared."""


HIDDEN = 16
THRESHOLDS = (0.0, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 1.01)
"""Controls: a plain model that answers yes above another probability, blind to the group; the ends answer all alike."""
FEDFB_RATES = (0.002, 0.02)
REAL = (
    RealTask(
        "communities-crime",
        "Communities & Crime, clients are states",
        Benchmark.COMMUNITIES_CRIME,
        "state",
        4,
        Schedule(25, 2, 100, 0.2, 0.99),
        (0.0, 0.15, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0),
        (0.25, 0.2, 0.15, 0.1, 0.05),
    ),
    RealTask(
        "compas",
        "COMPAS, clients are age groups",
        Benchmark.COMPAS,
        "age-cat",
        1,
        Schedule(25, 3, 500, 0.3, 0.99),
        (0.0, 0.3, 1.0, 2.0, 3.0, 4.5, 6.0, 9.0, 12.0),
        (0.15, 0.13, 0.11, 0.09, 0.07),
    ),
)
