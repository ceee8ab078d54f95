"""Batches of sensitive silos, which draw nothing: are they what the holders of the records drew?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.algorithms.centralisation import parts_of
from privfair.algorithms.steffle import Steffle

Batches = Mapping[int, NDArray[np.int64]]
"""By round or step."""


def sensitive_silos(algorithm: Algorithm[object], silos: Sequence[SiloTensors]) -> frozenset[str]:
    """Who holds nothing but attributes, and so is asked instead of drawing."""
    if not isinstance(algorithm, Steffle):
        return frozenset()
    return frozenset(silo.name for silo in silos if not parts_of(algorithm.centralisation, silo.name).loss)


def wrong_answers(
    silo: SiloTensors, silos: Sequence[SiloTensors], batches: Mapping[str, Batches], sensitive: frozenset[str]
) -> str | None:
    """What is wrong with a sensitive silo's batches; None if each is what was asked for."""
    numbers = {one.name: one.record_numbers.numpy() for one in silos if one.record_numbers is not None}
    held = numbers[silo.name]
    for round, batch in batches[silo.name].items():
        drawn = [numbers[one.name][batches[one.name][round]] for one in silos if one.name not in sensitive]
        asked = np.concatenate(drawn)
        if not np.array_equal(np.sort(held[batch]), np.sort(asked[np.isin(asked, held)])):
            return f"batch {round} is not what the holders of its records drew"
    return None
