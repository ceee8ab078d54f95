"""The small TOML file in which a user says what the columns of their files mean.

::

    version = 1

    [target]
    column = "default"
    classes = ["no", "yes"]            # the numbering; left out: sorted, and then a fact taken from the data

    [sensitive]                        # leave the table out if there is no attribute
    column = "sex"
    groups = ["female", "male"]

    [numeric.age]
    bounds = [18, 100]                 # public bounds, mapped to [0, 1]
    steps = [25, 35, 65]               # optional: a feature for each of these public values, whether it is reached
    missing = { value = 40, indicator = true }   # optional: a public value for empty cells, and a feature that says so

    [numeric.income]
    mean = 10.5                        # public mean and scale (after the transform)
    scale = 1.0
    transform = "signed-log"

    [categorical.job]
    values = ["clerk", "nurse", "other"]
    merge = { "student" = "other" }
    unseen = "other"                   # optional: for unlisted values in records to be predicted; or "no-category"

    [silos]                            # only if one file holds several silos, or to relax the check
    column = "branch"
    names = ["north", "south"]         # optional: the public list of silos; records of others are left out
    each_holds = "all-groups"          # or "anything"

    [file]
    delimiter = ","
    decimal = "."                      # or ","
    keep = ["age", "user"]             # columns to partition by; they do not become features by this

    [file.exceptions."south.csv"]      # only for a file that is written differently from the others
    delimiter = ";"
    decimal = ","

A numeric column that says nothing about its scale is refused: a scale taken from the records would be a
statistic of private data that no budget pays for.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from calibrate.errors import InvalidInput
from privfair.data.infer import FileLayout, Layouts
from privfair.data.read import BadData
from privfair.data.schema import (
    SCHEMA_VERSION,
    CodedColumn,
    Coverage,
    Missing,
    NonPrivateStandardisation,
    NumericColumn,
    PaidScaling,
    PublicBounds,
    PublicMeanScale,
    Scaling,
    Schema,
    Transform,
    Unscaled,
)
from privfair.plan.sections import read_section, refuse_unknown

Names = tuple[str | int, ...]
Column = NumericColumn | CodedColumn
Part = TypeVar("Part")


@dataclass(frozen=True)
class OwnFormat:
    """A parsed schema file: the schema and how the CSV files are written."""

    schema: Schema
    layouts: Layouts = field(default_factory=Layouts)


@dataclass(frozen=True)
class _Categorical:
    values: Names | None = None
    merge: Mapping[str, str] = field(default_factory=dict)
    unseen: str | None = None

    def coded(self, column: str) -> CodedColumn:
        listed = None if self.values is None else tuple(str(value) for value in self.values)
        return CodedColumn(column, listed, tuple(self.merge.items()), self.unseen)


@dataclass(frozen=True)
class _Target:
    column: str
    classes: Names | None = None
    merge: Mapping[str, str] = field(default_factory=dict)

    def coded(self) -> CodedColumn:
        return _Categorical(self.classes, self.merge).coded(self.column)


@dataclass(frozen=True)
class _Sensitive:
    column: str
    groups: Names | None = None
    merge: Mapping[str, str] = field(default_factory=dict)

    def coded(self) -> CodedColumn:
        return _Categorical(self.groups, self.merge).coded(self.column)


@dataclass(frozen=True)
class _Numeric:
    bounds: tuple[float, ...] | None = None
    mean: float | None = None
    scale: float | None = None
    reach: float | None = None
    receipt: str | None = None
    scaling: Literal["unscaled", "non-private-standardisation"] | None = None
    transform: Transform = Transform.IDENTITY
    steps: tuple[float, ...] = ()
    missing: Missing | None = None

    def chosen_scaling(self) -> Scaling:
        """The one way of scaling that the table names; its other keys must belong to that way."""
        moments = {"scale": self.scale, "reach": self.reach, "receipt": self.receipt}
        stray = [key for key, value in moments.items() if value is not None and self.mean is None]
        if sum(way is not None for way in (self.bounds, self.mean, self.scaling)) != 1:
            raise InvalidInput(
                "scaling",
                None,
                "must say in exactly one way how it is scaled without looking at private records",
                'give bounds = [low, high], or mean and scale, or scaling = "unscaled" or '
                '"non-private-standardisation" (refused where features are private)',
            )
        if stray:
            raise InvalidInput(stray[0], moments[stray[0]], "is an unknown key without a mean", "drop it")
        if self.bounds is not None:
            if len(self.bounds) != 2:
                remedy = "write bounds = [0, 100], for example: the lowest and highest value known without the files"
                raise InvalidInput("bounds", self.bounds, "must be two numbers", remedy)
            return PublicBounds(*self.bounds, self.transform)
        if self.mean is not None:
            if self.scale is None:
                raise InvalidInput("scale", None, "must be a number if `mean` is given", "write scale = 1.0")
            reach = 10.0 if self.reach is None else self.reach
            if self.receipt is not None:
                return PaidScaling(self.mean, self.scale, self.transform, reach, receipt=self.receipt)
            return PublicMeanScale(self.mean, self.scale, self.transform, reach)
        if self.scaling == "non-private-standardisation":
            return NonPrivateStandardisation(self.transform)
        if self.transform is not Transform.IDENTITY:
            raise InvalidInput("scaling", self.scaling, "is without a transform", "drop the transform")
        return Unscaled()


@dataclass(frozen=True)
class _Silos:
    column: str | None = None
    names: Names | None = None
    each_holds: Coverage = Coverage.ALL_GROUPS_TWO_CLASSES


@dataclass(frozen=True)
class _File(FileLayout):
    keep: Names = ()


def _file(document: Mapping[str, Any]) -> tuple[Layouts, Names]:
    """How all files are written, and the columns to keep next to the features."""
    table = _table(document, "file")
    usual = read_section(_File, "file", {key: value for key, value in table.items() if key != "exceptions"})
    others = {
        name: read_section(FileLayout, f'file.exceptions."{name}"', one)
        for name, one in _tables(table, "exceptions").items()
    }
    return Layouts(FileLayout(usual.delimiter, usual.decimal), others), usual.keep


def load_schema(path: Path) -> OwnFormat:
    """Read and check a schema file; unknown keys are errors, so that a typing mistake is not ignored."""
    if not path.is_file():
        raise InvalidInput("schema", str(path), "does not exist or is not a file", "check the path")
    try:
        return parse_schema(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError:
        raise BadData(str(path), "is not UTF-8 text", "save it as UTF-8") from None


def parse_schema(text: str, file: str = "schema") -> OwnFormat:
    """The schema in the text of a schema file; `file` is its name for error messages."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadData(file, f"is not valid TOML ({error})", "fix the syntax") from None
    version = document.pop("version", None)
    if version != SCHEMA_VERSION:
        raise BadData(file, f"version {version!r} is not known", f"write version = {SCHEMA_VERSION}")
    try:
        return _own_format(document)
    except BadData:
        raise
    except InvalidInput as error:
        raise BadData(file, f"{error.argument} = {error.value!r}: {error.rule}", error.remedy) from None


