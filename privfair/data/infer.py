"""What files look like, for a first plan: delimiter and decimals, and which column may be what.

Nothing that is seen here becomes a public constant. Bounds stay empty until a person fills them in from a codebook, a
form or a law; lists of names are taken over only if the user says that they are public.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

import numpy as np

from calibrate.errors import InvalidInput
from privfair.data.read import MISSING, BadData, RawTable, read_table

_DELIMITERS = (",", ";", "\t", "|")
_LINES = 50
_MOST_NAMES = 30
_FEW_CODES = 12
_POINT, _COMMA = re.compile(r"[+-]?\d+\.\d+"), re.compile(r"[+-]?\d+,\d+")
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
_ID = re.compile(r"(^|[^a-z])(id|ids|uuid|key|nr|no|number|name|email|phone)([^a-z]|$)", re.IGNORECASE)
_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar", ".": "point"}


@dataclass(frozen=True)
class FileLayout:
    """How the cells of a text file are separated, and how its numbers are written."""

    delimiter: str = ","
    decimal: Literal[".", ","] = "."

    def __post_init__(self) -> None:
        if self.decimal == self.delimiter:
            raise InvalidInput("decimal", self.decimal, "must differ from the delimiter", 'write delimiter = ";"')
        if len(self.delimiter) != 1:
            remedy = 'write for example delimiter = ";"'
            raise InvalidInput("delimiter", self.delimiter, "must be one character", remedy)

    def notes(self, expected: FileLayout) -> tuple[str, ...]:
        """What differs from what was expected, in words."""
        said = []
        if self.delimiter != expected.delimiter:
            said.append(f"cells are separated by a {_NAMES[self.delimiter]}")
        if self.decimal != expected.decimal:
            said.append(f"decimals are written with a {_NAMES[self.decimal]}")
        return tuple(said)


def silo_name(file: Path) -> str:
    """The file's name without what says its format: `st.mary.csv.zip` is the silo `st.mary`."""
    name = Path(file).name
    return Path(name.removesuffix(".zip")).stem


@dataclass(frozen=True)
class Layouts:
    """How the files of a plan are written: most of them in one way, and by their names those that differ."""

    usual: FileLayout = FileLayout()
    exceptions: Mapping[str, FileLayout] = field(default_factory=dict)

    def of(self, file: Path) -> FileLayout:
        """How this file is written."""
        return self.exceptions.get(file.name, self.usual)

    def read(self, file: Path) -> RawTable:
        """The file as it is written."""
        layout = self.of(file)
        return read_table(file, layout.delimiter, layout.decimal)


def recognise(path: Path, expected: FileLayout | None = None) -> FileLayout:
    """The layout of a CSV file, from its first lines; `expected` wins where nothing speaks against it."""
    known = expected or FileLayout()
    if path.suffix.lower() not in (".csv", ".txt") or not path.is_file():
        return FileLayout("\t", known.decimal) if path.suffix.lower() == ".tsv" else known
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        lines = [line for _, line in zip(range(_LINES), stream, strict=False)]
    candidates = (known.delimiter, *(mark for mark in _DELIMITERS if mark != known.delimiter))
    delimiter = max(candidates, key=lambda mark: _width(lines, mark))
    cells = [cell.strip() for row in _rows(lines, delimiter)[1:] for cell in row]
    points, commas = (sum(bool(form.fullmatch(cell)) for cell in cells) for form in (_POINT, _COMMA))
    if delimiter != "," and commas and not points:
        return FileLayout(delimiter, ",")
    return FileLayout(delimiter, "." if points or delimiter == "," else known.decimal)


def read_header(path: Path, layout: FileLayout) -> RawTable | None:
    """A CSV file's columns without their records; None of a file of another kind, which has to be read first."""
    if path.suffix.lower() not in (".csv", ".txt", ".tsv"):
        return None
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        rows = _rows([line for _, line in zip(range(1), stream, strict=False)], layout.delimiter)
    if not rows:
        raise BadData(str(path), "is empty", "give a file with a header line and records")
    return RawTable(str(path), {name.strip(): np.empty(0) for name in rows[0]}, np.empty(0, dtype=np.int64))


