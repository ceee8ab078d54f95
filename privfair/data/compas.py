"""COMPAS (Broward County, two-year recidivism): 6,167 records, 12 features, attribute race.

The file of the data package knows two values of race, Caucasian or not. The MMD paper's 5,278 records
(African-American and Caucasian defendants) cannot be picked out of it; who has ProPublica's own file loads it
as a file of their own. The score of the COMPAS tool and the 389 charge descriptions are left out: the first is a
verdict to be examined and no fact about the person, the second are mostly single records.

Source: ProPublica, "COMPAS Recidivism Risk Score Data and Analysis".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privfair.data.benchmark_files import data_file, numeric_columns
from privfair.data.dataset import Dataset
from privfair.data.encode import encode, resolve
from privfair.data.read import BadData, RawTable, one_hot_names, read_table
from privfair.data.scaling import PublicMeanScale, Scaling, Transform
from privfair.data.schema import CodedColumn, Schema
from privfair.plan.data_choices import BenchmarkScaling

RECORDS = 6_167
CLASSES = ("no-recidivism", "recidivism")
GROUPS = ("not-Caucasian", "Caucasian")
AGE_GROUPS = ("Less than 25", "25 - 45", "Greater than 45")

_SCALING: dict[str, Scaling] = {
    "age-num": PublicMeanScale(40, 15),
    # Counts of earlier offences: most are 0, few exceed 10.
    "juv-fel-count": PublicMeanScale(0, 0.5, Transform.SIGNED_LOG),
    "juv-misd-count": PublicMeanScale(0, 0.5, Transform.SIGNED_LOG),
    "juv-other-count": PublicMeanScale(0, 0.5, Transform.SIGNED_LOG),
    "priors-count": PublicMeanScale(1, 1, Transform.SIGNED_LOG),
}


def schema(scaling: BenchmarkScaling = BenchmarkScaling.PUBLIC) -> Schema:
    """What the columns of COMPAS mean."""
    return Schema(
        target=CodedColumn("two-year-recid", CLASSES),
        sensitive=CodedColumn("race", GROUPS),
        numeric=numeric_columns(_SCALING, scaling),
        categorical=(
            CodedColumn("sex", ("female", "male")),
            CodedColumn("age-cat", AGE_GROUPS),
            CodedColumn("c-charge-degree", ("F", "M")),
        ),
        side_columns=("age-num", "age-cat"),
    )


def load_compas(path: Path | None = None, scaling: BenchmarkScaling = BenchmarkScaling.PUBLIC) -> Dataset:
    """Load COMPAS; cut it `ByColumn("age-cat")` for the three clients of the MMD paper."""
    raw = read_table(data_file("compas", "compas-recidivism.csv", path))
    columns: dict[str, NDArray[np.generic]] = {name: raw.numbers(name) for name in _SCALING}
    columns["age-cat"] = one_hot_names(raw, "age-cat_", AGE_GROUPS)
    columns["c-charge-degree"] = one_hot_names(raw, "c-charge-degree_", ("F", "M"))
    for name, names in (("sex", ("female", "male")), ("race", GROUPS), ("two-year-recid", CLASSES)):
        columns[name] = _binary(raw, name, names)
    table = RawTable(raw.file, columns, raw.lines)
    resolved, derived = resolve(schema(scaling), [table])
    return encode(table, resolved, derived)


def _binary(table: RawTable, name: str, names: tuple[str, str]) -> NDArray[np.str_]:
    values = table.numbers(name)
    if not np.isin(values, (0, 1)).all():
        raise BadData(table.file, "must hold 0 and 1 only", "take the published file", column=name)
    return np.array(names)[values.astype(np.int64)]
