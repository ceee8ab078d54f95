"""Frames of pandas, polars, pyarrow and numpy as the files that the one loader reads, and the schema they need.

A plan built from frames is a plan of files: each frame is written as Parquet into a private folder (in memory if the
system has a place for that), and the loader, its stability claims and its checks are those of any other plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrate.errors import InvalidInput
from privfair.data.infer import toml_key, toml_value
from privfair.data.read import BadData, RawTable, from_arrow

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,99}")


class ArrowStream(Protocol):
    """A table that hands out its columns by the Arrow interface: pandas, polars, pyarrow and others do."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Frame = ArrowStream | NDArray[Any] | Mapping[str, Sequence[object] | NDArray[Any]]
"""A table in memory: a data frame, a pyarrow table, a numpy array with two dimensions or named fields, or a mapping
from column names to columns."""

Values = Sequence[str | int | bool]


class TreatedAsPublic(UserWarning):
    """Something was taken from the records and is treated as public, because no one declared it."""


def read_frame(frame: Frame, name: str, columns: Sequence[str] | None = None) -> RawTable:
    """A frame as the loader's table.

    Args:
        frame: the records.
        name: what messages call it.
        columns: names for the columns of a plain numpy array.
    """
    return from_arrow(arrow_table(frame, name, columns), name)


def arrow_table(frame: Frame, name: str, columns: Sequence[str] | None = None) -> Any:
    """The frame as a `pyarrow.Table`; anything else is refused in a sentence, which shows no cell."""
    pa = _pyarrow()
    try:
        if isinstance(frame, np.ndarray):
            table = pa.table(_columns_of(frame, name, columns))
        elif type(frame).__module__.partition(".")[0] == "pandas" and hasattr(frame, "columns"):
            table = pa.Table.from_pandas(frame, preserve_index=False)
        elif isinstance(frame, Mapping):
            table = pa.table({str(key): np.asarray(column) for key, column in frame.items()})
        elif hasattr(frame, "__arrow_c_stream__"):
            table = pa.table(frame)
        else:
            raise InvalidInput(
                name,
                type(frame).__name__,
                "is not a table",
                "give a data frame (pandas, polars), a pyarrow table, a numpy array or a mapping of columns",
            )
    except (pa.ArrowException, TypeError, ValueError) as broken:
        if isinstance(broken, InvalidInput):
            raise
        rule = "has a column that mixes types, or columns of different lengths"
        raise BadData(name, rule, "give each column one type") from None
    for column in table.column_names:
        if not isinstance(column, str) or not column:
            raise BadData(name, "has a column without a name in text", "name every column")
    return table