def _rows(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    try:
        return list(csv.reader(lines, delimiter=delimiter, skipinitialspace=True))
    except csv.Error:
        return []


def _width(lines: Sequence[str], delimiter: str) -> int:
    """The number of cells into which the delimiter cuts every line; 0 if lines differ."""
    widths = {len(row) for row in _rows(lines, delimiter) if row}
    return widths.pop() if len(widths) == 1 else 0


class ColumnRole(Enum):
    """What a column may be good for."""

    TARGET = "target"
    SENSITIVE = "sensitive"
    NUMERIC = "numeric"
    CATEGORICAL = "categorical"
    LEFT_OUT = "left out"


@dataclass(frozen=True)
class SeenColumn:
    """One column as it looks in the files. `names` are its distinct cells, for lists; never taken for public."""

    name: str
    role: ColumnRole
    gaps: bool
    names: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class SeenFiles:
    """What `privfair init` looked at."""

    files: tuple[Path, ...]
    layouts: Layouts
    columns: tuple[SeenColumn, ...]

    def of(self, role: ColumnRole) -> tuple[SeenColumn, ...]:
        """The columns of one role, in the files' order."""
        return tuple(column for column in self.columns if column.role is role)


def look_at(files: Sequence[Path], target: str, sensitive: str | None, skip: Sequence[str] = ()) -> SeenFiles:
    """Read all files, each as it is written, and sort their columns by what they look like.

    `target` and `sensitive` name two columns, `skip` columns that must not become features.
    """
    layouts = _recognise_all(files)
    tables = [layouts.read(file) for file in files]
    for table in tables:
        for name in (target, *(() if sensitive is None else (sensitive,)), *skip):
            table.column(name)
    shared = [name for name in tables[0].columns if all(name in table.columns for table in tables)]
    partly = {name for table in tables for name in table.columns} - set(shared)
    seen = [_look(name, tables, target, sensitive, skip) for name in shared]
    seen += [SeenColumn(name, ColumnRole.LEFT_OUT, False, why="not in every file") for name in sorted(partly)]
    return SeenFiles(tuple(files), layouts, tuple(seen))


def _recognise_all(files: Sequence[Path]) -> Layouts:
    """The layout of most files (the first one's where as many differ), and those of the others."""
    layouts = [recognise(file) for file in files]
    usual = max(layouts, key=layouts.count)
    found: dict[str, FileLayout] = {}
    for file, layout in zip(files, layouts, strict=True):
        if found.setdefault(file.name, layout) != layout:
            rule = f"is written differently from another file called {file.name}"
            raise InvalidInput("FILES", str(file), rule, "rename one of them")
    return Layouts(usual, {name: layout for name, layout in found.items() if layout != usual})


def _look(name: str, tables: Sequence[RawTable], target: str, sensitive: str | None, skip: Sequence[str]) -> SeenColumn:
    cells = [str(cell).strip() for table in tables for cell in table.column(name).tolist()]
    filled = [cell for cell in cells if cell.lower() not in MISSING]
    gaps, names = len(filled) < len(cells), tuple(sorted(set(filled)))
    if name == target:
        return SeenColumn(name, ColumnRole.TARGET, gaps, names)
    if name == sensitive:
        return SeenColumn(name, ColumnRole.SENSITIVE, gaps, names)
    if name in skip:
        return SeenColumn(name, ColumnRole.LEFT_OUT, gaps, why="you said so")
    numeric = bool(filled) and all(_NUMBER.fullmatch(cell) for cell in filled)
    alone = len(filled) > 2 * _MOST_NAMES and len(names) == len(filled)
    if (alone and not (numeric and any("." in cell or "," in cell for cell in filled))) or _ID.search(name):
        return SeenColumn(name, ColumnRole.LEFT_OUT, gaps, why="looks like an id; `predict --id` can repeat it")
    if numeric and (len(names) > _FEW_CODES or any(len(cell.lstrip("+-")) > 2 for cell in names)):
        return SeenColumn(name, ColumnRole.NUMERIC, gaps)
    if 2 <= len(names) <= _MOST_NAMES:
        return SeenColumn(name, ColumnRole.CATEGORICAL, gaps, names)
    why = "one value only" if len(names) < 2 else f"text with more than {_MOST_NAMES} different values"
    return SeenColumn(name, ColumnRole.LEFT_OUT, gaps, why=why)


def schema_text(seen: SeenFiles, public_lists: bool) -> str:
    """A first schema.toml; with `public_lists` the names seen are written as lists, else as a comment."""
    lines = [
        "# What the columns mean. Fill in what says FILL IN, from what is known without the files:",
        "# a codebook, a form's limits, a law. A number taken from the files would reveal facts about their people.",
        "version = 1",
        "",
    ]
    for role, key in ((ColumnRole.TARGET, "classes"), (ColumnRole.SENSITIVE, "groups")):
        for column in seen.of(role):
            lines += [f"[{role.value}]", f"column = {toml_value(column.name)}", _list(key, column.names, public_lists)]
            second = "# the second class is the positive one, which rates and thresholds speak of"
            lines += [second, ""] if role is ColumnRole.TARGET else [""]
    for column in seen.of(ColumnRole.NUMERIC):
        lines += [
            f"[numeric.{toml_key(column.name)}]",
            "bounds = []                     # FILL IN: lowest and highest, such as [0, 120]; others are cut",
        ]
        if column.gaps:
            lines.append(
                "# missing = { value = 0, indicator = true }   # FILL IN, drop the first #: some cells are empty"
            )
        lines.append("")
    for column in seen.of(ColumnRole.CATEGORICAL):
        lines += [f"[categorical.{toml_key(column.name)}]", _list("values", column.names, public_lists)]
        if column.gaps:
            lines.append('# some cells are empty: list "" (or "NA", as it is written) as a value too, or fill them')
        lines += ['unseen = "no-category"          # for names that appear only in records to be predicted', ""]
    if seen.layouts.usual != FileLayout():
        lines += ["[file]", *_layout_lines(seen.layouts.usual)]
    for name, layout in seen.layouts.exceptions.items():
        lines += [f"[file.exceptions.{toml_value(name)}]", *_layout_lines(layout)]
    left = seen.of(ColumnRole.LEFT_OUT)
    lines += [f"# left out: {toml_value(column.name)} ({column.why})" for column in left]
    return "\n".join(lines).rstrip() + "\n"


def _layout_lines(layout: FileLayout) -> tuple[str, ...]:
    return f"delimiter = {toml_value(layout.delimiter)}", f'decimal = "{layout.decimal}"', ""


def _list(key: str, names: Iterable[str], public: bool) -> str:
    listed = ", ".join(toml_value(name) for name in names)
    return f"{key} = [{listed}]" if public else f"{key} = []          # FILL IN; the files have: {listed}"


def toml_value(value: object) -> str:
    """A text, number or list as TOML writes it: a column's name may hold anything, a line break too."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    """A name as the key of a table."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)
