"""The small TOML file in which a user says what the columns of their files mean: one line per column.

::

    target    = "readmitted"           # the last class listed is the positive one
    sensitive = "sex"                  # or several, whose combinations are the groups; left out: no attribute
    user      = "patient_id"           # with protect = "person": the column that says whose record it is
    lists-from-codebook = true         # false: the lists below were copied from the files, and nothing is trained
    ignore    = ["notes"]              # columns that are not used

    [columns]
    readmitted = ["no", "yes"]         # text in quotes: the values of a category
    sex        = ["F", "M"]
    age        = [18, 100]             # numbers: a public range, mapped to [0, 1]; values outside are cut
    hba1c      = {range = [4, 14], missing = "flag"}             # empty: the middle, and a feature that says so
    creatinine = {range = [20, 1500], missing = 80, transform = "signed-log"}
    bmi        = {range = [10, 60], steps = [25, 30]}            # a feature for each value that is reached
    income     = {mean = 10.5, scale = 1.0, transform = "signed-log"}
    ward       = {values = ["Surgery", "Oncology"], missing = "category", merge = {"surgery" = "Surgery"}}

The layout with one table per column says the same, and stays valid::

    version = 1
    [target]
    column = "default"
    classes = ["no", "yes"]            # the numbering; left out: sorted, and then a fact taken from the data
    [sensitive]
    column = "sex"
    groups = ["female", "male"]
    [numeric.age]
    bounds = [18, 100]
    missing = { value = 40, indicator = true }
    [categorical.job]
    values = ["clerk", "nurse", "other"]
    unseen = "other"                   # for unlisted values in records to be predicted; or "no-category"

Both may have these tables::

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

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from calibrate.errors import InvalidInput
from privfair.data.infer import FileLayout, Layouts
from privfair.data.read import MISSING, BadData
from privfair.data.schema import (
    NO_CATEGORY,
    SCHEMA_VERSION,
    CodedColumn,
    Coverage,
    Missing,
    NonPrivateStandardisation,
    NumericColumn,
    PublicBounds,
    PublicMeanScale,
    Scaling,
    Schema,
    Transform,
    Unscaled,
)
from privfair.durable import read_named
from privfair.plan.plan import MISSING_NAME, listed_values
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
    missing: Literal["category"] | None = None

    def coded(self, column: str) -> CodedColumn:
        if self.values is None:
            return CodedColumn(column, None, tuple(self.merge.items()), self.unseen)
        listed = listed_values({"values": list(self.values), "missing": self.missing})
        gaps = {} if self.missing is None else {cell: MISSING_NAME for cell in _GAPS if cell not in listed}
        return CodedColumn(column, listed, tuple((gaps | dict(self.merge)).items()), self.unseen)


_GAPS = sorted({spelled for cell in MISSING for spelled in (cell, cell.upper(), cell.capitalize())} | {"NaN"})
"""Cells without a value, as files spell them."""


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
    range: tuple[float, ...] | None = None
    """Another name of `bounds`."""
    mean: float | None = None
    scale: float | None = None
    reach: float | None = None
    scaling: Literal["unscaled", "non-private-standardisation"] | None = None
    transform: Transform = Transform.IDENTITY
    steps: tuple[float, ...] = ()
    missing: Missing | float | Literal["flag"] | None = None
    """What stands for an empty cell, marked by a feature; "flag" is the middle of the range."""

    @property
    def filled(self) -> Missing | None:
        """The value for empty cells; None if there must not be one, or no range has a middle."""
        if self.missing is None or isinstance(self.missing, Missing):
            return self.missing
        if self.missing != "flag":
            return Missing(self.missing, indicator=True)
        ends = self.bounds or self.range or ((self.mean, self.mean) if self.mean is not None else ())
        return Missing(sum(ends) / 2, indicator=True) if len(ends) == 2 else None

    def chosen_scaling(self) -> Scaling:
        """The one way of scaling that the table names; its other keys must belong to that way."""
        moments = {"scale": self.scale, "reach": self.reach}
        stray = [key for key, value in moments.items() if value is not None and self.mean is None]
        if sum(way is not None for way in (self.bounds, self.range, self.mean, self.scaling)) != 1:
            raise InvalidInput(
                "scaling",
                None,
                "must say in exactly one way how it is scaled without looking at private records",
                'give range = [low, high], or mean and scale, or scaling = "unscaled" or '
                '"non-private-standardisation" (refused where features are private)',
            )
        if stray:
            raise InvalidInput(stray[0], moments[stray[0]], "is an unknown key without a mean", "drop it")
        ends = self.bounds if self.range is None else self.range
        if ends is not None:
            if len(ends) != 2:
                remedy = "write [low, high], the lowest and highest value known without the files"
                raise InvalidInput("bounds", ends, "must be two numbers", remedy)
            return PublicBounds(*ends, self.transform)
        if self.mean is not None:
            if self.scale is None:
                raise InvalidInput("scale", None, "must be a number if `mean` is given", "write scale = 1.0")
            reach = 10.0 if self.reach is None else self.reach
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
        return parse_schema(read_named(path, "schema").decode(), str(path))
    except UnicodeDecodeError:
        raise BadData(str(path), "is not UTF-8 text", "save it as UTF-8") from None


def parse_schema(text: str, file: str = "schema") -> OwnFormat:
    """The schema in the text of a schema file; `file` is its name for error messages."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadData(file, f"is not valid TOML ({error})", "fix the syntax") from None
    version = document.pop("version", SCHEMA_VERSION if _is_short(document) else None)
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
    groups: int = 0
    """How many groups it lists; 0 without an attribute, 1 or 0 where its list is open."""


