"""Schema files: strict reading, honest scaling, and a digest that changes when the meaning does."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import numpy as np
import pytest

from calibrate.errors import InvalidInput
from privfair.data.encode import encode_features
from privfair.data.read import BadData, RawTable
from privfair.data.schema import (
    CodedColumn,
    Coverage,
    NonPrivateStandardisation,
    NumericColumn,
    PublicBounds,
    PublicMeanScale,
    Scaling,
    Schema,
    Transform,
    Unscaled,
    schema_from_json,
)
from privfair.data.schema_toml import load_schema, parse_schema

HEAD = 'version = 1\n[target]\ncolumn = "y"\nclasses = ["no", "yes"]\n'
SENSITIVE = '[sensitive]\ncolumn = "s"\ngroups = ["a", "b"]\n'


def _numeric(body: str) -> object:
    return parse_schema(HEAD + SENSITIVE + "[numeric.x]\n" + body).schema.numeric[0].scaling


def test_every_kind_of_scaling() -> None:
    assert _numeric("bounds = [0, 9]") == PublicBounds(0, 9)
    assert _numeric('bounds = [0, 9]\ntransform = "signed-log"') == PublicBounds(0, 9, Transform.SIGNED_LOG)
    assert _numeric("mean = 1\nscale = 2") == PublicMeanScale(1, 2)
    assert _numeric("mean = 1\nscale = 2\nreach = 3") == PublicMeanScale(1, 2, reach=3)
    assert _numeric('scaling = "unscaled"') == Unscaled()
    assert _numeric('scaling = "non-private-standardisation"') == NonPrivateStandardisation()


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("", r"\[numeric.x\] scaling = None: must say in exactly one way how it is scaled"),
        ("bounds = [0, 1]\nmean = 2\nscale = 1", "exactly one way"),
        ("bounds = [1, 0]", r"\[numeric.x\] bounds .* the lower first"),
        ("bounds = [0, 1, 2]", "two numbers"),
        ('bounds = ["a", 1]', "bounds = 'a': must be a number"),
        ("bounds = [true, 2]", "bounds = True: must be a number"),
        ("mean = 1", "scale = None: must be a number"),
        ("mean = 1\nscale = 0", "scale = 0.0: must be greater than 0"),
        ("bounds = [0, inf]", "two finite numbers"),
        ('scaling = "magic"', "'magic': is not one of the choices; use unscaled"),
        ('scaling = "unscaled"\ntransform = "signed-log"', "without a transform"),
        ("bounds = [0, 1]\nscale = 2", "scale = 2.0: is an unknown key without a mean"),
        ("bounds = [0, 1]\nsteps = [0.5, 0.5]", "steps .* ascending order"),
        ("bounds = [0, 1]\nsteps = [true]", "steps = True: must be a number"),
        ("bounds = [0, 1]\nsteps = 3", "steps = 3: must be a list"),
        ('bounds = [0, 1]\ntransform = "sqrt"', "transform = 'sqrt': is not one of the choices; use identity"),
        ("bonds = [0, 1]", "bonds = .*: is not known; did you mean bounds"),
    ],
)
def test_bad_scaling(body: str, complaint: str) -> None:
    with pytest.raises(BadData, match=complaint):
        _numeric(body)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("version = 2\n" + HEAD.split("\n", 1)[1], "version 2 is not known"),
        (HEAD.split("\n", 1)[1], "version None is not known"),
        ("version = 1\n[numeric.x]\nbounds=[0,1]\n", r"\[target\] column = None: is needed"),
        (HEAD + "[target]\n", "not valid TOML"),
        (HEAD + "[targets]\n", "targets = .*: is not known; did you mean target"),
        ("version = 1\ntarget = 3\n", r"\[target\] = 3: must be a table"),
        (HEAD.replace('column = "y"', "column = 3"), r"\[target\] column = 3: must be text"),
        (HEAD.replace('column = "y"\n', ""), r"\[target\] column = None: is needed"),
        (HEAD.replace('["no", "yes"]', '"no"'), "classes = 'no': must be a list"),
        (HEAD.replace('["no", "yes"]', "[true, false]"), "classes = True: must be text"),
        (HEAD + '[numeric.x]\nbounds=[0,1]\n[silos]\neach_holds = "some"\n', "each-holds = 'some': is not one"),
        (HEAD + '[numeric.x]\nbounds=[0,1]\n[file]\ndelimiter = "||"\n', "must be one character"),
    ],
)
def test_bad_schema_file(text: str, complaint: str) -> None:
    with pytest.raises(BadData, match=complaint):
        parse_schema(text, "my.toml")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (HEAD + SENSITIVE, "must have a feature"),
        (HEAD + SENSITIVE + "[numeric.s]\nbounds=[0,1]\n", r"sensitive column = 's': must not be a feature"),
        (HEAD + SENSITIVE + "[categorical.y]\n", r"target column = 'y'"),
        (HEAD + SENSITIVE + "[numeric.x]\nbounds=[0,1]\n[categorical.x]\n", "declared once"),
        (HEAD + SENSITIVE.replace('"s"', '"y"') + "[categorical.x]\n", r"sensitive column = 'y'"),
        (HEAD + SENSITIVE + '[categorical.x]\n[silos]\ncolumn = "s"\n', "silo column = 's'"),
        (HEAD + SENSITIVE + '[categorical.x]\n[file]\nkeep = ["s"]\n', "kept column = 's'"),
        (HEAD.replace('["no", "yes"]', '["no"]') + "[categorical.x]\n", "classes .* at least two"),
        (HEAD + SENSITIVE + '[categorical.x]\nvalues = ["a", "a"]\n', "distinct"),
        (HEAD + SENSITIVE + '[categorical.x]\nvalues = ["a"]\nmerge = { b = "c" }\n', "b -> c"),
    ],
)
def test_a_schema_that_contradicts_itself(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        parse_schema(text)


def test_whole_numbers_may_name_classes() -> None:
    schema = parse_schema(HEAD.replace('["no", "yes"]', "[0, 1]") + "[categorical.x]\n").schema
    assert schema.target.values == ("0", "1")
    assert schema.coverage is Coverage.ALL_GROUPS_TWO_CLASSES


@pytest.mark.parametrize("place", ["docs/data.md", "privfair/data/schema_toml.py"])
def test_the_documented_examples_are_schemas(place: str) -> None:
    text = (Path(__file__).parents[2] / place).read_text()
    if place.endswith(".md"):
        examples = [part.split("```")[0] for part in text.split("```toml\n")[1:3]]
    else:
        parts = text.split("::\n")
        ends = "\nThe layout with", "\nBoth may have"
        examples = [textwrap.dedent(part.split(end)[0]) for part, end in zip(parts[1:], ends, strict=False)]
    for example in examples:
        schema = parse_schema(example).schema
        assert schema.unresolved == ()
        assert schema.numeric[0].name == "age"


def test_absent_schema_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        load_schema(tmp_path / "none.toml")
    path = tmp_path / "schema.toml"
    path.write_text(HEAD + SENSITIVE + "[categorical.x]\n")
    assert load_schema(path).schema.unresolved == ("x",)


def _schema(**changes: object) -> Schema:
    parts: dict[str, object] = {
        "target": CodedColumn("y", ("no", "yes")),
        "sensitive": CodedColumn("s", ("a", "b")),
        "numeric": (NumericColumn("x", PublicBounds(0, 1)),),
        "categorical": (CodedColumn("c", ("u", "v")),),
    }
    return Schema(**(parts | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"target": CodedColumn("y", ("yes", "no"))},
        {"sensitive": CodedColumn("s", ("b", "a"))},
        {"sensitive": None},
        {"numeric": (NumericColumn("x", PublicBounds(0, 2)),)},
        {"numeric": (NumericColumn("x", PublicBounds(0, 1, Transform.SIGNED_LOG)),)},
        {"numeric": (NumericColumn("x", PublicMeanScale(0, 1)),)},
        {"numeric": (NumericColumn("z", PublicBounds(0, 1)),)},
        {"categorical": (CodedColumn("c", ("u", "v", "w")),)},
        {"categorical": (CodedColumn("c", ("u", "v"), (("w", "v"),)),)},
    ],
)
def test_the_digest_changes_with_the_meaning(change: dict[str, object]) -> None:
    assert _schema(**change).digest != _schema().digest


@pytest.mark.parametrize(
    "scaling",
    [
        PublicBounds(0, 3, Transform.SIGNED_LOG),
        PublicMeanScale(1, 2, reach=4),
        NonPrivateStandardisation(Transform.SIGNED_LOG),
        Unscaled(),
    ],
)
def test_a_schema_survives_json(scaling: Scaling) -> None:
    schema = _schema(numeric=(NumericColumn("x", scaling),), categorical=(CodedColumn("c", ("u", "v"), (("w", "v"),)),))
    document = json.loads(json.dumps(schema.as_json()))
    assert schema_from_json(document) == schema
    assert schema_from_json(document).digest == schema.digest
    assert schema_from_json(_schema(sensitive=None).as_json()).sensitive is None


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"extra": 1},
        {"numeric": [{"column": "x", "scaling": {"kind": "magic"}}]},
        {"numeric": [{"column": "x", "scaling": {"kind": "unscaled", "more": 1}}]},
        {"target": {"column": "y"}},
        {"categorical": 3},
    ],
)
def test_a_strange_document_is_no_schema(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="schema"):
        schema_from_json(_schema().as_json() | change)  # type: ignore[operator, arg-type]


def test_the_digest_is_stable_and_ignores_what_does_not_matter() -> None:
    assert _schema(silo_column="z", coverage=Coverage.ANYTHING, side_columns=("q",)).digest == _schema().digest
    # Computed once; a change means that old manifests no longer bind to new runs.
    assert _schema().digest == "sha256:8773f0b5615a4761bfb66e1d1e3553bf08fd2dd6aac8f94ab6e9fdd8008a0d6b"


def test_steps_become_features_after_all_others_and_part_of_the_digest() -> None:
    body = '[numeric.x]\nbounds = [0, 10]\n{steps}[categorical.c]\nvalues = ["p", "q"]\n'
    plain = parse_schema(HEAD + SENSITIVE + body.format(steps="")).schema
    bent = parse_schema(HEAD + SENSITIVE + body.format(steps="steps = [2, 7.5]\n")).schema
    assert plain.feature_names == ("x", "c=p", "c=q")
    assert bent.feature_names == ("x", "c=p", "c=q", "x>=2", "x>=7.5")
    assert bent.digest != plain.digest
    assert schema_from_json(json.loads(json.dumps(bent.as_json()))) == bent
    columns = {"x": np.array(["1", "2", "9"]), "c": np.array(["p", "q", "q"])}
    table = RawTable("t.csv", columns, np.arange(3))
    expected = [[0.1, 1, 0, 0, 0], [0.2, 0, 1, 1, 0], [0.9, 0, 1, 1, 1]]
    np.testing.assert_allclose(encode_features(table, bent), expected)
