"""The data of a user's training function, and the canaries an auditor takes out of it.

A canary is a unit (a record, or all records of one person) that is trained on if its coin says so. Some stay as they
are, as many are mislabelled, and some are rare: their numbers lie far out in a direction in which the other records
barely vary, each in one of its own, so that what a step moves there is noise or the canary; their texts are among the
rarest of their columns. No text is new, so that code which encodes them does not meet an unknown one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import Booleans, Floats, Integers
from calibrate.errors import InvalidInput

Column = NDArray[Any]
_MOST_CLASSES = 20
"""Labels with more distinct numbers are quantities, not classes."""
_RARE_SHARE = 0.25
"""Of the texts of a column, rarest first, from which rare canaries take theirs."""
_QUIET_PART, _USUAL = 4, 100
"""One of this many directions is treated as quiet; this many canaries are enough elsewhere."""
_FAR_OUT = 4.0
"""The length of a rare record, in those of the others: enough to be clipped, not enough to saturate hidden units."""


class TrainingCanaryKind(Enum):
    ORDINARY = "ordinary"
    """A record as it is, held out of the rest."""
    MISLABELLED = "mislabelled"
    RARE = "rare"


@final
@dataclass(frozen=True, eq=False)
class TableData:
    """A pandas table with a column of labels."""

    frame: Any
    label: str
    unit: str | None = None

    def __post_init__(self) -> None:
        for name in (self.label, *(() if self.unit is None else (self.unit,))):
            if name not in self.frame.columns:
                # Their names are not shown: in a file without a header line they would be a user's cells.
                count = len(self.frame.columns)
                raise InvalidInput("column", name, "is not in the data", f"name one of its {count} columns")

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def labels(self) -> Column:
        return np.asarray(self.frame[self.label])

    @property
    def given(self) -> Any:
        return self.frame

    def part(self, rows: Integers) -> Self:
        return replace(self, frame=self.frame.iloc[rows].reset_index(drop=True))

    def joined(self, other: AnyData) -> Self:
        import pandas as pd

        other = _same_kind(self, other)
        return replace(self, frame=pd.concat((self.frame, other.frame), ignore_index=True))

    def with_labels(self, labels: Column) -> Self:
        return replace(self, frame=self.frame.assign(**{self.label: labels}))

    @property
    def _numeric(self) -> list[str]:
        names = [name for name in self.frame.columns if name not in (self.label, self.unit)]
        return [name for name in names if np.asarray(self.frame[name]).dtype.kind in "iuf"]

    @property
    def directions(self) -> int:
        return len(self._numeric)

    def made_rare(self, like: AnyData, random: np.random.Generator) -> Self:
        numeric, like = self._numeric, _same_kind(self, like)
        others = [name for name in self.frame.columns if name not in (self.label, self.unit, *numeric)]
        rare = {name: _rare_texts(np.asarray(like.frame[name]), len(self), random) for name in others}
        if numeric:
            far = _far_out(like.frame[numeric].to_numpy(np.float64), len(self), random)
            rare |= {name: far[:, place] for place, name in enumerate(numeric)}
        return replace(self, frame=self.frame.assign(**rare))

    def units(self, column: str | None) -> Integers:
        if column is None:
            return np.arange(len(self))
        return np.unique(np.asarray(self.frame[column]).astype(np.str_), return_inverse=True)[1].astype(np.int64)

    def digest(self) -> str:
        return hashlib.sha256(self.frame.to_csv(index=False).encode()).hexdigest()


@final
@dataclass(frozen=True, eq=False)
class ArrayData:
    """A pair of arrays, features first; `as_tensors` hands them over as torch tensors."""

    x: Column
    y: Column
    as_tensors: bool = False

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise InvalidInput("data", (len(self.x), len(self.y)), "must be one label per record", "check both arrays")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def labels(self) -> Column:
        return self.y

    @property
    def given(self) -> Any:
        if not self.as_tensors:
            return self.x, self.y
        import torch

        return torch.from_numpy(self.x), torch.from_numpy(self.y)

    def part(self, rows: Integers) -> Self:
        return replace(self, x=self.x[rows], y=self.y[rows])

    def joined(self, other: AnyData) -> Self:
        other = _same_kind(self, other)
        return replace(self, x=np.concatenate((self.x, other.x)), y=np.concatenate((self.y, other.y)))

    def with_labels(self, labels: Column) -> Self:
        return replace(self, y=labels)

    @property
    def directions(self) -> int:
        return int(np.prod(self.x.shape[1:])) if self.x.dtype.kind in "iuf" else 0

    def made_rare(self, like: AnyData, random: np.random.Generator) -> Self:
        like = _same_kind(self, like)
        if not self.directions:
            return self
        far = _far_out(like.x.reshape(len(like), -1).astype(np.float64), len(self), random)
        return replace(self, x=far.reshape(self.x.shape).astype(self.x.dtype))

    def units(self, column: str | None) -> Integers:
        if column is not None:
            raise InvalidInput("unit", column, "names a column, and these data are arrays", "give a pandas table")
        return np.arange(len(self))

    def digest(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.x).tobytes() + self.y.tobytes()).hexdigest()


AnyData = TableData | ArrayData
Data = TypeVar("Data", TableData, ArrayData)


def _same_kind(data: Data, other: AnyData) -> Data:
    if not isinstance(other, type(data)):
        raise InvalidInput("data", "a table and a pair of arrays", "must all be of one kind", "convert one of them")
    return other


def training_data(data: object, label: str | None = None, unit: str | None = None) -> AnyData:
    """From what a user hands in: a pandas table with the name of its label column, or a pair (features, labels)."""
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        if label is None:
            raise InvalidInput("label", None, "must name the table's column with the class", "give label=...")
        return TableData(data, label, unit)
    if isinstance(data, tuple | list) and len(data) == 2:
        tensors = any(type(part).__module__.startswith("torch") for part in data)
        return ArrayData(np.asarray(data[0]), np.asarray(data[1]), tensors)
    raise InvalidInput(
        "data", type(data).__name__, "must be a pandas table or a pair (features, labels)", "convert it to one of them"
    )


@final
@dataclass(frozen=True, eq=False)
class TrainingCanaries:
    """The records of all canaries, the unit of each record, each unit's kind, and the rest of the data."""

    rest: AnyData
    records: AnyData
    unit_of_record: Integers
    kinds: tuple[TrainingCanaryKind, ...]

    @classmethod
    def take(
        cls, data: AnyData, number: int | None = None, unit: str | None = None, seed: int = 0, rare: bool = False
    ) -> TrainingCanaries:
        """`number` units drawn at random; they are not in the rest.

        None: a hundred, half of them rare; or, if `rare`, only such, one for each of the quietest directions.
        """
        units = data.units(unit)
        everyone = int(units.max()) + 1 if len(units) else 0
        quiet = max(data.directions // _QUIET_PART, 2) if data.directions else _USUAL
        if number is None:
            number = min(quiet if rare else _USUAL, _USUAL, everyone // 2)
        if not 2 <= number <= everyone // 2:
            raise InvalidInput(
                "canaries", number, f"must be between 2 and half of the {everyone} units of the data", "ask for fewer"
            )
        random = np.random.default_rng((seed, 0xCA11))
        chosen = random.permutation(everyone)[:number]
        place = np.full(everyone, -1, dtype=np.int64)
        place[chosen] = np.arange(number)
        mine = np.flatnonzero(place[units] >= 0)
        rest, records = data.part(np.flatnonzero(place[units] < 0)), data.part(mine)
        of_record = place[units[mine]]
        kinds = _kinds(number, min(number if rare else (number + 1) // 2, 2 * quiet))
        return cls(
            rest, _changed(records, rest, np.array([kinds[i].value for i in of_record]), random), of_record, kinds
        )

    def __len__(self) -> int:
        return len(self.kinds)

    def crowd(self, number: int) -> AnyData:
        """Some of the rest, to learn in which directions it is loud."""
        return self.rest.part(np.arange(min(number, len(self.rest))))

    def coins(self, run: int, seed: int) -> Booleans:
        """Fair and independent, one per canary: the ones that are trained on in this run."""
        return np.asarray(np.random.default_rng((seed, 0xC015, run)).integers(0, 2, len(self)) == 1)

    def dataset(self, coins: Booleans, run: int, seed: int) -> AnyData:
        """The rest and the canaries whose coin says so, in random order."""
        everyone = self.rest.joined(self.records.part(np.flatnonzero(coins[self.unit_of_record])))
        return everyone.part(np.random.default_rng((seed, 0x0DE2, run)).permutation(len(everyone)))

    def per_unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum over the records of each canary."""
        return np.bincount(self.unit_of_record, weights=values, minlength=len(self)).astype(np.float64)


def _changed(records: AnyData, rest: AnyData, kinds: NDArray[np.str_], random: np.random.Generator) -> AnyData:
    """The canaries' records, each changed as its kind says; their order stays."""
    wrong, rare = (
        np.flatnonzero(kinds == kind.value) for kind in (TrainingCanaryKind.MISLABELLED, TrainingCanaryKind.RARE)
    )
    labels = records.labels.copy()
    for rows in (wrong, rare):
        labels[rows] = other_labels(labels[rows], rest.labels, random)
    records = records.with_labels(labels)
    extreme = records.part(rare).made_rare(rest, random) if len(rare) else records.part(rare)
    order = np.concatenate((np.flatnonzero(~np.isin(np.arange(len(records)), rare)), rare))
    joined = records.part(np.flatnonzero(~np.isin(np.arange(len(records)), rare))).joined(extreme)
    return joined.part(np.argsort(order))


def other_labels(labels: Column, known: Column, random: np.random.Generator) -> Column:
    """Another class each; of a quantity the end that is farther away."""
    distinct = np.unique(known)
    if len(distinct) < 2:
        raise InvalidInput(
            "labels", "one value", "must be at least two, or there is nothing to learn", "check the data"
        )
    if distinct.dtype.kind in "f" and len(distinct) > _MOST_CLASSES:
        low, high = distinct[0], distinct[-1]
        return np.asarray(np.where(labels - low > high - labels, low, high))
    place = np.searchsorted(distinct, labels).clip(0, len(distinct) - 1)
    return np.asarray(distinct[(place + random.integers(1, len(distinct), len(labels))) % len(distinct)])


def _kinds(number: int, rare: int) -> tuple[TrainingCanaryKind, ...]:
    turns = (TrainingCanaryKind.MISLABELLED, TrainingCanaryKind.ORDINARY)
    return (TrainingCanaryKind.RARE,) * rare + tuple(turns[i % 2] for i in range(number - rare))


def _far_out(table: Floats, number: int, random: np.random.Generator) -> Floats:
    """Records in the quietest directions of a table, either way, far longer than its rows."""
    _, vectors = np.linalg.eigh(table.T @ table / len(table))
    length = _FAR_OUT * float(np.median(np.linalg.norm(table, axis=1)))
    signs = random.choice((-1.0, 1.0), number)
    return np.asarray(length * signs[:, np.newaxis] * vectors.T[np.arange(number) % len(vectors)])


def _rare_texts(column: Column, number: int, random: np.random.Generator) -> Column:
    texts, counts = np.unique(column.astype(np.str_), return_counts=True)
    rarest = texts[np.argsort(counts, kind="stable")][: max(1, round(_RARE_SHARE * len(texts)))]
    return np.asarray(rarest[random.integers(0, len(rarest), number)], dtype=object)
