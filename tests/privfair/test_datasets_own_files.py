"""The user's own files: good ones become silos, bad ones an error that names file, column, line, rule and remedy."""

from __future__ import annotations

import re
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.cli.output import progress_bar
from privfair.data import read
from privfair.data.encode import encode_features, load_own_silo, load_own_silos, load_own_train_test
from privfair.data.partition import cut_into_silos, users_by_column
from privfair.data.read import BadData, read_table
from privfair.data.schema_toml import OwnFormat, parse_schema
from privfair.plan.data import ByColumn, Heterogeneous

SCHEMA = """
version = 1
[target]
column = "default"
classes = ["no", "yes"]
[sensitive]
column = "sex"
groups = ["male", "female"]
[numeric.age]
bounds = [20, 70]
[categorical.job]
values = ["clerk", "nurse", "other"]
merge = { "student" = "other" }
"""

GOOD = """age,job,sex,default,id
20,clerk,male,no,1
45,nurse,female,yes,2
70,other,female,no,3
95,student,male,yes,4
"""


@pytest.fixture
def own() -> OwnFormat:
    return parse_schema(SCHEMA)


def _file(folder: Path, text: str, name: str = "north.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_good_file(tmp_path: Path, own: OwnFormat) -> None:
    silos = load_own_silos([_file(tmp_path, GOOD)], own)
    data = silos[0].data
    assert silos.names == ("north",)
    assert data.feature_names == ("age", "job=clerk", "job=nurse", "job=other")
    np.testing.assert_allclose(data.features[:, 0], [0, 0.5, 1, 1])  # 95 is clipped to the public bound
    assert data.features[:, 1:].argmax(axis=1).tolist() == [0, 1, 2, 2]
    assert data.label.tolist() == [0, 1, 0, 1]
    assert data.group.tolist() == [0, 1, 1, 0]
    assert data.derived == ()


def test_groups_are_numbered_alike_in_every_silo(tmp_path: Path, own: OwnFormat) -> None:
    """The order of first appearance, in which the papers' code numbers groups, differs between these two files."""
    other = "sex,default,age,job\nfemale,yes,30,clerk\nmale,no,30,clerk\n"
    files = [_file(tmp_path, GOOD), _file(tmp_path, other, "south.csv")]
    silos = load_own_silos(files, own)
    assert silos[1].data.group.tolist() == [1, 0]
    undeclared = SCHEMA.replace('groups = ["male", "female"]', "").replace('classes = ["no", "yes"]', "")
    silos = load_own_silos(files, parse_schema(undeclared))
    assert silos.group_names == ("female", "male")
    assert silos[0].data.group.tolist() == [1, 0, 0, 1]
    assert silos[1].data.group.tolist() == [0, 1]


def test_lists_read_off_the_data_are_refused_where_they_are_private(tmp_path: Path) -> None:
    attribute, record = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE), PrivacyUnit.of(Relation.REPLACE_ONE)
    without_groups = parse_schema(SCHEMA.replace('groups = ["male", "female"]', ""))
    path = _file(tmp_path, GOOD)
    with pytest.raises(UnsupportedCombination, match="write the groups into the schema"):
        load_own_silos([path], without_groups).require_allowed(attribute)
    without_values = parse_schema(re.sub(r"values = .*\nmerge = .*\n", "", SCHEMA))
    silos = load_own_silos([path], without_values)
    assert silos[0].data.feature_names[1:] == ("job=clerk", "job=nurse", "job=other", "job=student")
    silos.require_allowed(attribute)
    with pytest.raises(UnsupportedCombination, match=r"'job'.*replace-one.*list of categories"):
        silos.require_allowed(record)


def test_one_silo_alone_cannot_choose_the_numbering(tmp_path: Path, own: OwnFormat) -> None:
    path = _file(tmp_path, GOOD)
    assert load_own_silo(path, own).name == "north"
    assert load_own_silo(path, own, "ward").data.schema_digest == load_own_silos([path], own)[0].data.schema_digest
    with pytest.raises(InvalidInput, match=r"'sex'.*list the values"):
        load_own_silo(path, parse_schema(SCHEMA.replace('groups = ["male", "female"]', "")))


