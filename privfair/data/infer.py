"""What files look like, for a first plan: delimiter and decimals, and which column may be what.

Nothing that is seen here becomes a public constant. Ranges stay empty until a person fills them in from a codebook, a
form or a law; lists of names count only after a person confirms that a codebook has them.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
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
    merge: tuple[tuple[str, str], ...] = ()
    """Other spellings of a name, each with the name that more cells have."""
    hint: str = ""
    """What to think of when a range is written."""

    def schema_line(self) -> str:
        """The line of schema.toml."""
        if self.role is ColumnRole.NUMERIC:
            value = '{range = [], missing = "flag"}' if self.gaps else "[]"
            return f"{toml_key(self.name)} = {value}  # FILL IN [low, high]{self.hint}"
        more = ', missing = "category"' if self.gaps and self.role is not ColumnRole.TARGET else ""
        if self.merge:
            more += f", merge = {{{', '.join(f'{toml_value(old)} = {toml_value(new)}' for old, new in self.merge)}}}"
        return f"{toml_key(self.name)} = " + (
            f"{{values = {toml_value(self.names)}{more}}}" if more else toml_value(self.names)
        )


@dataclass(frozen=True)
class SeenFiles:
    """What `privfair init` looked at."""

    files: tuple[Path, ...]
    layouts: Layouts
    columns: tuple[SeenColumn, ...]

    def of(self, role: ColumnRole) -> tuple[SeenColumn, ...]:
        """The columns of one role, in the files' order."""
        return tuple(column for column in self.columns if column.role is role)


def look_at(files: Sequence[Path], target: str, sensitive: Sequence[str], skip: Sequence[str] = ()) -> SeenFiles:
    """Read all files, each as it is written, and sort their columns by what they look like.

    `target` and `sensitive` name columns, `skip` columns that must not become features.
    """
    layouts = _recognise_all(files)
    tables = [layouts.read(file) for file in files]
    for table in tables:
        for name in (target, *sensitive, *skip):
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


def _look(
    name: str, tables: Sequence[RawTable], target: str, sensitive: Sequence[str], skip: Sequence[str]
) -> SeenColumn:
    cells = [str(cell).strip() for table in tables for cell in table.column(name).tolist()]
    found = Counter(cell for cell in cells if cell.lower() not in MISSING)
    filled, names = found.total(), tuple(sorted(found))
    gaps = filled < len(cells)
    if name in skip:
        return SeenColumn(name, ColumnRole.LEFT_OUT, gaps, why="you named it to be left out")
    if name == target or name in sensitive:
        names, merge = _spelled_once(found)
        return SeenColumn(name, ColumnRole.TARGET if name == target else ColumnRole.SENSITIVE, gaps, names, merge=merge)
    numeric = bool(found) and all(_NUMBER.fullmatch(cell) for cell in found)
    alone = filled > 2 * _MOST_NAMES and len(names) == filled
    if (alone and not (numeric and any("." in cell or "," in cell for cell in found))) or _ID.search(name):
        return SeenColumn(name, ColumnRole.LEFT_OUT, gaps, why="looks like an id; `predict --id` can repeat it")
    if numeric and _is_count(names):
        return SeenColumn(name, ColumnRole.NUMERIC, gaps, hint="; looks like a count: 0 and the most that can occur")
    if numeric and (len(names) > _FEW_CODES or any(len(cell.lstrip("+-")) > 2 for cell in names)):
        return SeenColumn(name, ColumnRole.NUMERIC, gaps)
    names, merge = _spelled_once(found)
    if 2 <= len(names) <= _MOST_NAMES:
        return SeenColumn(name, ColumnRole.CATEGORICAL, gaps, names, merge=merge)
    why = "one value only" if len(names) < 2 else f"text with more than {_MOST_NAMES} different values"
    return SeenColumn(name, ColumnRole.LEFT_OUT, gaps, why=why)


def _is_count(names: Sequence[str]) -> bool:
    """Whether these distinct numbers are 0, 1, 2, 3 and possibly more, with gaps only among the large ones."""
    return {"0", "1", "2", "3"} <= set(names) and all(name.isdecimal() for name in names)


def _spelled_once(found: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The names, and those that differ from a more frequent one in capitals and spaces alone."""
    usual: dict[str, str] = {}
    for name in sorted(found, key=lambda one: (-found[one], one)):
        usual.setdefault(" ".join(name.casefold().split()), name)
    merge = {name: usual[" ".join(name.casefold().split())] for name in sorted(found)}
    return tuple(sorted(usual.values())), tuple((old, new) for old, new in merge.items() if old != new)


def schema_text(seen: SeenFiles, confirmed: bool, user: str | None = None) -> str:
    """A first schema.toml: one line per column, the lists as the files have them until someone confirms them."""
    target, sensitive, ignored = (seen.of(r) for r in (ColumnRole.TARGET, ColumnRole.SENSITIVE, ColumnRole.LEFT_OUT))
    named = [column.name for column in sensitive]
    lines = ["# One line per column; take ranges and lists from a codebook, a form or a law, not from the files."]
    lines += [f"target = {toml_value(column.name)}  # the last class listed is the positive one" for column in target]
    lines += [f"sensitive = {toml_value(named[0] if len(named) == 1 else named)}"] if named else []
    lines += [f"user = {toml_value(user)}"] if user is not None else []
    wait = "" if confirmed else "  # FILL IN: true once the lists below match your codebook"
    lines.append(f"lists-from-codebook = {'true' if confirmed else 'false'}{wait}")
    if rest := [column.name for column in ignored if column.name != user]:
        lines.append(f"ignore = {toml_value(rest)}")
    lines += ["", '[columns]  # [low, high]: number, clipped; ["a", "b"]: category']
    lines += [column.schema_line() for column in seen.columns if column.role is not ColumnRole.LEFT_OUT]
    if seen.layouts.usual != FileLayout():
        lines += ["", "[file]", *_layout_lines(seen.layouts.usual)]
    for name, layout in seen.layouts.exceptions.items():
        lines += ["", f"[file.exceptions.{toml_value(name)}]", *_layout_lines(layout)]
    return "\n".join(lines) + "\n"


def _layout_lines(layout: FileLayout) -> tuple[str, ...]:
    return f"delimiter = {toml_value(layout.delimiter)}", f'decimal = "{layout.decimal}"'


def toml_value(value: object) -> str:
    """A text, number or list as TOML writes it: a column's name may hold anything, a line break too."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    """A name as the key of a table."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)
