"""Default of credit card clients (Taiwan, 2005): 30,000 records, 85 features, attribute sex.

Encoding: limit, age, 6 bills and 6 payments as numbers (14); education with its undocumented codes 0, 5, 6
counted as 4 "other" (4); marriage with code 0 counted as 3 "other" (3); the six repayment codes one-hot
(4 x 11 + 2 x 10 = 64, because code 1 does not occur in the two earliest months). This is the 85 of the papers.

Source: UCI Machine Learning Repository, "Default of Credit Card Clients", CC BY 4.0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privfair.data.benchmark_files import data_file, numeric_columns, plain_or_one_hot
from privfair.data.dataset import Dataset
from privfair.data.encode import encode, resolve
from privfair.data.read import BadData, RawTable, read_table
from privfair.data.scaling import PublicMeanScale, Scaling, Transform
from privfair.data.schema import CodedColumn, Schema
from privfair.plan.data_choices import BenchmarkScaling

RECORDS = 30_000
CLASSES = ("pays", "defaults")
GROUPS = ("male", "female")

_LOG = Transform.SIGNED_LOG
_SCALING: dict[str, Scaling] = {
    # Credit lines of some 10^4 to 10^6 New Taiwan dollars, bills below them, adults' ages: round public figures.
    "LIMIT_BAL": PublicMeanScale(12, 1, _LOG),
    "AGE": PublicMeanScale(40, 15),
    **{f"BILL_AMT{month}": PublicMeanScale(50_000, 75_000) for month in range(1, 7)},
    **{f"PAY_AMT{month}": PublicMeanScale(7, 3, _LOG) for month in range(1, 7)},
}

_ALL_CODES = ("-2", "-1", "0", "1", "2", "3", "4", "5", "6", "7", "8")
_EARLY_CODES = tuple(code for code in _ALL_CODES if code != "1")
_REPAYMENT = {f"PAY_{month}": _ALL_CODES for month in (0, 2, 3, 4)} | {f"PAY_{month}": _EARLY_CODES for month in (5, 6)}
_TARGETS = ("default-payment-next-month", "default.payment.next.month", "default payment next month")


def schema(scaling: BenchmarkScaling = BenchmarkScaling.PUBLIC) -> Schema:
    """The meaning of the columns, with the merges that give the papers' 85 features."""
    return Schema(
        target=CodedColumn("default", CLASSES),
        sensitive=CodedColumn("SEX", GROUPS),
        numeric=numeric_columns(_SCALING, scaling),
        categorical=(
            CodedColumn("EDUCATION", ("1", "2", "3", "4"), (("0", "4"), ("5", "4"), ("6", "4"))),
            CodedColumn("MARRIAGE", ("1", "2", "3"), (("0", "3"),)),
            *(CodedColumn(name, codes) for name, codes in _REPAYMENT.items()),
        ),
        side_columns=("AGE",),
    )


def load_credit_card(path: Path | None = None, scaling: BenchmarkScaling = BenchmarkScaling.PUBLIC) -> Dataset:
    """Load Credit Card from a CSV with the published columns, or from the data package."""
    table = _decode(read_table(data_file("credit-card", "UCI_Credit_Card.csv", path)))
    resolved, derived = resolve(schema(scaling), [table])
    return encode(table, resolved, derived)


def _decode(table: RawTable) -> RawTable:
    columns: dict[str, NDArray[np.generic]] = {name: table.numbers(name) for name in _SCALING}
    for name in _REPAYMENT:
        columns[name] = _whole(table, name).astype(np.str_)
    columns["EDUCATION"] = plain_or_one_hot(table, "EDUCATION", tuple("0123456"))
    columns["MARRIAGE"] = plain_or_one_hot(table, "MARRIAGE", tuple("0123"))
    columns["SEX"] = np.array(GROUPS)[_sex(table)]
    target = next((name for name in _TARGETS if name in table.columns), _TARGETS[0])
    columns["default"] = np.array(CLASSES)[_codes(table, target, (0, 1))]
    return RawTable(table.file, columns, table.lines)


def _sex(table: RawTable) -> NDArray[np.int64]:
    """The codebook has 1 = male, 2 = female; the data package, whose other codes are one-hot, stores that minus one.

    The header decides. Decided by the codes in the file, one changed record could swap everybody's group.
    """
    return _codes(table, "SEX", (1, 2) if "EDUCATION" in table.columns else (0, 1))


def _codes(table: RawTable, name: str, codes: tuple[int, int]) -> NDArray[np.int64]:
    values = _whole(table, name)
    if set(np.unique(values)) != set(codes):
        rule = f"must hold the codes {codes[0]} and {codes[1]}"
        raise BadData(table.file, rule, "take the published file", column=name)
    return values - codes[0]


def _whole(table: RawTable, name: str) -> NDArray[np.int64]:
    numbers = table.numbers(name)
    whole = numbers.astype(np.int64)
    if (whole != numbers).any():
        raise BadData(table.file, "must hold whole numbers", "take the published file", column=name)
    return whole
