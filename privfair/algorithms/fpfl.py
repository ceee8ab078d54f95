"""FPFL: federated learning for users, with group rates held together by differential multipliers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from typing import assert_never, final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, count, positive
from calibrate.plans.fpfl import FpflPlan
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.baselines.tran import TranMultipliers, TranOptions
from privfair.algorithms.parts.options import AtLeastZero, Options, Positive, Rate, Whole
from privfair.algorithms.parts.user_statistics import (
    HITS,
    RECORDS,
    Layout,
    Statistics,
    records_and_hits,
    selection_entries,
    summed_statistics,
)
from privfair.algorithms.recipe import USER_ADDED, Blueprint, Recipe, refuse_normalisation
from privfair.contribution import BoundedContribution
from privfair.fairness.constraints import (
    FairnessNotion,
    RateSums,
    RateValue,
    Violations,
    ascend,
    descent,
    rates_of,
    violations,
)
from privfair.fairness.constraints import Rate as GroupRate
from privfair.models.model import Model, require_class_weights
from privfair.plan.privacy import Unpriced, needed

STATISTICS = "user_statistics"
_NONE_YET = -1.0


class ModelChoice(Enum):
    """Which model a run of FPFL ends with."""

    LAST = "last"
    BEST_PUBLISHED = "best-published"
    """The most accurate among the fair ones, judged by the published noisy statistics alone."""
    SMOOTHED = "smoothed"
    """An exponential mean of the models (at first a plain one): the last steps' noise, of batches as of the gate,
    averages out."""


class UserMethod(Enum):
    """What an `fpfl` plan does with its users' noisy statistics."""

    FPFL = "fpfl"
    TRAN = "tran"
    """Basic multipliers, to compare with: the same vector at the same price."""


@dataclass(frozen=True)
class FpflOptions(Options):
    """FPFL and its ladder: the notion "none" for FL and PFL; no clip for FL and FFL.

    With method = "tran" the same statistics train basic multipliers of at most `largest_multiplier` (Tran et al.).
    """

    method: UserMethod = UserMethod.FPFL
    learning_rate: Positive = 0.1
    notion: FairnessNotion = FairnessNotion.FALSE_NEGATIVE_RATE
    tolerance: AtLeastZero = 0.02
    multiplier_rate: Positive = 0.01
    largest_multiplier: Positive = 1.0
    damping: AtLeastZero = 2.0
    rate_value: RateValue = RateValue.PREDICTIONS
    choice: ModelChoice = ModelChoice.LAST
    smoothing: Rate = 0.01
    """How much the newest model counts in the smoothed one."""
    records_per_user: Positive = 2.0
    """A public figure: the sum of gradients is divided by the expected cohort times this, never by a true count."""
    least_count: Positive = 1.0
    """A group whose noisy count falls below is left out of the round's constraints."""
    positive_class: Whole = 1
    class_weight: tuple[Positive, ...] = ()
    """How often each class counts in a user's loss, before the user's vector is clipped."""


@dataclass(frozen=True, eq=False)
class FpflState:
    """All of it follows from published values."""

    theta: Tensor
    multipliers: Floats
    """(rates, groups)"""
    best: Tensor
    """The most accurate fair model so far, by published statistics; or the smoothed model, if that is wanted."""
    best_accuracy: float
    """Below zero as long as there is none."""
    steps: int = 0
    """Updates made so far."""


