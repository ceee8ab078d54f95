"""Does one unit of the file change more than one unit of what trains? Neighbours of the run's own files, loaded again.

The price speaks of the units after splitting, cutting and grouping; the promise of the file. A loader that lets one row
decide about others breaks the promise while every contribution keeps its bound.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from audit.report.results import Check, Layer, not_possible, passed_if
from audit.runs.evidence import RunEvidence
from calibrate.errors import PrivfairError
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from privfair.data.schema import Schema
from privfair.data.schema_toml import load_schema
from privfair.data.training_data import TrainingData, load_training_data
from privfair.plan.data import AttributesInFiles, FileSource, UsersOfColumn

_NAME = "one unit of the file stays one"
Table = list[list[str]]
"""A file's header and rows."""


def check_files(evidence: RunEvidence) -> Check:
    """Remove or change one unit at the start, in the middle and at the end of the files, and load them again."""
    plan, source = evidence.plan.data, evidence.plan.data.source
    schema = evidence.data.parties[0].data.schema
    dealt = plan.users is not None and not isinstance(plan.users, UsersOfColumn)
    if not isinstance(source, FileSource) or schema is None or any(file.suffix != ".csv" for file in source.files):
        return not_possible(Layer.PROBE, _NAME, "the data are not plain CSV files")
    if dealt or isinstance(plan.attributes, AttributesInFiles):
        return not_possible(Layer.PROBE, _NAME, "a unit is not a row of these files, nor all rows of one value")
    unit, layouts = evidence.document.guarantee.privacy_unit(), load_schema(source.schema).layouts
    delimiters = [layouts.of(file).delimiter for file in source.files]
    tables = [_read(file, mark) for file, mark in zip(source.files, delimiters, strict=True)]
    users = plan.users.column if isinstance(plan.users, UsersOfColumn) else None
    base, tried, worst = _units(evidence.data), 0, 0
    with TemporaryDirectory(prefix="privfair-audit-") as folder:
        copies = tuple(Path(folder) / file.name for file in source.files)
        changed = replace(plan, source=replace(source, files=copies))
        for neighbour in _neighbours(tables, unit, schema, users):
            for copy, table, mark in zip(copies, neighbour, delimiters, strict=True):
                with copy.open("w", newline="", encoding="utf-8") as file:
                    csv.writer(file, delimiter=mark).writerows(table)
            try:
                data = load_training_data(changed, central=evidence.plan.recipe.central, unit=unit)
            except PrivfairError:
                continue  # a neighbour outside the loader's domain
            tried, worst = tried + 1, max(worst, _distance(base, _units(data)))
    if not tried:
        return not_possible(Layer.PROBE, _NAME, "the loader accepts no neighbour of the files")
    most = 1 if unit.relation is Relation.ADD_REMOVE else 2
    return passed_if(Layer.PROBE, _NAME, worst <= most, f"{tried} neighbours of the files: {worst} units come or go")


def _read(file: Path, delimiter: str) -> Table:
    with file.open(newline="", encoding="utf-8-sig") as opened:
        return [row for row in csv.reader(opened, delimiter=delimiter, skipinitialspace=True) if row]


def _neighbours(tables: list[Table], unit: PrivacyUnit, schema: Schema, users: str | None) -> Iterator[list[Table]]:
    header, *rows = tables[0]
    names = [name.strip() for name in header]
    for place in sorted({0, len(rows) // 2, len(rows) - 1}):
        if unit.protected is Protected.USER and users is not None:
            who = rows[place][names.index(users)]
            yield [[row for row in table if row[names.index(users)] != who] for table in tables]
            continue
        row = list(rows[place])
        match unit.relation:
            case Relation.ADD_REMOVE:
                new = []
            case Relation.REPLACE_ONE:
                new = [rows[place - 1]]
            case Relation.REPLACE_ATTRIBUTE:
                assert schema.sensitive is not None
                changed = (*schema.sensitive.parts, schema.sensitive)[0]
                column = names.index(changed.name)
                row[column] = next(group for group in changed.values or () if group != row[column].strip())
                new = [row]
        yield [[header, *rows[:place], *new, *rows[place + 1 :]], *tables[1:]]


def _units(data: TrainingData) -> dict[str, Counter[bytes]]:
    """What each party trains on, unit by unit, whatever the order."""
    found = {}
    for silo in data.parties:
        rows = [
            x.tobytes() + bytes((int(y) % 256, int(s) % 256))
            for x, y, s in zip(np.asarray(silo.data.features), silo.data.label, silo.data.group, strict=True)
        ]
        if data.users is not None:
            rows = [b"".join(sorted(rows[data.users.of(user)])) for user in range(len(data.users))]
        found[silo.name] = Counter(rows)
    return found


def _distance(one: dict[str, Counter[bytes]], other: dict[str, Counter[bytes]]) -> int:
    """How many units come or go, over all parties."""
    empty: Counter[bytes] = Counter()
    pairs = [(one.get(name, empty), other.get(name, empty)) for name in sorted({*one, *other})]
    return sum((before - after).total() + (after - before).total() for before, after in pairs)
