"""FedSGD: every silo sends the mean gradient of its batch in the clear. A baseline that protects nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.options import GradientOptions
from privfair.algorithms.recipe import Blueprint, Recipe
from privfair.models.model import Model, mean_over

GRADIENT = "gradient"


@dataclass(frozen=True, eq=False)
class FedSgdState:
    theta: Tensor
    step: int


@final
@dataclass(frozen=True, eq=False)
class FedSgd(Algorithm[FedSgdState]):
    """McMahan et al. 2017 with one local step; silos weigh by their number of records, which is public."""

    model: Model
    options: GradientOptions
    weights: Mapping[str, float]
    seed: int = 0

    def clear_values(self) -> tuple[ClearValue, ...]:
        return (ClearValue(GRADIENT, "FedSGD sends plain gradients; it is a baseline without privacy.", True),)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {GRADIENT: (self.model.size,)}

    def start(self) -> FedSgdState:
        return FedSgdState(self.model.initial(self.seed), 0)

    def contribution(self, state: FedSgdState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        mean = mean_over(max(1, len(batch)))
        gradient = self.model.weighted_gradient(state.theta, silo.x[batch], silo.y[batch], mean).total
        return Message(clear={GRADIENT: gradient.numpy().astype(np.float64)})

    def update(self, state: FedSgdState, received: Received) -> FedSgdState:
        mean = sum(self.weights[party] * values[GRADIENT].values for party, values in received.items())
        step = torch.from_numpy(np.asarray(mean)).to(state.theta.dtype) * self.options.rate(state.step)
        return FedSgdState(state.theta - step, state.step + 1)

    def theta(self, state: FedSgdState) -> Tensor:
        return state.theta


def build(blueprint: Blueprint[GradientOptions]) -> FedSgd:
    """FedSGD of a plan."""
    return FedSgd(blueprint.model, blueprint.options, blueprint.shares, blueprint.seed)


RECIPE = Recipe("fedsgd", GradientOptions, build, baseline=True)
