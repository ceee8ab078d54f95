"""Train shadow models in groups, here or under any executor, and keep their signals alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, as_completed

import numpy as np

from audit.attacks.membership.shadow.recipe import ShadowRecipe, ShadowRecords
from calibrate.arrays import Booleans, Floats
from calibrate.errors import InvalidInput
from calibrate.validation import count

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
    for part, signals in _finished(recipe, records, included, seeds, parts, executor):
        if signals.shape != found[part].shape or not np.isfinite(signals).all():
            raise InvalidInput(
                "shadow models",
                recipe.kind,
                "gave signals that are not finite numbers, one a record",
                "train with a smaller learning rate, or scale the features",
            )
        found[part] = signals
        done += len(signals)
        if progress is not None:
            progress(done, models)
    return found


def _finished(
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
