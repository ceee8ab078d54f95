"""Missing numbers and unseen categories follow declared rules, and files are recognised by what they look like."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import numpy as np
import pytest

from calibrate.errors import InvalidInput
from privfair.api.frames import toml_text
from privfair.data import stability
from privfair.data.encode import encode_features, load_own_silo, load_own_silos
from privfair.data.infer import ColumnRole, FileLayout, look_at, recognise, schema_text
from privfair.data.read import BadData, read_table
from privfair.data.schema import schema_from_json
from privfair.data.schema_toml import check_schema, parse_schema
from privfair.data.training_data import load_training_data
from privfair.plan.data import DataPlan, FileSource

SCHEMA = """version = 1
[target]
column = "y"
classes = ["n", "y"]
[sensitive]
column = "s"
groups = ["f", "m"]
[numeric.age]
bounds = [0, 100]
steps = [50]
missing = { value = 60, indicator = true }
[numeric.weight]
bounds = [0, 200]
missing = { value = 80 }
[categorical.job]
values = ["clerk", "nurse"]
unseen = "clerk"
[categorical.ward]
values = ["a", "b"]
unseen = "no-category"
[file]
delimiter = ";"
decimal = ","
"""
ROWS = """age;weight;job;ward;s;y
20;70,5;clerk;a;f;n
NA;;nurse;b;m;y
80;100;nurse;a;f;y
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        (tmp_path / f"{name}.csv").write_text(ROWS, encoding="utf-8")
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    return tmp_path


def test_a_missing_number_is_the_declared_one_and_says_so(folder: Path) -> None:
    own = parse_schema(SCHEMA)
    silos = load_own_silos([folder / "one.csv"], own)
    data = silos[0].data
    assert data.feature_names[0:2] == ("age", "weight")
    assert data.feature_names[-2:] == ("age>=50", "age is missing")
    np.testing.assert_allclose(data.features[:, 0], [0.2, 0.6, 0.8])
    np.testing.assert_allclose(data.features[:, 1], [0.3525, 0.4, 0.5])
    np.testing.assert_allclose(data.features[:, -2:], [[0, 0], [1, 1], [1, 0]])
    assert schema_from_json(own.schema.as_json()) == own.schema


def test_filling_in_has_a_stability_claim_for_every_unit(folder: Path) -> None:
    """One changed record changes the features of that record alone, whatever is missing."""
    plan = DataPlan(source=FileSource((folder / "one.csv", folder / "two.csv"), folder / "schema.toml"))
    loaded = load_training_data(plan)
    assert stability.FILLED in loaded.steps
    for unit in stability.EVERY_UNIT:
        stability.FILLED.require(unit)
    own = parse_schema(SCHEMA)
    before = load_own_silo(folder / "one.csv", own).data.features
    (folder / "one.csv").write_text(ROWS.replace("20;70,5;clerk", ";;nurse"), encoding="utf-8")
    after = load_own_silo(folder / "one.csv", own).data.features
    np.testing.assert_array_equal(before[1:], after[1:])
    assert (before[0] != after[0]).any()


def test_a_category_seen_only_at_prediction_is_answered_by_its_rule(folder: Path) -> None:
    own = parse_schema(SCHEMA)
    (folder / "new.csv").write_text("age;weight;job;ward\n30;60;pilot;moon\n40;60;;b\n", encoding="utf-8")
    found = encode_features(read_table(folder / "new.csv", ";", ","), own.schema, predicting=True)
    np.testing.assert_allclose(found[:, 2:6], [[1, 0, 0, 0], [1, 0, 0, 1]])
    (folder / "one.csv").write_text(ROWS.replace("80;100;nurse", "80;100;pilot"), encoding="utf-8")
    with pytest.raises(BadData, match="is not in the schema's list"):
        load_own_silos([folder / "one.csv"], own)
    strict = parse_schema(SCHEMA.replace('unseen = "clerk"\n', ""))
    (folder / "new.csv").write_text("age;weight;job;ward\n30;60;pilot;b\n", encoding="utf-8")
    with pytest.raises(BadData, match="in the schema answers it"):
        encode_features(read_table(folder / "new.csv", ";", ","), strict.schema, predicting=True)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ('unseen = "clerk"', 'unseen = "pilot"', "must be a listed value"),
        ("missing = { value = 80 }", "missing = { value = inf }", "finite"),
        ("missing = { value = 80 }", "missing = { indicator = true }", "missing"),
        ('decimal = ","', 'decimal = "x"', "decimal"),
        ('delimiter = ";"', 'delimiter = ","', "must differ from the delimiter"),
    ],
)
def test_a_wrong_rule_is_refused(old: str, new: str, word: str) -> None:
    with pytest.raises(InvalidInput, match=word):
        parse_schema(SCHEMA.replace(old, new, 1))


