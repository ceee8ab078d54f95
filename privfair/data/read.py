"""Strict readers: CSV (also zipped) and Parquet become a `RawTable`, or an error that names the place."""

from __future__ import annotations

import csv
import difflib
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from calibrate.errors import InvalidInput, PrivfairError
from privfair.durable import require_bounded_archive

if TYPE_CHECKING:
    from _csv import Reader as CsvReader

_CHUNK = 20_000
"""Rows of a file that are parsed at a time."""

Watcher = Callable[[str, int, int], None]
"""Told which file is being read, how many characters of it are parsed, and how many there are."""
_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watch_reading(watcher: Watcher) -> Iterator[None]:
    """Tell `watcher` how far every file is that is read inside this block; it decides nothing."""
    before = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(before)


# The one error that a bad file, column or schema gets.


class BadData(InvalidInput):
    """A file breaks a rule of its schema; the message names file, column, line, rule and remedy.

    It never shows a cell: the sentence may end up in a log that others than the holder of the file can read. `cell`
    is what stands there, for the holder who asks for it at the terminal (`--show-values`); it is in no message.
    """

    def __init__(
        self,
        file: str,
        rule: str,
        remedy: str,
        *,
        column: str | None = None,
        line: int | None = None,
        cell: str | None = None,
    ) -> None:
        super().__init__(file, column, rule, remedy)
        self.file = file
        self.column = column
        self.line = line
        self.cell = cell
        place = file
        if column is not None:
            place += f", column {column!r}"
        if line is not None:
            place += f", line {line}"
        # InvalidInput's own sentence would read "file = column": say the place instead.
        PrivfairError.__init__(self, f"{place}: {rule}; {remedy}")


