"""What a [data] section can choose: benchmarks, their features and scaling, and ways to cut a table into silos.

Nothing here reads a record, so a coordinator can parse a plan without the modules that load data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from calibrate.errors import InvalidInput, count, positive
from calibrate.plugins import PluginGroup, Plugins

PAPERS_TEST_FRACTION = 0.25
"""Train to test 3:1, as in the experiments of SteFFLe and of MMD-fair FedAvg."""


class Benchmark(Enum):
    ADULT = "adult"
    CREDIT_CARD = "credit-card"
    COMPAS = "compas"
    COMMUNITIES_CRIME = "communities-crime"
    FASHION_MNIST = "fashion-mnist"
    MNIST = "mnist"
    CIFAR_10 = "cifar-10"

    @property
    def age_column(self) -> str:
        """The side column by which SteFFLe's Algorithm 3 cuts this data set."""
        columns = {Benchmark.ADULT: "age", Benchmark.CREDIT_CARD: "AGE", Benchmark.COMPAS: "age-num"}
        if self not in columns:
            raise InvalidInput("dataset", self.value, "has no age column", "name another column or partition")
        return columns[self]


DatasetLoader = Callable[[Path | None], Any]
"""A data set of another package: a `Dataset`, from a path or None. Its `derived` and `steps` say what was read
off the records and how stable every step is; a promise stands on them."""


def _read_loader(name: str, found: object) -> DatasetLoader | None:
    return found if callable(found) else None


DATASET_PLUGINS: Plugins[DatasetLoader] = Plugins(
    PluginGroup.DATASETS,
    "a function of a path (or None) that returns a privfair.data.dataset.Dataset",
    _read_loader,
    lambda: {benchmark.value for benchmark in Benchmark},
)
"""The data sets of other packages."""


class BenchmarkScaling(Enum):
    """Which constants a benchmark's numeric columns are scaled with.

    `PUBLIC` uses the constants written in the loader. `NON_PRIVATE_STANDARDISATION` is what the papers do: mean and
    variance of the training records, which only runs that leave features unprotected accept.
    `PUBLIC_WITH_STEPS` adds indicators of round values of some columns, where a loader knows any (Adult).
    """

    PUBLIC = "public"
    PUBLIC_WITH_STEPS = "public-with-steps"
    NON_PRIVATE_STANDARDISATION = "non-private-standardisation"


class ImageFeatures(Enum):
    """What a model sees of an image: its pixels, or `oriented_gradients`."""

    PIXELS = "pixels"
    ORIENTED_GRADIENTS = "oriented-gradients"


PEN_SHARE = 0.45


@dataclass(frozen=True)
class UnfairImages:
    """How many writers the records are dealt to, each record to a uniformly drawn one; 3,383 in the paper."""

    writers: int = 3_383

    def __post_init__(self) -> None:
        count("[data.unfair] writers", self.writers, least=3)

    @property
    def of_each_group(self) -> tuple[int, int, int]:
        """Writers with a black pen, with a blue pen, with chalk."""
        pens = int(PEN_SHARE * self.writers)
        return pens, pens, self.writers - 2 * pens


@dataclass(frozen=True)
class EqualAtRandom:
    """`silos` random parts; by position their sizes differ by at most one."""

    silos: int

    def __post_init__(self) -> None:
        count("silos", self.silos)


@dataclass(frozen=True)
class Heterogeneous:
    """SteFFLe's Algorithm 3: a fraction `h` of each silo comes from its own slice of `column`, the rest is mixed.

    h = 0 is `EqualAtRandom`; h = 1 sorts the table by the column and cuts it. With `cuts`, public values of the
    column in ascending order, the slices are fixed beforehand and each record is dealt on its own.
    """

    silos: int
    column: str
    h: float
    cuts: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        count("silos", self.silos)
        if self.cuts is not None and (len(self.cuts) != self.silos - 1 or sorted(set(self.cuts)) != [*self.cuts]):
            raise InvalidInput("cuts", self.cuts, "must be one fewer than silos, in ascending order", "list each once")
        if not 0 <= self.h <= 1:
            raise InvalidInput("h", self.h, "must lie in [0, 1]", "0 is homogeneous, 1 fully heterogeneous")


@dataclass(frozen=True)
class DirichletByLabel:
    """Each class is shared out in proportions drawn from Dirichlet(beta, ..., beta); small beta is uneven.

    By position draws are repeated until every silo has at least `least` records; by record there is one draw.
    """

    silos: int
    beta: float
    least: int = 1

    def __post_init__(self) -> None:
        count("silos", self.silos)
        positive("beta", self.beta)
        count("least", self.least, least=0)


@dataclass(frozen=True)
class ByColumn:
    """One silo for each value of a side column, in sorted order; values with fewer than `least` records go.

    With `names`, the public list of silos, the silos are these, and records of other values go.
    """

    column: str
    least: int = 1
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        count("least", self.least)
        if self.names is not None and (self.least > 1 or len(set(self.names)) != len(self.names) or not self.names):
            raise InvalidInput("names", self.names, "must be distinct, not empty, and without least", "drop least")


Partition = EqualAtRandom | Heterogeneous | DirichletByLabel | ByColumn
