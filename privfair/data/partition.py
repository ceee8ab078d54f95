"""Ways to cut one table: into training and test records, silos (for experiments; real silos arrive cut), and users.

Each way is a type; `assign` is the only function that draws silos. All of them give every record to at most one
silo, and the same seed gives the same silos. Every purpose has its own stream of the seed, so that a split is not
correlated with a partition.

By position, a record's fate depends on the seed, on its place in the file and on how many records there are: one row
more moves others. By record (`RecordHash`) it depends on the record alone, as a promise to units that can be added or
removed needs (docs/theorems/stability.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import Integers
from calibrate.errors import InvalidInput, open_unit, positive
from privfair.batches.randomness import stream
from privfair.data import stability
from privfair.data.dataset import Dataset, Silo, Silos, TrainTest
from privfair.data.stability import RecordHash, Stability
from privfair.plan.data import PAPERS_TEST_FRACTION, ByColumn, DirichletByLabel, EqualAtRandom, Heterogeneous, Partition


def permutation(generator: np.random.Generator, size: int) -> Integers:
    """A uniform permutation: sort by raw 64-bit draws, whose stream numpy keeps fixed between versions."""
    return np.argsort(generator.bit_generator.random_raw(size), kind="stable").astype(np.int64)


# Train and test: each silo is split on its own, the same way for the same seed.


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


def split_by_record(dataset: Dataset, seed: int, test_fraction: float, by: RecordHash) -> tuple[Dataset, Dataset]:
    """Training and test records: each is a test record if its own coin decides so, independently of other records."""
    tests = by.below(dataset, seed, "split", open_unit("test_fraction", test_fraction))
    if tests.all() or not tests.any():
        raise InvalidInput(
            "[data] test-fraction",
            test_fraction,
            "leaves a silo without training or without test records",
            "give more records, or test-files",
        )
    return dataset.rows(np.flatnonzero(~tests)), dataset.rows(np.flatnonzero(tests))


def split_silos(
    silos: Silos, seed: int, test_fraction: float = PAPERS_TEST_FRACTION, by: RecordHash | None = None
) -> TrainTest:
    """Split every silo on its own: record by record, or by position if `by` is None.

    By position a silo's split depends on its name, not on its place among the others; by record copies go to the same
    side in all silos.
    """
    parts = [
        split_dataset(silo.data, seed, test_fraction, f"split {silo.name}")
        if by is None
        else split_by_record(silo.data, seed, test_fraction, by)
        for silo in silos
    ]
    return TrainTest(
        train=Silos(tuple(Silo(s.name, train) for s, (train, _) in zip(silos, parts, strict=True))),
        test=Silos(tuple(Silo(s.name, test) for s, (_, test) in zip(silos, parts, strict=True))),
    )


_MOST_DRAWS = 1000
LEFT_OUT = -1
"""The assignment of a record that `ByColumn(least=...)` leaves out."""


def stability_of(partition: Partition, by: RecordHash | None) -> Stability:
    """What a partition does to neighbouring files."""
    match partition:
        case ByColumn(names=names):
            return stability.SILOS_READ_OFF if names is None else stability.SILOS_DECLARED
        case EqualAtRandom():
            return stability.CUT_BY_POSITION if by is None else stability.CUT_BY_RECORD
        case Heterogeneous(cuts=cuts):
            return stability.CUT_BY_RANK if cuts is None else stability.CUT_BY_RECORD
        case DirichletByLabel():
            return stability.CUT_BY_RANK if by is None else stability.CUT_BY_RECORD
        case _:
            assert_never(partition)


def cut_into_silos(dataset: Dataset, partition: Partition, seed: int, by: RecordHash | None = None) -> Silos:
    """The silos that a partition makes of a data set, as `silo-0`, `silo-1`, ... or by the column's values."""
    assignment, names = assign(dataset, partition, seed, by)
    # One sort instead of one scan for each silo; stable, so records keep the order of the table.
    order = np.argsort(assignment, kind="stable")
    ends = np.searchsorted(assignment[order], np.arange(len(names) + 1))
    return Silos(tuple(Silo(name, dataset.rows(order[ends[k] : ends[k + 1]])) for k, name in enumerate(names)))


def assign(
    dataset: Dataset, partition: Partition, seed: int, by: RecordHash | None = None
) -> tuple[Integers, tuple[str, ...]]:
    """For each record the number of its silo (or `LEFT_OUT`), and the silos' names; by position if `by` is None."""
    match partition:
        case ByColumn(column, least, names):
            if names is None:
                return _by_column(dataset, column, least)
            numbers = {name: number for number, name in enumerate(names)}
            values = (str(value) for value in dataset.side_column(column).tolist())
            return np.array([numbers.get(value, LEFT_OUT) for value in values], dtype=np.int64), names
        case EqualAtRandom(silos):
            if by is None:
                assignment = _heterogeneous(np.zeros(len(dataset)), silos, 0.0, seed)
            else:
                assignment = by.one_of(dataset, seed, "silo", silos)
        case Heterogeneous(silos, column, h, cuts):
            if cuts is None:
                assignment = _heterogeneous(_ranked(dataset, column), silos, h, seed)
            else:
                by = by or RecordHash()
                own = np.searchsorted(np.array(cuts), _numbers(dataset, column), side="right").astype(np.int64)
                kept = by.below(dataset, seed, "own slice", h)
                assignment = np.where(kept, own, by.one_of(dataset, seed, "silo", silos))
        case DirichletByLabel(silos, beta, least):
            if by is None:
                assignment = _dirichlet(dataset.label, silos, beta, least, seed)
            else:
                shares = stream(seed, "dirichlet").dirichlet(np.full(silos, beta), size=dataset.classes)
                place = by.words(dataset, seed, "silo") / 2.0**64
                ends = np.cumsum(shares, axis=1)[dataset.label, :-1]
                assignment = (place[:, np.newaxis] >= ends).sum(axis=1).astype(np.int64)
        case _:
            assert_never(partition)
    return assignment, tuple(f"silo-{k}" for k in range(silos))


