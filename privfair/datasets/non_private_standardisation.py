"""Mean 0, variance 1 by the training records: for runs that do not protect features, and only those."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from calibrate.arrays import AnyFloats
from privfair.datasets.binding import Json
from privfair.silos import Silo, Silos, TrainTest


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
                Silo(
                    silo.name,
                    replace(silo.data, features=self.apply(silo.data.features), unscaled_features=()),
                )
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
        columns,
        tuple(float(m) for m in pooled.mean(axis=0)),
        tuple(float(s) if s > 0 else 1.0 for s in spread),
    )


def standardise_without_privacy(data: TrainTest) -> TrainTest:
    """Standardise training and test records with statistics of the training records.

    Allowed where x is not protected: under attribute replacement two neighbouring data sets have the same
    x, hence the same statistics. `Dataset.derived` already lists the columns, so any other promise refuses the
    data set.
    """
    if not data.train[0].data.unscaled_features:
        return data
    fitted = fit_standardisation(data.train)
    return TrainTest(fitted.apply_to_silos(data.train), fitted.apply_to_silos(data.test))
