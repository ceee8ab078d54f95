"""Basic differential multipliers (Tran et al. 2021), as the FPFL paper describes them: the sign of a gap is ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import count, positive
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.unit_sums import Layout, Statistics, summed_statistics
from privfair.algorithms.recipe import USER_ADDED, Blueprint, Recipe
from privfair.contribution import BoundedContribution
from privfair.fairness.constraints import FairnessNotion, Rate, RateValue, rates_of
from privfair.models.model import Model
from privfair.plan.sections import Count, Options, Positive, Whole

STATISTICS = "user_statistics"


@dataclass(frozen=True)
class MultiplierOptions(Options):
    """Basic multipliers: no tolerance, no damping, multipliers of at most `largest_multiplier`."""

    learning_rate: Positive = 0.1
    notion: FairnessNotion = FairnessNotion.DEMOGRAPHIC_PARITY
    multiplier_rate: Positive = 0.01
    largest_multiplier: Positive = 1.0
    rate_value: RateValue = RateValue.PREDICTIONS
    records_per_user: Positive = 2.0
    least_count: Positive = 1.0
    positive_class: Whole = 1


@dataclass(frozen=True)
class TranOptions(MultiplierOptions):
    """Without privacy the plan has no [privacy] section, and the cohort is a key of [training]."""

    cohort: Count | None = None
    """Users per round and party, the batch size; left out: all of them."""


@dataclass(frozen=True, eq=False)
class TranState:
    theta: Tensor
    multipliers: Floats
    """(rates, groups)"""


@final
@dataclass(frozen=True, eq=False)
class TranMultipliers(Algorithm[TranState]):
    """lambda <- min(lambda + gamma |gap|, largest); w <- w - eta (grad L / n + sum_a lambda_a |grad gap_a|).

    The absolute value is taken entry by entry of the difference of mean gradients (Equation 15 of the FPFL paper),
    where FPFL takes the gradient of the absolute gap. There is no tolerance and no damping.

    Guarantee: as for FPFL; each user's whole vector is clipped to `clip`. Unit: all data of one user.
    """

    model: Model
    options: MultiplierOptions
    groups: int
    expected_cohort: float
    clip: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        count("groups", self.groups, least=2)
        positive("expected cohort", self.expected_cohort)
        if self.clip is not None:
            positive("clip", self.clip)

    @cached_property
    def rates(self) -> tuple[Rate, ...]:
        return rates_of(self.options.notion, self.model.classes, self.options.positive_class)

    @cached_property
    def statistics(self) -> Statistics:
        layout = Layout(self.model.size, self.groups, len(self.rates))
        return Statistics(self.model, layout, self.rates, self.options.rate_value)

    def clear_values(self) -> tuple[ClearValue, ...]:
        if self.clip is not None:
            return ()
        return (ClearValue(STATISTICS, "Without a clip users' sums are unbounded.", True),)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {STATISTICS: (self.statistics.layout.size,)}

    def start(self) -> TranState:
        return TranState(self.model.initial(self.seed), np.zeros((len(self.rates), self.groups)))

    def contribution(self, state: TranState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        total, largest = self.statistics.summed(state.theta, silo, batch, self.clip)
        if self.clip is None:
            return Message(clear={STATISTICS: total.numpy()})
        return Message(noisy=(BoundedContribution(STATISTICS, total.numpy(), self.clip, largest),))

    def update(self, state: TranState, received: Received) -> TranState:
        published = summed_statistics(received, STATISTICS)
        loss, sums, counts, gradients, _ = (part.numpy() for part in self.statistics.layout.split(published))
        direction = loss / (self.expected_cohort * self.options.records_per_user)
        multipliers = state.multipliers.copy()
        for j in range(len(self.rates)):
            if counts[j].sum() < self.options.least_count:
                continue
            overall = np.clip(sums[j].sum() / counts[j].sum(), 0.0, 1.0)
            overall_gradient = gradients[j].sum(axis=0) / counts[j].sum()
            for a in np.flatnonzero(counts[j] >= self.options.least_count):
                gap = abs(overall - np.clip(sums[j, a] / counts[j, a], 0.0, 1.0))
                grown = multipliers[j, a] + self.options.multiplier_rate * gap
                multipliers[j, a] = min(grown, self.options.largest_multiplier)
                direction = direction + multipliers[j, a] * np.abs(overall_gradient - gradients[j, a] / counts[j, a])
        step = torch.from_numpy(direction).to(state.theta.dtype) * self.options.learning_rate
        return TranState(state.theta - step, multipliers)

    def theta(self, state: TranState) -> Tensor:
        return state.theta


def build(blueprint: Blueprint[TranOptions]) -> TranMultipliers:
    """Basic multipliers of a plan that protects nobody."""
    own = blueprint.options.cohort
    cohort = float(blueprint.units if own is None else own * len(blueprint.parties))
    return TranMultipliers(blueprint.model, blueprint.options, blueprint.groups, cohort, None, blueprint.seed)


RECIPE = Recipe("tran", TranOptions, build, USER_ADDED, baseline=True)
