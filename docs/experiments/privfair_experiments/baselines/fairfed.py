"""FairFed: clients whose own fairness is far from the global one count less, from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import UnsupportedCombination
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.local_training import local_change, with_mean_change
from privfair.algorithms.recipe import Blueprint, Recipe
from privfair.fairness.constraints import KernelKind, MmdCriterion, Score
from privfair.fairness.mmd import conditions, kernel_of
from privfair.models.model import Model
from privfair.plan.sections import AtLeastZero, Positive, Whole
from privfair_experiments.baselines.mmd_penalty import DecayedLocalTraining, OwnPenalty

CHANGE, COUNTS = "change", "counts"


@dataclass(frozen=True)
class FairFedOptions(DecayedLocalTraining):
    """FairFed with a local MMD penalty (as the MMD paper combines them); `budget` is beta."""

    budget: AtLeastZero = 1.0
    fairness: AtLeastZero = 0.0
    criterion: MmdCriterion = MmdCriterion.STATISTICAL_PARITY
    """Statistical parity or equal opportunity: of the metric and of the local penalty."""
    kernel: KernelKind = KernelKind.ENERGY
    kernel_width: Positive = 0.5
    positive_class: Whole = 1


@dataclass(frozen=True, eq=False)
class FairFedState:
    theta: Tensor
    weights: Floats
    """omega_k, before they are divided by their sum; in the order in which clients were named."""


@final
@dataclass(frozen=True, eq=False)
class FairFed(Algorithm[FairFedState]):
    """Ezzeldin et al. (AAAI 2023), with the MMD paper's local penalty.

    Delta_k = |F_k - F| for the signed metric F of the global model (or |accuracy_k - accuracy| where a client lacks a
    group); omega_k <- omega_k - beta (Delta_k - mean Delta); the clients' models are averaged with omega_k / sum omega.
    A weight that would fall below zero is held there, which the paper leaves open.
    """

    model: Model
    options: FairFedOptions
    weights: Mapping[str, float]
    seed: int = 0

    def __post_init__(self) -> None:
        if self.options.criterion not in (MmdCriterion.STATISTICAL_PARITY, MmdCriterion.EQUAL_OPPORTUNITY):
            raise UnsupportedCombination(
                f"FairFed with {self.options.criterion.value}",
                "its metric is one difference of two rates",
                "use statistical-parity or equal-opportunity",
            )

    def clear_values(self) -> tuple[ClearValue, ...]:
        why = "FairFed sends plain updates and group counts; a baseline without privacy."
        return (ClearValue(CHANGE, why, True), ClearValue(COUNTS, why, True))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {CHANGE: (self.model.size,), COUNTS: (6,)}

    def start(self) -> FairFedState:
        return FairFedState(self.model.initial(self.seed), np.array(tuple(self.weights.values())))

    def contribution(self, state: FairFedState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        options = self.options
        given = conditions(options.criterion, self.model.classes, options.positive_class)
        kernel, place = kernel_of(options.kernel, options.kernel_width), options.positive_class
        penalty = OwnPenalty(self.model, Score.PROBABILITY, given, place, kernel, options.fairness)

        def gradient(theta: Tensor, rows: Tensor) -> Tensor:
            return penalty.gradient(theta, silo.x[rows], silo.y[rows], silo.s[rows])

        change = local_change(
            state.theta, batch, options.local_epochs, options.local_batch, options.rate(step), gradient
        )
        return Message(clear={CHANGE: change, COUNTS: self._counts(state.theta, silo, batch)})

    def update(self, state: FairFedState, received: Received) -> FairFedState:
        counts = np.stack([received[party][COUNTS].values for party in self.weights])
        weights = state.weights - self.options.budget * _centre(distances(counts))
        weights = np.maximum(weights, 0.0)
        if not weights.any():
            weights = np.array(tuple(self.weights.values()))
        shares = weights / weights.sum()
        named = dict(zip(self.weights, shares.tolist(), strict=True))
        return FairFedState(with_mean_change(state.theta, named, received, CHANGE), weights)

    def theta(self, state: FairFedState) -> Tensor:
        return state.theta

    def _counts(self, theta: Tensor, silo: SiloTensors, batch: Tensor) -> Floats:
        """Records, hits; and for each group records and positive predictions, under the condition."""
        y, s = silo.y[batch], silo.s[batch]
        guess = self.model.logits(theta, silo.x[batch]).argmax(dim=1)
        positive = guess == self.options.positive_class
        inside = torch.ones_like(y, dtype=torch.bool)
        if self.options.criterion is MmdCriterion.EQUAL_OPPORTUNITY:
            inside = y == self.options.positive_class
        out = [len(y), int((guess == y).sum())]
        for group in (0, 1):
            members = inside & (s == group)
            out += [int(members.sum()), int((members & positive).sum())]
        return np.array(out, dtype=np.float64)


def distances(counts: Floats) -> Floats:
    """Delta_k of each client, from one row of counts per client."""
    total = counts.sum(axis=0)
    overall, accuracy = _metric(total), total[1] / max(1.0, total[0])
    out = np.zeros(len(counts))
    for place, row in enumerate(counts):
        own = _metric(row)
        if own is None or overall is None:
            out[place] = abs(row[1] / max(1.0, row[0]) - accuracy)
        else:
            out[place] = abs(own - overall)
    return out


def _metric(row: Floats) -> float | None:
    """Positive rate of group 0 minus that of group 1; None if a group is missing."""
    if row[2] == 0 or row[4] == 0:
        return None
    return float(row[3] / row[2] - row[5] / row[4])


def _centre(values: Floats) -> Floats:
    return np.asarray(values - values.mean())


def build(blueprint: Blueprint[FairFedOptions]) -> FairFed:
    """FairFed of a plan."""
    blueprint.require_two_groups()
    return FairFed(blueprint.model, blueprint.options, blueprint.shares, blueprint.seed)


RECIPE = Recipe("fairfed", FairFedOptions, build, baseline=True)