@final
@dataclass(frozen=True, eq=False)
class Fpfl(Algorithm[FpflState]):
    """Rodriguez-Galvez et al. (arXiv:2109.08604), Algorithm 1; one party, the trusted aggregator of all users.

    Guarantee: with a clip, each user's whole vector [grad L, group sums, group counts, their gradients] is scaled to
    norm `clip` at most before it is added, which is what an FPFL manifest prices. The rest of the round (division
    by noisy counts, multipliers, choice of the model) is post-processing. Unit: all data of one user.

    The ladder of the paper: FL is the notion "none" without a clip; FFL has a notion; the two with a clip and no
    noise are FL+clip and FFL+clip; with noise, PFL and FPFL. Noise is the manifest's, never chosen here.
    """

    model: Model
    options: FpflOptions
    groups: int
    expected_cohort: float
    """The (expected) number of users per round, which is public."""
    clip: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        count("groups", self.groups)
        require_class_weights(self.options.class_weight, self.model.classes)
        positive("expected cohort", self.expected_cohort)
        if self.clip is not None:
            positive("clip", self.clip)
        if self.rates and self.groups < 2:
            raise InvalidInput("groups", self.groups, "must be at least 2", "drop the fairness notion")
        _ = self.statistics

    @cached_property
    def rates(self) -> tuple[GroupRate, ...]:
        return rates_of(self.options.notion, self.model.classes, self.options.positive_class)

    @cached_property
    def statistics(self) -> Statistics:
        chosen = self.options.choice is ModelChoice.BEST_PUBLISHED
        extra = selection_entries(self.rates, self.options.rate_value) if chosen else ()
        layout = Layout(self.model.size, self.groups, len(self.rates), extra)
        return Statistics(self.model, layout, self.rates, self.options.rate_value, self.options.class_weight)

    def clear_values(self) -> tuple[ClearValue, ...]:
        if self.clip is not None:
            return ()
        return (ClearValue(STATISTICS, "Without a clip users' sums are unbounded and sent without privacy.", True),)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {STATISTICS: (self.statistics.layout.size,)}

    def start(self) -> FpflState:
        theta = self.model.initial(self.seed)
        return FpflState(theta, np.zeros((len(self.rates), self.groups)), theta, _NONE_YET)

    def contribution(self, state: FpflState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        total, largest = self.statistics.summed(state.theta, silo, batch, self.clip)
        if self.clip is None:
            return Message(clear={STATISTICS: total.numpy()})
        return Message(noisy=(BoundedContribution(STATISTICS, total.numpy(), self.clip, largest),))

    def update(self, state: FpflState, received: Received) -> FpflState:
        published = summed_statistics(received, STATISTICS)
        loss, sums, counts, gradients, selection = (part.numpy() for part in self.statistics.layout.split(published))
        found = [
            violations(RateSums(sums[j], gradients[j], counts[j]), self.options.tolerance, self.options.least_count)
            for j in range(len(self.rates))
        ]
        best, accuracy = self._select(state, found, self._selection(sums, counts, selection))
        direction = loss / (self.expected_cohort * self.options.records_per_user)
        multipliers = state.multipliers.copy()
        for j, violated in enumerate(found):
            multipliers[j] = ascend(multipliers[j], violated, self.options.multiplier_rate)
            direction = descent(direction, multipliers[j], self.options.damping, violated)
        step = torch.from_numpy(direction).to(state.theta.dtype) * self.options.learning_rate
        theta, steps = state.theta - step, state.steps + 1
        if self.options.choice is ModelChoice.SMOOTHED:
            best = best + max(self.options.smoothing, 1 / steps) * (theta - best)
        return FpflState(theta, multipliers, best, accuracy, steps)

    def theta(self, state: FpflState) -> Tensor:
        match self.options.choice:
            case ModelChoice.LAST:
                return state.theta
            case ModelChoice.BEST_PUBLISHED:
                return state.best if state.best_accuracy > _NONE_YET else state.theta
            case ModelChoice.SMOOTHED:
                return state.best
            case _:
                assert_never(self.options.choice)

    def _selection(self, sums: Floats, counts: Floats, sent: Floats) -> tuple[float, float]:
        """Records and hits of the cohort, as published: sent for the purpose, or added up from the groups' rates."""
        given = dict(zip(self.statistics.layout.selection, sent.tolist(), strict=True))
        if self.options.choice is not ModelChoice.BEST_PUBLISHED:
            return 0.0, 0.0
        records, hits = records_and_hits(self.rates, sums.sum(axis=1), counts.sum(axis=1))
        return given.get(RECORDS, records), given.get(HITS, hits)

    def _select(
        self, state: FpflState, found: list[Violations], selection: tuple[float, float]
    ) -> tuple[Tensor, float]:
        """The better of the best so far and the model that these statistics were computed with.

        A model is fair if every gap is known and within the tolerance; all of it as published, noise included.
        """
        if self.options.choice is not ModelChoice.BEST_PUBLISHED:
            return state.best, state.best_accuracy
        if selection[0] < self.options.least_count:
            return state.best, state.best_accuracy
        fair = all(bool((each.gaps <= self.options.tolerance).all()) for each in found)
        accuracy = float(np.clip(selection[1] / selection[0], 0.0, 1.0))
        if fair and accuracy > state.best_accuracy:
            return state.theta, accuracy
        return state.best, state.best_accuracy


def build(blueprint: Blueprint[FpflOptions]) -> Fpfl | TranMultipliers:
    """FPFL and its ladder; without a clip (and so without a promise) FL and FFL; or Tran's multipliers.

    Under a promise there is one party, the trusted aggregator. Without one, several parties each draw a cohort.
    """
    if isinstance(blueprint.parameters, Unpriced):
        given = blueprint.parameters
        ratio, users, clip = given.number("normalisation_noise_ratio"), given.whole("users"), given.number("clip")
        cohort = needed("cohort", given.whole("cohort"))
    else:
        plan = blueprint.plan(FpflPlan)
        ratio, users, clip, cohort = plan.normalisation_noise_ratio, plan.users, plan.clip, float(plan.cohort)
    refuse_normalisation(ratio)
    blueprint.require_users(users)
    expected = cohort * len(blueprint.parties)
    if blueprint.options.method is UserMethod.TRAN:
        return TranMultipliers(
            blueprint.model, _tran(blueprint.options), blueprint.groups, expected, clip, blueprint.seed
        )
    return Fpfl(blueprint.model, blueprint.options, blueprint.groups, expected, clip, blueprint.seed)


def _tran(options: FpflOptions) -> TranOptions:
    """The options that basic multipliers share; a choice of models and weights of classes they do not have."""
    if options.choice is not ModelChoice.LAST or options.class_weight or options.notion is FairnessNotion.NONE:
        raise InvalidInput(
            "[training] method",
            options.method.value,
            "ends with its last model, weighs classes alike and needs a notion",
            "drop choice, class-weight and notion = 'none'",
        )
    shared = {field.name for field in fields(TranOptions)} - {"cohort"}
    return TranOptions(**{name: getattr(options, name) for name in shared})


RECIPE = Recipe("fpfl", FpflOptions, build, USER_ADDED)
