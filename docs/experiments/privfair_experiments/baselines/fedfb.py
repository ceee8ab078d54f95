"""FedFB: FairBatch for clients. Cells of class and group are reweighed until the groups' losses agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import assert_never, final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import UnsupportedCombination
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.local_training import local_change, with_mean_change
from privfair.algorithms.recipe import Blueprint, Recipe
from privfair.models.model import Model
from privfair.plan.sections import AtLeastZero, LocalTrainingOptions

CHANGE, CELLS = "change", "cells"


class ReweightedNotion(Enum):
    """What FedFB equalises."""

    STATISTICAL_PARITY = "statistical-parity"
    EQUAL_OPPORTUNITY = "equal-opportunity"


@dataclass(frozen=True)
class FedFbOptions(LocalTrainingOptions):
    """FedFB; `weight_rate` is its alpha."""

    weight_rate: AtLeastZero = 0.05
    notion: ReweightedNotion = ReweightedNotion.STATISTICAL_PARITY


@dataclass(frozen=True, eq=False)
class FedFbState:
    theta: Tensor
    factors: Floats
    """How much a record of class y and group a counts, (2, 2); 1 is plain training."""


@final
@dataclass(frozen=True, eq=False)
class FedFb(Algorithm[FedFbState]):
    """Zeng, Chen, Lee (arXiv:2110.15545) on the weights of Roh et al.'s FairBatch; two classes, two groups.

    A cell (y, a) has the share p_ya of all records and the weight w_ya; each of its records counts w_ya / p_ya. For
    statistical parity w_0a + w_1a = p_a is kept and w_1a moves by alpha / sqrt 2 against the sign of the gap; for
    equal opportunity w_10 + w_11 = p_1. is kept and w_11 moves by alpha towards the group with the larger mean loss.
    Gaps are those of the losses, summed over all clients.
    """

    model: Model
    options: FedFbOptions
    weights: Mapping[str, float]
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model.classes != 2:
            raise UnsupportedCombination(
                f"FedFB with {self.model.classes} classes", "its cells are of two classes", "use two"
            )

    def clear_values(self) -> tuple[ClearValue, ...]:
        why = "FedFB sends plain updates, losses and counts; a baseline without privacy."
        return (ClearValue(CHANGE, why, True), ClearValue(CELLS, why, True))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {CHANGE: (self.model.size,), CELLS: (2, 2, 2)}

    def start(self) -> FedFbState:
        return FedFbState(self.model.initial(self.seed), np.ones((2, 2)))

    def contribution(self, state: FedFbState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        factors = torch.from_numpy(state.factors)

        def gradient(theta: Tensor, rows: Tensor) -> Tensor:
            y, s = silo.y[rows], silo.s[rows]
            shares = factors[y, s] / len(rows)
            return self.model.weighted_gradient(theta, silo.x[rows], y, lambda norms, losses: shares).total

        own = self.options
        change = local_change(state.theta, batch, own.local_epochs, own.local_batch, own.learning_rate, gradient)
        return Message(clear={CHANGE: change, CELLS: self._cells(state.theta, silo, batch)})

    def update(self, state: FedFbState, received: Received) -> FedFbState:
        cells = sum(received[party][CELLS].values for party in self.weights)
        theta = with_mean_change(state.theta, self.weights, received, CHANGE)
        return FedFbState(theta, reweigh(state.factors, np.asarray(cells), self.options))

    def theta(self, state: FedFbState) -> Tensor:
        return state.theta

    def _cells(self, theta: Tensor, silo: SiloTensors, batch: Tensor) -> Floats:
        """Sums of losses, and numbers of records, of each class and group."""
        y, s = silo.y[batch], silo.s[batch]
        losses = torch.nn.functional.cross_entropy(
            self.model.logits(theta, silo.x[batch]).double(), y, reduction="none"
        )
        out = torch.zeros(2, 2, 2, dtype=torch.float64)
        out[0].index_put_((y, s), losses, accumulate=True)
        out[1].index_put_((y, s), torch.ones_like(losses), accumulate=True)
        return out.numpy()


def reweigh(factors: Floats, cells: Floats, options: FedFbOptions) -> Floats:
    """The next factors; cells without records keep theirs, and nothing moves while a whole group is missing."""
    sums, numbers = cells
    total, by_group, by_class = numbers.sum(), numbers.sum(axis=0), numbers.sum(axis=1)
    if (numbers == 0).any():
        return factors
    weights, step = factors * numbers / total, options.weight_rate
    match options.notion:
        case ReweightedNotion.STATISTICAL_PARITY:
            # With 0-1 losses this is the rate of positive predictions in each group.
            rates = (numbers[1] - sums[1] + sums[0]) / by_group
            move = step / np.sqrt(2) * np.sign(rates[0] - rates[1])
            kept = by_group / total
            weights[1] = np.clip(weights[1] + np.array([-move, move]), 0.0, kept)
            weights[0] = kept - weights[1]
        case ReweightedNotion.EQUAL_OPPORTUNITY:
            means = sums[1] / numbers[1]
            kept_class = by_class[1] / total
            weights[1, 1] = np.clip(weights[1, 1] + step * np.sign(means[1] - means[0]), 0.0, kept_class)
            weights[1, 0] = kept_class - weights[1, 1]
        case _:
            assert_never(options.notion)
    return np.asarray(weights * total / numbers)


def build(blueprint: Blueprint[FedFbOptions]) -> FedFb:
    """FedFB of a plan."""
    blueprint.require_two_groups()
    return FedFb(blueprint.model, blueprint.options, blueprint.shares, blueprint.seed)


RECIPE = Recipe("fedfb", FedFbOptions, build, baseline=True)
