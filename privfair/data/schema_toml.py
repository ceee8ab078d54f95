"""The small TOML file in which a user says what the columns of their files mean.

::

    version = 1

    [target]
    column = "default"
    classes = ["no", "yes"]            # the numbering; left out: sorted, and then a fact read off the data

    [sensitive]                        # leave the table out if there is no attribute
    column = "sex"
    groups = ["female", "male"]

    [numeric.age]
    bounds = [18, 100]                 # public bounds, mapped to [0, 1]
    steps = [25, 35, 65]               # optional: a feature for each of these public values, whether it is reached

    [numeric.income]
    mean = 10.5                        # public mean and scale (after the transform)
    scale = 1.0
    transform = "signed-log"

    [categorical.job]
    values = ["clerk", "nurse", "other"]
    merge = { "student" = "other" }

    [silos]                            # only if one file holds several silos, or to relax the check
    column = "branch"
    each_holds = "all-groups"          # or "anything"

    [file]
    delimiter = ","
    keep = ["age", "user"]             # columns to partition by; they do not become features by this

A numeric column that says nothing about its scale is refused: a scale taken from the records would be a
statistic of private data that nobody asked for.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.errors import InvalidInput
from privfair.data.read import BadData
from privfair.data.scaling import (
    NonPrivateStandardisation,
    PaidScaling,
    PublicBounds,
    PublicMeanScale,
    Scaling,
    Transform,
    Unscaled,
)
from privfair.data.schema import SCHEMA_VERSION, CodedColumn, Coverage, NumericColumn, Schema

Table = dict[str, Any]


@dataclass(frozen=True)
class OwnFormat:
    """A parsed schema file: the schema and how the CSV files are delimited."""

    schema: Schema
    delimiter: str = ","


def load_schema(path: Path) -> OwnFormat:
    """Read and check a schema file; unknown keys are errors, so that a typing mistake is not ignored."""
    if not path.is_file():
        raise InvalidInput("schema", str(path), "does not exist or is no file", "check the path")
    try:
        return parse_schema(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError:
        raise BadData(str(path), "is not UTF-8 text", "save it as UTF-8") from None


def parse_schema(text: str, file: str = "schema") -> OwnFormat:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadData(file, f"is not valid TOML ({error})", "mend the syntax") from None
    reader = _Reader(file)
    reader.only(document, "", {"version", "target", "sensitive", "numeric", "categorical", "silos", "file"})
    if document.get("version") != SCHEMA_VERSION:
        raise BadData(file, f"version {document.get('version')!r} is not known", f"write version = {SCHEMA_VERSION}")
    silos = reader.table(document, "silos", required=False)
    reader.only(silos, "silos", {"column", "each_holds"})
    layout = reader.table(document, "file", required=False)
    reader.only(layout, "file", {"delimiter", "keep"})
    schema = Schema(
        target=reader.coded(reader.table(document, "target"), "target", "classes"),
        sensitive=reader.coded(document["sensitive"], "sensitive", "groups") if "sensitive" in document else None,
        numeric=tuple(
            reader.numeric(name, declared)
            for name, declared in reader.table(document, "numeric", required=False).items()
        ),
        categorical=tuple(
            reader.coded({"column": name} | reader.as_table(declared, f"categorical.{name}"), name, "values")
            for name, declared in reader.table(document, "categorical", required=False).items()
        ),
        silo_column=reader.text(silos, "silos", "column", default=None),
        coverage=reader.choice(Coverage, silos.get("each_holds", Coverage.ALL_GROUPS_TWO_CLASSES.value), "each_holds"),
        side_columns=reader.names(layout.get("keep", []), "file.keep"),
    )
    delimiter = reader.text(layout, "file", "delimiter", default=",") or ","
    if len(delimiter) != 1:
        raise BadData(file, f"delimiter {delimiter!r} must be one character", 'write for example delimiter = ";"')
    return OwnFormat(schema, delimiter)


@dataclass(frozen=True)
class _Reader:
    """The checks on TOML values, each naming the file and the key."""

    file: str

    def as_table(self, value: object, where: str) -> Table:
        if not isinstance(value, dict):
            raise BadData(self.file, f"{where!r} must be a table", f"write [{where}] with its keys")
        return value

    def table(self, document: Table, key: str, *, required: bool = True) -> Table:
        if key not in document:
            if required:
                raise BadData(self.file, f"the table [{key}] is missing", f"add [{key}] with column = ...")
            return {}
        return self.as_table(document[key], key)

    def only(self, table: Table, where: str, known: set[str]) -> None:
        for key in table:
            if key not in known:
                place = f"[{where}]" if where else "the file"
                raise BadData(self.file, f"{place} has an unknown key {key!r}", f"use one of {sorted(known)}")

    def text(self, table: Table, where: str, key: str, default: str | None) -> str | None:
        value = table.get(key, default)
        if value is not None and not isinstance(value, str):
            raise BadData(self.file, f"{key!r} of [{where}] must be text", "put it in quotes")
        return value

    def number(self, table: Table, column: str, key: str) -> float:
        value = table.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadData(self.file, f"{key!r} must be a number", f"write {key} = 1.0", column=column)
        return float(value)

    def choice(self, choices: type[Any], value: object, key: str) -> Any:
        try:
            return choices(value)
        except ValueError:
            known = [choice.value for choice in choices]
            raise BadData(self.file, f"{key} {value!r} is not known", f"use one of {known}") from None

    def names(self, value: object, where: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(v, (str, int)) and not isinstance(v, bool) for v in value):
            raise BadData(self.file, "must be a list of names or whole numbers", 'write ["a", "b"]', column=where)
        return tuple(str(v) for v in value)

    def coded(self, declared: object, where: str, list_key: str) -> CodedColumn:
        table = self.as_table(declared, where)
        self.only(table, where, {"column", list_key, "merge"})
        name = self.text(table, where, "column", default=None)
        if name is None:
            raise BadData(self.file, f"[{where}] names no column", 'write column = "..."')
        merge = self.as_table(table.get("merge", {}), f"{where}.merge")
        return CodedColumn(
            name,
            self.names(table[list_key], name) if list_key in table else None,
            tuple((str(source), str(target)) for source, target in merge.items()),
        )

    def numeric(self, name: str, declared: object) -> NumericColumn:
        table = self.as_table(declared, f"numeric.{name}")
        self.only(
            table, f"numeric.{name}", {"bounds", "mean", "scale", "reach", "transform", "receipt", "scaling", "steps"}
        )
        transform = self.choice(Transform, table.get("transform", Transform.IDENTITY.value), "transform")
        try:
            return NumericColumn(name, self._scaling(name, table, transform), self._steps(name, table))
        except BadData:
            raise
        except InvalidInput as error:
            raise BadData(
                self.file, f"{error.argument} {error.value!r} {error.rule}", error.remedy, column=name
            ) from None

    def _steps(self, name: str, table: Table) -> tuple[float, ...]:
        given = table.get("steps", [])
        numbers = isinstance(given, list) and all(
            isinstance(step, (int, float)) and not isinstance(step, bool) for step in given
        )
        if not numbers:
            raise BadData(self.file, "steps must be a list of numbers", "write [25, 35, 65]", column=name)
        return tuple(float(step) for step in given)

    def _scaling(self, name: str, table: Table, transform: Transform) -> Scaling:
        ways = {key for key in ("bounds", "mean", "scaling") if key in table}
        if len(ways) != 1:
            raise BadData(
                self.file,
                "must say in exactly one way how it is scaled without looking at private records",
                "give bounds = [low, high], or mean and scale, or scaling = "
                '"unscaled" or "non-private-standardisation" (refused where features are private)',
                column=name,
            )
        if "bounds" in table:
            self.only(table, f"numeric.{name}", {"bounds", "transform", "steps"})
            bounds = table["bounds"]
            if not isinstance(bounds, list) or len(bounds) != 2:
                raise BadData(self.file, "bounds must be two numbers", "write bounds = [0, 100]", column=name)
            ends = dict(zip(("low", "high"), bounds, strict=True))
            return PublicBounds(self.number(ends, name, "low"), self.number(ends, name, "high"), transform)
        if "mean" in table:
            mean, scale = self.number(table, name, "mean"), self.number(table, name, "scale")
            reach = self.number(table, name, "reach") if "reach" in table else 10.0
            if "receipt" in table:
                return PaidScaling(mean, scale, str(table["receipt"]), transform, reach)
            return PublicMeanScale(mean, scale, transform, reach)
        self.only(table, f"numeric.{name}", {"scaling", "transform", "steps"})
        if table["scaling"] == "unscaled" and transform is Transform.IDENTITY:
            return Unscaled()
        if table["scaling"] == "non-private-standardisation":
            return NonPrivateStandardisation(transform)
        raise BadData(
            self.file,
            f"scaling {table['scaling']!r} with transform {transform.value!r} is not known",
            'use "unscaled" without a transform, or "non-private-standardisation"',
            column=name,
        )
