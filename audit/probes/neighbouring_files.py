"""Does one unit of the file change more than one unit of what trains? Neighbours of the run's files, loaded again.

The price speaks of the units after splitting, cutting and grouping; the promise of the file. A loader that lets one row
decide about others breaks the promise while every contribution keeps its bound.
"""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from audit.probes.setting import ROUNDING, ProbeSetting, owned_units
from audit.report.results import Check, Layer, not_possible, passed_if
from audit.runs.evidence import RunEvidence
from calibrate.errors import PrivfairError
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from privfair.algorithms.algorithm import SiloTensors
from privfair.data.schema import Schema
from privfair.data.schema_toml import load_schema
from privfair.data.training_data import TrainingData
from privfair.plan.data import FileSource, PoissonUsers, SiteSource, UsersOfColumn
from privfair.run.prepare import load_data

_NAME = "one unit of the file stays one"
_AT_LEAST, _SECONDS = 4, 2.0
"""Neighbours that are tried whatever the time, and processor seconds for more."""
Table = list[list[str]]
"""A file's header and rows."""


def check_files(evidence: RunEvidence, setting: ProbeSetting) -> tuple[Check, ...]:
    """Change one unit at a time in copies of the files, load them again, and ask for the messages of what was loaded.

    Tried are units at the start, in the middle and at the end, an extreme record that enters as a row of the file,
    and, for about two seconds, who holds the extremes of the columns and their rare values.
    """
    plan, source = evidence.plan.data, evidence.plan.data.source
    schema = evidence.data.parties[0].data.schema
    by_record = isinstance(plan.users, PoissonUsers) and plan.users.users is not None and plan.users.copies == 1
    dealt = plan.users is not None and not isinstance(plan.users, UsersOfColumn) and not by_record
    files = source.files if isinstance(source, FileSource) else tuple(evidence.sites.values())
    plain = isinstance(source, FileSource | SiteSource) and files and all(file.suffix == ".csv" for file in files)
    if not plain or schema is None:
        return (not_possible(Layer.PROBE, _NAME, "the data are not plain CSV files"),)
    if dealt or plan.attributes is not None:
        return (not_possible(Layer.PROBE, _NAME, "a unit is not a row of these files, nor all rows of one value"),)
    assert isinstance(source, FileSource | SiteSource)
    layouts = load_schema(source.schema).layouts
    delimiters = [layouts.of(file).delimiter for file in files]
    tables = [_read(file, mark) for file, mark in zip(files, delimiters, strict=True)]
    users = plan.users.column if isinstance(plan.users, UsersOfColumn) else None
    start = time.process_time()
    with TemporaryDirectory(prefix="privfair-audit-") as folder:
        copies = tuple(Path(folder) / f"{place}" / file.name for place, file in enumerate(files))
        reader = _Reader(evidence, setting, copies, delimiters)
        base = reader.load(tables)
        assert base is not None  # these are the run's own files
        seen = _Seen()
        for number, neighbour in enumerate(_neighbours(tables, setting.unit, schema, users)):
            if number >= _AT_LEAST and time.process_time() - start > _SECONDS:
                break
            seen.compare(setting, base, reader.load(neighbour))
    if not seen.tried:
        return (not_possible(Layer.PROBE, _NAME, "the loader accepts no neighbour of the files"),)
    # A row of a dealt user is a part of one: a changed user is one that goes and another that comes.
    adding = setting.unit.relation is Relation.ADD_REMOVE
    most, share = (1 if adding and not by_record else 2), seen.ratio / (2 if adding and by_record else 1)
    units = f"{seen.tried} neighbours of the files: {seen.units} units come or go"
    ratio = f"{share:.4f} of the signed bound at most, over {seen.tried} neighbours of the files{seen.where}"
    found, rows = sum(one.total() for one in base.units.values()), sum(len(table) - 1 for table in tables)
    if setting.unit.protected is not Protected.USER and found > rows:
        return (passed_if(Layer.PROBE, _NAME, False, f"{found} records come from {rows} rows"),)
    return (
        passed_if(Layer.PROBE, _NAME, seen.units <= most, units),
        passed_if(Layer.PROBE, "from file to message", share <= 1 + ROUNDING, ratio),
    )


@dataclass(frozen=True, eq=False)
class _Loaded:
    """What the loader makes of files: the units of every party, and what each silo would send in some states."""

    units: dict[str, Counter[bytes]]
    messages: dict[tuple[int, str], Mapping[str, np.ndarray]]


@dataclass(frozen=True, eq=False)
class _Reader:
    """Loads changed copies of the run's files, all the way to messages."""

    evidence: RunEvidence
    setting: ProbeSetting
    copies: tuple[Path, ...]
    delimiters: Sequence[str]

    def load(self, tables: Sequence[Table]) -> _Loaded | None:
        """None if the loader refuses these files."""
        for copy, table, mark in zip(self.copies, tables, self.delimiters, strict=True):
            copy.parent.mkdir(exist_ok=True)
            with copy.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, delimiter=mark).writerows(table)
        plan, source, sites = self.evidence.plan, self.evidence.plan.data.source, self.evidence.sites
        if isinstance(source, FileSource):
            plan = replace(plan, data=replace(plan.data, source=replace(source, files=self.copies)))
        try:
            data = load_data(plan, self.evidence.document, dict(zip(sites, self.copies, strict=False)))
            silos = data.tensors(plan.model.dtype)
        except PrivfairError:
            return None  # outside of the loader's domain
        return _Loaded(_units(data, silos), dict(self._messages(silos)))

    def _messages(self, silos: Sequence[SiloTensors]) -> Iterator[tuple[tuple[int, str], Mapping[str, np.ndarray]]]:
        """Of full batches; not where an algorithm draws its own parts, or cuts batches to a limit."""
        setting = self.setting
        if setting.algorithm.draws or setting.most_at_once is not None:
            return
        for reached in (setting.reached_states[0], setting.reached_states[-1]):
            for silo in silos:
                message = setting.algorithm.contribution(reached.state, reached.step, silo, owned_units(silo))
                yield (reached.step, silo.name), {part.name: np.array(part.values) for part in message.noisy}


