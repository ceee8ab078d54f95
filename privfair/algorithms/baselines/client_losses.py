"""q-FFL and agnostic federated learning: clients with a larger loss count more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.clients import (
    LocalModels,
    PairSending,
    PlainMeans,
    pair_in_the_clear,
    pair_message,
    pair_shapes,
    place_of,
    published_pair,
)
from privfair.algorithms.recipe import Recipe, from_shares
from privfair.models.model import Model
from privfair.plan.sections import AtLeastZero, Count, Options, Positive


@dataclass(frozen=True)
class QFflOptions(Options):
    """`exponent` is q; 0 is FedAvg."""

    learning_rate: Positive = 0.5
    local_steps: Count = 1
    exponent: AtLeastZero = 1.0
    loss_floor: Positive = 1e-3
    """A published loss is held above this before it is raised to a power."""


@dataclass(frozen=True, eq=False)
class QFflState:
    models: LocalModels
    losses: tuple[float, ...]
    """Each client's published loss of the global model, from the first local step since the aggregation."""


@final
@dataclass(frozen=True, eq=False)
class QFfl(Algorithm[QFflState]):
    """Li et al. (ICLR 2020), q-FedAvg (q-FedSGD with one local step), full participation.

    With F_k the loss of the global model and d_k = (w - w_k) / eta: w <- w - sum_k p_k F_k^q d_k / sum_k p_k h_k, where
    h_k = q F_k^(q-1) |d_k|^2 + F_k^q / eta. The paper samples clients by p_k and adds them up alike; with all of them
    taking part the weights stand in the sums.
    """

    model: Model
    options: QFflOptions
    weights: Mapping[str, float]
    sending: PairSending = field(default_factory=PlainMeans)
    seed: int = 0

    def clear_values(self) -> tuple[ClearValue, ...]:
        return pair_in_the_clear(self.sending)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return pair_shapes(self.model)

    def start(self) -> QFflState:
        return QFflState(LocalModels(self.model.initial(self.seed)), (0.0,) * len(self.weights))

    def contribution(self, state: QFflState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        theta = state.models.of(place_of(silo.name, self.weights))
        return pair_message(self.sending, self.model, theta, silo, batch)

    def update(self, state: QFflState, received: Received) -> QFflState:
        models = state.models
        rows, fresh = models.rows(len(self.weights)), []
        for place, party in enumerate(self.weights):
            gradient, loss = published_pair(self.sending, party, received[party])
            rows[place] -= self.options.learning_rate * torch.from_numpy(gradient.copy()).to(rows.dtype)
            fresh.append(max(loss, self.options.loss_floor))
        losses = tuple(fresh) if models.inner == 0 else state.losses
        if models.inner + 1 < self.options.local_steps:
            return QFflState(LocalModels(models.theta, rows, models.inner + 1), losses)
        return QFflState(LocalModels(self._combine(models.theta, rows, losses)), losses)

    def theta(self, state: QFflState) -> Tensor:
        return state.models.theta

    def _combine(self, theta: Tensor, rows: Tensor, losses: tuple[float, ...]) -> Tensor:
        q, lipschitz = self.options.exponent, 1.0 / self.options.learning_rate
        top, bottom = torch.zeros_like(theta), 0.0
        for place, share in enumerate(self.weights.values()):
            change = lipschitz * (theta - rows[place])
            powered = losses[place] ** q
            top += share * powered * change
            bottom += share * (q * losses[place] ** (q - 1) * float(change @ change) + lipschitz * powered)
        return theta - top / bottom


@dataclass(frozen=True)
class AgnosticOptions(Options):
    """`weight_rate` is gamma, the step of the mixture."""

    learning_rate: Positive = 0.5
    weight_rate: AtLeastZero = 0.1


@dataclass(frozen=True, eq=False)
class AgnosticState:
    theta: Tensor
    mixture: Floats
    """The clients' weights, on the simplex; in the order in which clients were named."""


@final
@dataclass(frozen=True, eq=False)
class AgnosticFl(Algorithm[AgnosticState]):
    """Mohri, Sivek, Suresh (ICML 2019), Stochastic-AFL: descend in w, ascend in the mixture.

    w <- w - eta sum_k lambda_k grad F_k; lambda <- projection to the simplex of lambda + gamma (F_1, .., F_K).
    """

    model: Model
    options: AgnosticOptions
    weights: Mapping[str, float]
    """Where the mixture starts."""
    sending: PairSending = field(default_factory=PlainMeans)
    seed: int = 0

    def clear_values(self) -> tuple[ClearValue, ...]:
        return pair_in_the_clear(self.sending)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return pair_shapes(self.model)

    def start(self) -> AgnosticState:
        return AgnosticState(self.model.initial(self.seed), np.array(tuple(self.weights.values())))

    def contribution(self, state: AgnosticState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        return pair_message(self.sending, self.model, state.theta, silo, batch)

    def update(self, state: AgnosticState, received: Received) -> AgnosticState:
        pairs = [published_pair(self.sending, party, received[party]) for party in self.weights]
        direction = sum(share * gradient for share, (gradient, _) in zip(state.mixture, pairs, strict=True))
        step = torch.from_numpy(np.asarray(direction)).to(state.theta.dtype) * self.options.learning_rate
        losses = np.array([loss for _, loss in pairs])
        return AgnosticState(state.theta - step, on_simplex(state.mixture + self.options.weight_rate * losses))

    def theta(self, state: AgnosticState) -> Tensor:
        return state.theta


def on_simplex(values: Floats) -> Floats:
    """The nearest point with entries of at least 0 that sum to 1 (Held, Wolfe, Crowder 1974)."""
    falling = np.sort(values)[::-1]
    excess = (np.cumsum(falling) - 1.0) / np.arange(1, len(values) + 1)
    last = int(np.flatnonzero(falling > excess)[-1])
    return np.asarray(np.maximum(values - excess[last], 0.0))


RECIPES = (
    Recipe("q-ffl", QFflOptions, from_shares(QFfl), baseline=True),
    Recipe("agnostic-fl", AgnosticOptions, from_shares(AgnosticFl), baseline=True),
)