# A file as it was read: named columns of text or numbers, and where they came from.

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""Cells (in lower case) that mean "no value", unless the schema lists that very name."""


@dataclass(frozen=True, eq=False, repr=False)
class RawTable:
    """Columns of equal length; `lines` says where in the file each record ends (Parquet: its number)."""

    file: str
    columns: Mapping[str, NDArray[Any]]
    lines: NDArray[np.int64]
    decimal: str = "."
    """What separates the decimals of a number in text: a point or a comma."""
    typed_numbers: frozenset[str] = frozenset()
    """The columns that the file itself declares to be numbers, whatever cells they hold."""

    @property
    def records(self) -> int:
        return len(self.lines)

    def line(self, record: int) -> int:
        """Where a person finds this record."""
        return int(self.lines[record])

    def column(self, name: str) -> NDArray[Any]:
        self.require(name)
        return self.columns[name]

    def require(self, *names: str) -> None:
        """Refuse a table without one of these columns."""
        for name in names:
            if name in self.columns:
                continue
            near = difflib.get_close_matches(name, self.columns, n=1)
            # Its position, not its name: in a file without a header line the "name" would be a person's cell.
            hint = f" (column {list(self.columns).index(near[0]) + 1} has a similar name)" if near else ""
            remedy = "add the column or fix the schema"
            only = next(iter(self.columns)) if len(self.columns) == 1 else ""
            other = next((mark for mark in ";\t|" if mark in only), None)
            if other is not None:
                remedy = f"the file has one column only: write delimiter = {other!r} under [file] of the schema"
            raise BadData(self.file, f"is missing{hint}", remedy, column=name)

    def numbers(self, name: str, missing: float | None = None) -> NDArray[np.float64]:
        """The column as finite numbers, or `BadData` naming the first cell that is none.

        `missing` is the declared value of cells without one; left out, such a cell is an error.
        """
        self.require(name)
        known = self.columns.numbers(name) if isinstance(self.columns, _TextColumns) and self.decimal == "." else None
        values = _parse_numbers(self.columns[name], self.decimal) if known is None else known
        if missing is not None:
            values = np.where(self.missing(name), missing, values)
        bad = ~np.isfinite(values)
        if bad.any():
            record = int(np.argmax(bad))
            cell = str(self.columns[name][record]).strip()
            empty = cell.lower() in MISSING
            remedy = "fill or drop these records, or fix the schema"
            if empty:
                remedy = (
                    "fill or drop these records, or declare missing = { value = 0, indicator = true } in the schema"
                )
            elif self.decimal == "." and _DECIMAL_COMMA.fullmatch(cell):
                remedy = "write decimal = ',' under [file] of the schema if the file has decimal commas"
            raise BadData(
                self.file,
                f"{'has no value' if empty else 'is not a finite number'} ({int(bad.sum())} such cells)",
                remedy,
                column=name,
                line=self.line(record),
                cell=cell,
            )
        return values

    def missing(self, name: str) -> NDArray[np.bool_]:
        """Which cells of the column have no value."""
        cells = self.column(name)
        if cells.dtype.kind in "biu":
            return np.zeros(len(cells), dtype=np.bool_)
        if cells.dtype.kind == "f":
            return np.asarray(np.isnan(cells))
        return np.isin(np.char.lower(np.char.strip(cells.astype(np.str_))), sorted(MISSING))

    def names(self, name: str) -> NDArray[np.str_]:
        """The column as text without surrounding spaces."""
        cells = self.column(name)
        if np.issubdtype(cells.dtype, np.floating):
            self.numbers(name)  # whole numbers with gaps arrive as decimals: the gap is the true complaint
            raise BadData(
                self.file,
                "holds decimal numbers where names of categories are expected",
                "store it as text or whole numbers, or declare the column as numeric",
                column=name,
                line=self.line(0),
                cell=str(cells[0]),
            )
        if cells.dtype == np.bool_:
            return np.where(cells, "true", "false")
        return np.char.strip(cells.astype(np.str_))

    def rows(self, indexes: NDArray[np.int64]) -> RawTable:
        """Some of the records."""
        if isinstance(self.columns, _TextColumns):
            columns: Mapping[str, NDArray[Any]] = self.columns.rows(indexes)
        else:
            columns = {name: values[indexes] for name, values in self.columns.items()}
        return replace(self, columns=columns, lines=self.lines[indexes])


@final
class _TextColumns(Mapping[str, NDArray[Any]]):
    """The columns of a large file as Arrow holds them; one becomes an array of text when it is asked for."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self._names = frozenset(table.column_names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        column = self._table.column(name).combine_chunks().dictionary_encode()
        return np.asarray(np.array(column.dictionary.to_pylist(), dtype=np.str_)[column.indices.to_numpy()])

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.column_names)

    def __len__(self) -> int:
        return len(self._names)

    def numbers(self, name: str) -> NDArray[np.float64] | None:
        """The column as numbers, correctly rounded as Python's are; None if some cell is not plainly one."""
        import pyarrow as pa

        try:
            return np.asarray(self._table.column(name).cast(pa.float64()).to_numpy())
        except pa.ArrowInvalid:
            return None

    def rows(self, indexes: NDArray[np.int64]) -> _TextColumns:
        return _TextColumns(self._table.take(indexes))


_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


def _parse_numbers(cells: NDArray[Any], decimal: str) -> NDArray[np.float64]:
    """Numbers, with NaN where a cell is none."""
    if cells.dtype.kind in "biuf":
        return cells.astype(np.float64)
    texts = cells.tolist()
    if decimal == ",":  # a point would then separate thousands, or be a mistake: such a cell is not a number
        texts = ["" if "." in cell else cell.replace(",", ".", 1) for cell in texts]
    try:
        # Three times faster than numpy's own conversion of text. Python reads "1_000" as a number; a file must not.
        if "_" not in "".join(texts):
            return np.fromiter(map(float, texts), dtype=np.float64, count=len(texts))
    except ValueError:
        pass
    return np.fromiter(map(_number, texts), dtype=np.float64, count=len(texts))


def _number(cell: str) -> float:
    try:
        return float("nan") if "_" in cell else float(cell)
    except ValueError:
        return float("nan")


def _indicator(table: RawTable, name: str) -> NDArray[np.float64]:
    cells = table.column(name)
    if cells.dtype.kind == "U":
        ones = cells == "1"
        if (ones | (cells == "0")).all():
            return np.asarray(ones, dtype=np.float64)
    return np.asarray(table.numbers(name))


