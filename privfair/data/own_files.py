"""The user's own CSV or Parquet files as silos: one file per silo, or one file with a silo column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibrate.errors import InvalidInput
from privfair.data.attributes import AttributeFiles, without_attribute
from privfair.data.dataset import Silo, Silos, TrainTest
from privfair.data.encode import encode, resolve
from privfair.data.facts import DerivedFact
from privfair.data.infer import silo_name
from privfair.data.read import MISSING, BadData, RawTable
from privfair.data.schema import Coverage, Schema
from privfair.data.schema_toml import OwnFormat

NamedTables = list[tuple[str, RawTable]]


def load_own_silos(files: Sequence[Path], own: OwnFormat, held: AttributeFiles | None = None) -> Silos:
    """Load all silos of a run in one place.

    With a silo column in the schema there must be one file; its silos are the column's values, sorted.
    Otherwise each file is a silo with the file's name. Lists that the schema leaves open are taken from all files
    together, and recorded as such. `held` are attributes in files of others.
    """
    own, named = _read(files, own, held)
    schema, derived = resolve(own.schema, [table for _, table in named])
    return _encode_silos(named, schema, derived)


def load_own_train_test(
    train: Sequence[Path], test: Sequence[Path], own: OwnFormat, held: AttributeFiles | None = None
) -> TrainTest:
    """Load silos whose test records come in separate files, given in the order of the training files.

    Open lists are taken from training and test files together, so both parts use the same numbers.
    """
    (_, training), (own, testing) = _read(train, own, held), _read(test, own, held)
    if own.schema.silo_column is None:
        if len(train) != len(test):
            raise InvalidInput(
                "test files", len(test), f"must be as many as the {len(train)} training files", "give one for each silo"
            )
        testing = [(name, table) for (name, _), (_, table) in zip(training, testing, strict=True)]
    schema, derived = resolve(own.schema, [table for _, table in training + testing])
    return TrainTest(_encode_silos(training, schema, derived), _encode_silos(testing, schema, derived))


def load_own_silo(file: Path, own: OwnFormat, name: str | None = None, *, attribute: bool = True) -> Silo:
    """Load one silo where it lives, without seeing the others.

    Every list must then be declared: a silo alone cannot know how the others number. Without `attribute` the file must
    lack the sensitive column, which a registry holds.
    """
    if own.schema.unresolved:
        raise InvalidInput(
            "schema",
            own.schema.unresolved,
            "must list the values of every coded column when a silo is loaded alone",
            "add classes, groups or values to the schema, the same in every silo",
        )
    table = own.layouts.read(Path(file))
    if not attribute:
        table = without_attribute(table, own.schema)
    table.require(*own.schema.columns)
    schema, derived = resolve(own.schema, [table])
    silo = Silo(silo_name(file) if name is None else name, encode(table, schema, derived))
    if attribute:
        _require_coverage(silo, table.file, schema)
    return silo


def _read(files: Sequence[Path], own: OwnFormat, held: AttributeFiles | None) -> tuple[OwnFormat, NamedTables]:
    if not files:
        raise InvalidInput("files", (), "must not be empty", "give one file for each silo")
    tables = [own.layouts.read(Path(file)) for file in files]
    if held is not None:
        own = replace(own, schema=held.add_holder_to(own.schema))
        tables = [held.join(table) for table in tables]
    for table in tables:
        table.require(*own.schema.columns)
    if own.schema.silo_column is None:
        return own, [(silo_name(file), table) for file, table in zip(files, tables, strict=True)]
    if len(tables) == 1:
        return own, _by_silo_column(tables[0], own.schema.silo_column, own.schema.silo_names)
    raise InvalidInput(
        "files",
        len(files),
        f"must be one file, because the schema has the silo column {own.schema.silo_column!r}",
        "give one file, or drop [silos] column from the schema",
    )


def _encode_silos(named: NamedTables, schema: Schema, derived: tuple[DerivedFact, ...]) -> Silos:
    silos = Silos(tuple(Silo(name, encode(table, schema, derived)) for name, table in named))
    for silo, (_, table) in zip(silos, named, strict=True):
        _require_coverage(silo, table.file, schema)
    classes = np.sum([silo.data.class_counts() for silo in silos], axis=0)
    if (classes > 0).sum() < 2:
        files = ", ".join(dict.fromkeys(table.file for _, table in named))
        raise BadData(
            files, "all silos together hold one class only", "give records of another", column=schema.target.name
        )
    return silos


def _by_silo_column(table: RawTable, column: str, declared: tuple[str, ...] | None) -> NamedTables:
    names = table.names(column)
    missing = np.isin(np.char.lower(names), sorted(MISSING))
    if missing.any():
        line = table.line(int(np.argmax(missing)))
        raise BadData(table.file, "has no value", "give every record a silo", column=column, line=line)
    silos = [str(name) for name in np.unique(names)] if declared is None else declared
    return [(name, table.rows(np.flatnonzero(names == name))) for name in silos]


def _require_coverage(silo: Silo, file: str, schema: Schema) -> None:
    """A silo without a group cannot contribute to a gap, and one with a single class learns a constant.

    The check reads the attribute. It happens before anything is sent and its outcome stays with the silo, but a
    silo that stays away because of it does tell the others so.
    """
    if schema.coverage is Coverage.ANYTHING:
        return
    remedy = 'give more records, merge silos, or set each_holds = "anything" under [silos]'
    if schema.sensitive is not None and (silo.data.group_counts() == 0).any():
        raise BadData(file, f"silo {silo.name!r} lacks one of the groups", remedy, column=schema.sensitive.name)
    if (silo.data.class_counts() > 0).sum() < 2:
        raise BadData(file, f"silo {silo.name!r} holds one class only", remedy, column=schema.target.name)
