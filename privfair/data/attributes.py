"""Attributes held apart from records: holders of features and classes, and sensitive silos, cut from whole records.

A sensitive silo is given the features and classes of its records by their holders: they are not protected
where the unit is an attribute. A holder is given no attribute at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibrate.arrays import Integers
from calibrate.errors import InvalidInput
from privfair.batches.randomness import stream
from privfair.data.dataset import Silo, Silos
from privfair.data.infer import Layouts, silo_name
from privfair.data.partition import permutation
from privfair.data.read import MISSING, BadData, RawTable
from privfair.data.schema import Schema

# Attributes in separate files, held by other silos than the records: joined by a column that numbers people.
#
# Every record's attribute must be in exactly one of the files. The join happens where all files are available, as in a
# whole simulation; it adds two columns to a record, the attribute and the name of the silo that holds it.

HELD_BY = "silo of the attribute"
"""The side column that names the holder of a record's attribute."""


@dataclass(frozen=True, eq=False, repr=False)
class AttributeFiles:
    """What the sensitive silos hold: by a record's number, its attribute and its silo."""

    record: str
    sensitive: str
    found: Mapping[str, tuple[str, str]]
    files: tuple[str, ...]

    def join(self, table: RawTable) -> RawTable:
        """The table with attribute and holder; a record without an attribute is an error that names its line."""
        if self.sensitive in table.columns:
            raise BadData(
                table.file,
                "is held by the attribute files, and must not be a column of the features as well",
                "drop the column here, or drop [data.attributes] files",
                column=self.sensitive,
            )
        numbers = table.names(self.record)
        distinct, first, times = np.unique(numbers, return_index=True, return_counts=True)
        for name, record, often in zip(distinct.tolist(), first.tolist(), times.tolist(), strict=True):
            if name not in self.found:
                rule = f"this record has no attribute in {', '.join(self.files)}"
                raise self._bad(table, rule, "add it there, or drop the record", record)
            if often > 1:
                raise self._bad(table, "this record's number stands more than once", "number each record once", record)
        both = [self.found[str(name)] for name in numbers]
        added = {
            self.sensitive: np.array([value for value, _ in both], dtype=np.str_),
            HELD_BY: np.array([silo for _, silo in both], dtype=np.str_),
        }
        return replace(table, columns={**table.columns, **added})

    def add_holder_to(self, schema: Schema) -> Schema:
        """The schema with the holder among the columns that are kept next to the features."""
        return replace(schema, side_columns=(*schema.side_columns, HELD_BY))

    def _bad(self, table: RawTable, rule: str, remedy: str, record: int) -> BadData:
        return BadData(table.file, rule, remedy, column=self.record, line=table.line(record))


def read_attribute_files(files: Sequence[Path], record: str, schema: Schema, layouts: Layouts) -> AttributeFiles:
    """Read the sensitive silos' files: the column `record` and the schema's sensitive column."""
    if schema.sensitive is None:
        raise InvalidInput("[data.attributes]", "files", "needs a [sensitive] column in the schema", "name it there")
    if schema.sensitive.parts:
        rule = "cannot be held apart from the records where they are combined"
        raise InvalidInput("sensitive", schema.sensitive.name, rule, "name one sensitive column")
    found: dict[str, tuple[str, str]] = {}
    for file in files:
        table = layouts.read(file)
        silo = silo_name(file)
        numbers, values = table.names(record), table.names(schema.sensitive.name)
        for row, (number, value) in enumerate(zip(numbers.tolist(), values.tolist(), strict=True)):
            if number.lower() in MISSING or value.lower() in MISSING - set(schema.sensitive.values or ()):
                column = record if number.lower() in MISSING else schema.sensitive.name
                raise BadData(
                    table.file, "has no value", "fill or drop the record", column=column, line=table.line(row)
                )
            if number in found:
                rule = f"this record has an attribute already, in silo {found[number][1]!r}"
                raise BadData(table.file, rule, "keep it in one place", column=record, line=table.line(row))
            found[number] = (value, silo)
    return AttributeFiles(record, schema.sensitive.name, found, tuple(str(file) for file in files))


# Attributes at separate sites: no one joins the files; holders tell registries in sealed messages which records
# take part (privfair/federation/registries.py).