def check_schema(path: Path) -> SchemaParts:
    """Read each table of a schema file on its own, so that all mistakes are known at once."""
    whole: list[str] = []
    try:
        load_schema(path)
    except InvalidInput as error:
        whole.append(str(error))
    try:
        document = tomllib.loads(read_named(path, "schema").decode())
    except (InvalidInput, ValueError, RecursionError):
        return SchemaParts(mistakes=tuple(whole))
    columns: list[Column | None] = []
    mistakes: list[str] = []

    def attempt(read: Callable[[], Part]) -> Part | None:
        try:
            return read()
        except InvalidInput as error:
            mistakes.append(f"{path}: {error}")
            return None

    layouts, _ = attempt(partial(_file, document)) or (Layouts(), ())
    lines = attempt(partial(_lines, document)) or []
    if _is_short(document):
        attempt(partial(_require_ranges, document))
        attempt(partial(_require_confirmed, document))
    for line in lines:
        # A column whose scale is not known yet can be looked at nevertheless.
        open_range = NumericColumn(line.name, Unscaled(), missing=line.missing)
        columns.append(open_range if line.unfilled else attempt(line.read))
        if columns[-1] is None and line.role == "numeric":
            columns[-1] = open_range
    groups = [
        len(c.values or ())
        for c, line in zip(columns, lines, strict=True)
        if line.role == "sensitive" and isinstance(c, CodedColumn)
    ]
    return SchemaParts(
        tuple(filter(None, columns)),
        tuple(line.name for line in lines),
        layouts,
        tuple(mistakes or whole),
        math.prod(groups),
    )


@dataclass(frozen=True)
class _Line:
    """What a schema says of one column, not yet read."""

    role: str
    name: str
    read: Callable[[], Column]
    missing: Missing | None = None
    unfilled: bool = False
    """Whether its range waits for a person."""


def _is_short(document: Mapping[str, Any]) -> bool:
    return "columns" in document or isinstance(document.get("target"), str)


def _lines(document: Mapping[str, Any]) -> list[_Line]:
    """Every column of either layout."""
    if _is_short(document):
        return _short_lines(document)
    found = []
    for role in ("target", "sensitive"):
        if role in document or role == "target":
            table = _table(document, role)
            found.append(_Line(role, str(table.get("column")), partial(_role, role, table)))
    for name, table in _tables(document, "numeric").items():
        found.append(_Line("numeric", name, partial(_numeric, name, table), _declared_missing(name, table)))
    for name, table in _tables(document, "categorical").items():
        found.append(_Line("categorical", name, partial(_categorical, name, table)))
    return found


def _short_lines(document: Mapping[str, Any]) -> list[_Line]:
    entries, named = _table(document, "columns"), document.get("sensitive")
    sensitive = [str(name) for name in (named if isinstance(named, list) else [named] if named is not None else [])]
    target = document.get("target")
    if not isinstance(target, str):
        raise InvalidInput("target", target, "must name a column", 'write target = "readmitted", for example')
    for role, name in (("target", target), *(("sensitive", name) for name in sensitive)):
        if name not in entries:
            rule, remedy = "is not among the [columns]", f'write {name} = ["no", "yes"] there, with its own values'
            raise InvalidInput(role, name, rule, remedy)
    ignored = [str(name) for name in document.get("ignore", ())]
    for name in set(ignored) & set(entries):
        raise InvalidInput("ignore", name, "is among the [columns] as well", "drop it in one of the two places")
    return [
        _short_line("target" if name == target else "sensitive" if name in sensitive else "", name, entry)
        for name, entry in entries.items()
    ]


