"""FedAvg: every silo trains on its own for a while and sends its change. A baseline that protects nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor

from privfair.algorithms.algorithm import ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.local_models import OneModel, OneModelAlgorithm, local_change, with_mean_change
from privfair.algorithms.parts.options import LocalTrainingOptions, Positive
from privfair.algorithms.recipe import Blueprint, Recipe
from privfair.models.model import Model, mean_over

CHANGE = "change"


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

    def start(self) -> OneModel:
        return OneModel(self.model.initial(self.seed))

    def contribution(self, state: OneModel, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        def gradient(theta: Tensor, rows: Tensor) -> Tensor:
            return self.model.weighted_gradient(theta, silo.x[rows], silo.y[rows], mean_over(len(rows))).total

        own = self.options
        change = local_change(state.theta, batch, own.local_epochs, own.local_batch, own.learning_rate, gradient)
        return Message(clear={CHANGE: change})

    def update(self, state: OneModel, received: Received) -> OneModel:
        return OneModel(with_mean_change(state.theta, self.weights, received, CHANGE))


def build(blueprint: Blueprint[FedAvgOptions]) -> FedAvg:
    """FedAvg of a plan."""
    return FedAvg(blueprint.model, blueprint.options, blueprint.shares, blueprint.seed)


RECIPE = Recipe("fedavg", FedAvgOptions, build, baseline=True)
