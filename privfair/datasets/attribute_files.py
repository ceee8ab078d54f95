"""Attributes in files of their own, held by others than the records: joined by a column that numbers people.

Every record's attribute must lie in exactly one of the files. The join happens where all files are at hand, as the
whole simulation does; it adds two columns to a record, the attribute and the name of the silo that holds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibrate.errors import InvalidInput
from privfair.datasets.bad_data import BadData
from privfair.datasets.raw_table import MISSING, RawTable
from privfair.datasets.read_files import read_table
from privfair.datasets.schema import Schema

HELD_BY = "silo of the attribute"
"""The side column that names the holder of a record's attribute."""


@dataclass(frozen=True, eq=False, repr=False)
class AttributeFiles:
    """What the sensitive silos hold: by a record's number, its attribute and its silo."""

    record: str
    sensitive: str
    found: Mapping[str, tuple[str, str]]
    files: tuple[str, ...]

    def joined(self, table: RawTable) -> RawTable:
        """The table with attribute and holder; a record without an attribute is an error that names its line."""
        if self.sensitive in table.columns:
            raise BadData(
                table.file,
                "is held by the attribute files, and must not stand beside the features as well",
                "drop the column here, or drop [data.attributes] files",
                column=self.sensitive,
            )
        numbers = table.names(self.record)
        distinct, first, times = np.unique(numbers, return_index=True, return_counts=True)
        for name, record, often in zip(distinct.tolist(), first.tolist(), times.tolist(), strict=True):
            if name not in self.found:
                rule = f"{name!r} has no attribute in {', '.join(self.files)}"
                raise self._bad(table, rule, "add it there, or drop the record", record)
            if often > 1:
                raise self._bad(table, f"{name!r} stands {often} times", "number each record once", record)
        both = [self.found[str(name)] for name in numbers]
        added = {
            self.sensitive: np.array([value for value, _ in both], dtype=np.str_),
            HELD_BY: np.array([silo for _, silo in both], dtype=np.str_),
        }
        return RawTable(table.file, {**table.columns, **added}, table.lines)

    def kept_in(self, schema: Schema) -> Schema:
        """The schema with the holder among the columns that are kept beside the features."""
        return replace(schema, side_columns=(*schema.side_columns, HELD_BY))

    def _bad(self, table: RawTable, rule: str, remedy: str, record: int) -> BadData:
        return BadData(table.file, rule, remedy, column=self.record, line=table.line(record))


def read_attribute_files(
    files: Sequence[Path], record: str, schema: Schema, delimiter: str = ","
) -> AttributeFiles:
    """Read the sensitive silos' files: the column `record` and the schema's sensitive column."""
    if schema.sensitive is None:
        raise InvalidInput(
            "[data.attributes]", "files", "needs a [sensitive] column in the schema", "name it there"
        )
    found: dict[str, tuple[str, str]] = {}
    for file in files:
        table = read_table(Path(file), delimiter)
        silo = Path(Path(file).name.removesuffix(".zip")).stem
        numbers, values = table.names(record), table.names(schema.sensitive.name)
        for row, (number, value) in enumerate(zip(numbers.tolist(), values.tolist(), strict=True)):
            if number.lower() in MISSING or value.lower() in MISSING - set(schema.sensitive.values or ()):
                column = record if number.lower() in MISSING else schema.sensitive.name
                raise BadData(
                    table.file, "has no value", "fill or drop the record", column=column, line=table.line(row)
                )
            if number in found:
                rule = f"{number!r} has an attribute already, in silo {found[number][1]!r}"
                raise BadData(table.file, rule, "keep it in one place", column=record, line=table.line(row))
            found[number] = (value, silo)
    return AttributeFiles(record, schema.sensitive.name, found, tuple(str(file) for file in files))
