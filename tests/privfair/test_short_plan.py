"""A plan of five keys and a schema of one line per column: the rest follows, and nothing counted becomes public."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from calibrate.errors import InvalidInput
from calibrate.privacy_unit import Protected
from privfair.api.draft import draft
from privfair.data.encode import load_own_silos
from privfair.data.read import BadData
from privfair.data.schema import Missing, NumericColumn, PublicBounds, schema_from_json
from privfair.data.schema_toml import check_schema, parse_schema
from privfair.plan.plan import Plan
from privfair.plan.training import training_plan

PLAN = """protect  = "record"
epsilon  = 1.0
delta    = 1e-5
files    = ["north.csv", "south.csv"]
at-least = 60
"""
SCHEMA = """target = "late"
sensitive = "sex"
lists-from-codebook = true
ignore = ["note"]
[columns]
late = ["no", "yes"]
sex = ["f", "m", "x"]
age = [18, 100]
weight = {range = [40, 120], missing = "flag"}
job = {values = ["clerk", "nurse"], missing = "category", merge = {"Clerk" = "clerk"}}
"""


def write(folder: Path, plan: str = PLAN, schema: str = SCHEMA, groups: str = "fmx", rows: int = 120) -> Plan:
    generator = random.Random(3)
    for site in ("north", "south"):
        lines = ["late,sex,age,weight,job,note,person,origin"]
        for number in range(rows):
            weight = "" if number % 7 == 0 else str(generator.randint(50, 110))
            job = ("clerk", "nurse", "NA", "Clerk")[number % 4]
            yes, age = ("no", "yes")[generator.random() < 0.4], generator.randint(18, 90)
            lines.append(
                f"{yes},{groups[number % len(groups)]},{age},{weight},{job},t{number},p{number},{'ab'[number % 2]}"
            )
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "plan.toml").write_text(plan, encoding="utf-8")
    (folder / "schema.toml").write_text(schema, encoding="utf-8")
    return Plan.read(folder / "plan.toml")


def test_five_keys_are_a_whole_plan(tmp_path: Path) -> None:
    plan = write(tmp_path)
    document = draft(plan).document
    assert document.algorithm == plan.algorithm
    assert document.guarantee.privacy_unit().protected is Protected.RECORD
    assert [silo.size for silo in document.data.silos] == [60, 60], "public bounds, not the 90 records of each file"
    assert document.parameters["groups"] == 3, "as many as the schema lists"
    assert document.config_digest == plan.digest


def test_tables_override_what_follows_from_the_five_keys(tmp_path: Path) -> None:
    tables = '[privacy]\nrounds = 7\n[training]\nlearning_rate = 0.25\n[model]\nkind = "logistic"\n'
    plan = write(tmp_path, PLAN.replace("delta    = 1e-5\n", "") + tables + "[target]\ndelta = 1e-6\n")
    assert plan.privacy["rounds"] == 7
    assert plan.training["model"] == {"kind": "logistic"}
    assert plan.target().delta == 1e-6
    assert training_plan(write(tmp_path, PLAN + tables)).own.learning_rate == 0.25  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"record"', '"recrod"', "did you mean record"),
        ('"record"', '"person"', "write user = "),
        ("epsilon  = 1.0", 'epsilon = 1.0\nalgorithm = "pay-once"', "is not what pay-once protects"),
        ("at-least = 60", "at-least = 0", "is not filled in"),
        ("at-least = 60", "at-leest = 60", "use protect, epsilon, delta, files, at-least"),
        ("at-least = 60\n", "", "at-least = None: is needed"),
        ("at-least = 60", "at-least = 1000", "exceeds what 'north' has"),
    ],
)
def test_a_mistake_in_the_five_keys_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        draft(write(tmp_path, PLAN.replace(old, new)))


def test_persons_are_counted_by_nobody_but_the_plan(tmp_path: Path) -> None:
    """The number of users that noise is calibrated for is the declared bound, never a count or an invented 1000."""
    schema = SCHEMA.replace('sensitive = "sex"', 'sensitive = "sex"\nuser = "person"').replace('"note"', '"note"')
    plan = write(tmp_path, PLAN.replace('"record"', '"person"'), schema)
    assert plan.data["users"] == {"kind": "column", "column": "person"}
    if "users" in plan.privacy:
        assert (plan.privacy["users"], plan.privacy["cohort"]) == (60, 6)
    open_plan = write(tmp_path, PLAN.replace('"record"', '"person"').replace("at-least = 60\n", ""), schema)
    assert 1000 not in open_plan.privacy.values()
    with pytest.raises(InvalidInput, match="at-least"):
        draft(open_plan)


def test_a_copy_of_a_short_plan_keeps_the_schema_that_decides_it(tmp_path: Path) -> None:
    plan = write(tmp_path)
    (tmp_path / "copy").mkdir()
    for name, content in {"plan.toml": plan.content, **plan.beside}.items():
        (tmp_path / "copy" / name).write_bytes(content)
    again = Plan.read(tmp_path / "copy" / "plan.toml")
    assert (again.algorithm, dict(again.privacy)) == (plan.algorithm, dict(plan.privacy))
    (tmp_path / "copy" / "schema.toml").unlink()
    with pytest.raises(InvalidInput, match=r"schema\.toml'?: cannot be read"):
        Plan.read(tmp_path / "copy" / "plan.toml")


def test_a_line_says_what_a_table_says(tmp_path: Path) -> None:
    schema = parse_schema(SCHEMA).schema
    assert schema.numeric[0] == NumericColumn("age", PublicBounds(18, 100))
    assert schema.numeric[1].missing == Missing(80, indicator=True)
    assert schema.categorical[0].values == ("clerk", "nurse", "missing")
    assert schema.categorical[0].unseen == "no-category"
    assert dict(schema.categorical[0].merge)["Clerk"] == "clerk"
    assert parse_schema(SCHEMA.replace("= [18, 100]", "= {mean = 40, scale = 10}")).schema.numeric[0].scaling
    assert schema_from_json(schema.as_json()) == schema
    write(tmp_path)
    (silo, _) = load_own_silos([tmp_path / "north.csv", tmp_path / "south.csv"], parse_schema(SCHEMA))
    assert silo.data.features[2, silo.data.feature_names.index("job=missing")] == 1


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("codebook = true", "codebook = false", "copied from the files; compare those of late, sex, job"),
        ("[18, 100]", "[]", "age': 1 column has no range"),
        ("[18, 100]", "[100, 18]", "the lower first"),
        ("[18, 100]", "[1, 2, 3]", "neither a range nor a list"),
        ("[18, 100]", "7", "neither a range nor a list"),
        ("range = [40", "rnge = [40", "did you mean range"),
        ('sensitive = "sex"', 'sensitive = "gender"', "is not among the \\[columns\\]"),
        ('"note"]', '"age"]', "is among the \\[columns\\] as well"),
        ('missing = "category"', 'missing = "flag"', "missing"),
        ("ignore", "ignroe", "did you mean ignore"),
    ],
)
def test_a_mistake_in_a_line_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse_schema(SCHEMA.replace(old, new, 1))
    (tmp_path / "schema.toml").write_text(SCHEMA.replace(old, new, 1), encoding="utf-8")
    assert check_schema(tmp_path / "schema.toml").mistakes


def test_all_mistakes_of_a_short_schema_are_listed_together(tmp_path: Path) -> None:
    wrong = (
        SCHEMA.replace("[18, 100]", "[]").replace("[40, 120]", "[]").replace("true", "false").replace("= {v", "= {w")
    )
    (tmp_path / "schema.toml").write_text(wrong, encoding="utf-8")
    found = check_schema(tmp_path / "schema.toml")
    assert len(found.mistakes) == 3
    assert "2 columns have no range" in found.mistakes[0]
    assert {column.name for column in found.columns} == {"late", "sex", "age", "weight"}
    assert found.groups == 3


PRODUCT = SCHEMA.replace('sensitive = "sex"', 'sensitive = ["sex", "origin"]').replace(
    'sex = ["f", "m", "x"]', 'sex = ["f", "m"]\norigin = ["a", "b"]'
)


def test_several_sensitive_columns_are_groups_together(tmp_path: Path) -> None:
    """Every combination is a group, neither column is a feature, and the document says what it was made of."""
    plan = write(tmp_path, schema=PRODUCT, groups="ffmm")
    own = parse_schema(PRODUCT)
    (silo, _) = load_own_silos([tmp_path / "north.csv", tmp_path / "south.csv"], own)
    assert silo.data.group_names == ("f & a", "f & b", "m & a", "m & b")
    assert silo.data.group[:4].tolist() == [0, 1, 2, 3]
    assert not any("sex" in name or "origin" in name for name in silo.data.feature_names)
    assert own.schema.columns[1:3] == ("sex", "origin")
    assert schema_from_json(own.schema.as_json()) == own.schema
    assert plan.privacy["groups"] == 4
    assert draft(plan).document.parameters["groups"] == 4


def test_combinations_with_too_few_records_are_refused_with_the_remedy(tmp_path: Path) -> None:
    write(tmp_path, schema=PRODUCT, groups="ffmm", rows=76)
    with pytest.raises(BadData, match=r"4 of the 4 combinations have fewer than 20 records; merge rare values"):
        load_own_silos([tmp_path / "north.csv", tmp_path / "south.csv"], parse_schema(PRODUCT))