def test_a_number_with_a_comma_or_without_a_value_names_the_remedy(folder: Path) -> None:
    points = parse_schema(SCHEMA.replace('decimal = ","', 'decimal = "."'))
    with pytest.raises(BadData, match="decimal = ','"):
        load_own_silos([folder / "one.csv"], points)
    bare = parse_schema(SCHEMA.replace("missing = { value = 80 }\n", ""))
    with pytest.raises(BadData, match="declare missing = "):
        load_own_silos([folder / "one.csv"], bare)
    (folder / "one.csv").write_text(ROWS.replace("70,5", "1.070,5"), encoding="utf-8")
    with pytest.raises(BadData, match="not a finite number"):
        load_own_silos([folder / "one.csv"], parse_schema(SCHEMA))


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("a,b\n1,2.5\n", FileLayout()),
        ("a;b\n1;2,5\n", FileLayout(";", ",")),
        ("a;b\n1;2.5\n", FileLayout(";", ".")),
        ("a\tb\n1\t2\n", FileLayout("\t", ".")),
        ("a|b\nx|y\n", FileLayout("|", ".")),
        ('a,b\n1,"2,5"\n', FileLayout()),
        ("only\n1\n", FileLayout()),
    ],
)
def test_the_layout_is_recognised(tmp_path: Path, text: str, layout: FileLayout) -> None:
    path = tmp_path / "file.csv"
    path.write_text(text, encoding="utf-8")
    assert recognise(path) == layout
    assert recognise(tmp_path / "absent.csv", layout) == layout
    assert recognise(tmp_path / "file.tsv").delimiter == "\t"


def test_columns_are_sorted_by_what_they_look_like(tmp_path: Path) -> None:
    rows = [f"p{i},{i % 60 + 18},{i % 3},{'ab'[i % 2]},text {i},same,{'fm'[i % 2]},{'ny'[i % 2]}" for i in range(90)]
    header = "person,age,stage,ward,remark,site,sex,late\n"
    (tmp_path / "a.csv").write_text(header + "\n".join(rows), encoding="utf-8")
    (tmp_path / "b.csv").write_text("more," + header + "\n".join(f"1,{row}" for row in rows), encoding="utf-8")
    seen = look_at([tmp_path / "a.csv", tmp_path / "b.csv"], "late", ["sex"], ["stage"])
    roles = {column.name: column.role for column in seen.columns}
    assert roles["age"] is ColumnRole.NUMERIC
    assert roles["ward"] is ColumnRole.CATEGORICAL
    assert {name for name, role in roles.items() if role is ColumnRole.LEFT_OUT} == {
        *("person", "stage", "remark", "site", "more")
    }
    text = schema_text(seen, confirmed=False)
    assert "lists-from-codebook = false  # FILL IN" in text
    assert "lists-from-codebook = true\n" in schema_text(seen, confirmed=True)
    assert 'ward = ["a", "b"]\n' in text
    assert "age = []  # FILL IN [low, high]\n" in text


