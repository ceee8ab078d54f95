"""SCAFFOLD: control variates take the clients' drift out of local steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from privfair.algorithms.algorithm import Received
from privfair.algorithms.parts.clients import LocalSteps, PlainMeans, Sending
from privfair.algorithms.parts.local_models import LocalModels, weighted_mean
from privfair.algorithms.parts.options import Count, Options, Positive
from privfair.algorithms.recipe import Blueprint, Recipe
from privfair.models.model import Model


@dataclass(frozen=True)
class ScaffoldOptions(Options):
    """`server_rate` is eta_g."""

    learning_rate: Positive = 0.5
    local_steps: Count = 5
    server_rate: Positive = 1.0


@dataclass(frozen=True, eq=False)
class ScaffoldState:
    models: LocalModels
    controls: Tensor
    """c_i, one row per client; the server's c is their weighted mean."""


@final
@dataclass(frozen=True, eq=False)
class Scaffold(LocalSteps[ScaffoldState]):
    """Karimireddy et al. (ICML 2020), Algorithm 1 with option II and full participation.

    y_i <- y_i - eta (g_i - c_i + c); after K steps c_i <- c_i - c + (x - y_i) / (K eta) and
    x <- x + eta_g sum_i p_i (y_i - x). The controls are functions of published gradients, so that in a private run
    they cost nothing; the paper's own form sends them beside the model.
    """

    model: Model
    options: ScaffoldOptions
    weights: Mapping[str, float]
    sending: Sending = field(default_factory=PlainMeans)
    seed: int = 0

    def start(self) -> ScaffoldState:
        theta = self.model.initial(self.seed)
        return ScaffoldState(LocalModels(theta), theta.new_zeros(len(self.weights), len(theta)))

    def update(self, state: ScaffoldState, received: Received) -> ScaffoldState:
        models, rate, steps = state.models, self.options.learning_rate, self.options.local_steps
        rows, common = models.rows(len(self.weights)), weighted_mean(self.weights, state.controls)
        rows = rows - rate * (self.gradients(received, rows) - state.controls + common)
        if models.inner + 1 < steps:
            return ScaffoldState(LocalModels(models.theta, rows, models.inner + 1), state.controls)
        controls = state.controls - common + (models.theta - rows) / (steps * rate)
        moved = models.theta + self.options.server_rate * weighted_mean(self.weights, rows - models.theta)
        return ScaffoldState(LocalModels(moved), controls)

    def local_models(self, state: ScaffoldState) -> LocalModels:
        return state.models


def build(blueprint: Blueprint[ScaffoldOptions]) -> Scaffold:
    """SCAFFOLD of a plan that protects nobody."""
    return Scaffold(blueprint.model, blueprint.options, blueprint.shares, seed=blueprint.seed)


RECIPE = Recipe("scaffold", ScaffoldOptions, build, baseline=True)
