"""Communities and Crime (US, 1990s): 1,993 communities, 98 features, silos by state.

The class says whether the violent-crime rate exceeds the average of the file; the group whether the share of
Black residents exceeds its median. All columns are already scaled to [0, 1] by the publishers. The data package has
one community fewer than UCI's 1,994.

The attribute is a threshold of the column `racepctblack`, which is one of the 99 numeric columns (the number of
features in the MMD paper). A model that sees it sees the attribute, so by default it is left out (98 features).

Source: UCI Machine Learning Repository, "Communities and Crime", CC BY 4.0.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privfair.data.benchmark_files import data_file
from privfair.data.dataset import Dataset
from privfair.data.encode import encode, resolve
from privfair.data.facts import DerivedFact, FactKind
from privfair.data.read import BadData, RawTable, one_hot_names, read_table
from privfair.data.scaling import PublicBounds
from privfair.data.schema import CodedColumn, NumericColumn, Schema

RECORDS = 1_993
CLASSES = ("low-crime", "high-crime")
GROUPS = ("at-most-median", "above-median")
SMALLEST_STATE = 4
"""The MMD paper removes states with fewer communities than this: `ByColumn("state", least=SMALLEST_STATE)`."""

CRIME_ABOVE = 0.238
"""The mean of ViolentCrimesPerPop in the published file, which its documentation rounds to 0.24."""
SHARE_ABOVE = 0.06
"""The median of racepctblack in the documentation of the file."""

_SOURCE = "racepctblack"
_NOT_FEATURES = (
    "communityname",
    "fold",
    "ViolentCrimesPerPop",
    ">0.06black",
    "high_crime",
    "state",
    "county",
    "community",
)
_FEATURES = 99


class AttributeSource(Enum):
    """Whether the column from which the attribute was made stays among the features."""

    LEFT_OUT = "left-out"
    KEPT = "kept"


def load_communities_crime(
    path: Path | None = None, attribute_source: AttributeSource = AttributeSource.LEFT_OUT
) -> Dataset:
    """Load Communities and Crime; `state` is kept beside the features for the partition."""
    raw = read_table(data_file("communities-crime", "crime.csv", path))
    features = [name for name in raw.columns if name not in _NOT_FEATURES and not name.startswith("state_")]
    if len(features) != _FEATURES or _SOURCE not in features:
        raise BadData(raw.file, f"must hold {_FEATURES} features, not {len(features)}", "take the published file")
    derived: tuple[DerivedFact, ...] = ()
    if attribute_source is AttributeSource.KEPT:
        derived = (DerivedFact(FactKind.ATTRIBUTE_IN_FEATURES, _SOURCE),)
    else:
        features.remove(_SOURCE)
    columns: dict[str, NDArray[np.generic]] = {name: raw.numbers(name) for name in features}
    columns["crime"] = np.array(CLASSES)[(raw.numbers("ViolentCrimesPerPop") > CRIME_ABOVE).astype(np.int64)]
    columns["share"] = np.array(GROUPS)[(raw.numbers(_SOURCE) > SHARE_ABOVE).astype(np.int64)]
    columns["state"] = _state(raw)
    table = RawTable(raw.file, columns, raw.lines)
    schema, read_off = resolve(_schema(features), [table])
    return encode(table, schema, read_off + derived)


def _schema(features: list[str]) -> Schema:
    return Schema(
        target=CodedColumn("crime", CLASSES),
        sensitive=CodedColumn("share", GROUPS),
        numeric=tuple(NumericColumn(name, PublicBounds(0, 1)) for name in features),
        side_columns=("state",),
    )


def _state(table: RawTable) -> NDArray[np.int64]:
    codes = tuple(name.removeprefix("state_") for name in table.columns if name.startswith("state_"))
    if not codes:
        return table.numbers("state").astype(np.int64)
    return one_hot_names(table, "state_", codes).astype(np.int64)