@dataclass
class _Seen:
    """The worst of all neighbours."""

    tried: int = 0
    units: int = 0
    ratio: float = 0.0
    where: str = ""

    def compare(self, setting: ProbeSetting, base: _Loaded, other: _Loaded | None) -> None:
        """One unit is in one party, so that the messages of one party alone may move."""
        if other is None:
            return
        self.tried, self.units = self.tried + 1, max(self.units, _distance(base.units, other.units))
        for step in {step for step, _ in base.messages}:
            moved: dict[str, float] = {}
            for (at, silo), values in base.messages.items():
                there = other.messages.get((at, silo), {}) if at == step else {}
                for name in values.keys() & there.keys() & setting.bounded.keys():
                    ratio = setting.distance(name, values[name], there[name]) / setting.allowed(name)
                    moved[name] = moved.get(name, 0.0) + ratio
            for name, ratio in moved.items():
                if ratio > self.ratio:
                    self.ratio, self.where = ratio, f" ({name}, step {step})"


def _read(file: Path, delimiter: str) -> Table:
    with file.open(newline="", encoding="utf-8-sig") as opened:
        return [row for row in csv.reader(opened, delimiter=delimiter, skipinitialspace=True) if row]


def _neighbours(tables: list[Table], unit: PrivacyUnit, schema: Schema, users: str | None) -> Iterator[list[Table]]:
    header, *rows = tables[0]
    names = [name.strip() for name in header]
    middle = len(rows) // 2
    ends = dict.fromkeys((0, middle, len(rows) - 1))
    for place in ends:
        yield _changed(tables, place, unit, schema, users)
    if unit.relation is not Relation.REPLACE_ATTRIBUTE and unit.protected is not Protected.USER:
        kept = rows if unit.relation is Relation.ADD_REMOVE else [*rows[:middle], *rows[middle + 1 :]]
        yield [[header, *kept[:middle], _canary(rows[middle], names, schema), *kept[middle:]], *tables[1:]]
    for place in _outstanding(rows):
        if place not in ends:
            yield _changed(tables, place, unit, schema, users)


def _changed(tables: list[Table], place: int, unit: PrivacyUnit, schema: Schema, users: str | None) -> list[Table]:
    """The tables without the unit of this row of the first file, or with another record or attribute in its place."""
    header, *rows = tables[0]
    names = [name.strip() for name in header]
    if unit.protected is Protected.USER and users is not None:
        who = rows[place][names.index(users)]
        return [[row for row in table if row[names.index(users)] != who] for table in tables]
    if unit.protected is Protected.USER:  # records are dealt one by one, so that one fewer is another user
        return [[header, *rows[:place], *rows[place + 1 :]], *tables[1:]]
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
    return [[header, *rows[:place], *new, *rows[place + 1 :]], *tables[1:]]


def _canary(row: list[str], names: list[str], schema: Schema) -> list[str]:
    """The row with numbers far beyond all others."""
    far = {column.name for column in schema.numeric}
    return [f"{1e6}" if name in far else cell for name, cell in zip(names, row, strict=True)]


def _outstanding(rows: list[list[str]]) -> Iterator[int]:
    """Who holds the largest or smallest number of a column, or its rarest value."""
    for column in zip(*rows, strict=True):
        try:
            numbers = np.array([float(cell) for cell in column])
            yield from (int(numbers.argmax()), int(numbers.argmin()))
        except ValueError:
            times = Counter(column)
            yield column.index(min(times, key=times.__getitem__))


def _units(data: TrainingData, silos: Sequence[SiloTensors]) -> dict[str, Counter[bytes]]:
    """What each party trains on, unit by unit, whatever the order; and the records that are held out."""
    found = {}
    for silo in silos:
        rows = [
            x.tobytes() + bytes((int(y) % 256, int(s) % 256))
            for x, y, s in zip(silo.x.numpy(), silo.y.tolist(), silo.s.tolist(), strict=True)
        ]
        if data.users is not None:
            rows = [b"".join(sorted(rows[data.users.of(user)])) for user in range(len(data.users))]
        found[silo.name] = Counter(rows)
    if data.test is not None and data.shared_with_test is None and data.users is None:
        for held in data.test:
            rows = [np.ascontiguousarray(row).tobytes() for row in held.data.features]
            found[f"held out of {held.name}"] = Counter(rows)
    return found


def _distance(one: dict[str, Counter[bytes]], other: dict[str, Counter[bytes]]) -> int:
    """How many units come or go, over all parties."""
    empty: Counter[bytes] = Counter()
    pairs = [(one.get(name, empty), other.get(name, empty)) for name in sorted({*one, *other})]
    return sum((before - after).total() + (after - before).total() for before, after in pairs)