def test_one_file_with_a_silo_column(tmp_path: Path) -> None:
    text = "branch,age,job,sex,default\n" + "".join(
        f"{branch},{age},clerk,{sex},{label}\n"
        for branch in ("b2", "b10")
        for age, sex, label in ((30, "male", "no"), (40, "female", "yes"))
    )
    own = parse_schema(SCHEMA + '[silos]\ncolumn = "branch"\n')
    path = _file(tmp_path, text)
    silos = load_own_silos([path], own)
    assert silos.names == ("b10", "b2")
    assert silos.sizes == (2, 2)
    with pytest.raises(InvalidInput, match="must be one file"):
        load_own_silos([path, path], own)
    gap = text.replace("b10,40", " ,40")
    with pytest.raises(BadData, match=r"'branch', line 5: has no value"):
        load_own_silos([_file(tmp_path, gap)], own)


def test_kept_columns_serve_partitions(tmp_path: Path) -> None:
    text = "age,job,sex,default,user,town\n" + "".join(
        f"{age},clerk,{'male' if age % 2 else 'female'},{'yes' if age % 3 else 'no'},{age // 2},t{age % 4}\n"
        for age in range(9, 109)
    )
    own = parse_schema(SCHEMA + '[file]\nkeep = ["age", "user", "town"]\n')
    data = load_own_silos([_file(tmp_path, text)], own)[0].data
    assert data.side_column("age").dtype == np.float64
    assert data.side_column("user").dtype.kind == "U", "how ids look does not decide how they are read"
    silos = cut_into_silos(data, Heterogeneous(2, "age", 1.0), seed=1)
    assert silos[0].data.side_column("age").max() < silos[1].data.side_column("age").min()
    assert cut_into_silos(data, ByColumn("town"), seed=1).names == ("t0", "t1", "t2", "t3")
    assert len(users_by_column(data, "user")) == len(set(data.side_column("user").tolist()))


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_parquet_and_csv_give_the_same_arrays(tmp_path: Path, own: OwnFormat, suffix: str) -> None:
    import pandas as pd

    frame = pd.DataFrame(
        {
            "age": [20, 45, 70, 95],
            "job": pd.Categorical(["clerk", "nurse", "other", "student"]),
            "sex": ["male", "female", "female", "male"],
            "default": ["no", "yes", "no", "yes"],
        }
    )
    path = tmp_path / f"north.{suffix}"
    frame.to_parquet(path) if suffix == "parquet" else frame.to_csv(path, index=False)
    expected = load_own_silos([_file(tmp_path, GOOD, "good.csv")], own)[0].data
    data = load_own_silos([path], own)[0].data
    np.testing.assert_array_equal(data.features, expected.features)
    np.testing.assert_array_equal(data.label, expected.label)
    np.testing.assert_array_equal(data.group, expected.group)
    assert data.schema_digest == expected.schema_digest


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.replace("age,job", "Age,job"), r"north\.csv, column 'age': is missing"),
        (lambda t: t.replace("sex,", "sexx,", 1), r"column 'sex': is missing \(column 3 has a similar name\); add"),
        (lambda t: t.replace("45,", ",", 1), r"column 'age', line 3: has no value \(1 such cells\); fill or drop"),
        (lambda t: t.replace("45,", "NaN,", 1), r"column 'age', line 3: has no value"),
        (lambda t: t.replace("45,", "inf,", 1), r"column 'age', line 3: is not a finite number"),
        (lambda t: t.replace("45,", "4_5,", 1), r"column 'age', line 3: is not a finite number"),
        (lambda t: t.replace("45,", "old,", 1), r"column 'age', line 3: is not a finite number"),
        (lambda t: t.replace("nurse", "", 1), r"column 'job', line 3: has no value"),
        (lambda t: t.replace("nurse", "pilot", 1), r"column 'job', line 3: is not in the schema's list"),
        (lambda t: t.replace("yes", "maybe", 1), r"column 'default', line 3: is not in the schema's list"),
        (lambda t: t.replace("yes", "no"), r"column 'default': silo 'north' holds one class only; give more"),
        (lambda t: t.replace("female", "male"), r"column 'sex': silo 'north' lacks one of the groups"),
        (lambda t: t.replace(",id", ",age"), r"line 1: columns 1 and 5 have the same name; rename"),
        (lambda t: t.replace("3\n", "3,x\n"), r"line 4: has 6 cells where the header has 5; quote cells"),
        (lambda t: t.replace(",no,1", ",no"), r"line 2: has 4 cells where the header has 5"),
        (lambda _: "", r"north\.csv: is empty; give a file"),
        (lambda t: t.splitlines()[0] + "\n", r"north\.csv: has no records"),
        (lambda t: t.replace("45,nurse", '45,"nurse'), r"is not valid CSV"),
    ],
)
def test_bad_csv(tmp_path: Path, own: OwnFormat, change, complaint: str) -> None:
    changed = change(GOOD)
    assert changed != GOOD
    with pytest.raises(BadData, match=complaint) as caught:
        load_own_silos([_file(tmp_path, changed)], own)
    assert caught.value.exit_code == 2
    assert "north.csv" in str(caught.value)