def _short_line(role: str, name: str, entry: Any) -> _Line:
    place = f"columns.{name}"
    table: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {}
    if isinstance(entry, list):
        numbers = not role and all(isinstance(one, int | float) and not isinstance(one, bool) for one in entry)
        table = {"range" if numbers else "values": entry}
        if numbers and len(entry) not in (0, 2):
            table = {"codes": entry}
    if role or "values" in table:
        unseen = {} if role else {"unseen": NO_CATEGORY}
        return _Line(role or "categorical", name, partial(_categorical, name, unseen | dict(table), place))

    def read() -> Column:
        if not table or "codes" in table:
            rule = "is neither a range nor a list of values"
            remedy = 'write [low, high] for a number, or ["a", "b"] with quotes for a category'
            raise InvalidInput(f"[columns] {name}", entry, rule, remedy)
        return _numeric(name, table, place)

    unfilled = next((table[key] for key in ("range", "bounds") if key in table), None) == []
    number = {"range", "bounds", "mean", "scaling"} & set(table)
    return _Line("numeric" if number else "", name, read, _declared_missing(name, table), unfilled)


def _require_ranges(document: Mapping[str, Any]) -> None:
    """Refuse a short schema with a range that waits for a person."""
    missing = [line.name for line in _short_lines(document) if line.unfilled]
    if missing:
        rule = f"{len(missing)} column{'s have' if len(missing) > 1 else ' has'} no range"
        remedy = "write [low, high] from a codebook, a form or a law, not from the files"
        raise InvalidInput("[columns]", ", ".join(missing), rule, remedy)


def _require_confirmed(document: Mapping[str, Any]) -> None:
    """Refuse a short schema whose lists were copied from the files and are not compared with a codebook."""
    if document.get("lists-from-codebook", True) is not True:
        listed = ", ".join(line.name for line in _short_lines(document) if line.role != "numeric")
        rule = "means that the lists of values are copied from the files"
        remedy = f"compare those of {listed} with your codebook, then write true"
        raise InvalidInput("lists-from-codebook", False, rule, remedy)


def _declared_missing(name: str, table: Mapping[str, Any]) -> Missing | None:
    """How empty cells are filled; any number will do while the range is open."""
    try:
        found = read_section(_Numeric, f"numeric.{name}", table)
        return found.filled or (None if found.missing is None else Missing(0.0))
    except InvalidInput:
        return None


_SHORT_KEYS = ("target", "sensitive", "user", "lists-from-codebook", "ignore", "columns", "silos", "file")


def _own_format(document: Mapping[str, Any]) -> OwnFormat:
    short = _is_short(document)
    known = _SHORT_KEYS if short else ("target", "sensitive", "numeric", "categorical", "silos", "file")
    refuse_unknown("schema", document, known)
    if short:
        _require_ranges(document)
        _require_confirmed(document)
    layouts, keep = _file(document)
    silos = read_section(_Silos, "silos", _table(document, "silos"))
    found = [(line.role, line.read()) for line in _lines(document)]
    coded: dict[str, list[CodedColumn]] = {"target": [], "sensitive": [], "categorical": []}
    for role, column in found:
        if isinstance(column, CodedColumn):
            coded[role].append(column)
    kept = (*keep, *([str(document["user"])] if short and "user" in document else []))
    schema = Schema(
        target=coded["target"][0],
        sensitive=CodedColumn.product(coded["sensitive"]) if coded["sensitive"] else None,
        numeric=tuple(column for _, column in found if isinstance(column, NumericColumn)),
        categorical=tuple(coded["categorical"]),
        silo_column=silos.column,
        silo_names=None if silos.names is None else tuple(str(name) for name in silos.names),
        coverage=silos.each_holds,
        side_columns=tuple(str(name) for name in kept),
    )
    return OwnFormat(schema, layouts)


def _role(role: str, table: Mapping[str, Any]) -> CodedColumn:
    kind: type[_Target | _Sensitive] = _Target if role == "target" else _Sensitive
    return read_section(kind, role, table).coded()


def _categorical(name: str, table: Mapping[str, Any], place: str | None = None) -> CodedColumn:
    return read_section(_Categorical, place or f"categorical.{name}", table).coded(name)


def _numeric(name: str, table: Mapping[str, Any], place: str | None = None) -> NumericColumn:
    place = place or f"numeric.{name}"
    declared = read_section(_Numeric, place, table)
    try:
        return NumericColumn(name, declared.chosen_scaling(), declared.steps, declared.filled)
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