def one_hot_names(table: RawTable, prefix: str, values: tuple[str, ...]) -> NDArray[np.str_]:
    """Undo a one-hot encoding: the columns `prefix` + value, exactly one of which is 1 in each record."""
    indicators = np.stack([_indicator(table, prefix + value) for value in values], axis=1)
    wrong = ((indicators != 0) & (indicators != 1)).any(axis=1) | (indicators.sum(axis=1) != 1)
    if wrong.any():
        raise BadData(
            table.file,
            "exactly one of its indicator columns must be 1",
            "take the file as it was published",
            column=prefix + "*",
            line=table.line(int(np.argmax(wrong))),
        )
    return np.asarray(np.array(values)[indicators.argmax(axis=1)])


def read_table(path: Path, delimiter: str = ",", decimal: str = ".") -> RawTable:
    """Read one file by its suffix: .csv, .csv.zip (one member) or .parquet."""
    if not path.is_file():
        raise InvalidInput("file", str(path), "does not exist or is not a file", "check the path")
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        return _read_parquet(path)
    if suffix == ".zip":
        return replace(parse_csv(_unzip(path), str(path), delimiter), decimal=decimal)
    if suffix in (".csv", ".tsv", ".txt"):
        table = parse_csv(path.read_bytes(), str(path), "\t" if suffix == ".tsv" else delimiter)
        return replace(table, decimal=decimal)
    raise InvalidInput("file", str(path), "has a suffix that is not known", "use .csv, .tsv, .csv.zip or .parquet")


def parse_csv(content: bytes, file: str, delimiter: str = ",", header: Sequence[str] | None = None) -> RawTable:
    """Parse CSV strictly: UTF-8, one header line with distinct names, every record as wide as the header.

    With `header` given the file itself has no header line.
    """
    plain = _parse_plain(content, file, delimiter, header)
    if plain is not None:
        return plain
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadData(file, f"is not UTF-8 text (byte {error.start})", "save it as UTF-8") from None
    stream, watcher = io.StringIO(text, newline=""), _WATCHER.get()
    reader = csv.reader(stream, delimiter=delimiter, skipinitialspace=True, strict=True)
    chunks: list[list[NDArray[Any]]] = []
    lines: list[int] = []
    try:
        names = [name.strip() for name in (next(reader, []) if header is None else header)]
        _require_header(names, file)
        records = _records(reader, len(names), file, delimiter, lines)
        # Chunk by chunk, so that a large file never exists as millions of small objects.
        while rows := list(islice(records, _CHUNK)):
            chunks.append([np.array(column) for column in zip(*rows, strict=True)])
            if watcher is not None:
                watcher(file, stream.tell(), len(text))
    except csv.Error as error:
        raise BadData(file, f"is not valid CSV ({error})", "fix the quotes", line=reader.line_num) from None
    if not chunks:
        raise BadData(file, "has no records", "give a file with at least one record")
    columns = {name: np.concatenate([chunk[place] for chunk in chunks]) for place, name in enumerate(names)}
    return RawTable(file, columns, np.array(lines))


def _records(reader: CsvReader, width: int, file: str, delimiter: str, lines: list[int]) -> Iterator[list[str]]:
    """Each record, as wide as the header; the line that it ends in goes into `lines`. A blank line is none."""
    for row in reader:
        if len(row) == width:
            lines.append(reader.line_num)
            yield row
        elif row:
            raise BadData(
                file,
                f"has {len(row)} cells where the header has {width}",
                "quote cells that contain the delimiter, or fix the line",
                line=reader.line_num,
                cell=delimiter.join(row),
            )


LARGE = 1_000_000
"""Bytes of a file from which on Arrow reads it, if it is plain: below, loading Arrow takes longer than it saves."""