def test_lines_are_right_in_spite_of_blank_and_quoted_ones(tmp_path: Path, own: OwnFormat) -> None:
    text = GOOD.replace("20,clerk,male,no,1\n", '20,clerk,male,no,"two\nlines"\n\n').replace("70,", "x,")
    with pytest.raises(BadData, match="line 6: is not"):
        load_own_silos([_file(tmp_path, text)], own)


def test_not_text_and_unknown_suffix(tmp_path: Path, own: OwnFormat) -> None:
    path = tmp_path / "north.csv"
    path.write_bytes(GOOD.replace("clerk", "cl\xe9rk").encode("latin-1"))
    with pytest.raises(BadData, match="not UTF-8"):
        load_own_silos([path], own)
    with pytest.raises(InvalidInput, match="suffix"):
        load_own_silos([_file(tmp_path, GOOD, "north.xlsx")], own)
    with pytest.raises(InvalidInput, match="does not exist"):
        load_own_silos([tmp_path / "absent.csv"], own)
    with pytest.raises(BadData, match="not a readable Parquet"):
        load_own_silos([_file(tmp_path, GOOD, "north.parquet")], own)
    with pytest.raises(BadData, match="not a readable zip archive"):
        load_own_silos([_file(tmp_path, GOOD, "north.csv.zip")], own)


