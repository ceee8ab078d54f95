"""FedProx: local steps are pulled back to the global model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from privfair.algorithms.algorithm import Received
from privfair.algorithms.parts.clients import LocalSteps, PlainMeans, Sending
from privfair.algorithms.parts.local_models import LocalModels, weighted_mean
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
class FedProx(LocalSteps[LocalModels]):
    """Li et al. (MLSys 2020): w <- w - eta (g + mu (w - w_global)), with full participation.

    Guarantee: none of its own. The proximal term is public; what is sent is the gradient, as `sending` says.
    """

    model: Model
    options: FedProxOptions
    weights: Mapping[str, float]
    sending: Sending = field(default_factory=PlainMeans)
    seed: int = 0

    def start(self) -> LocalModels:
        return LocalModels(self.model.initial(self.seed))

    def update(self, state: LocalModels, received: Received) -> LocalModels:
        rows = state.rows(len(self.weights))
        pull = self.options.proximal * (rows - state.theta)
        rows = rows - self.options.learning_rate * (self.gradients(received, rows) + pull)
        if state.inner + 1 < self.options.local_steps:
            return LocalModels(state.theta, rows, state.inner + 1)
        return LocalModels(weighted_mean(self.weights, rows))

    def local_models(self, state: LocalModels) -> LocalModels:
        return state


def build(blueprint: Blueprint[FedProxOptions]) -> FedProx:
    """FedProx of a plan that protects nobody."""
    return FedProx(blueprint.model, blueprint.options, blueprint.shares, seed=blueprint.seed)


RECIPE = Recipe("fedprox", FedProxOptions, build, baseline=True)