def _numbers(dataset: Dataset, column: str) -> NDArray[np.float64]:
    """A column to cut at public numbers, cell by cell; a word in one record must not make words of all the others."""
    try:
        values = dataset.side_column(column).astype(np.float64)
    except ValueError:
        values = np.array([np.nan])
    if not np.isfinite(values).all():
        raise InvalidInput(
            "[data.partition] cuts", column, "has a cell that is not a finite number", "fill in or drop these records"
        )
    return values


def _ranked(dataset: Dataset, column: str) -> NDArray[Any]:
    """A column to sort by: as numbers if all of its cells are, else as words."""
    values = dataset.side_column(column)
    try:
        return values.astype(np.float64)
    except ValueError:
        return values


def _heterogeneous(attribute: NDArray[Any], silos: int, h: float, seed: int) -> Integers:
    """Algorithm 3 of SteFFLe (appendix E.2.3).

    Where n/K is no whole number the first n mod K silos get one record more, so that no record is left over. The
    printed line 3 ("equal sized partitions based on attribute A") is read as: sort by A, ties in random
    order, cut into K slices.
    """
    records = len(attribute)
    if records < silos:
        raise InvalidInput("silos", silos, f"exceeds the {records} records", "use fewer silos")
    sizes = np.array([records // silos + (k < records % silos) for k in range(silos)], dtype=np.int64)
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


# Records grouped by the person who contributed them: the unit of user-level privacy.
#
# There may be many thousand users with two records each, so they are not silos: they are slices of one table.


@dataclass(frozen=True, eq=False, repr=False)
class UserRecords:
    """A table sorted by user: user u holds the records offsets[u] .. offsets[u + 1] - 1, possibly none."""

    data: Dataset
    offsets: Integers
    copies: int = 1
    """In a hypothetical population unit u is user u modulo the real number of users; 1 where all are real."""

    def __post_init__(self) -> None:
        offsets = np.asarray(self.offsets)
        if (
            offsets.ndim != 1
            or len(offsets) < 2
            or offsets[0] != 0
            or offsets[-1] != len(self.data)
            or (np.diff(offsets) < 0).any()
        ):
            raise InvalidInput(
                "offsets", offsets.shape, "must rise from 0 to the number of records", "use group_by_user"
            )
        offsets = offsets.astype(np.int64)
        offsets.setflags(write=False)
        object.__setattr__(self, "offsets", offsets)

    def __len__(self) -> int:
        """The number of users, those without records and copies included: they are units as well."""
        return self.copies * (len(self.offsets) - 1)

    @property
    def records_per_user(self) -> Integers:
        return np.diff(self.offsets)

    @property
    def owners(self) -> Integers:
        """Each record's user."""
        return np.repeat(np.arange(len(self.offsets) - 1, dtype=np.int64), self.records_per_user)

    def of(self, user: int) -> slice:
        """Where the records of one user stand."""
        return slice(int(self.offsets[user]), int(self.offsets[user + 1]))


def group_by_user(dataset: Dataset, user: Integers, users: int) -> UserRecords:
    """Sort a table by its users, numbered 0 .. users - 1."""
    user = np.asarray(user)
    if user.shape != (len(dataset),) or (len(user) and not (user.min() >= 0 and user.max() < users)):
        raise InvalidInput("user", user.shape, f"must number each record's user from 0 to {users - 1}", "renumber")
    order = np.argsort(user, kind="stable")
    return UserRecords(dataset.rows(order), np.concatenate([[0], np.cumsum(np.bincount(user, minlength=users))]))


def users_by_record(dataset: Dataset, seed: int, users: int) -> UserRecords:
    """Hand each record to one of a declared number of users, which its own content and the seed decide."""
    return group_by_user(dataset, RecordHash().one_of(dataset, seed, "user", users), users)


def poisson_users(dataset: Dataset, seed: int, mean: float = 2.0) -> UserRecords:
    """Hand the records to floor(n / mean) users, each to a uniformly drawn one (FPFL's federated Adult).

    Independent Poisson(mean) counts, given that they add up to n, have exactly this multinomial law; so about
    exp(-mean) of the users hold nothing, and still count in K.
    """
    users = int(len(dataset) / positive("mean", mean))
    if users < 1:
        raise InvalidInput("mean", mean, f"leaves no user for {len(dataset)} records", "use a smaller mean")
    return group_by_user(dataset, stream(seed, "poisson users").integers(users, size=len(dataset)), users)


def users_by_column(dataset: Dataset, column: str) -> UserRecords:
    """One user for each value of a side column."""
    values, user = np.unique(dataset.identifiers(column), return_inverse=True)
    return group_by_user(dataset, user, len(values))