def test_empty_cells_of_a_column_of_names_say_what_to_do_and_it_works(tmp_path: Path) -> None:
    rows = [f"{'ab'[i % 2] if i else ''},{i % 60 + 18},{'ny'[i % 2]}" for i in range(90)]
    (tmp_path / "a.csv").write_text("ward,age,late\n" + "\n".join(rows), encoding="utf-8")
    text = schema_text(look_at([tmp_path / "a.csv"], "late", ()), confirmed=True)
    filled = text.replace("age = []", "age = [0, 100]")
    assert 'ward = {values = ["a", "b"], missing = "category"}' in text
    bare = filled.replace(', missing = "category"', "")
    with pytest.raises(BadData, match=r"'ward', line 2: has no value; fill or drop these records, or list \"\" "):
        load_own_silos([tmp_path / "a.csv"], parse_schema(bare))
    (silo,) = load_own_silos([tmp_path / "a.csv"], parse_schema(filled))
    assert silo.data.feature_names == ("age", "ward=a", "ward=b", "ward=missing")
    np.testing.assert_array_equal(silo.data.features[:2, 1:], [[0, 0, 1], [0, 1, 0]])


def test_a_columns_name_writes_nothing_into_the_schema_but_itself(tmp_path: Path) -> None:
    """A file may come from elsewhere; its header must not fill in what a person has to."""
    names = ["x\n[numeric.age]\nbounds = [0, 1]\n#", "job\x7f", "\N{GRINNING FACE}", "age", "ill"]
    rows = [[f"k{n}", f"j{n % 3}", f"g{n % 2}", str(20 + n % 30), "yes" if n % 2 else "no"] for n in range(70)]
    with (tmp_path / "d.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    text = schema_text(look_at([tmp_path / "d.csv"], "ill", ()), confirmed=True)
    found = tomllib.loads(text)
    assert found["columns"]["age"] == []
    assert set(found["columns"]) == {*names[1:3], "age", "ill"}
    assert found["ignore"] == names[:1]
    assert tomllib.loads(toml_text({"a": {names[2]: names}}))["a"] == {names[2]: names}


def test_files_that_are_written_differently_are_read_each_in_its_way(folder: Path) -> None:
    """One site exports with points and commas, the others with commas and semicolons: the same records either way."""
    (folder / "two.csv").write_text(ROWS.replace(",", ".").replace(";", ","), encoding="utf-8")
    files = [folder / "one.csv", folder / "two.csv"]
    seen = look_at([*files, folder / "one.csv"], "y", ["s"])
    assert seen.layouts.usual == FileLayout(";", ",")
    assert seen.layouts.exceptions == {"two.csv": FileLayout()}
    written = schema_text(seen, confirmed=True)
    declared = SCHEMA + written[written.index("[file.exceptions") :]
    one, two = load_own_silos(files, parse_schema(declared))
    np.testing.assert_array_equal(one.data.features, two.data.features)
    with pytest.raises(BadData):
        load_own_silos(files, parse_schema(SCHEMA))
    for wrong in ('decimal = "!"', 'decimals = ","'):
        (folder / "schema.toml").write_text(declared.replace('decimal = "."', wrong), encoding="utf-8")
        assert 'exceptions."two.csv"] decimal' in check_schema(folder / "schema.toml").mistakes[0]


def test_two_files_of_one_name_cannot_be_told_apart_by_it(folder: Path) -> None:
    (folder / "deeper").mkdir()
    (folder / "deeper" / "one.csv").write_text(ROWS.replace(",", ".").replace(";", ","), encoding="utf-8")
    with pytest.raises(InvalidInput, match="rename one of them"):
        look_at([folder / "one.csv", folder / "deeper" / "one.csv"], "y", ["s"])


def test_every_table_of_a_schema_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(
        SCHEMA.replace("[0, 100]", "[]").replace('["a", "b"]', "[]").replace('";"', '"--"'), encoding="utf-8"
    )
    found = check_schema(path)
    assert len(found.mistakes) == 3
    assert "age" in found.named
    path.write_text("version = [", encoding="utf-8")
    assert len(check_schema(path).mistakes) == 1
    path.write_text("version = 1\nnumeric = 3\n", encoding="utf-8")
    assert check_schema(path).mistakes
