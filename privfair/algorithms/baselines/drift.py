"""FedProx, SCAFFOLD and FedDyn: public numbers correct clients' local steps, so that they drift apart less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from privfair.algorithms.algorithm import Received
from privfair.algorithms.parts.clients import LocalModels, LocalSteps, PlainMeans, Sending, weighted_mean
from privfair.algorithms.recipe import Recipe, from_shares
from privfair.models.model import Model
from privfair.plan.sections import AtLeastZero, Count, Options, Positive


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


RECIPES = (
    Recipe("fedprox", FedProxOptions, from_shares(FedProx), baseline=True),
    Recipe("scaffold", ScaffoldOptions, from_shares(Scaffold), baseline=True),
    Recipe("feddyn", FedDynOptions, from_shares(FedDyn), baseline=True),
)
