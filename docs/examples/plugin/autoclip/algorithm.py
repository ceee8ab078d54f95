"""The algorithm: a pure contribution on the silo's side, an update from published values alone."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from autoclip.plan import GRADIENT, AutoclipPlan
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.recipe import RECORD_ADDED, Blueprint, Recipe
from privfair.contribution import BoundedContribution
from privfair.models.model import Model, clipped_to
from privfair.plan.sections import Options, Positive


@dataclass(frozen=True)
class AutoclipOptions(Options):
    """What [training] may say."""

    learning_rate: Positive = 0.5
    gamma: Positive = 0.01


@dataclass(frozen=True, eq=False)
class AutoclipState:
    theta: Tensor


@dataclass(frozen=True, eq=False)
class Autoclip(Algorithm[AutoclipState]):
    """Bu, Wang, Zha and Karypis, Automatic Clipping (arXiv:2206.07136), in several silos."""

    model: Model
    options: AutoclipOptions
    radius: float
    expected: float
    seed: int = 0

    def clear_values(self) -> tuple[ClearValue, ...]:
        return ()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {GRADIENT: (self.model.size,)}

    def start(self) -> AutoclipState:
        return AutoclipState(self.model.initial(self.seed))

    def contribution(self, state: AutoclipState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        if len(batch) == 0:
            nothing = np.zeros(self.model.size)
            return Message(noisy=(BoundedContribution(GRADIENT, nothing, self.radius, 0.0),))
        reach, gamma = clipped_to(self.radius).reach, self.options.gamma  # nudged down: rounding is paid for
        scaled = self.model.weighted_gradient(
            state.theta, silo.x[batch], silo.y[batch], lambda norms, losses: reach / (norms + gamma)
        )
        total = scaled.total.numpy().astype(np.float64)
        return Message(noisy=(BoundedContribution(GRADIENT, total, self.radius, scaled.largest_part),))

    def update(self, state: AutoclipState, received: Received) -> AutoclipState:
        total = np.sum([values[GRADIENT].values for values in received.values()], axis=0)
        mean = torch.from_numpy(total / self.expected).to(state.theta.dtype)
        return AutoclipState(state.theta - self.options.learning_rate * mean)

    def theta(self, state: AutoclipState) -> Tensor:
        return state.theta


def build(blueprint: Blueprint[AutoclipOptions]) -> Autoclip:
    plan = blueprint.plan(AutoclipPlan)
    expected = plan.sampling_rate * blueprint.units
    return Autoclip(blueprint.model, blueprint.options, plan.radius, expected, blueprint.seed)


RECIPE = Recipe("autoclip", AutoclipOptions, build, RECORD_ADDED)
