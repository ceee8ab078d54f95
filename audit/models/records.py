"""The audited records: members, non-members and, if given, other records of the same kind, as one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audit.report.results import Check, Layer, passed_if
from calibrate.arrays import Booleans, Floats, Integers
from calibrate.errors import InvalidInput
from privfair.data.infer import FileLayout, recognise
from privfair.data.read import MISSING, BadData, RawTable, read_table

_MOST_CATEGORIES = 100
_USUAL_LABELS = ("label", "target", "class", "y")


@dataclass(frozen=True, eq=False)
class RecordTables:
    """The files as they were read; all have the same columns."""

    members: RawTable
    nonmembers: RawTable
    population: RawTable | None = None

    def __post_init__(self) -> None:
        for table in self.all[1:]:
            for name in self.members.columns:
                table.column(name)
        for table in self.all:
            if table.records < 2:
                raise BadData(table.file, f"holds {table.records} records", "give at least two")
        known = set(_cells(self.members, tuple(self.members.columns)))
        if known >= set(_cells(self.nonmembers, tuple(self.members.columns))):
            raise BadData(
                self.nonmembers.file,
                f"holds no record that is not in {self.members.file} too",
                "give records that were not in the training data",
            )

    @classmethod
    def read(
        cls, members: Path, nonmembers: Path, population: Path | None = None, expected: FileLayout | None = None
    ) -> RecordTables:
        """The files, each as it is written; `expected` is how, where nothing speaks against it."""
        files = (members, nonmembers, *(() if population is None else (population,)))
        layouts = [recognise(file, expected) for file in files]
        pairs = zip(files, layouts, strict=True)
        return cls(*(read_table(file, layout.delimiter, layout.decimal) for file, layout in pairs))

    @property
    def all(self) -> tuple[RawTable, ...]:
        two = (self.members, self.nonmembers)
        return two if self.population is None else (*two, self.population)

    def cells(self, column: str) -> NDArray[np.generic]:
        """One column of all files, one below the other."""
        return np.concatenate([table.column(column) for table in self.all])

    def units(self, column: str | None = None) -> Integers:
        """For each row of all files the number of its unit: equal rows are one record, or equal cells of `column`."""
        names = tuple(self.members.columns) if column is None else (column,)
        rows = [row for table in self.all for row in _cells(table, names)]
        numbers: dict[tuple[str, ...], int] = {}
        return np.array([numbers.setdefault(row, len(numbers)) for row in rows], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class AuditedRecords:
    """Rows: members first, then non-members, then the population, which only shadow models are trained on."""

    features: Floats
    """Numbers for shadow models; what the target itself is given is the target's business."""
    labels: Integers
    class_names: tuple[str, ...]
    members: int
    nonmembers: int
    columns: Mapping[str, NDArray[np.generic]]
    """The feature columns as in the files: numbers, or text where a column holds none."""
    label_column: str = ""
    units: Integers | None = None
    """Of every row the number of its unit (a record, or a person); None: equal rows are one record."""
    groupings: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    """Columns that tell groups apart, features or not, one name of a group per row."""

    def __post_init__(self) -> None:
        if self.features.shape[0] != len(self.labels) or self.audited > len(self.labels):
            raise InvalidInput(
                "records", (self.features.shape, self.labels.shape), "must have one label each", "check both"
            )

    @classmethod
    def of(cls, features: Floats, labels: Integers, classes: int, members: int, nonmembers: int) -> AuditedRecords:
        """From plain arrays, rows in the order of this class."""
        names = tuple(str(number) for number in range(classes))
        table = np.asarray(features, dtype=np.float64)
        columns = {str(i): table[:, i] for i in range(table.shape[1])}
        return cls(table, np.asarray(labels, dtype=np.int64), names, members, nonmembers, columns)

    @property
    def audited(self) -> int:
        return self.members + self.nonmembers

    @property
    def has_population(self) -> bool:
        return len(self.labels) > self.audited

    @property
    def is_member(self) -> Booleans:
        """Of the audited records."""
        return np.arange(self.audited) < self.members

    def coins(self) -> Coins:
        """The rows as units; refused where files overlap."""
        numbers = self.units
        if numbers is None:
            table = np.column_stack((self.features.reshape(len(self.labels), -1), self.labels))
            numbers = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
        return Coins.of(numbers, self.is_member)


MOST_OVERLAP = 0.01
"""The largest share of a file's units that may stand in another file too; they are left out."""


