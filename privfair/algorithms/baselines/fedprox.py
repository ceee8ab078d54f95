"""FedProx: local steps are pulled back to the global model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from calibrate.arrays import Floats
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.baselines.options import FedProxOptions
from privfair.algorithms.parts.clients import (
    PlainMeans,
    Sending,
    gradient_in_the_clear,
    gradient_message,
    gradient_shape,
    published_gradient,
)
from privfair.algorithms.parts.local_models import LocalModels, averaged, place_of
from privfair.models.model import Model


@final
@dataclass(frozen=True, eq=False)
class FedProx(Algorithm[LocalModels]):
    """Li et al. (MLSys 2020): w <- w - eta (g + mu (w - w_global)), with full participation.

    Guarantee: none of its own. The proximal term is public; what is sent is the gradient, as `sending` says.
    """

    model: Model
    options: FedProxOptions
    weights: Mapping[str, float]
    sending: Sending = field(default_factory=PlainMeans)
    seed: int = 0

    def clear_values(self) -> tuple[ClearValue, ...]:
        return gradient_in_the_clear(self.sending)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return gradient_shape(self.sending, self.model)

    def start(self) -> LocalModels:
        return LocalModels(self.model.initial(self.seed))

    def contribution(self, state: LocalModels, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        theta = state.of(place_of(silo.name, self.weights))
        return gradient_message(self.sending, self.model, theta, silo, batch)

    def update(self, state: LocalModels, received: Received) -> LocalModels:
        rows = state.rows(len(self.weights))
        for place, party in enumerate(self.weights):
            gradient = torch.from_numpy(published_gradient(self.sending, party, received[party]).copy())
            pull = self.options.proximal * (rows[place] - state.theta)
            rows[place] -= self.options.learning_rate * (gradient.to(rows.dtype) + pull)
        if state.inner + 1 < self.options.local_steps:
            return LocalModels(state.theta, rows, state.inner + 1)
        return LocalModels(averaged(self.weights, rows))

    def theta(self, state: LocalModels) -> Tensor:
        return state.theta

    def checkpoint(self, state: LocalModels) -> dict[str, Floats]:
        return state.arrays()

    def restore(self, arrays: Mapping[str, Floats]) -> LocalModels:
        return LocalModels.restored(arrays, self.model.initial(self.seed).dtype)