@dataclass(frozen=True)
class SchemaParts:
    """What of a schema file could be read, and a sentence for each table that could not."""

    columns: tuple[Column, ...] = ()
    named: tuple[str, ...] = ()
    """Every column that the file speaks of, whether its table could be read or not."""
    layouts: Layouts = field(default_factory=Layouts)
    mistakes: tuple[str, ...] = ()


def check_schema(path: Path) -> SchemaParts:
    """Read each table of a schema file on its own, so that all mistakes are known at once."""
    whole: list[str] = []
    try:
        load_schema(path)
    except InvalidInput as error:
        whole.append(str(error))
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return SchemaParts(mistakes=tuple(whole))
    columns: list[Column | None] = []
    named: list[str] = []
    mistakes: list[str] = []

    def attempt(read: Callable[[], Part]) -> Part | None:
        try:
            return read()
        except InvalidInput as error:
            mistakes.append(f"{path}: {error}")
            return None

    layouts, _ = attempt(partial(_file, document)) or (Layouts(), ())
    for role in ("target", "sensitive"):
        table = document.get(role)
        if isinstance(table, Mapping):
            named += [table["column"]] if isinstance(table.get("column"), str) else []
            columns.append(attempt(partial(_role, role, table)))
    readers: dict[str, Callable[[str, Mapping[str, Any]], Column]] = {"numeric": _numeric, "categorical": _categorical}
    for key, read in readers.items():
        for name, table in document[key].items() if isinstance(document.get(key), Mapping) else ():
            named.append(name)
            column = attempt(partial(read, name, table))
            if column is None and key == "numeric":  # its cells can be looked at nevertheless
                column = NumericColumn(name, Unscaled(), missing=_declared_missing(name, table))
            columns.append(column)
    return SchemaParts(tuple(filter(None, columns)), tuple(named), layouts, tuple(mistakes or whole))


def _declared_missing(name: str, table: Mapping[str, Any]) -> Missing | None:
    try:
        return read_section(_Numeric, f"numeric.{name}", table).missing
    except InvalidInput:
        return None


def _own_format(document: Mapping[str, Any]) -> OwnFormat:
    refuse_unknown("schema", document, ("target", "sensitive", "numeric", "categorical", "silos", "file"))
    layouts, keep = _file(document)
    silos = read_section(_Silos, "silos", _table(document, "silos"))
    sensitive = _table(document, "sensitive")
    schema = Schema(
        target=_role("target", _table(document, "target")),
        sensitive=_role("sensitive", sensitive) if "sensitive" in document else None,
        numeric=tuple(_numeric(name, table) for name, table in _tables(document, "numeric").items()),
        categorical=tuple(_categorical(name, table) for name, table in _tables(document, "categorical").items()),
        silo_column=silos.column,
        silo_names=None if silos.names is None else tuple(str(name) for name in silos.names),
        coverage=silos.each_holds,
        side_columns=tuple(str(name) for name in keep),
    )
    return OwnFormat(schema, layouts)


def _role(role: str, table: Mapping[str, Any]) -> CodedColumn:
    kind: type[_Target | _Sensitive] = _Target if role == "target" else _Sensitive
    return read_section(kind, role, table).coded()


def _categorical(name: str, table: Mapping[str, Any]) -> CodedColumn:
    return read_section(_Categorical, f"categorical.{name}", table).coded(name)


def _numeric(name: str, table: Mapping[str, Any]) -> NumericColumn:
    place = f"numeric.{name}"
    declared = read_section(_Numeric, place, table)
    try:
        return NumericColumn(name, declared.chosen_scaling(), declared.steps, declared.missing)
    except InvalidInput as error:
        raise InvalidInput(f"[{place}] {error.argument}", error.value, error.rule, error.remedy) from None


def _tables(document: Mapping[str, Any], key: str) -> dict[str, Mapping[str, Any]]:
    whole = _table(document, key)
    return {name: _table(whole, name, f"{key}.{name}") for name in whole}


def _table(document: Mapping[str, Any], key: str, place: str | None = None) -> Mapping[str, Any]:
    table = document.get(key, {})
    if not isinstance(table, Mapping):
        raise InvalidInput(f"[{place or key}]", table, "must be a table", f"write [{place or key}] with its keys")
    return table