@dataclass(frozen=True, eq=False)
class Coins:
    """Rows as units, each with one coin: copies of a record, or the records of one person, share its fate.

    A unit that stands among members and among non-members has no coin, and is left out.
    """

    unit_of_row: Integers
    """Members first, then non-members, then the population; -1 for rows that are left out."""
    is_member: Booleans
    """Of the units that are audited."""
    check: Check

    @classmethod
    def of(cls, numbers: Integers, is_member: Booleans) -> Coins:
        """`numbers` tells the unit of every row; rows beyond `is_member` are the population."""
        audited = len(is_member)
        _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
        numbers = np.argsort(np.argsort(first))[inverse.reshape(-1)]  # in the order of the rows
        inside, outside = np.unique(numbers[:audited][is_member]), np.unique(numbers[:audited][~is_member])
        others = np.unique(numbers[audited:])
        both = np.intersect1d(inside, outside)
        seen = np.intersect1d(others, np.union1d(inside, outside))
        _require_apart("members and non-members", len(both), min(len(inside), len(outside)))
        _require_apart("the population and the audited records", len(seen), len(others))
        order = np.concatenate((np.setdiff1d(inside, both), np.setdiff1d(outside, both), np.setdiff1d(others, seen)))
        place = np.full(len(first), -1, dtype=np.int64)
        place[order] = np.arange(len(order))
        units = place[numbers]
        coins = len(inside) + len(outside) - 2 * len(both)
        units[audited:][units[audited:] < coins] = -1
        text = (
            f"{audited} audited rows are {coins} units, each with one coin; {len(both)} units stand among members and "
            f"non-members, and {len(seen)} in the population too: these are left out"
        )
        marks = np.arange(coins) < len(inside) - len(both)
        return cls(units, marks, passed_if(Layer.PROBE, "one coin for each unit", True, text))

    @property
    def units(self) -> int:
        """Those of the population included."""
        return int(self.unit_of_row.max()) + 1

    @property
    def first_rows(self) -> Integers:
        """One row of each audited unit."""
        found, rows = np.unique(self.unit_of_row, return_index=True)
        return np.asarray(rows[(found >= 0) & (found < len(self.is_member))])

    def mean(self, values: Floats) -> Floats:
        """The mean of each unit's rows, along the last axis."""
        kept = self.unit_of_row >= 0
        units = self.unit_of_row[kept]
        table = np.atleast_2d(values)[:, kept]
        sums = np.stack([np.bincount(units, weights=row, minlength=self.units) for row in table])
        means = sums / np.bincount(units, minlength=self.units)
        return means.reshape((*np.shape(values)[:-1], self.units))

    def rows(self, of_units: Booleans) -> Booleans:
        """What is true of units, said of their rows; false for rows that are left out."""
        return np.where(self.unit_of_row >= 0, of_units[..., np.maximum(self.unit_of_row, 0)], False)


def _require_apart(files: str, shared: int, units: int) -> None:
    if shared > MOST_OVERLAP * units:
        raise InvalidInput(
            files,
            f"{shared} of {units} units in common",
            f"must share at most {100 * MOST_OVERLAP:g}%",
            "remove them from one of the files, or name the column that tells people apart (--unit)",
        )


@dataclass(frozen=True)
class ColumnChoice:
    """Which column is the label, which are left out, and the classes in the model's order if it does not say."""

    label: str | None = None
    dropped: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    unit: str | None = None
    """The column that tells people apart; it is not a feature."""

    @property
    def not_features(self) -> tuple[str, ...]:
        return self.dropped if self.unit is None else (*self.dropped, self.unit)


def encode_tables(
    tables: RecordTables,
    choice: ColumnChoice,
    model_classes: tuple[str, ...] | None = None,
    model_features: tuple[str, ...] | None = None,
) -> AuditedRecords:
    """Labels by the model's own order of classes; features standardised, text one-hot, for shadow models."""
    label = choice.label or _likely_label(tables, choice, model_features)
    tables.members.column(label)
    for name in choice.not_features:
        tables.members.column(name)
    names = [name for name in tables.members.columns if name != label and name not in choice.not_features]
    if not names:
        raise BadData(tables.members.file, "has no feature column left", "drop fewer columns")
    classes = choice.classes or model_classes or _counted_classes(tables, label)
    columns = {name: _column(tables, name) for name in names}
    return AuditedRecords(
        np.hstack([_as_numbers(tables, name, values) for name, values in columns.items()]),
        np.concatenate([_labels(table, label, classes) for table in tables.all]),
        classes,
        tables.members.records,
        tables.nonmembers.records,
        columns,
        label_column=label,
        units=tables.units(choice.unit),
    )


