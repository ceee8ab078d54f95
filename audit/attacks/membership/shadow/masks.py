"""Which records each shadow model is trained on."""

from __future__ import annotations

import numpy as np

from calibrate.arrays import Booleans
from calibrate.errors import InvalidInput
from calibrate.validation import count


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
        raise InvalidInput(
            "records", records, "are too few: a shadow model would get none or all", "give more records"
        )
    return np.asarray(included)