def _parse_plain(content: bytes, file: str, delimiter: str, header: Sequence[str] | None) -> RawTable | None:
    """A large file without quotes, blank lines, leading spaces or other specialities; None for the careful way.

    Without these a file means the same to everyone: lines are records, and the delimiter is between cells. What
    Arrow refuses is read again the careful way, which says what is wrong, and where.
    """
    marks = (b'"', b"\0", b"\n\n", b"\n\r", b"\n ", delimiter.encode() + b" ")
    if len(content) < LARGE or not delimiter.isascii() or any(mark in content for mark in marks):
        return None
    if content.count(b"\r") != content.count(b"\r\n"):
        return None
    try:
        import pyarrow as pa
        from pyarrow import csv as arrow
    except ImportError:
        return None
    try:
        first = content[: content.index(b"\n")].decode("utf-8-sig").removesuffix("\r")
        names = [name.strip() for name in (first.split(delimiter) if header is None else header)]
        if first[:1] in ("", " ") or len(set(names)) != len(names):
            return None
        source, watcher, batches = pa.BufferReader(content), _WATCHER.get(), []
        for batch in arrow.open_csv(
            source,
            arrow.ReadOptions(use_threads=False, column_names=names, skip_rows=0 if header is not None else 1),
            arrow.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=False),
            arrow.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        ):
            batches.append(batch)
            if watcher is not None:
                watcher(file, source.tell(), len(content))
    except (ValueError, pa.ArrowException):
        return None
    if not any(batch.num_rows for batch in batches):
        return None
    table, start = pa.Table.from_batches(batches), (2 if header is None else 1)
    return RawTable(file, _TextColumns(table), np.arange(start, start + table.num_rows))


def _require_header(names: list[str], file: str) -> None:
    if not names:
        raise BadData(file, "is empty", "give a file with a header line and records")
    for place, name in enumerate(names):
        if name in names[:place]:
            rule = f"columns {names.index(name) + 1} and {place + 1} have the same name"
            raise BadData(file, rule, "rename or drop one of the two", line=1)


def _unzip(path: Path) -> bytes:
    try:
        require_bounded_archive(path, "file")
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.lower().endswith(".csv")]
            if len(members) != 1:
                raise BadData(str(path), f"holds {len(members)} CSV files", "zip exactly one CSV file")
            return archive.read(members[0])
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, OSError):
        # damaged, encrypted, or packed in a way that Python's library does not know
        raise BadData(str(path), "is not a readable zip archive", "zip one CSV file, or give the CSV itself") from None


def _read_parquet(path: Path) -> RawTable:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise InvalidInput(
            "file", str(path), "needs pyarrow to be read", "pip install 'privfair[train]' or convert to CSV"
        ) from None
    try:
        table = parquet.ParquetFile(path).read()
    except (ArrowException, UnicodeDecodeError, OSError):
        raise BadData(str(path), "is not a readable Parquet file", "write it again") from None
    return from_arrow(table, str(path))


def from_arrow(table: Any, file: str) -> RawTable:
    """The records of a `pyarrow.Table`; `file` is what messages call it."""
    import pyarrow as pa

    _require_header(list(table.column_names), file)
    if table.num_rows == 0:
        raise BadData(file, "has no records", "give at least one record")
    try:
        columns = {name: _arrow_column(table.column(name)) for name in table.column_names}
    except (pa.ArrowException, ValueError, OverflowError):  # in their words a cell may be quoted
        raise BadData(
            file, "holds text that is not UTF-8, or values that Python can't hold", "write it again"
        ) from None
    numbers = frozenset(field.name for field in table.schema if _is_number(field.type, pa.types))
    return RawTable(file, columns, np.arange(1, table.num_rows + 1), typed_numbers=numbers)


def _is_number(kind: Any, types: Any) -> bool:
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _arrow_column(column: Any) -> NDArray[Any]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    # The type alone decides, never whether some cell is empty: one row must not change how all others are spelled.
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        return np.asarray(column.cast(pa.float64()).to_numpy())  # nulls become NaN, which a used column refuses
    if not column.null_count and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        return np.asarray(column.to_numpy())
    # Text, and whole numbers or truth values with gaps, spelled as `names` spells them. Dates, lists and the like are
    # kept as text, too: only a schema that uses the column can say it is wrong.
    spell = str.lower if pa.types.is_boolean(column.type) else str
    return np.array(["" if cell is None else spell(str(cell)) for cell in column.to_pylist()])
