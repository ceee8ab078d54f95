"""FedProx: local steps are pulled back to the global model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.clients import (
    PlainMeans,
    Sending,
    gradient_in_the_clear,
    gradient_message,
    gradient_shape,
    published_gradient,
)
from privfair.algorithms.parts.local_models import LocalModels, averaged, place_of
from privfair.algorithms.parts.options import AtLeastZero, Count, Options, Positive
from privfair.algorithms.recipe import Blueprint, Recipe
from privfair.models.model import Model


@dataclass(frozen=True)
class FedProxOptions(Options):
    """`proximal` is mu of the term mu/2 |w - w_global|^2."""

    learning_rate: Positive = 0.5
    local_steps: Count = 1
    proximal: AtLeastZero = 0.1


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


def build(blueprint: Blueprint[FedProxOptions]) -> FedProx:
    """FedProx of a plan that protects nobody."""
    return FedProx(blueprint.model, blueprint.options, blueprint.shares, seed=blueprint.seed)


RECIPE = Recipe("fedprox", FedProxOptions, build, baseline=True)
