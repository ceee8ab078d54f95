"""Central empirical risk minimisation: all records in one place, no privacy, no fairness term. The reference point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from privfair.algorithms.algorithm import ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.local_training import OneModel, OneModelAlgorithm, minimum
from privfair.algorithms.recipe import Blueprint, Recipe
from privfair.models.model import Model, mean_over
from privfair.plan.sections import AtLeastZero, Count, Options

MINIMISER = "minimiser"


@dataclass(frozen=True)
class CentralErmOptions(Options):
    """The minimiser of the mean loss plus l2/2 |theta|^2, up to `iterations` of L-BFGS."""

    l2: AtLeastZero = 0.0
    iterations: Count = 500


@final
@dataclass(frozen=True, eq=False)
class CentralErm(OneModelAlgorithm):
    """Each round minimises the mean loss on its batch, from where the last one ended; one round is enough."""

    model: Model
    options: CentralErmOptions
    seed: int = 0

    def clear_values(self) -> tuple[ClearValue, ...]:
        return (ClearValue(MINIMISER, "Central training without privacy: the model itself is published.", True),)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {MINIMISER: (self.model.size,)}

    def contribution(self, state: OneModel, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        x, y, weigh, l2 = silo.x[batch], silo.y[batch], mean_over(max(1, len(batch))), self.options.l2

        def objective(flat: Floats) -> tuple[float, Floats]:
            theta = torch.from_numpy(flat).to(state.theta.dtype)
            found = self.model.weighted_gradient(theta, x, y, weigh)
            value = float((found.coefficients * found.losses).sum()) + l2 / 2 * float(flat @ flat)
            return value, found.total.numpy().astype(np.float64) + l2 * flat

        begin = state.theta.numpy().astype(np.float64)
        return Message(clear={MINIMISER: minimum(objective, begin, self.options.iterations, slope=1e-8)})

    def update(self, state: OneModel, received: Received) -> OneModel:
        (values,) = received.values()
        return OneModel(torch.from_numpy(values[MINIMISER].values.copy()).to(state.theta.dtype))


def build(blueprint: Blueprint[CentralErmOptions]) -> CentralErm:
    """Central training of a plan."""
    return CentralErm(blueprint.model, blueprint.options, blueprint.seed)


RECIPE = Recipe("central-erm", CentralErmOptions, build, baseline=True, central=True)
