"""FedAvg with an MMD penalty of each client's own: fair at every client, and not therefore fair overall."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor

from privfair.algorithms.algorithm import ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.local_training import OneModel, OneModelAlgorithm, local_change, with_mean_change
from privfair.algorithms.recipe import Blueprint, Recipe
from privfair.fairness.constraints import KernelKind, MmdCriterion, Score, require_score
from privfair.fairness.mmd import Strata, conditions, kernel_of
from privfair.models.model import Model
from privfair.plan.sections import AtLeastZero, Positive, Whole
from privfair_experiments.baselines.mmd_penalty import DecayedLocalTraining, OwnPenalty

CHANGE = "change"


@dataclass(frozen=True)
class LocalMmdOptions(DecayedLocalTraining):
    """FedAvg whose clients each punish the MMD between the groups among their own records."""

    fairness: AtLeastZero = 1.0
    criterion: MmdCriterion = MmdCriterion.STATISTICAL_PARITY
    score: Score = Score.PROBABILITY
    kernel: KernelKind = KernelKind.ENERGY
    kernel_width: Positive = 0.5
    positive_class: Whole = 1
    condition_feature: Whole | None = None
    """For conditional parity, as in `mmd-fedavg`."""
    condition_cut: float = 0.5

    @property
    def strata(self) -> Strata:
        """What the criterion's conditions speak of."""
        return Strata(self.condition_feature, self.condition_cut)


@final
@dataclass(frozen=True, eq=False)
class LocalMmd(OneModelAlgorithm):
    """The "local group fairness" of the MMD paper's experiments: client k descends on E_k[loss] + lambda MMD_k^2."""

    model: Model
    options: LocalMmdOptions
    weights: Mapping[str, float]
    seed: int = 0
    groups: int = 2

    def __post_init__(self) -> None:
        require_score(self.options.score, self.model.classes)
        self.options.strata.require(self.options.criterion)

    def clear_values(self) -> tuple[ClearValue, ...]:
        return (ClearValue(CHANGE, "Plain updates; a baseline without privacy.", True),)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {CHANGE: (self.model.size,)}

    def contribution(self, state: OneModel, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        options = self.options
        given = conditions(options.criterion, self.model.classes, options.positive_class)
        kernel, place = kernel_of(options.kernel, options.kernel_width), options.positive_class
        penalty = OwnPenalty(
            self.model, options.score, given, place, kernel, options.fairness, self.groups, strata=options.strata
        )

        def gradient(theta: Tensor, rows: Tensor) -> Tensor:
            return penalty.gradient(theta, silo.x[rows], silo.y[rows], silo.s[rows])

        change = local_change(
            state.theta, batch, options.local_epochs, options.local_batch, options.rate(step), gradient
        )
        return Message(clear={CHANGE: change})

    def update(self, state: OneModel, received: Received) -> OneModel:
        return OneModel(with_mean_change(state.theta, self.weights, received, CHANGE))


def build(blueprint: Blueprint[LocalMmdOptions]) -> LocalMmd:
    """Local MMD penalties of a plan."""
    return LocalMmd(blueprint.model, blueprint.options, blueprint.shares, blueprint.seed, blueprint.groups)


RECIPE = Recipe("local-mmd", LocalMmdOptions, build, baseline=True)
