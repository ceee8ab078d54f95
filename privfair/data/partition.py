"""Ways to cut one table into silos, for experiments; real silos arrive cut.

Each way is a type; `assign` is the only function that draws. All of them give every record to exactly one
silo, and the same seed gives the same silos.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import Integers
from calibrate.errors import InvalidInput, count, open_unit, positive
from privfair.batches.randomness import stream
from privfair.data.dataset import Dataset
from privfair.data.silos import Silo, Silos, TrainTest

# Reproducible randomness for splits and partitions; never for noise.
#
# Every purpose has its own stream, so that the same seed does not correlate a split with a partition.


def permutation(generator: np.random.Generator, size: int) -> Integers:
    """A uniform permutation: sort by raw 64-bit draws, whose stream numpy keeps fixed between versions."""
    return np.argsort(generator.bit_generator.random_raw(size), kind="stable").astype(np.int64)


# Train and test: each silo is split on its own, the same way for the same seed.

PAPERS_TEST_FRACTION = 0.25
"""Train to test 3:1, as in the experiments of SteFFLe and of MMD-fair FedAvg."""


def split_dataset(
    dataset: Dataset, seed: int, test_fraction: float = PAPERS_TEST_FRACTION, purpose: str = "split"
) -> tuple[Dataset, Dataset]:
    """Training and test records: a uniformly random subset of round(n * fraction) records is the test part."""
    open_unit("test_fraction", test_fraction)
    size = len(dataset)
    if size < 2:
        raise InvalidInput("records", size, "must be at least 2 to be split", "give more records")
    tests = min(max(int(size * test_fraction + 0.5), 1), size - 1)
    order = permutation(stream(seed, purpose), size)
    return dataset.rows(order[tests:]), dataset.rows(order[:tests])


def split_silos(silos: Silos, seed: int, test_fraction: float = PAPERS_TEST_FRACTION) -> TrainTest:
    """Split every silo on its own; a silo's split depends on its name, not on its place among the others."""
    parts = [split_dataset(silo.data, seed, test_fraction, f"split {silo.name}") for silo in silos]
    return TrainTest(
        train=Silos(tuple(Silo(s.name, train) for s, (train, _) in zip(silos, parts, strict=True))),
        test=Silos(tuple(Silo(s.name, test) for s, (_, test) in zip(silos, parts, strict=True))),
    )


@dataclass(frozen=True)
class EqualAtRandom:
    """`silos` random parts whose sizes differ by at most one."""

    silos: int

    def __post_init__(self) -> None:
        count("silos", self.silos)


@dataclass(frozen=True)
class Heterogeneous:
    """SteFFLe's Algorithm 3: a fraction `h` of each silo comes from its own slice of `column`, the rest is mixed.

    h = 0 is `EqualAtRandom`; h = 1 sorts the table by the column and cuts it.
    """

    silos: int
    column: str
    h: float

    def __post_init__(self) -> None:
        count("silos", self.silos)
        if not 0 <= self.h <= 1:
            raise InvalidInput("h", self.h, "must lie in [0, 1]", "0 is homogeneous, 1 fully heterogeneous")


@dataclass(frozen=True)
class DirichletByLabel:
    """Each class is shared out in proportions drawn from Dirichlet(beta, ..., beta); small beta is uneven.

    Draws are repeated until every silo has at least `least` records.
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
    """One silo for each value of a side column, in sorted order; values with fewer than `least` records go."""

    column: str
    least: int = 1

    def __post_init__(self) -> None:
        count("least", self.least)


Partition = EqualAtRandom | Heterogeneous | DirichletByLabel | ByColumn

_MOST_DRAWS = 1000
LEFT_OUT = -1
"""The assignment of a record that `ByColumn(least=...)` leaves out."""


def cut_into_silos(dataset: Dataset, partition: Partition, seed: int) -> Silos:
    """The silos that a partition makes of a data set, as `silo-0`, `silo-1`, ... or by the column's values."""
    assignment, names = assign(dataset, partition, seed)
    # One sort instead of one scan for each silo; stable, so records keep the order of the table.
    order = np.argsort(assignment, kind="stable")
    ends = np.searchsorted(assignment[order], np.arange(len(names) + 1))
    return Silos(tuple(Silo(name, dataset.rows(order[ends[k] : ends[k + 1]])) for k, name in enumerate(names)))


