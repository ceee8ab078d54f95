"""A data set, a model and an attack: what else a package can bring."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from audit.models.shadow_models import Signals
from calibrate.arrays import Floats
from privfair.data.dataset import Dataset
from privfair.data.stability import digest


def two_clouds(path: Path | None) -> Dataset:
    """600 made-up records in two clouds; the group is a coin that shifts one feature. Nothing in it is private."""
    random = np.random.default_rng(0)
    label, group = random.integers(2, size=600), random.integers(2, size=600)
    features = random.normal(size=(600, 3)) + np.stack([2 * label - 1, group, np.zeros(600)], axis=1)
    return Dataset(
        features=features,
        label=label,
        group=group,
        feature_names=("x", "y", "z"),
        class_names=("left", "right"),
        group_names=("heads", "tails"),
        schema_digest=digest({"dataset": "two-clouds"}),
    )


def tiny_net(feature_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(feature_shape)), 4), nn.Tanh(), nn.Linear(4, classes))


@dataclass(frozen=True)
class Firmer:
    """How much firmer the target is about a record than the mean of the shadow models that did not see it."""

    least_models: int = 2

    def scores(self, signals: Signals) -> Floats:
        unseen = ~signals.included
        mean = (signals.shadow * unseen).sum(axis=0) / np.maximum(unseen.sum(axis=0), 1)
        return np.asarray(signals.target - mean)


FIRMER = Firmer()
