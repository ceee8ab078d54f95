"""What the benchmark loaders share: columns that are plain or one-hot in the file, and the choice of scaling."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from calibrate.errors import InvalidInput
from privfair.datasets.raw_table import RawTable, one_hot_names
from privfair.datasets.scaling import NonPrivateStandardisation, Scaling
from privfair.datasets.schema import NumericColumn


class BenchmarkScaling(Enum):
    """Which constants a benchmark's numeric columns are scaled with.

    `PUBLIC` uses the constants written in the loader. `NON_PRIVATE_STANDARDISATION` is what the papers do: mean and
    variance of the training records, which only runs that leave features unprotected accept.
    `PUBLIC_WITH_STEPS` adds indicators of round values of some columns, where a loader knows any (Adult).
    """

    PUBLIC = "public"
    PUBLIC_WITH_STEPS = "public-with-steps"
    NON_PRIVATE_STANDARDISATION = "non-private-standardisation"


def numeric_columns(
    public: Mapping[str, Scaling],
    scaling: BenchmarkScaling,
    steps: Mapping[str, tuple[float, ...]] = MappingProxyType({}),
) -> tuple[NumericColumn, ...]:
    match scaling:
        case BenchmarkScaling.PUBLIC:
            return tuple(NumericColumn(name, way) for name, way in public.items())
        case BenchmarkScaling.PUBLIC_WITH_STEPS:
            if not steps:
                raise InvalidInput(
                    "scaling", scaling.value, "is offered for adult alone", 'write scaling = "public"'
                )
            return tuple(NumericColumn(name, way, steps.get(name, ())) for name, way in public.items())
        case BenchmarkScaling.NON_PRIVATE_STANDARDISATION:
            return tuple(NumericColumn(name, NonPrivateStandardisation()) for name in public)
        case _:
            assert_never(scaling)


def plain_or_one_hot(table: RawTable, name: str, values: tuple[str, ...]) -> NDArray[np.str_]:
    """A column of names, whether the file stores it as such or as indicators `name_value`."""
    if name in table.columns:
        return table.names(name)
    return one_hot_names(table, name + "_", values)
