"""From a table and its schema to arrays: resolve the lists once, number, scale (or standardise), one-hot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from calibrate.arrays import AnyFloats, Integers
from privfair.data.dataset import EVERYONE, Dataset, Silo, Silos
from privfair.data.facts import DerivedFact, FactKind
from privfair.data.read import MISSING, BadData, RawTable
from privfair.data.schema import CodedColumn, NonPrivateStandardisation, Schema


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
