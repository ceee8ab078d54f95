"""Refusals of files name file, column, line and rule, and never what stands in a cell: errors end up in logs."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from calibrate.errors import PrivfairError
from privfair.data.read import BadData, from_arrow, read_table
from privfair.data.training_data import load_training_data
from privfair.plan.data import read_data_plan

SCHEMA = """version = 1
[target]
column = "diagnosis"
classes = ["no", "yes"]
[sensitive]
column = "sex"
groups = ["female", "male"]
[numeric.age]
bounds = [18, 98]
[categorical.job]
values = ["clerk", "nurse"]
[file]
keep = ["person"]
"""
SECRET = "zzsecretzz"
"""Stands in one cell; no message may contain it."""
ROWS = [
    ["31", "clerk", "female", "no", "p0"],
    ["42", "nurse", "male", "yes", "p1"],
    ["53", "clerk", "female", "yes", "p2"],
    ["64", "nurse", "male", "no", "p3"],
]
HEADER = ["age", "job", "sex", "diagnosis", "person"]

Table = list[list[str]]


def _cell(column: int, value: str = SECRET) -> Callable[[Table], Table]:
    return lambda rows: [[*row[:column], value, *row[column + 1 :]] if row is rows[2] else row for row in rows]


def _csv(rows: Table, header: list[str] | None = HEADER) -> str:
    return "\n".join(",".join(row) for row in ([header] if header else []) + rows) + "\n"


CSV = {
    "text in a numeric column": _csv(_cell(0)(ROWS)),
    "not a finite number": _csv(_cell(0, f"1e999{SECRET}")(ROWS)),
    "an unlisted category": _csv(_cell(1)(ROWS)),
    "an unlisted group": _csv(_cell(2)(ROWS)),
    "an unlisted class": _csv(_cell(3)(ROWS)),
    "a row too wide": _csv([*ROWS, [*ROWS[0], SECRET]]),
    "a row too narrow": _csv([*ROWS, [SECRET]]),
    "a broken quote": _csv(ROWS) + f'31,"{SECRET},female,no,p\n',
    "no header line": _csv([[SECRET] * 5, *ROWS], None),
    "no header line, a cell like a column": _csv([["age", "job", f"sexx{SECRET}", "x", "y"], *ROWS], None),
    "only a header": f"{SECRET},b\n",
    "one column": f"{SECRET};x\n1;2\n",
    "one class only": _csv([[*row[:3], "no", SECRET] for row in ROWS]),
    "one group only": _csv([[row[0], row[1], "male", row[3], SECRET] for row in ROWS]),
    "not UTF-8": None,
}
UNDECLARED = SCHEMA.replace('classes = ["no", "yes"]\n', "").replace('groups = ["female", "male"]\n', "")


def _refusal(folder: Path, **section: object) -> str:
    with pytest.raises(PrivfairError) as refused:
        load_training_data(read_data_plan({"files": ["north.csv"], "schema": "schema.toml"} | section, folder))
    return str(refused.value)


@pytest.mark.parametrize("name", list(CSV))
def test_a_bad_csv_file(name: str, tmp_path: Path) -> None:
    text = CSV[name]
    content = f"age\xe9{SECRET}\n".encode("latin-1") if text is None else text.encode()
    (tmp_path / "north.csv").write_bytes(content)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    message = _refusal(tmp_path)
    assert SECRET not in message
    assert "north.csv" in message


@pytest.mark.parametrize("column", HEADER[:4])
@pytest.mark.parametrize("value", [SECRET, None, 0.123456])
def test_a_bad_parquet_file(column: str, value: object, tmp_path: Path) -> None:
    columns: dict[str, list[object]] = {name: [row[k] for row in ROWS] for k, name in enumerate(HEADER)}
    columns["age"] = [31, 42, 53, 64]
    columns[column] = [value] * 4 if isinstance(value, float) else [*columns[column][:2], value, columns[column][3]]
    if column == "age":
        columns[column] = [str(cell) for cell in columns[column]]
    parquet.write_table(pa.table(columns), tmp_path / "north.parquet")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    if (column, value) == ("age", 0.123456):
        return  # a number in a numeric column is right
    message = _refusal(tmp_path, files=["north.parquet"])
    assert SECRET not in message
    assert "0.123456" not in message


@pytest.mark.parametrize("column", [2, 3])
def test_lists_that_are_read_off_one_value(column: int, tmp_path: Path) -> None:
    rows = [[*row[:column], SECRET, *row[column + 1 :]] for row in ROWS]
    (tmp_path / "north.csv").write_text(_csv(rows))
    (tmp_path / "schema.toml").write_text(UNDECLARED)
    assert SECRET not in _refusal(tmp_path)


def test_a_silo_without_a_group_that_was_read_off_the_other_silo(tmp_path: Path) -> None:
    (tmp_path / "north.csv").write_text(_csv([*ROWS, ["33", "clerk", SECRET, "no", "p9"]]))
    (tmp_path / "south.csv").write_text(_csv(ROWS))
    (tmp_path / "schema.toml").write_text(UNDECLARED)
    assert SECRET not in _refusal(tmp_path, files=["north.csv", "south.csv"])


ATTRIBUTES = {
    "a person twice": [["person", "sex"], [SECRET, "male"], [SECRET, "female"]],
    "a person missing": [["person", "sex"], ["p0", "male"]],
    "no attribute": [["person", "sex"], [SECRET, ""]],
    "an unlisted attribute": [["person", "sex"], *[[f"p{k}", "male"] for k in range(3)], [SECRET, f"{SECRET}x"]],
}


@pytest.mark.parametrize("name", list(ATTRIBUTES))
def test_bad_attribute_files(name: str, tmp_path: Path) -> None:
    rows = [[row[0], row[1], row[3], row[4] if row is not ROWS[3] else SECRET] for row in ROWS]
    (tmp_path / "north.csv").write_text(_csv(rows, ["age", "job", "diagnosis", "person"]))
    (tmp_path / "registry.csv").write_text(_csv(ATTRIBUTES[name], None))
    (tmp_path / "schema.toml").write_text(SCHEMA.replace('[file]\nkeep = ["person"]\n', ""))
    assert SECRET not in _refusal(tmp_path, attributes={"files": ["registry.csv"], "record": "person"})


def test_a_person_twice_in_a_file_of_records(tmp_path: Path) -> None:
    rows = [[row[0], row[1], row[3], SECRET] for row in ROWS]
    (tmp_path / "north.csv").write_text(_csv(rows, ["age", "job", "diagnosis", "person"]))
    (tmp_path / "registry.csv").write_text(_csv([["person", "sex"], [SECRET, "male"]], None))
    (tmp_path / "schema.toml").write_text(SCHEMA.replace('[file]\nkeep = ["person"]\n', ""))
    assert SECRET not in _refusal(tmp_path, attributes={"files": ["registry.csv"], "record": "person"})


def test_a_silo_column_with_a_gap(tmp_path: Path) -> None:
    (tmp_path / "north.csv").write_text(_csv([*ROWS, ["33", "clerk", "male", "no", ""]]))
    (tmp_path / "schema.toml").write_text(SCHEMA + '[silos]\ncolumn = "person"\n')
    message = _refusal(tmp_path)
    assert "column 'person', line 6" in message


def test_damaged_archives_and_parquet_files_are_refused_in_one_sentence(tmp_path: Path) -> None:
    """Damaged, encrypted and unknown ways of packing; text that is not UTF-8; dates beyond the calendar."""
    with zipfile.ZipFile(tmp_path / "whole.csv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("north.csv", _csv(ROWS * 20))
    whole = (tmp_path / "whole.csv.zip").read_bytes()
    listed = whole.rindex(b"PK\x01\x02")
    damaged = [bytes([*whole[:place], whole[place] ^ 255, *whole[place + 1 :]]) for place in range(0, len(whole), 7)]
    for place, value in ((8, 1), (10, 99)):  # flags: encrypted; method: none that exists
        damaged.append(bytes([*whole[: listed + place], value, *whole[listed + place + 1 :]]))
    odd = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    far = pa.array([2**62], type=pa.timestamp("s"))
    refused = 0
    for number, content in enumerate(damaged):
        path = tmp_path / f"{number}.csv.zip"
        path.write_bytes(content)
        with suppress(BadData):
            read_table(path)
            continue
        refused += 1
    assert refused > len(damaged) // 3, "the damage is seen, and no other error comes through"
    for column in (odd, far):
        with pytest.raises(BadData, match="that is not UTF-8, or values"):
            from_arrow(pa.table({"c": column}), "f")
