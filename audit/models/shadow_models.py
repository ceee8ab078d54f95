"""What attacks see of a model and of its shadow models: signals, and the training of shadow models in groups.

The signal of a record is phi = log p_y - log sum over j != y of p_j, which is nearly normal over retrained models
(Carlini et al. 2022). Signals of all models are one table (models x records); the models themselves are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from audit.executors import finished
from calibrate.arrays import Booleans, Floats, Integers
from calibrate.errors import InvalidInput, count

# Which records each shadow model is trained on.


def random_halves(models: int, records: int, seed: int) -> Booleans:
    """Each record in exactly half of the models (of an odd number: half, rounded either way at random).

    Drawn without any look at who is a member of the target's training data.
    """
    count("shadow models", models, least=2)
    count("records", records, least=2)
    random = np.random.default_rng((seed, 0x5AD0))
    # Each column is a random order of the models; the first half of them gets the record.
    places = random.random((models, records)).argsort(axis=0)
    half = models // 2 + (random.integers(0, 2, records) if models % 2 else np.zeros(records, dtype=np.int64))
    included = places < half
    if not (included.any(axis=1) & ~included.all(axis=1)).all():
        raise InvalidInput("records", records, "are too few: a shadow model would get none or all", "give more records")
    return np.asarray(included)


# What shadow training needs: records as arrays, and a recipe that trains a group of models on parts of them.


@dataclass(frozen=True, eq=False)
class ShadowRecords:
    """Features (records, features), class numbers, and how many classes there are."""

    features: NDArray[np.floating]
    labels: Integers
    classes: int

    def __post_init__(self) -> None:
        count("classes", self.classes, least=2)
        if self.features.ndim != 2 or self.labels.shape != self.features.shape[:1] or not len(self.labels):
            raise InvalidInput(
                "records",
                (self.features.shape, self.labels.shape),
                "must be (records, features) with one label per record",
                "give a row for each record",
            )
        if not np.isfinite(self.features).all():
            raise InvalidInput("features", "NaN or infinite", "must be finite", "drop or fix such records")
        if self.labels.dtype.kind not in "iu" or not 0 <= self.labels.min() <= self.labels.max() < self.classes:
            raise InvalidInput("labels", "other values", f"must be 0 .. {self.classes - 1}", "number the classes")

    def __len__(self) -> int:
        return len(self.labels)


class ShadowRecipe(Protocol):
    """How models like the target are trained. Must be a plain value, so that it can be sent to another process."""

    @property
    def kind(self) -> str:
        """In one word."""
        ...

    @property
    def training(self) -> str:
        """In a phrase: how they are trained."""
        ...

    def signals(self, records: ShadowRecords, included: Booleans, seeds: tuple[int, ...]) -> Floats:
        """Train one model for each row of `included` on its records; phi of all of them, (models, records).

        A model depends on its own row and its own seed, never on the company it is trained in (up to rounding).
        """
        ...


# In which order each model of a stack meets its own records.


@final
class OwnOrders:
    """Each model's own records in a fresh random order every epoch, as a table padded with weight 0."""

    def __init__(self, included: Booleans, seeds: tuple[int, ...]) -> None:
        self._own = [np.flatnonzero(row) for row in included]
        self._random = [np.random.default_rng((seed, 1)) for seed in seeds]
        longest = max(len(own) for own in self._own)
        self._rows = np.zeros((len(seeds), longest), dtype=np.int64)
        self._weights = np.zeros((len(seeds), longest), dtype=np.float32)
        for weights, own in zip(self._weights, self._own, strict=True):
            weights[: len(own)] = 1.0

    def shuffle(self) -> tuple[Integers, NDArray[np.float32]]:
        for rows, own, random in zip(self._rows, self._own, self._random, strict=True):
            rows[: len(own)] = random.permutation(own)
        return self._rows, self._weights


Progress = Callable[[int, int], None]

GROUP = 16
"""Models trained together: enough to fill a matrix product, few enough to report progress and fill several cores."""


def train_shadow_models(
    recipe: ShadowRecipe,
    records: ShadowRecords,
    included: Booleans,
    seed: int,
    executor: Executor | None = None,
    progress: Progress | None = None,
    group: int = GROUP,
) -> Floats:
    """phi of every record under every shadow model, (models, records).

    With an executor (threads or processes) groups run side by side; without one they run here, one after another.
    The answer is the same either way. An interrupt cancels the groups that have not begun and is passed on; nothing
    is left behind.
    """
    if included.ndim != 2 or included.shape[1] != len(records) or included.dtype != np.bool_:
        raise InvalidInput(
            "included", included.shape, f"must be (models, {len(records)}) of true and false", "draw masks"
        )
    models = len(included)
    count("group", group)
    parts = [slice(start, min(start + group, models)) for start in range(0, models, group)]
    seeds = tuple(int(one) for one in np.random.SeedSequence((seed, 0x5EED)).generate_state(models))
    found = np.empty(included.shape)
    done = 0
    train = partial(_train_part, recipe, records, included, seeds)
    for part, signals in finished(executor, train, parts):
        if signals.shape != found[part].shape or not np.isfinite(signals).all():
            raise InvalidInput(
                "shadow models",
                recipe.kind,
                "gave signals that are not finite numbers, one per record",
                "train with a smaller learning rate, or scale the features",
            )
        found[part] = signals
        done += len(signals)
        if progress is not None:
            progress(done, models)
    return found


