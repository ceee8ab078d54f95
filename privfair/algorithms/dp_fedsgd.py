"""DP-FedSGD: every silo sends the noisy sum of its records' clipped gradients. The engine of a `gaussian` plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.options import GradientOptions
from privfair.contribution import BoundedContribution
from privfair.models.model import Model, clipped_to

GRADIENT_SUM = "value_1"
"""The name a `gaussian` plan gives to its first value."""


@dataclass(frozen=True, eq=False)
class DpFedSgdState:
    theta: Tensor
    step: int


@final
@dataclass(frozen=True, eq=False)
class DpFedSgd(Algorithm[DpFedSgdState]):
    """Abadi et al. 2016 in several silos.

    Guarantee: none of its own; each record's gradient is scaled to norm `clip` at most, so that adding a record
    moves the sum by at most `clip` (replacing one: by 2 `clip`). The manifest prices the noisy sums. Unit: a record.

    The sum is divided by the public `expected` number of records in all batches, never by a realised one; an
    empty batch sends noise alone.
    """

    model: Model
    options: GradientOptions
    clip: float
    expected: float
    seed: int = 0

    def clear_values(self) -> tuple[ClearValue, ...]:
        return ()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {GRADIENT_SUM: (self.model.size,)}

    def start(self) -> DpFedSgdState:
        return DpFedSgdState(self.model.initial(self.seed), 0)

    def contribution(self, state: DpFedSgdState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        if len(batch) == 0:
            nothing = np.zeros(self.model.size)
            return Message(noisy=(BoundedContribution(GRADIENT_SUM, nothing, self.clip, 0.0),))
        clipped = self.model.weighted_gradient(state.theta, silo.x[batch], silo.y[batch], clipped_to(self.clip))
        total = clipped.total.numpy().astype(np.float64)
        return Message(noisy=(BoundedContribution(GRADIENT_SUM, total, self.clip, clipped.largest_part),))

    def update(self, state: DpFedSgdState, received: Received) -> DpFedSgdState:
        total = np.sum([values[GRADIENT_SUM].values for values in received.values()], axis=0)
        mean = torch.from_numpy(total / self.expected).to(state.theta.dtype)
        return DpFedSgdState(state.theta - self.options.rate(state.step) * mean, state.step + 1)

    def theta(self, state: DpFedSgdState) -> Tensor:
        return state.theta

    def checkpoint(self, state: DpFedSgdState) -> dict[str, Floats]:
        return {"theta": state.theta.numpy().astype(np.float64), "step": np.array(state.step, dtype=np.float64)}

    def restore(self, arrays: Mapping[str, Floats]) -> DpFedSgdState:
        theta = torch.from_numpy(np.array(arrays["theta"]))
        return DpFedSgdState(theta.to(self.model.initial(self.seed).dtype), int(arrays["step"]))
