"""What the benchmark loaders share: columns that are plain or one-hot in the file, and the choice of scaling."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from privfair.datasets.raw_table import RawTable, one_hot_names
from privfair.datasets.scaling import NonPrivateStandardisation, Scaling
from privfair.datasets.schema import NumericColumn


class BenchmarkScaling(Enum):
    """Which constants a benchmark's numeric columns are scaled with.

    `PUBLIC` uses the constants written in the loader. `NON_PRIVATE_STANDARDISATION` is what the papers do: mean and
    variance of the training records, which only runs that leave features unprotected accept.
    """

    PUBLIC = "public"
    NON_PRIVATE_STANDARDISATION = "non-private-standardisation"


def numeric_columns(public: Mapping[str, Scaling], scaling: BenchmarkScaling) -> tuple[NumericColumn, ...]:
    if scaling is BenchmarkScaling.PUBLIC:
        return tuple(NumericColumn(name, way) for name, way in public.items())
    return tuple(NumericColumn(name, NonPrivateStandardisation()) for name in public)


def plain_or_one_hot(table: RawTable, name: str, values: tuple[str, ...]) -> NDArray[np.str_]:
    """A column of names, whether the file stores it as such or as indicators `name_value`."""
    if name in table.columns:
        return table.names(name)
    return one_hot_names(table, name + "_", values)