def _cells(table: RawTable, names: tuple[str, ...]) -> list[tuple[str, ...]]:
    return list(zip(*(table.column(name).astype(np.str_).tolist() for name in names), strict=True))


def class_text(value: object) -> str:
    """A class as a file spells it: 1, 1.0 and "1" are one class."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def _likely_label(tables: RecordTables, choice: ColumnChoice, model_features: tuple[str, ...] | None) -> str:
    """The one column that the model does not take as a feature, or one with a usual name; else the user must say."""
    names = [name for name in tables.members.columns if name not in choice.not_features]
    left = [name for name in names if model_features is not None and name not in model_features]
    usual = [name for name in names if name.lower() in _USUAL_LABELS]
    for candidates in (left, usual):
        if len(candidates) == 1:
            return candidates[0]
    raise InvalidInput(
        "--label",
        None,
        "must name the column with the class",
        f"the columns of {tables.members.file} are {', '.join(tables.members.columns)}",
    )


def _counted_classes(tables: RecordTables, label: str) -> tuple[str, ...]:
    """0 .. k-1, if the labels are such numbers; names say nothing about a model's order of outputs."""
    found = {class_text(_number(cell)) for table in tables.all for cell in table.column(label).tolist()}
    largest = max((int(text) for text in found if text.isdecimal()), default=1)
    expected = [str(number) for number in range(max(2, largest + 1))]
    if not found <= set(expected):
        raise BadData(
            tables.members.file,
            f"holds {', '.join(sorted(found)[:5])}, and the model does not say which of its outputs these are",
            "give the classes in the order of the model's outputs (--classes A,B,...), or number them from 0",
            column=label,
        )
    return tuple(expected)


def _labels(table: RawTable, label: str, classes: tuple[str, ...]) -> Integers:
    """By the text of a cell, or else by the number it spells: "1.0" is the class 1."""
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.empty(table.records, dtype=np.int64)
    for record, cell in enumerate(table.column(label).tolist()):
        number = numbers.get(str(cell).strip(), numbers.get(class_text(_number(cell))))
        if number is None:
            raise BadData(
                table.file,
                f"is none of the model's classes ({', '.join(classes[:10])})",
                "fix the record, or name the classes with --classes",
                column=label,
                line=table.line(record),
            )
        labels[record] = number
    return labels


def _number(cell: object) -> object:
    try:
        return float(cell) if isinstance(cell, str | int | float) and not isinstance(cell, bool) else cell
    except ValueError:
        return cell


def _column(tables: RecordTables, name: str) -> NDArray[np.generic]:
    """Numbers if every cell is one; else text, which must not be empty anywhere."""
    cells = [table.column(name) for table in tables.all]
    if all(part.dtype.kind in "biuf" for part in cells) or not _has_names(cells):
        return np.concatenate([table.numbers(name) for table in tables.all])
    for table, part in zip(tables.all, cells, strict=True):
        for record, cell in enumerate(part.tolist()):
            if str(cell).strip().lower() in MISSING:
                raise BadData(
                    table.file,
                    "has no value",
                    "fill or drop this record, or leave the column out (--drop)",
                    column=name,
                    line=table.line(record),
                )
    return np.concatenate([part.astype(np.str_) for part in cells])


def _has_names(cells: list[NDArray[np.generic]]) -> bool:
    """Whether some cell is neither a number nor missing."""
    for part in cells:
        for cell in part.tolist():
            try:
                float(cell)
            except (TypeError, ValueError):
                if str(cell).strip().lower() not in MISSING:
                    return True
    return False


def _as_numbers(tables: RecordTables, name: str, values: NDArray[np.generic]) -> Floats:
    if values.dtype.kind != "U":
        numbers = values.astype(np.float64)
        return np.asarray(((numbers - numbers.mean()) / max(float(numbers.std()), 1e-12))[:, np.newaxis], np.float64)
    distinct, codes = np.unique(values, return_inverse=True)
    if len(distinct) > _MOST_CATEGORIES:
        raise BadData(
            tables.members.file,
            f"holds {len(distinct)} different texts",
            f"leave it out (--drop {name}), or merge them into at most {_MOST_CATEGORIES}",
            column=name,
        )
    return np.eye(len(distinct))[codes]
