"""A file as it was read: named columns of text or numbers, and where they came from."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfair.datasets.bad_data import BadData

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""Cells (in lower case) that mean "no value", unless the schema lists that very name."""


@dataclass(frozen=True, eq=False, repr=False)
class RawTable:
    """Columns of equal length; `lines` says where in the file each record ends (Parquet: its number)."""

    file: str
    columns: Mapping[str, NDArray[Any]]
    lines: NDArray[np.int64]

    @property
    def records(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def line(self, record: int) -> int:
        """Where a person finds this record."""
        return int(self.lines[record])

    def column(self, name: str) -> NDArray[Any]:
        if name not in self.columns:
            near = difflib.get_close_matches(name, self.columns, n=1)
            hint = f" (there is {near[0]!r})" if near else ""
            remedy = "add the column or mend the schema"
            only = next(iter(self.columns)) if len(self.columns) == 1 else ""
            other = next((mark for mark in ";\t|" if mark in only), None)
            if other is not None:
                remedy = (
                    f"the file has one column only: write delimiter = {other!r} under [file] of the schema"
                )
            raise BadData(self.file, f"is missing{hint}", remedy, column=name)
        return self.columns[name]

    def numbers(self, name: str) -> NDArray[np.float64]:
        """The column as finite numbers, or `BadData` naming the first cell that is none."""
        cells = self.column(name)
        values = _parsed(cells)
        bad = ~np.isfinite(values)
        if bad.any():
            record = int(np.argmax(bad))
            cell = str(cells[record]).strip()
            rule = "has no value" if cell.lower() in MISSING else f"{cell!r} is not a finite number"
            raise BadData(
                self.file,
                f"{rule} ({int(bad.sum())} such cells)",
                "fill or drop these records, or mend the schema",
                column=name,
                line=self.line(record),
            )
        return values

    def names(self, name: str) -> NDArray[np.str_]:
        """The column as text without surrounding spaces."""
        cells = self.column(name)
        if np.issubdtype(cells.dtype, np.floating):
            self.numbers(name)  # whole numbers with gaps arrive as decimals: the gap is the true complaint
            raise BadData(
                self.file,
                "holds decimal numbers where names of categories are expected",
                "store it as text or whole numbers, or declare the column as numeric",
                column=name,
            )
        if cells.dtype == np.bool_:
            return np.where(cells, "true", "false")
        return np.char.strip(cells.astype(np.str_))

    def rows(self, indexes: NDArray[np.int64]) -> RawTable:
        """Some of the records."""
        columns = {name: values[indexes] for name, values in self.columns.items()}
        return RawTable(self.file, columns, self.lines[indexes])


def _parsed(cells: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers, with NaN where a cell is none."""
    if cells.dtype.kind in "biuf":
        return cells.astype(np.float64)
    texts = cells.tolist()
    try:
        # Three times faster than numpy's own conversion of text. Python reads "1_000" as a number; a file must not.
        if "_" not in "".join(texts):
            return np.fromiter(map(float, texts), dtype=np.float64, count=len(texts))
    except ValueError:
        pass
    return np.fromiter(map(_number, texts), dtype=np.float64, count=len(texts))


def _number(cell: str) -> float:
    try:
        return float("nan") if "_" in cell else float(cell)
    except ValueError:
        return float("nan")


def _indicator(table: RawTable, name: str) -> NDArray[np.float64]:
    cells = table.column(name)
    if cells.dtype.kind == "U":
        ones = cells == "1"
        if (ones | (cells == "0")).all():
            return ones.astype(np.float64)
    return table.numbers(name)


def one_hot_names(table: RawTable, prefix: str, values: tuple[str, ...]) -> NDArray[np.str_]:
    """Undo a one-hot encoding: the columns `prefix` + value, exactly one of which is 1 in each record."""
    indicators = np.stack([_indicator(table, prefix + value) for value in values], axis=1)
    wrong = ((indicators != 0) & (indicators != 1)).any(axis=1) | (indicators.sum(axis=1) != 1)
    if wrong.any():
        raise BadData(
            table.file,
            "exactly one of its indicator columns must be 1",
            "take the file as it was published",
            column=prefix + "*",
            line=table.line(int(np.argmax(wrong))),
        )
    return np.array(values)[indicators.argmax(axis=1)]
