"""From tables and their schema to silos of arrays: resolve the lists once, number, scale (or standardise), one-hot.

The user's own CSV or Parquet files: one file per silo, or one file with a silo column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from calibrate.arrays import AnyFloats, Integers
from calibrate.errors import InvalidInput
from privfair.data.attributes import AttributeFiles, without_attribute
from privfair.data.dataset import EVERYONE, Dataset, Silo, Silos, TrainTest
from privfair.data.infer import silo_name
from privfair.data.read import MISSING, BadData, RawTable
from privfair.data.schema import CodedColumn, Coverage, NonPrivateStandardisation, Schema
from privfair.data.schema_toml import OwnFormat
from privfair.data.stability import DerivedFact, FactKind


def resolve(schema: Schema, tables: Sequence[RawTable]) -> tuple[Schema, tuple[DerivedFact, ...]]:
    """Fill the lists that the schema leaves open from *all* tables together, and say which ones.

    Numbering by what one silo happens to contain, or in the order of first appearance, would swap groups
    between silos; so the list is the sorted union, made once.
    """
    facts: list[DerivedFact] = []

    def fill(column: CodedColumn, kind: FactKind) -> CodedColumn:
        if column.values is not None:
            return column
        facts.append(DerivedFact(kind, column.name))
        found = set[str]().union(*(set(_merge_names(table, column).tolist()) for table in tables))
        if len(found) < 2 and kind is not FactKind.CATEGORIES:
            what = "class" if kind is FactKind.CLASSES else "group"
            raise BadData(
                ", ".join(table.file for table in tables),
                f"holds one {what} only",
                "a classifier and a gap need two: give records of another, or list all values in the schema",
                column=column.name,
            )
        return replace(column, values=tuple(sorted(found)))

    target = fill(schema.target, FactKind.CLASSES)
    sensitive = None if schema.sensitive is None else fill(schema.sensitive, FactKind.GROUPS)
    categorical = tuple(fill(column, FactKind.CATEGORIES) for column in schema.categorical)
    facts += [
        DerivedFact(FactKind.SCALE, column.name)
        for column in schema.numeric
        if isinstance(column.scaling, NonPrivateStandardisation)
    ]
    return replace(schema, target=target, sensitive=sensitive, categorical=categorical), tuple(facts)


def encode(table: RawTable, schema: Schema, derived: tuple[DerivedFact, ...] = ()) -> Dataset:
    """Turn one table into arrays by a schema whose lists are all filled."""
    label = codes(table, schema.target)
    if schema.sensitive is None:
        group, group_names = np.zeros(table.records, dtype=np.int64), EVERYONE
    else:
        group, group_names = codes(table, schema.sensitive), schema.sensitive.values or ()
    extra = dict.fromkeys((*schema.side_columns, *(() if schema.silo_column is None else (schema.silo_column,))))
    return Dataset(
        features=encode_features(table, schema),
        label=label,
        group=group,
        feature_names=schema.feature_names,
        class_names=schema.target.values or (),
        group_names=group_names,
        schema_digest=schema.digest,
        schema=schema,
        side_columns={name: _side_column(table, schema, name) for name in extra},
        derived=derived,
        unscaled_features=tuple(
            i for i, column in enumerate(schema.numeric) if isinstance(column.scaling, NonPrivateStandardisation)
        ),
    )


def codes(table: RawTable, column: CodedColumn, predicting: bool = False) -> Integers:
    """The position of each cell in the column's list; an unlisted cell is an error, never a new number.

    With `predicting`, an unlisted or missing one is what the column's `unseen` rule says; -1 stands for no category.
    """
    if column.parts:
        found = np.zeros(table.records, dtype=np.int64)
        for part in column.parts:
            found = found * len(part.values or ()) + codes(table, part)
        return found
    if column.values is None:
        raise BadData(
            table.file,
            "has no declared list of values, and one silo alone must not choose the numbering",
            "list the values in the schema",
            column=column.name,
        )
    answered = predicting and column.unseen is not None
    names = _merge_names(table, column, answered)
    order = np.argsort(np.array(column.values))
    listed = np.array(column.values)[order]
    position = np.searchsorted(listed, names).clip(max=len(listed) - 1)
    unknown = listed[position] != names
    if answered:
        rule = -1 if column.unseen not in column.values else column.values.index(str(column.unseen))
        return np.where(unknown, rule, order[position]).astype(np.int64)
    if unknown.any():
        record = int(np.argmax(unknown))
        raise BadData(
            table.file,
            f"is not in the schema's list {list(column.values)}",
            "add it to the list, merge it into a listed value, or fix the record"
            + ("; unseen = ... in the schema answers it when predicting" if predicting else ""),
            column=column.name,
            line=table.line(record),
            cell=str(names[record]),
        )
    return np.asarray(order[position], dtype=np.int64)


def _merge_names(table: RawTable, column: CodedColumn, gaps: bool = False) -> NDArray[np.str_]:
    """The cells with merged names in place; a missing one is an error unless `gaps` are answered later."""
    names = table.names(column.name)
    if column.merge:
        mapping = dict(column.merge)
        distinct, inverse = np.unique(names, return_inverse=True)
        names = np.array([mapping.get(str(name), str(name)) for name in distinct])[inverse]
    distinct, first = np.unique(names, return_index=True)
    for name, record in zip(distinct.tolist(), first.tolist(), strict=True):
        if not gaps and name.lower() in MISSING and name not in (column.values or ()):
            raise BadData(
                table.file,
                "has no value",
                "fill or drop these records"
                + (', or list "" (or "NA", as it is written) among its values' if column.values else ""),
                column=column.name,
                line=table.line(record),
            )
    return names


def _side_column(table: RawTable, schema: Schema, name: str) -> NDArray[Any]:
    """Numbers where the schema declares them, or the file has typed columns without gaps; else text.

    What the cells look like must not decide: one more row with a decimal, or without a value, would spell every other
    id differently (`Dataset.identifiers`).
    """
    if name == schema.silo_column:
        return table.names(name)
    fills = {column.name: column.fill for column in schema.numeric}
    if name in fills:
        return table.numbers(name, fills[name])
    return table.column(name) if table.column(name).dtype.kind in "iuf" else table.names(name)


def encode_features(table: RawTable, schema: Schema, predicting: bool = False) -> AnyFloats:
    """The features alone, for records whose class and group are not known; columns as in `schema.feature_names`.

    With `predicting`, categories that training never saw are answered by the schema's `unseen` rules.
    """
    numbers = {column.name: table.numbers(column.name, column.fill) for column in schema.numeric}
    blocks: list[AnyFloats] = [column.scaling.apply(numbers[column.name])[:, np.newaxis] for column in schema.numeric]
    for column in schema.categorical:
        # The last row, which -1 picks, is no category: all indicators are 0.
        indicators = np.eye(len(column.values or ()) + 1)[:, :-1]
        blocks.append(indicators[codes(table, column, predicting)])
    for numeric in schema.numeric:
        if numeric.steps:
            reached = numbers[numeric.name][:, np.newaxis] >= np.array(numeric.steps)
            blocks.append(reached.astype(np.float64))
    for numeric in schema.with_indicator:
        blocks.append(table.missing(numeric.name).astype(np.float64)[:, np.newaxis])
    return np.concatenate(blocks, axis=1)


# Mean 0, variance 1 by the training records: for runs that do not protect features, and only those.


@dataclass(frozen=True)
class Standardisation:
    """Fitted constants: feature columns[i] becomes (value - mean[i]) / scale[i]; a model must keep them to predict."""

    columns: tuple[int, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def apply(self, features: AnyFloats) -> AnyFloats:
        """A scaled copy of features that were encoded with the schema of the training records."""
        scaled = np.array(features)
        columns = list(self.columns)
        scaled[:, columns] = (scaled[:, columns] - np.array(self.mean)) / np.array(self.scale)
        return scaled

    def apply_to_silos(self, silos: Silos) -> Silos:
        return Silos(
            tuple(
                Silo(silo.name, replace(silo.data, features=self.apply(silo.data.features), unscaled_features=()))
                for silo in silos
            )
        )

    def as_json(self) -> dict[str, JsonValue]:
        return {"columns": [*self.columns], "mean": [*self.mean], "scale": [*self.scale]}


def fit_standardisation(train: Silos) -> Standardisation:
    """Mean and deviation of the pooled training records, for the features that the schema left for it.

    A column without spread keeps its scale, so that it becomes zero in training.
    """
    columns = train[0].data.unscaled_features
    pooled = np.concatenate([silo.data.features[:, list(columns)] for silo in train])
    spread = pooled.std(axis=0)
    return Standardisation(
        columns, tuple(float(m) for m in pooled.mean(axis=0)), tuple(float(s) if s > 0 else 1.0 for s in spread)
    )


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


_SMALLEST_CELL = 20
"""Records of each combination of sensitive columns at each site: with fewer a gap between groups is noise."""


def _require_coverage(silo: Silo, file: str, schema: Schema) -> None:
    """A silo without a group cannot contribute to a gap, and one with a single class learns a constant.

    The check reads the attribute. It happens before anything is sent and its outcome stays with the silo, but a
    silo that stays away because of it does tell the others so.
    """
    if schema.coverage is Coverage.ANYTHING:
        return
    remedy = 'give more records, merge silos, or set each_holds = "anything" under [silos]'
    if schema.sensitive is not None:
        name, counts = schema.sensitive.name, silo.data.group_counts()
        if schema.sensitive.parts and (small := int((counts < _SMALLEST_CELL).sum())):
            rule = f"{small} of the {len(counts)} combinations have fewer than {_SMALLEST_CELL} records"
            merge = 'merge rare values in the schema, such as merge = {X = "F"}, name one sensitive column'
            raise BadData(file, rule, f"{merge}, or {remedy}", column=name)
        if (counts == 0).any():
            raise BadData(file, f"silo {silo.name!r} lacks one of the groups", remedy, column=name)
    if (silo.data.class_counts() > 0).sum() < 2:
        raise BadData(file, f"silo {silo.name!r} holds one class only", remedy, column=schema.target.name)