def test_byte_order_mark_spaces_and_semicolons(tmp_path: Path) -> None:
    own = parse_schema(SCHEMA + '[file]\ndelimiter = ";"\n')
    path = tmp_path / "north.csv"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace(",", " ; ").encode())
    assert load_own_silos([path], own)[0].data.group.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("column", "values", "complaint"),
    [
        ("age", [20.0, None, 70.0, 95.0], r"column 'age', line 2: has no value"),
        ("job", ["clerk", None, "other", "clerk"], r"column 'job', line 2: has no value"),
        ("job", [1, None, 2, 3], r"column 'job', line 2: has no value"),
        ("job", [1.5, 2.5, 1.0, 2.0], r"column 'job', line 1: holds decimal numbers"),
        ("age", ["a", "b", "c", "d"], r"column 'age', line 1: is not a finite number \(4 such"),
    ],
)
def test_bad_parquet(tmp_path: Path, own: OwnFormat, column: str, values: list[object], complaint: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    good = {
        "age": [20, 45, 70, 95],
        "job": ["clerk", "nurse", "other", "clerk"],
        "sex": ["male", "female", "female", "male"],
        "default": ["no", "yes", "no", "yes"],
    }
    path = tmp_path / "north.parquet"
    parquet.write_table(pa.table(good | {column: values}), path)
    with pytest.raises(BadData, match=complaint):
        load_own_silos([path], own)


def test_parquet_with_a_column_twice(tmp_path: Path, own: OwnFormat) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "north.parquet"
    parquet.write_table(pa.table([pa.array([1, 2]), pa.array([1, 2])], names=["age", "age"]), path)
    with pytest.raises(BadData, match="line 1: columns 1 and 2 have the same name"):
        load_own_silos([path], own)


def test_coverage_can_be_relaxed_but_not_to_one_class(tmp_path: Path) -> None:
    own = parse_schema(SCHEMA + '[silos]\neach_holds = "anything"\n')
    men = _file(tmp_path, "age,job,sex,default\n30,clerk,male,no\n31,clerk,male,no\n", "men.csv")
    rest = _file(tmp_path, GOOD, "rest.csv")
    silos = load_own_silos([men, rest], own)
    assert silos[0].data.group_counts().tolist() == [2, 0]
    with pytest.raises(BadData, match="all silos together hold one class only"):
        load_own_silos([men], own)


def test_training_and_test_files_number_alike(tmp_path: Path) -> None:
    own = parse_schema(SCHEMA.replace('groups = ["male", "female"]', ""))
    more = GOOD + "50,clerk,diverse,yes,5\n"
    train, test = _file(tmp_path, more), _file(tmp_path, GOOD + "33,nurse,diverse,no,6\n", "north_test.csv")
    parts = load_own_train_test([train], [test], own)
    assert parts.train.names == parts.test.names == ("north",)
    assert parts.train.group_names == ("diverse", "female", "male")
    assert parts.test[0].data.group.tolist() == [2, 1, 1, 2, 0]
    with pytest.raises(InvalidInput, match="as many as the 1 training files"):
        load_own_train_test([train], [test, test], own)


def test_features_to_predict_need_no_class_and_no_group(tmp_path: Path, own: OwnFormat) -> None:
    data = load_own_silos([_file(tmp_path, GOOD)], own)[0].data
    assert data.schema is not None
    blind = "\n".join(",".join(line.split(",")[:2]) for line in GOOD.splitlines())
    features = encode_features(read_table(_file(tmp_path, blind, "new.csv")), data.schema, predicting=True)
    np.testing.assert_array_equal(features, data.features)
    with pytest.raises(BadData, match=r"column 'job': is missing"):
        encode_features(read_table(_file(tmp_path, "age\n3\n", "new.csv")), data.schema, predicting=True)


def test_dots_in_a_file_name_belong_to_the_silo(tmp_path: Path, own: OwnFormat) -> None:
    files = [_file(tmp_path, GOOD, "st.mary.csv"), _file(tmp_path, GOOD, "st.john.csv")]
    assert load_own_silos(files, own).names == ("st.mary", "st.john")


def test_two_files_of_one_name_are_two_silos_of_one_name(tmp_path: Path, own: OwnFormat) -> None:
    (tmp_path / "a").mkdir()
    files = [_file(tmp_path, GOOD), _file(tmp_path / "a", GOOD)]
    with pytest.raises(InvalidInput, match="distinct names"):
        load_own_silos(files, own)


def test_without_a_sensitive_attribute_everyone_is_one_group(tmp_path: Path) -> None:
    text = re.sub(r"\[sensitive\]\n.*\n.*\n", "", SCHEMA)
    data = load_own_silos([_file(tmp_path, GOOD)], parse_schema(text))[0].data
    assert data.group_names == ("everyone",)
    assert data.group.tolist() == [0, 0, 0, 0]


def test_undeclared_single_class_and_group(tmp_path: Path) -> None:
    own = parse_schema(SCHEMA.replace('classes = ["no", "yes"]', ""))
    with pytest.raises(BadData, match=r"column 'default': holds one class only"):
        load_own_silos([_file(tmp_path, GOOD.replace("yes", "no"))], own)


def test_a_file_read_in_chunks_is_the_file_read_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regular files take the fast way; a quoted line break or a blank line takes the careful one."""
    from privfair.data import read

    plain = b"a,b\n" + b"".join(b"%d,x%d\n" % (k, 10**k) for k in range(9))
    quoted = plain.replace(b"x100\n", b'"x100"\n\n')
    broken = plain.replace(b"x100\n", b'"x1\n00"\n')
    for chunk in (2, 20_000):
        monkeypatch.setattr(read, "_CHUNK", chunk)
        fast, careful, apart = (read.parse_csv(content, "f.csv") for content in (plain, quoted, broken))
        for name in ("a", "b"):
            assert fast.columns[name].tolist() == careful.columns[name].tolist()
            assert fast.columns[name].dtype == careful.columns[name].dtype
        assert fast.lines.tolist() == list(range(2, 11))
        assert careful.lines.tolist() == [2, 3, 4, 6, 7, 8, 9, 10, 11]
        assert apart.columns["b"][2] == "x1\n00"
        headless = read.parse_csv(b"1,2\n3,4\n", "f.csv", header=("a", "b"))
        assert headless.lines.tolist() == [1, 2]
        with pytest.raises(read.BadData, match="line 3"):
            read.parse_csv(b"a,b\n1,2\n3\n", "f.csv")


_CELLS = (
    "1", "-0.125", "1e-7", "1e400", "123456789012345678901", " 2", "2 ", "1_000", "", "nan", "inf", "0x10", "1.", ".5",
    "+3", "1,5", "a b", "\u00fc", '"', "'", "\u0661", "\u00a03", "1\x0b", "x" * 30,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_a_large_file_never_means_anything_else_than_a_small_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow reads large plain files: columns, numbers, gaps, lines and refusals are those of the careful way."""
    pytest.importorskip("pyarrow")
    from privfair.data import read

    generator = np.random.default_rng(seed)
    chosen = [_CELLS[number] for number in generator.choice(len(_CELLS), 3)] if seed % 2 else ["1.25", "7"]
    end = "\r\n" if seed % 5 == 0 else "\n"
    rows = [[str(chosen[number]) for number in generator.choice(len(chosen), 3)] for _ in range(8)]
    lines = [",".join(row) for row in [["a", "b", "c"], *rows]]
    if seed % 7 == 3:
        lines.insert(4, "" if seed % 2 else "1,2")
    content = ("\ufeff" * (seed % 3 == 0) + end.join(lines) + end * (seed % 4 > 0)).encode()

    def found(header: tuple[str, ...] | None) -> list[object]:
        try:
            table = read.parse_csv(content, "f.csv", header=header)
        except BadData as refusal:
            return [str(refusal)]
        answers: list[object] = [table.lines.tolist(), table.records, *(table.columns[n].tolist() for n in "abc")]
        part = table.rows(np.array([0, 2, 5]))
        answers += [part.columns["b"].tolist(), part.lines.tolist(), list(table.columns), len(table.columns)]
        for name in "abc":
            for fill in (None, 0.5):
                try:
                    answers.append(table.numbers(name, fill).tobytes())
                except BadData as refusal:
                    answers.append((str(refusal), refusal.cell))
            answers += [table.names(name).tolist(), table.missing(name).tolist()]
        return answers

    for header in (None, ("a", "b", "c")):
        careful = found(header)
        monkeypatch.setattr(read, "LARGE", 0)
        assert found(header) == careful
        monkeypatch.undo()


def test_a_large_plain_file_is_read_by_arrow_and_a_missing_column_is_still_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pyarrow")
    from privfair.data import read

    monkeypatch.setattr(read, "LARGE", 0)
    table = read.parse_csv(b"a,b\n1,x\n2,y\n", "f.csv")
    assert not isinstance(table.columns, dict)
    with pytest.raises(KeyError):
        table.columns["z"]
    with pytest.raises(BadData, match="column 'z': is missing"):
        table.numbers("z")
    with pytest.raises(BadData, match="not UTF-8"):
        read.parse_csv(b"a,b\n1,\xff\n2,y\n", "f.csv")
    with pytest.raises(BadData, match="has no records"):
        read.parse_csv(b"a,b\n", "f.csv")


def test_a_records_bits_are_those_of_its_features_and_class() -> None:
    """What is signed with a seed must stay the same decision in every version."""
    import hashlib

    from privfair.data.dataset import Dataset
    from privfair.data.stability import RecordHash

    features, label = np.arange(6.0).reshape(3, 2), np.array([0, 1, 0])
    data = Dataset(features, label, np.array([0, 1, 1]), ("a", "b"), ("no", "yes"), ("x", "y"), "a schema")
    key = hashlib.blake2b(b"7", digest_size=32).digest()
    expected = [
        int.from_bytes(
            hashlib.blake2b(
                b"split\0" + features[k].tobytes() + int(label[k]).to_bytes(8, "little"), digest_size=8, key=key
            ).digest(),
            "little",
        )
        for k in range(3)
    ]
    assert RecordHash().words(data, 7, "split").tolist() == expected


class _Screen(StringIO):
    """Standard error of somebody who looks, or of a pipe."""

    def __init__(self, looked_at: bool) -> None:
        super().__init__()
        self.looked_at = looked_at

    def isatty(self) -> bool:
        return self.looked_at


@pytest.mark.parametrize("looked_at", [True, False], ids=["terminal", "pipe"])
def test_reading_a_file_is_seen_on_a_terminal_and_nowhere_else(
    looked_at: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, screen = tmp_path / "north.csv", _Screen(looked_at)
    file.write_text("a,b\n" + "1,2\n" * 7, encoding="utf-8")
    monkeypatch.setattr(read, "_CHUNK", 2)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with progress_bar("checking"):
        read.read_table(file)
    assert bool(screen.getvalue()) is looked_at


def test_whoever_watches_is_told_how_far_a_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, told = tmp_path / "north.csv", list[tuple[str, int, int]]()
    file.write_text("a,b\n" + "1,2\n" * 7, encoding="utf-8")
    monkeypatch.setattr(read, "_CHUNK", 3)
    with read.watch_reading(lambda *words: told.append(words)):
        assert read.read_table(file).records == 7
    read.read_table(file)
    assert told == [(str(file), done, 32) for done in (16, 28, 32)]
