"""Adult (census income, 1994): 45,222 complete records, 102 features, attribute sex.

Encoding: the 6 numeric columns and one indicator for each value of the 7 categorical columns other than sex
(7 + 16 + 7 + 14 + 6 + 5 + 41 = 96), records with a missing cell left out. This is the 102 of the papers.
`public-with-steps` adds 44 indicators: four numeric columns at eleven round values each.
Some features (relationship = Husband) all but name the sex of a record: attribute privacy protects what the
transcript adds to x and y, not what x tells by itself.

Source: UCI Machine Learning Repository, "Adult", CC BY 4.0.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrate.errors import InvalidInput
from privfair.data.benchmark_files import data_file, numeric_columns, plain_or_one_hot
from privfair.data.dataset import Dataset
from privfair.data.encode import encode, resolve
from privfair.data.read import RawTable, parse_csv, read_table
from privfair.data.scaling import PublicMeanScale, Scaling, Transform
from privfair.data.schema import CodedColumn, Schema
from privfair.data.stability import COMPLETE_ROWS
from privfair.plan.data_choices import BenchmarkScaling

RECORDS = 45_222
CLASSES = ("<=50K", ">50K")
GROUPS = ("Female", "Male")

_RAW_HEADER = tuple(
    "age|workclass|fnlwgt|education|education-num|marital-status|occupation|relationship|race|sex|"  # noqa: SIM905
    "capital-gain|capital-loss|hours-per-week|native-country|salary".split("|")
)

_SCALING: dict[str, Scaling] = {
    # Round figures a reader can choose without the file: adults' ages, the codebook's 16 grades of education, a
    # working week, dollars in thousands. Gains stay linear: a log hides what a large gain tells about income.
    "age": PublicMeanScale(40, 15),
    "fnlwgt": PublicMeanScale(12, 0.75, Transform.SIGNED_LOG),
    "education-num": PublicMeanScale(10, 3),
    "capital-gain": PublicMeanScale(0, 10_000),
    "capital-loss": PublicMeanScale(0, 1_000),
    "hours-per-week": PublicMeanScale(40, 12),
}

_STEPS: dict[str, tuple[float, ...]] = {
    # Every five years, every five hours, round sums of dollars: incomes jump where a straight line can't follow.
    "age": tuple(range(20, 75, 5)),
    "hours-per-week": tuple(range(10, 65, 5)),
    "capital-gain": tuple(1_000 * k for k in (1, 2, 3, 4, 5, 6, 7, 8, 10, 15, 20)),
    "capital-loss": (500, 1_000, 1_250, 1_500, 1_600, 1_700, 1_800, 1_900, 2_000, 2_250, 2_500),
}

_CATEGORIES = {
    "workclass": "Federal-gov|Local-gov|Private|Self-emp-inc|Self-emp-not-inc|State-gov|Without-pay",
    "education": "10th|11th|12th|1st-4th|5th-6th|7th-8th|9th|Assoc-acdm|Assoc-voc|Bachelors|Doctorate|HS-grad|"
    "Masters|Preschool|Prof-school|Some-college",
    "marital-status": "Divorced|Married-AF-spouse|Married-civ-spouse|Married-spouse-absent|Never-married|"
    "Separated|Widowed",
    "occupation": "Adm-clerical|Armed-Forces|Craft-repair|Exec-managerial|Farming-fishing|Handlers-cleaners|"
    "Machine-op-inspct|Other-service|Priv-house-serv|Prof-specialty|Protective-serv|Sales|Tech-support|"
    "Transport-moving",
    "relationship": "Husband|Not-in-family|Other-relative|Own-child|Unmarried|Wife",
    "race": "Amer-Indian-Eskimo|Asian-Pac-Islander|Black|Other|White",
    "native-country": "Cambodia|Canada|China|Columbia|Cuba|Dominican-Republic|Ecuador|El-Salvador|England|France|"
    "Germany|Greece|Guatemala|Haiti|Holand-Netherlands|Honduras|Hong|Hungary|India|Iran|Ireland|Italy|Jamaica|"
    "Japan|Laos|Mexico|Nicaragua|Outlying-US(Guam-USVI-etc)|Peru|Philippines|Poland|Portugal|Puerto-Rico|"
    "Scotland|South|Taiwan|Thailand|Trinadad&Tobago|United-States|Vietnam|Yugoslavia",
}


def schema(scaling: BenchmarkScaling = BenchmarkScaling.PUBLIC) -> Schema:
    """The meaning of Adult's columns; all lists are those of the published codebook."""
    return Schema(
        target=CodedColumn("salary", CLASSES),
        sensitive=CodedColumn("sex", GROUPS),
        numeric=numeric_columns(_SCALING, scaling, _STEPS),
        categorical=tuple(CodedColumn(name, tuple(values.split("|"))) for name, values in _CATEGORIES.items()),
        side_columns=("age",),
    )


def load_adult(path: Path | None = None, scaling: BenchmarkScaling = BenchmarkScaling.PUBLIC) -> Dataset:
    """Load Adult from a CSV, from UCI's folder with `adult.data` and `adult.test`, or from the data package."""
    folder = path is not None and Path(path).is_dir()
    if folder:
        table = _uci_folder(Path(str(path)))
    else:
        table = _decode(read_table(data_file("adult", "adult.csv.zip", path)))
    resolved, derived = resolve(schema(scaling), [table])
    return replace(encode(table, resolved, derived), steps=(COMPLETE_ROWS,) if folder else ())


def _decode(table: RawTable) -> RawTable:
    columns: dict[str, NDArray[np.generic]] = {name: table.numbers(name) for name in _SCALING}
    coded = _CATEGORIES | {"sex": "|".join(GROUPS), "salary": "|".join(CLASSES)}
    for name, values in coded.items():
        columns[name] = plain_or_one_hot(table, name, tuple(values.split("|")))
    return RawTable(table.file, columns, table.lines)


def _uci_folder(folder: Path) -> RawTable:
    parts = []
    for filename in ("adult.data", "adult.test"):
        path = folder / filename
        if not path.is_file():
            raise InvalidInput(
                "path of adult", str(folder), f"does not hold {filename}", "give UCI's folder or a CSV file"
            )
        # The test file starts with a comment line, and its labels end with a full stop.
        content = b"\n".join(line for line in path.read_bytes().splitlines() if not line.startswith(b"|"))
        parts.append(parse_csv(content, str(path), header=_RAW_HEADER))
    columns = {name: np.concatenate([part.names(name) for part in parts]) for name in _RAW_HEADER}
    columns["salary"] = np.char.rstrip(columns["salary"], ".")
    complete = np.all([column != "?" for column in columns.values()], axis=0)
    table = RawTable(str(folder), columns, np.concatenate([part.lines for part in parts]))
    return _decode(table.rows(np.flatnonzero(complete)))
