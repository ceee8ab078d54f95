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
from privfair.algorithms.baselines.options import TranOptions
from privfair.algorithms.parts.local_models import as_floats, as_tensor
from privfair.algorithms.parts.user_statistics import Layout, Statistics
from privfair.contribution import BoundedContribution
from privfair.fairness.constraints import Rate, rates_of
from privfair.models.model import Model

STATISTICS = "user_statistics"


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
    options: TranOptions
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
        layout = Layout(self.model.size, self.groups, len(self.rates), False)
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
        (values,) = received.values()
        published = torch.from_numpy(np.array(values[STATISTICS].values))
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

    def checkpoint(self, state: TranState) -> dict[str, Floats]:
        return {"theta": as_floats(state.theta), "multipliers": state.multipliers.copy()}

    def restore(self, arrays: Mapping[str, Floats]) -> TranState:
        dtype = self.model.initial(self.seed).dtype
        return TranState(as_tensor(arrays["theta"], dtype), np.array(arrays["multipliers"]))
