"""FedFair: a batch that loses more than the federation's mean makes a longer step. A baseline that protects nobody."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.local_training import local_change, with_mean_change
from privfair.algorithms.recipe import Recipe, from_shares
from privfair.models.model import Model, mean_over
from privfair.plan.sections import AtLeastZero, LocalTrainingOptions

CHANGE, LOSS = "change", "loss"


@dataclass(frozen=True)
class FedFairOptions(LocalTrainingOptions):
    """FedFair's local training. `fairness` is lambda; 0 is FedAvg."""

    fairness: AtLeastZero = 0.5
    initial_loss: AtLeastZero | None = None
    """F(w_0), the mean loss before the first round; left out: that of guessing, ln(classes)."""


@final
@dataclass(frozen=True, eq=False)
class FedFairState:
    theta: Tensor
    mean_loss: float
    """F(w_t): the clients' losses on their own records after the local steps, weighted."""


@final
@dataclass(frozen=True, eq=False)
class FedFair(Algorithm[FedFairState]):
    """Ling et al. (arXiv:2402.16028), Algorithm 1.

    Each client walks through its own records, so a client with more of them makes more steps per epoch. A mini-batch's
    step is eta (1 + lambda (F_i(w, b) - F(w_t))) long (lines 13 to 15); afterwards the client's loss on all of its
    records is computed at its new model (line 16). Nothing is protected.
    """

    model: Model
    options: FedFairOptions
    weights: Mapping[str, float]
    seed: int = 0

    def clear_values(self) -> tuple[ClearValue, ...]:
        why = "FedFair sends plain updates and losses; it is a baseline without privacy."
        return (ClearValue(CHANGE, why, True), ClearValue(LOSS, why, True))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {CHANGE: (self.model.size,), LOSS: (1,)}

    def start(self) -> FedFairState:
        given = self.options.initial_loss
        return FedFairState(self.model.initial(self.seed), math.log(self.model.classes) if given is None else given)

    def contribution(self, state: FedFairState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        own = self.options

        def gradient(theta: Tensor, rows: Tensor) -> Tensor:
            found = self.model.weighted_gradient(theta, silo.x[rows], silo.y[rows], mean_over(len(rows)))
            return (1.0 + own.fairness * (float(found.losses.mean()) - state.mean_loss)) * found.total

        change = local_change(state.theta, batch, own.local_epochs, own.local_batch, own.learning_rate, gradient)
        moved = state.theta + torch.from_numpy(change).to(state.theta.dtype)
        after = self.model.weighted_gradient(moved, silo.x, silo.y, mean_over(max(1, len(silo.y)))).losses
        loss = float(after.mean()) if len(after) else state.mean_loss
        return Message(clear={CHANGE: change, LOSS: np.array([loss])})

    def update(self, state: FedFairState, received: Received) -> FedFairState:
        moved = with_mean_change(state.theta, self.weights, received, CHANGE)
        shares = self.weights.items()
        return FedFairState(moved, math.fsum(p * float(received[party][LOSS].values[0]) for party, p in shares))

    def theta(self, state: FedFairState) -> Tensor:
        return state.theta


RECIPE = Recipe("fedfair", FedFairOptions, from_shares(FedFair), baseline=True)