def assign(dataset: Dataset, partition: Partition, seed: int) -> tuple[Integers, tuple[str, ...]]:
    """For each record the number of its silo (or `LEFT_OUT`), and the silos' names."""
    match partition:
        case ByColumn(column, least):
            return _by_column(dataset, column, least)
        case EqualAtRandom(silos):
            assignment = _heterogeneous(np.zeros(len(dataset)), silos, 0.0, seed)
        case Heterogeneous(silos, column, h):
            assignment = _heterogeneous(dataset.side_column(column), silos, h, seed)
        case DirichletByLabel(silos, beta, least):
            assignment = _dirichlet(dataset.label, silos, beta, least, seed)
        case _:
            assert_never(partition)
    return assignment, tuple(f"silo-{k}" for k in range(silos))


def _sizes(records: int, silos: int) -> Integers:
    if records < silos:
        raise InvalidInput("silos", silos, f"exceeds the {records} records", "use fewer silos")
    return np.array([records // silos + (k < records % silos) for k in range(silos)], dtype=np.int64)


def _heterogeneous(attribute: NDArray[Any], silos: int, h: float, seed: int) -> Integers:
    """Algorithm 3 of SteFFLe (appendix E.2.3).

    Where n/K is no whole number the first n mod K silos get one record more, so that nobody is left over. The
    printed line 3 ("equal sized partitions based on attribute A") is read as: sort by A, ties in random
    order, cut into K slices.
    """
    records = len(attribute)
    sizes = _sizes(records, silos)
    generator = stream(seed, "heterogeneous")
    shuffled = permutation(generator, records)
    by_attribute = shuffled[np.argsort(attribute[shuffled], kind="stable")]
    slices = np.split(by_attribute, np.cumsum(sizes)[:-1])
    assignment = np.full(records, LEFT_OUT, dtype=np.int64)
    kept = np.floor(records / silos * h).astype(np.int64)
    for k, own in enumerate(slices):
        assignment[own[permutation(generator, len(own))[:kept]]] = k
    rest = np.flatnonzero(assignment == LEFT_OUT)
    rest = rest[permutation(generator, len(rest))]
    for k, part in enumerate(np.split(rest, np.cumsum(sizes - kept)[:-1])):
        assignment[part] = k
    return assignment


def _dirichlet(label: Integers, silos: int, beta: float, least: int, seed: int) -> Integers:
    if least * silos > len(label):
        raise InvalidInput("least", least, f"times {silos} silos exceeds the {len(label)} records", "ask for less")
    generator = stream(seed, "dirichlet")
    for _ in range(_MOST_DRAWS):
        assignment = np.empty(len(label), dtype=np.int64)
        for value in np.unique(label):
            members = np.flatnonzero(label == value)
            members = members[permutation(generator, len(members))]
            shares = generator.dirichlet(np.full(silos, beta))
            cuts = np.floor(np.cumsum(shares)[:-1] * len(members) + 0.5).astype(np.int64)
            assignment[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
        if np.bincount(assignment, minlength=silos).min() >= least:
            return assignment
    raise InvalidInput(
        "least",
        least,
        f"no draw of Dirichlet({beta}) out of {_MOST_DRAWS} gave every silo that many records",
        "raise beta, use fewer silos or ask for less",
    )


def _by_column(dataset: Dataset, column: str, least: int) -> tuple[Integers, tuple[str, ...]]:
    values, inverse, sizes = np.unique(dataset.side_column(column), return_inverse=True, return_counts=True)
    kept = sizes >= least
    if not kept.any():
        raise InvalidInput("least", least, f"no value of {column!r} has that many records", "ask for less")
    number = np.where(kept, np.cumsum(kept) - 1, LEFT_OUT)
    return number[inverse].astype(np.int64), tuple(str(value) for value in values[kept])
