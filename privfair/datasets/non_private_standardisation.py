"""Mean 0, variance 1 by the training records: for runs that do not protect features, and only those."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from privfair.datasets.dataset import Dataset, FloatArray, IntArray
from privfair.silos import Silo, Silos, TrainTest


def standardise_without_privacy(data: TrainTest) -> TrainTest:
    """Standardise the features that the schema left for it, with statistics of the pooled *training* records.

    Allowed where x is not protected: under attribute replacement two neighbouring data sets have the same
    x, hence the same statistics. `Dataset.derived` already lists the columns, so any other promise refuses the
    data set. A column without spread in training becomes zero.
    """
    columns = np.array(data.train[0].data.unscaled_features, dtype=np.int64)
    if columns.size == 0:
        return data
    training = np.concatenate([silo.data.features[:, columns] for silo in data.train])
    mean, spread = training.mean(axis=0), training.std(axis=0)
    scale = np.where(spread > 0, spread, np.inf)
    return TrainTest(*(_scaled(silos, columns, mean, scale) for silos in (data.train, data.test)))


def _scaled(silos: Silos, columns: IntArray, mean: FloatArray, scale: FloatArray) -> Silos:
    def scaled(dataset: Dataset) -> Dataset:
        features = np.array(dataset.features)
        features[:, columns] = (features[:, columns] - mean) / scale
        return replace(dataset, features=features, unscaled_features=())

    return Silos(tuple(Silo(silo.name, scaled(silo.data)) for silo in silos))
