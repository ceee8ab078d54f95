"""How a row is read depends on its own cells alone: no cell of another row changes how it is spelled, cut or split.

Readers that look at a whole column (is it numbers? has it gaps? is the file plain?) before they decide how to read each
cell let one added row change all the others, and a promise about one record would be a promise about all of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from calibrate.errors import InvalidInput, PrivfairError, UnsupportedCombination
from calibrate.privacy_unit import PrivacyUnit
from privfair.data import read
from privfair.data.attributes import AttributeFiles
from privfair.data.read import BadData, from_arrow, parse_csv
from privfair.data.stability import RECORD_ADDED, RECORD_REPLACED, USER_ADDED
from privfair.data.training_data import TrainingData, load_training_data
from privfair.plan.training import read_training_plan

SCHEMA = """version = 1
[target]
column = "ill"
classes = ["no", "yes"]
[numeric.age]
bounds = [0, 100]
[file]
keep = ["who", "score"]
[silos]
each_holds = "anything"
"""
PLAN = """algorithm = "gaussian"
[target]
epsilon = 8.0
delta = 1e-3
[privacy]
sampling-rate = 0.5
rounds = 2
[data]
files = ["all.{suffix}"]
schema = "schema.toml"
at-least = 1
{data}
[training]
seed = 0
"""
SIZE = 120
AGES = [int(age) for age in np.random.default_rng(0).integers(0, 100, SIZE)]


def _load(folder: Path, data: str, unit: PrivacyUnit, suffix: str = "parquet") -> TrainingData:
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "plan.toml").write_text(PLAN.format(suffix=suffix, data=data))
    loaded = load_training_data(read_training_plan(folder / "plan.toml").data, unit=unit)
    loaded.require_allowed(unit)
    return loaded


def _records(data: TrainingData) -> dict[str, Counter[bytes]]:
    return {
        silo.name: Counter(x.tobytes() + bytes([y]) for x, y in zip(silo.data.features, silo.data.label, strict=True))
        for silo in data.parties
    }


def _columns(who: list[Any], kind: pa.DataType) -> dict[str, Any]:
    ages = [*AGES, 50][: len(who)]
    ill = ["yes" if place % 2 else "no" for place in range(len(who))]
    return {"age": ages, "ill": ill, "who": pa.array(who, type=kind), "score": [float(age) for age in ages]}


BY_ID = 'id-column = "who"'
BY_USER = '[data.users]\nkind = "column"\ncolumn = "who"'


@pytest.mark.parametrize(("data", "unit"), [(BY_ID, RECORD_ADDED), (BY_USER, USER_ADDED)], ids=["id", "user"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.bool_(), pa.string(), pa.float64()], ids=str)
def test_one_row_without_an_id_does_not_spell_the_others_anew(
    data: str, unit: PrivacyUnit, kind: pa.DataType, tmp_path: Path
) -> None:
    """Whole numbers with a gap became decimals: 7 was hashed as 7.0, and every other record was dealt again."""
    spell: dict[pa.DataType, Callable[[int], object]] = {pa.bool_(): lambda n: n % 2 == 0, pa.string(): "w{}".format}
    who = [spell.get(kind, kind.to_pandas_dtype())(number) for number in range(SIZE)]
    parquet.write_table(pa.table(_columns(who, kind)), tmp_path / "all.parquet")
    if kind == pa.float64():
        with pytest.raises(InvalidInput, match="holds decimal numbers"):
            _load(tmp_path, data, unit)
        return
    before = _load(tmp_path, data, unit) if kind != pa.bool_() else None
    parquet.write_table(pa.table(_columns([*who, None], kind)), tmp_path / "all.parquet")
    with pytest.raises(InvalidInput, match="has records without a value"):
        _load(tmp_path, data, unit)
    if before is not None:
        parquet.write_table(pa.table(_columns([*who, who[3]], kind)), tmp_path / "all.parquet")
        after = _load(tmp_path, data, unit)
        for party, records in _records(before).items():
            assert not records - _records(after)[party], "everybody stays"


@pytest.mark.parametrize("cell", ["x", "", "1e999"])
def test_a_word_in_one_row_does_not_move_the_others_to_other_silos(cell: str, tmp_path: Path) -> None:
    """A column with one word was cut by its alphabet: "9" came after "50", and every fourth record changed silos."""
    data = '[data.partition]\nkind = "heterogeneous"\nsilos = 2\nh = 1.0\ncolumn = "score"\ncuts = [50]'
    rows = [f"{age},{'yes' if place % 2 else 'no'},w{place},{age}" for place, age in enumerate(AGES)]
    for more in ([], [f"50,no,new,{cell}"]):
        (tmp_path / "all.csv").write_text("\n".join(["age,ill,who,score", *rows, *more]) + "\n")
        if more:
            with pytest.raises(InvalidInput, match="has a cell that is not a finite number"):
                _load(tmp_path, data, RECORD_ADDED, "csv")
        else:
            high = _load(tmp_path, data, RECORD_ADDED, "csv").parties[1].data
            assert (high.side_column("score").astype(float) >= 50).all()


def test_typed_columns_are_spelled_alike_with_gaps_and_without() -> None:
    codes = pa.dictionary(pa.int8(), pa.int64())
    for cells, kind in (([7, 2**60], pa.int64()), ([True, False], pa.bool_()), ([7, 8], codes)):
        whole, gap = (from_arrow(pa.table({"c": pa.array(own, type=kind)}), "f") for own in (cells, [*cells, None]))
        assert whole.names("c").tolist() == gap.names("c").tolist()[:2]
        assert gap.missing("c").tolist() == [False, False, True]
        assert ("c" in whole.typed_numbers) == ("c" in gap.typed_numbers) == (kind != pa.bool_())
        if kind != pa.bool_():
            np.testing.assert_array_equal(whole.numbers("c"), gap.numbers("c", 0.0)[:2])


def test_a_large_number_beside_a_gap_is_not_quoted_by_the_reader_of_parquet_files() -> None:
    """Arrow refuses to make it a decimal, and its own words quote the cell."""
    secret = 1152921504606846977
    table = from_arrow(pa.table({"c": pa.array([secret, None])}), "f")
    with pytest.raises(BadData, match="has no value") as refused:
        table.numbers("c")
    assert str(secret) not in str(refused.value)


def test_decimal_commas_stay_decimal_commas_where_attributes_are_joined() -> None:
    held = AttributeFiles("who", "sex", {"a": ("f", "registry")}, ("registry.csv",))
    table = read.replace(parse_csv(b"who;score\na;1,5\n", "f", ";"), decimal=",")
    assert held.join(table).numbers("score").tolist() == [1.5]


# The two readers of CSV files: a mark anywhere in a large file decides which of them reads it.

CELLS = (
    "1|2.5|-0|+1|1e5|1E400|nan|inf|Infinity|-nan|0x10|1_000|１|٣|1,5|a|#|#x|'|\\|NA|NULL|1.|.|.5|5e-324|1d5|true|None|-"
    "|9007199254740993|0.1000000000000000055511151231257827021181583404541015625|1-|1e|0001|-0.0|nan(1)|é||b "
    "|\t|\t3|3\t|\ufeff1|\u2028|\x0b|5\x0c|\x1c|\x85|\xa07|7\xa0|\x01"
)


def _content(generator: random.Random) -> tuple[bytes, str]:
    newline, delimiter = generator.choice(["\n", "\r\n", "\n", "\r"]), generator.choice([",", ";", "\t", "|"])
    width = generator.randint(1, 4)
    lines = [delimiter.join(f"{generator.choice(['a', 'é', 'x ', '#h'])}{place}" for place in range(width))]
    for _ in range(generator.randint(0, 5)):
        cells = width if generator.random() < 0.97 else generator.randint(1, 5)
        lines.append(delimiter.join(generator.choice(CELLS.split("|")) for _ in range(cells)))
    if generator.random() < 0.1:
        lines.insert(generator.randint(0, len(lines)), generator.choice(["", " ", "\t", '"x"', "\0"]))
    content = (newline.join(lines) + generator.choice(["", newline, newline, newline * 2, "\x1a"])).encode()
    content = b"\xef\xbb\xbf" * (generator.random() < 0.1) + content
    return (content[: len(content) // 2] + b"\xff" if generator.random() < 0.03 else content), delimiter


def _seen(content: bytes, delimiter: str) -> list[object]:
    def tried(question: Any) -> object:
        try:
            return question()
        except PrivfairError as refused:
            return str(refused)

    table = tried(lambda: parse_csv(content, "f", delimiter))
    if not isinstance(table, read.RawTable):
        return [table]
    seen: list[object] = [list(table.columns), table.lines.tolist()]
    for name in table.columns:
        seen += [table.columns[name].tolist(), table.names(name).tolist(), table.missing(name).tolist()]
        seen += [tried(lambda name=name, fill=fill: table.numbers(name, fill).tobytes()) for fill in (None, 0.0)]
    return seen


def test_both_readers_of_csv_files_see_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one row with a quote, which sends a large file to the other reader, would change what all rows say."""
    generator, plain, taken = random.Random(0), read._parse_plain, []
    monkeypatch.setattr(read, "_parse_plain", lambda *given: taken.append(plain(*given)) or taken[-1])
    for _ in range(1500):
        content, delimiter = _content(generator)
        found = []
        for size in (0, 10**9):
            monkeypatch.setattr(read, "LARGE", size)
            found.append(_seen(content, delimiter))
        assert found[0] == found[1], content
    assert sum(table is not None for table in taken) > 300, "Arrow read many of them, or nothing was compared"


def test_exact_sizes_of_clients_are_not_handed_to_an_algorithm_where_records_are_added_or_removed(
    tmp_path: Path,
) -> None:
    parquet.write_table(pa.table(_columns([f"w{n}" for n in range(SIZE)], pa.string())), tmp_path / "all.parquet")
    _load(tmp_path, "", RECORD_ADDED)
    plan = read_training_plan(tmp_path / "plan.toml").data
    load_training_data(plan, central=True, unit=RECORD_REPLACED).require_allowed(RECORD_REPLACED)
    with pytest.raises(UnsupportedCombination, match="exact number of records"):
        load_training_data(plan, central=True, unit=RECORD_ADDED).require_allowed(RECORD_ADDED)
