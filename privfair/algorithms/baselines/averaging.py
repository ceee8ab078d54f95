"""FedSGD and FedAvg: plain gradients, or models trained locally for a while, are averaged. They protect nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.local_training import OneModel, OneModelAlgorithm, local_change, with_mean_change
from privfair.algorithms.recipe import Recipe, from_shares
from privfair.models.model import Model, mean_over
from privfair.plan.sections import GradientOptions, LocalTrainingOptions, Positive

GRADIENT, CHANGE = "gradient", "change"


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


@dataclass(frozen=True)
class FedAvgOptions(LocalTrainingOptions):
    """FedAvg's local training, with longer steps."""

    learning_rate: Positive = 0.5


@final
@dataclass(frozen=True, eq=False)
class FedAvg(OneModelAlgorithm):
    """McMahan et al. 2017: the average of the silos' models, weighed by their public number of records.

    The batch's own (random) order is the order of the local mini-batches, so `contribution` stays pure.
    """

    model: Model
    options: FedAvgOptions
    weights: Mapping[str, float]
    seed: int = 0

    def clear_values(self) -> tuple[ClearValue, ...]:
        return (ClearValue(CHANGE, "FedAvg sends plain updates; it is a baseline without privacy.", True),)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {CHANGE: (self.model.size,)}

    def contribution(self, state: OneModel, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        def gradient(theta: Tensor, rows: Tensor) -> Tensor:
            return self.model.weighted_gradient(theta, silo.x[rows], silo.y[rows], mean_over(len(rows))).total

        own = self.options
        change = local_change(state.theta, batch, own.local_epochs, own.local_batch, own.learning_rate, gradient)
        return Message(clear={CHANGE: change})

    def update(self, state: OneModel, received: Received) -> OneModel:
        return OneModel(with_mean_change(state.theta, self.weights, received, CHANGE))


RECIPES = (
    Recipe("fedsgd", GradientOptions, from_shares(FedSgd), baseline=True),
    Recipe("fedavg", FedAvgOptions, from_shares(FedAvg), baseline=True),
)
