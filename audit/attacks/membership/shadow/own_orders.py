"""In which order each model of a stack meets its own records."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Booleans


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

    def shuffled(self) -> tuple[Tensor, Tensor]:
        for rows, own, random in zip(self._rows, self._own, self._random, strict=True):
            rows[: len(own)] = random.permutation(own)
        return torch.from_numpy(self._rows), torch.from_numpy(self._weights)
