"""Train shadow models in groups, here or under any executor: which records each gets, and in which order.

Their signals alone are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

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
    for part, signals in _collect(recipe, records, included, seeds, parts, executor):
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


def _collect(
    recipe: ShadowRecipe,
    records: ShadowRecords,
    included: Booleans,
    seeds: tuple[int, ...],
    parts: list[slice],
    executor: Executor | None,
) -> Iterator[tuple[slice, Floats]]:
    if executor is None:
        for part in parts:
            yield part, recipe.signals(records, included[part], seeds[part])
        return
    waiting: dict[Future[Floats], slice] = {
        executor.submit(recipe.signals, records, included[part], seeds[part]): part for part in parts
    }
    try:
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    finally:
        for future in waiting:
            future.cancel()
