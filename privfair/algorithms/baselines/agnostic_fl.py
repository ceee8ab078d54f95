"""Agnostic federated learning: a good model for the worst mixture of the clients."""

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
    PairSending,
    PlainMeans,
    pair_in_the_clear,
    pair_message,
    pair_shapes,
    published_pair,
)
from privfair.algorithms.parts.options import AtLeastZero, Options, Positive
from privfair.algorithms.recipe import Blueprint, Recipe
from privfair.models.model import Model


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


def build(blueprint: Blueprint[AgnosticOptions]) -> AgnosticFl:
    """Agnostic learning of a plan that protects nobody."""
    return AgnosticFl(blueprint.model, blueprint.options, blueprint.shares, seed=blueprint.seed)


RECIPE = Recipe("agnostic-fl", AgnosticOptions, build, baseline=True)