def _train_part(
    recipe: ShadowRecipe, records: ShadowRecords, included: Booleans, seeds: tuple[int, ...], part: slice
) -> Floats:
    return recipe.signals(records, included[part], seeds[part])


# What attacks see of a model: for each record, how firmly it believes the record's own label.

LEAST_PROBABILITY = 1e-7
"""Below this a probability in single precision is rounding, and exact zeros (of trees) would drown every variance."""


def phi_from_logits(logits: Floats, labels: Integers) -> Floats:
    """phi without rounding: the label's score minus the log-sum-exp of the others."""
    table, chosen = _check("logits", logits, labels)
    rows = np.arange(len(table))
    others = table.copy()
    others[rows, chosen] = -np.inf
    return np.asarray(table[rows, chosen] - logsumexp(others, axis=1))


def phi_from_probabilities(probabilities: Floats, labels: Integers) -> Floats:
    """phi from class probabilities; the others are added up rather than taken as 1 - p, which would round to 0."""
    table, chosen = _check("probabilities", probabilities, labels)
    if (table < -1e-9).any() or not np.allclose(table.sum(axis=1), 1.0, atol=1e-3):
        raise InvalidInput(
            "probabilities",
            "rows",
            "must be at least 0 and add up to 1",
            "say that the model's outputs are logits, or normalise them",
        )
    rows = np.arange(len(table))
    others = np.clip(table, 0.0, None)
    own = others[rows, chosen].copy()
    others[rows, chosen] = 0.0
    floor = LEAST_PROBABILITY
    return np.asarray(np.log(np.maximum(own, floor)) - np.log(np.maximum(others.sum(axis=1), floor)))


def log_probability(phi: Floats) -> Floats:
    """log p_y, the negative loss, from phi."""
    return np.asarray(-np.logaddexp(0.0, -phi))


@dataclass(frozen=True, eq=False)
class Signals:
    """The target's signal and the shadow models' on the same records.

    `included[k, i]`: record i was in the training data of shadow model k. Nothing here knows who is a member of the
    target's training data; that is what makes the bounds on epsilon valid.
    """

    target: Floats
    shadow: Floats
    included: Booleans

    def __post_init__(self) -> None:
        records = self.target.shape
        if self.target.ndim != 1 or not len(self.target):
            raise InvalidInput("target", records, "must be one signal per record", "give a flat array")
        if self.shadow.ndim != 2 or self.shadow.shape[1:] != records or self.included.shape != self.shadow.shape:
            raise InvalidInput(
                "shadow",
                (self.shadow.shape, self.included.shape),
                f"must both be (models, {len(self.target)})",
                "give one signal and one mark for each model and record",
            )
        if self.included.dtype != np.bool_:
            raise InvalidInput("included", self.included.dtype, "must be true or false", "compare first")
        for name, values in (("target", self.target), ("shadow", self.shadow)):
            if not np.isfinite(values).all():
                raise InvalidInput(name, "NaN or infinite", "must be finite", "drop or fix these records")

    @classmethod
    def alone(cls, target: Floats) -> Signals:
        """A target without shadow models."""
        values = np.asarray(target, dtype=np.float64)
        return cls(values, np.zeros((0, len(values))), np.zeros((0, len(values)), dtype=np.bool_))

    @property
    def models(self) -> int:
        return len(self.shadow)

    @property
    def records(self) -> int:
        return len(self.target)

    def of(self, rows: Integers) -> Signals:
        """Some of the records, in this order."""
        return Signals(self.target[rows], self.shadow[:, rows], self.included[:, rows])

    def with_target(self, model: int) -> tuple[Signals, Booleans]:
        """A shadow model in the target's place, attacked with the others; and who was in its training data."""
        rest = np.arange(self.models) != model
        return Signals(self.shadow[model], self.shadow[rest], self.included[rest]), self.included[model]


def _check(argument: str, table: Floats, labels: Integers) -> tuple[Floats, Integers]:
    values, chosen = np.asarray(table, dtype=np.float64), np.asarray(labels)
    if values.ndim != 2 or values.shape[1] < 2 or chosen.shape != values.shape[:1]:
        raise InvalidInput(
            argument,
            (values.shape, chosen.shape),
            "must be (records, classes) with one label per record",
            "give a row for each record and a column for each class",
        )
    if not np.isfinite(values).all():
        raise InvalidInput(argument, "NaN or infinite", "must be finite", "check the model's outputs")
    if chosen.dtype.kind not in "iu" or (len(chosen) and not 0 <= chosen.min() <= chosen.max() < values.shape[1]):
        raise InvalidInput(
            "labels", f"outside 0 .. {values.shape[1] - 1}", "must be class numbers", "number the classes from 0"
        )
    return values, chosen.astype(np.int64)
