"""Strict readers: CSV (also zipped) and Parquet become a `RawTable`, or an error that names the place."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.errors import InvalidInput
from privfair.datasets.bad_data import BadData
from privfair.datasets.raw_table import RawTable


def read_table(path: Path, delimiter: str = ",") -> RawTable:
    """Read one file by its suffix: .csv, .csv.zip (one member) or .parquet."""
    if not path.is_file():
        raise InvalidInput("file", str(path), "does not exist or is no file", "check the path")
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        return _read_parquet(path)
    if suffix == ".zip":
        return parse_csv(_unzipped(path), str(path), delimiter)
    if suffix in (".csv", ".tsv", ".txt"):
        return parse_csv(path.read_bytes(), str(path), "\t" if suffix == ".tsv" else delimiter)
    raise InvalidInput(
        "file", str(path), "has a suffix that is not known", "use .csv, .tsv, .csv.zip or .parquet"
    )


def parse_csv(
    content: bytes, file: str, delimiter: str = ",", header: Sequence[str] | None = None
) -> RawTable:
    """Parse CSV strictly: UTF-8, one header line with distinct names, every record as wide as the header.

    With `header` given the file has no header line of its own.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadData(file, f"is not UTF-8 text (byte {error.start})", "save it as UTF-8") from None
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True
    )
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        names = (
            [name.strip() for name in header] if header is not None else [n.strip() for n in next(reader, [])]
        )
        _require_header(names, file)
        for row in reader:
            if len(row) != len(names):
                if not row:
                    continue  # csv gives an empty list for a blank line
                raise BadData(
                    file,
                    f"has {len(row)} cells where the header has {len(names)}",
                    "quote cells that contain the delimiter, or mend the line",
                    line=reader.line_num,
                )
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise BadData(file, f"is not valid CSV ({error})", "mend the quotes", line=reader.line_num) from None
    if not rows:
        raise BadData(file, "has no records", "give a file with at least one record")
    columns = dict(zip(names, (np.array(column) for column in zip(*rows, strict=True)), strict=True))
    return RawTable(file, columns, np.array(lines))


def _require_header(names: list[str], file: str) -> None:
    if not names:
        raise BadData(file, "is empty", "give a file with a header line and records")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadData(
            file, "stands twice in the header", "rename or drop one of the two", column=twice[0], line=1
        )


def _unzipped(path: Path) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.lower().endswith(".csv")]
            if len(members) != 1:
                raise BadData(str(path), f"holds {len(members)} CSV files", "zip exactly one CSV file")
            return archive.read(members[0])
    except zipfile.BadZipFile:
        raise BadData(str(path), "is not a zip archive", "zip one CSV file, or give the CSV itself") from None


def _read_parquet(path: Path) -> RawTable:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InvalidInput(
            "file", str(path), "needs pyarrow to be read", "pip install 'privfair[train]' or convert to CSV"
        ) from None
    try:
        table = parquet.ParquetFile(path).read()
    except (pa.ArrowInvalid, OSError) as error:
        raise BadData(str(path), f"is not a readable Parquet file ({error})", "write it again") from None
    _require_header(list(table.column_names), str(path))
    if table.num_rows == 0:
        raise BadData(str(path), "has no records", "give a file with at least one record")
    columns = {name: _arrow_column(table.column(name), name, path) for name in table.column_names}
    return RawTable(str(path), columns, np.arange(1, table.num_rows + 1))


def _arrow_column(column: Any, name: str, path: Path) -> NDArray[Any]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if column.null_count:
        if pa.types.is_floating(kind) or pa.types.is_integer(kind):
            return column.cast(pa.float64()).to_numpy()  # nulls become NaN, which a used column refuses
        return np.array(["" if cell is None else str(cell) for cell in column.to_pylist()])
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.to_numpy()
    if pa.types.is_decimal(kind):
        return column.cast(pa.float64()).to_numpy()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(column.to_pylist())
    # Dates, lists and the like are kept as text: only a schema that uses the column can say it is wrong.
    return np.array([str(cell) for cell in column.to_pylist()])