def _columns_of(array: NDArray[Any], name: str, columns: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    if array.dtype.names is not None and array.ndim == 1:
        return {column: array[column] for column in array.dtype.names}
    if array.ndim != 2:
        raise InvalidInput(name, f"{array.ndim} dimensions", "must have two dimensions", "give one row per record")
    names = [f"x{place}" for place in range(array.shape[1])] if columns is None else list(columns)
    if len(names) != array.shape[1]:
        raise InvalidInput("columns", len(names), f"must name the {array.shape[1]} columns", "give one name for each")
    return {column: array[:, place] for place, column in enumerate(names)}


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise InvalidInput("frames", "(tables)", "need pyarrow", "pip install 'privfair[train]'") from None
    return pyarrow


def require_silo_name(name: str) -> str:
    """A silo's name, which is a file's too."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput("frames", name, "has a silo's name that is not plain", "use letters, digits, space, . _ -")
    return name


# What the columns mean, as a schema file says it: declared, or taken from the frames, which is then said.


@dataclass(frozen=True)
class Declared:
    """What someone knows of the columns without looking at the records; what is None is taken from them."""

    target: str
    sensitive: str | None = None
    user: str | None = None
    features: Sequence[str] | None = None
    classes: Values | None = None
    groups: Values | None = None
    bounds: Mapping[str, tuple[float, float]] | None = None
    categories: Mapping[str, Values] | None = None


@dataclass(frozen=True)
class Described:
    """The schema file's content, and what of it was taken from the records."""

    schema: dict[str, object]
    groups: tuple[str, ...]
    of_features: tuple[str, ...]
    """Facts about labels and features that no one declared."""
    of_attribute: tuple[str, ...]
    """Facts about the sensitive attribute that no one declared."""


def describe(tables: Mapping[str, RawTable], declared: Declared) -> Described:
    """The schema of the frames: declared facts first, everything else taken from all of them together."""
    first = next(iter(tables.values()))
    own = (declared.target, declared.sensitive, declared.user)
    for role, column in (("target", declared.target), ("sensitive", declared.sensitive), ("user", declared.user)):
        if column is not None and column not in first.columns:
            raise InvalidInput(
                role, column, "is not a column of the frames", f"use {', '.join(list(first.columns)[:8])}"
            )
    names = [c for c in first.columns if c not in own] if declared.features is None else list(declared.features)
    bounds, categories = dict(declared.bounds or {}), dict(declared.categories or {})
    for argument, given in (("bounds", bounds), ("categories", categories)):
        for column in given:
            if column not in names:
                raise InvalidInput(argument, column, "is not a feature of the frames", f"use {', '.join(names[:8])}")
    numeric: dict[str, object] = {}
    categorical: dict[str, object] = {}
    read_off: list[str] = []
    for column in names:
        if column in bounds or (column not in categories and _is_number(tables, column)):
            if column not in bounds:
                read_off.append(f"the bounds of {column!r}")
            numeric[column] = {"bounds": [float(end) for end in bounds.get(column) or _bounds(tables, column)]}
        else:
            if column not in categories:
                read_off.append(f"the categories of {column!r}")
            categorical[column] = {"values": _names(categories.get(column), tables, column)}
    if declared.classes is None:
        read_off.append(f"the classes of {declared.target!r}")
    classes = _names(declared.classes, tables, declared.target)
    schema: dict[str, object] = {"version": 1, "target": {"column": declared.target, "classes": classes}}
    groups: tuple[str, ...] = ()
    of_attribute: tuple[str, ...] = ()
    if declared.sensitive is not None:
        groups = tuple(_names(declared.groups, tables, declared.sensitive))
        schema["sensitive"] = {"column": declared.sensitive, "groups": list(groups)}
        if declared.groups is None:
            of_attribute = (f"the groups of {declared.sensitive!r}",)
    schema |= {"numeric": numeric, "categorical": categorical}
    if declared.user is not None:
        schema["file"] = {"keep": [declared.user]}
    return Described(schema, groups, tuple(read_off), of_attribute)


def _is_number(tables: Mapping[str, RawTable], column: str) -> bool:
    return all(column in table.typed_numbers for table in tables.values())


def _bounds(tables: Mapping[str, RawTable], column: str) -> tuple[float, float]:
    values = np.concatenate([table.numbers(column) for table in tables.values()])
    low, high = float(values.min()), float(values.max())
    return (low, high) if low < high else (low, low + 1.0)


def _names(given: Values | None, tables: Mapping[str, RawTable], column: str) -> list[str]:
    if given is None:
        return [str(name) for name in np.unique(np.concatenate([table.names(column) for table in tables.values()]))]
    return [str(value).lower() if isinstance(value, bool | np.bool_) else str(value) for value in given]


# A plan or a schema as TOML: tables of plain values, in the order given.


def toml_text(document: Mapping[str, object]) -> str:
    """The TOML of nested tables; keys and texts are quoted as JSON quotes them, and TOML reads them the same way."""
    return "\n".join(_toml_lines(document, ())) + "\n"


def _toml_lines(table: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if path and (plain or not table):
        yield ""
        yield f"[{'.'.join(toml_key(part) for part in path)}]"
    for key, value in plain.items():
        yield f"{toml_key(key)} = {toml_value(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _toml_lines(value, (*path, key))


def write_frames(folder: Path, frames: Mapping[str, Any]) -> tuple[str, ...]:
    """Each pyarrow table as a Parquet file of the silo's name; the files' names."""
    from pyarrow import parquet

    for name, table in frames.items():
        parquet.write_table(table, folder / f"{require_silo_name(name)}.parquet")
    return tuple(f"{name}.parquet" for name in frames)
