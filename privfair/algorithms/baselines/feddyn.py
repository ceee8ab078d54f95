"""FedDyn: a dynamic regulariser makes the clients' optima agree with the global one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from privfair.algorithms.algorithm import Received
from privfair.algorithms.parts.clients import LocalSteps, PlainMeans, Sending
from privfair.algorithms.parts.local_models import LocalModels, weighted_mean
from privfair.algorithms.parts.options import Count, Options, Positive
from privfair.algorithms.recipe import Blueprint, Recipe
from privfair.models.model import Model


@dataclass(frozen=True)
class FedDynOptions(Options):
    """`regularisation` is alpha of the dynamic regulariser."""

    learning_rate: Positive = 0.5
    local_steps: Count = 5
    regularisation: Positive = 0.1


@dataclass(frozen=True, eq=False)
class FedDynState:
    models: LocalModels
    estimates: Tensor
    """Each client's estimate of its gradient at its last local optimum, one row per client."""
    drift: Tensor
    """The server's h."""


@final
@dataclass(frozen=True, eq=False)
class FedDyn(LocalSteps[FedDynState]):
    """Acar et al. (ICLR 2021), Algorithm 1, with local steps instead of an exact local minimum, full participation.

    w <- w - eta (g - d_k + alpha (w - w_global)); then d_k <- d_k - alpha (w_k - w_global),
    h <- h - alpha sum_k p_k (w_k - w_global), and the new global model is sum_k p_k w_k - h / alpha.
    """

    model: Model
    options: FedDynOptions
    weights: Mapping[str, float]
    sending: Sending = field(default_factory=PlainMeans)
    seed: int = 0

    def start(self) -> FedDynState:
        theta = self.model.initial(self.seed)
        nothing = theta.new_zeros(len(self.weights), len(theta))
        return FedDynState(LocalModels(theta), nothing, torch.zeros_like(theta))

    def update(self, state: FedDynState, received: Received) -> FedDynState:
        models, alpha = state.models, self.options.regularisation
        rows = models.rows(len(self.weights))
        pull = alpha * (rows - models.theta) - state.estimates
        rows = rows - self.options.learning_rate * (self.gradients(received, rows) + pull)
        if models.inner + 1 < self.options.local_steps:
            return FedDynState(LocalModels(models.theta, rows, models.inner + 1), state.estimates, state.drift)
        moved = rows - models.theta
        drift = state.drift - alpha * weighted_mean(self.weights, moved)
        theta = weighted_mean(self.weights, rows) - drift / alpha
        return FedDynState(LocalModels(theta), state.estimates - alpha * moved, drift)

    def local_models(self, state: FedDynState) -> LocalModels:
        return state.models


def build(blueprint: Blueprint[FedDynOptions]) -> FedDyn:
    """FedDyn of a plan that protects nobody."""
    return FedDyn(blueprint.model, blueprint.options, blueprint.shares, seed=blueprint.seed)


RECIPE = Recipe("feddyn", FedDynOptions, build, baseline=True)
