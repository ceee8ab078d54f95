"""How the final model answers a canary: the observer who is given nothing but the model looks there."""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.attacks.canaries.casting import Cast
from calibrate.arrays import Floats
from privfair.contribution import Published


def model_response(cast: Cast) -> Floats | None:
    """(canaries, parameters): which way one round's update moves the model when the canary's side goes from 0 to 1.

    Found by the algorithm's own `update`, which takes published values alone. None where a first update does not
    reach the model (several local steps), or where a canary has no say in it.
    """
    rows = []
    for silo in cast.silos:
        signals = cast.signals[silo.name][0]
        levels, looks = signals.levels[0], signals.looks
        for canary in range(len(silo.canaries)):
            change = levels[1, canary] - levels[0, canary]
            step = tuple(
                size * look[0, canary] / max(float(np.square(look[0, canary]).sum()), 1e-12)
                for size, look in zip(change, looks, strict=True)
            )
            rows.append(_moved(cast, silo.name, step))
    found = np.stack(rows)
    return found if (np.square(found).sum(axis=1) > 0).all() else None


def _moved(cast: Cast, party: str, step: tuple[Floats, ...]) -> Floats:
    algorithm = cast.algorithm
    nothing = tuple(np.zeros_like(part) for part in step)
    still = algorithm.update(algorithm.start(), _published(cast, party, nothing))
    moved = algorithm.update(algorithm.start(), _published(cast, party, step))
    change = algorithm.theta(moved) - algorithm.theta(still)
    return np.asarray(change.numpy(), dtype=np.float64)


def _published(cast: Cast, party: str, step: tuple[Floats, ...]) -> dict[str, dict[str, Published]]:
    """A round in which every party sends zero, and `party` sends `step` (in units of the noise)."""
    out: dict[str, dict[str, Published]] = {}
    shapes: dict[str, Any] = dict(cast.algorithm.shapes())
    for silo in cast.silos:
        sent = {name: np.zeros(shape) for name, shape in shapes.items()}
        if silo.name == party:
            for name, sigma, part in zip(cast.scaling.names, cast.scaling.sigmas, step, strict=True):
                sent[name] = (part * sigma).reshape(sent[name].shape)
        out[silo.name] = {name: Published(0, silo.name, name, values) for name, values in sent.items()}
    return out