def without_attribute(table: RawTable, schema: Schema) -> RawTable:
    """A holder's table, which must lack the attribute, with one group for everybody in its place."""
    assert schema.sensitive is not None
    if schema.sensitive.parts:
        rule = "cannot be held by a registry where they are combined"
        raise InvalidInput("sensitive", schema.sensitive.name, rule, "name one sensitive column")
    name, first = schema.sensitive.name, (schema.sensitive.values or ("",))[0]
    if name in table.columns:
        rule = "is held by a registry, and must not be a column of the features as well"
        raise BadData(table.file, rule, "drop the column here, or drop [data.attributes]", column=name)
    everybody = np.full(table.records, first)
    return replace(table, columns={**table.columns, name: everybody})


def require_distinct_records(silo: Silo, record: str, file: str) -> None:
    """Refuse a site's file in which a record's number stands twice: it would be asked for twice."""
    numbers = silo.data.identifiers(record)
    if len(set(numbers)) < len(numbers):
        raise BadData(file, "a record's number stands more than once", "number each record once", column=record)


def join_sites(holders: Silos, registries: Silos, record: str) -> HeldApart:
    """The sites of a run in one place, for an auditor who has all files."""
    names = [name for silo in holders for name in silo.data.identifiers(record)]
    place = {name: number for number, name in enumerate(names)}
    ends = np.cumsum(holders.sizes).tolist()
    numbers = [np.arange(end - len(silo), end) for silo, end in zip(holders, ends, strict=True)]
    for silo in registries:
        asked = [place.get(name, -1) for name in silo.data.identifiers(record)]
        if min(asked) < 0:
            rule = "has a record that no holder has"
            raise InvalidInput("[data.attributes]", silo.name, rule, "give the registry's file of this run's records")
        numbers.append(np.array(asked))
    own = tuple(array.astype(np.int64) for array in numbers)
    return HeldApart(Silos((*holders, *registries)), registries.names, own)


@dataclass(frozen=True, eq=False)
class HeldApart:
    """The parties of such a run; records are numbered once, over all holders, in their order."""

    parties: Silos
    """First the holders of features and classes, whose groups are all zero, then the sensitive silos."""
    sensitive: tuple[str, ...]
    numbers: tuple[Integers, ...]
    """For each party, the numbers of its records, row by row."""


def deal_attributes(train: Silos, sensitive: tuple[str, ...], seed: int) -> HeldApart:
    """Each record's attribute to a random one of the sensitive silos, whose sizes differ by at most one."""
    total = sum(train.sizes)
    holder = np.empty(total, dtype=np.int64)
    holder[permutation(stream(seed, "attributes to silos"), total)] = np.arange(total) % len(sensitive)
    return _cut(train, sensitive, holder)


def attributes_by_column(train: Silos, sensitive: tuple[str, ...]) -> HeldApart:
    """As the attribute files say."""
    names = np.concatenate([silo.data.side_column(HELD_BY) for silo in train])
    position = {name: number for number, name in enumerate(sensitive)}
    return _cut(train, sensitive, np.array([position[str(name)] for name in names], dtype=np.int64))


def _cut(train: Silos, sensitive: tuple[str, ...], holder: Integers) -> HeldApart:
    twice = set(sensitive) & set(train.names)
    if twice:
        raise InvalidInput("[data.attributes]", sorted(twice), "also names a silo of records", "give it another name")
    whole, numbers, parties = train.pooled(), [], []
    for silo, end in zip(train, np.cumsum(train.sizes).tolist(), strict=True):
        numbers.append(np.arange(end - len(silo), end, dtype=np.int64))
        parties.append(Silo(silo.name, replace(silo.data, group=np.zeros(len(silo), dtype=np.int64))))
    for place, name in enumerate(sensitive):
        own = np.flatnonzero(holder == place).astype(np.int64)
        if len(own) == 0:
            raise InvalidInput("[data.attributes]", name, "holds no attribute of a training record", "leave it out")
        numbers.append(own)
        parties.append(Silo(name, whole.rows(own)))
    return HeldApart(Silos(tuple(parties)), sensitive, tuple(numbers))
