"""FPFL: federated learning for users, with group rates held together by differential multipliers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, assert_never, final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, count, positive
from calibrate.plans.clipped_sums import FpflPlan
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.baselines.tran import MultiplierOptions, TranMultipliers
from privfair.algorithms.parts.descent import Descent, DescentRule, Iterate
from privfair.algorithms.parts.unit_sums import (
    HITS,
    RECORDS,
    Layout,
    Statistics,
    records_and_hits,
    selection_entries,
    summed_statistics,
)
from privfair.algorithms.recipe import USER_ADDED, Blueprint, Recipe, Unpriced, needed, refuse_normalisation
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
from privfair.models.model import Model, require_class_weights, require_group_weights
from privfair.plan.sections import AtLeastZero, BelowOne, Options, Positive, Rate, Whole

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
    TAIL_AVERAGE = "tail-average"
    """The mean of the models of the last quarter of the rounds."""


@dataclass(frozen=True)
class FpflOptions(Options):
    """FPFL and its ladder: the notion "none" for FL and PFL; no clip for FL and FFL."""

    learning_rate: Positive = 0.1
    momentum: BelowOne = 0.0
    cosine: bool = False
    """Whether the step falls to zero along half a cosine."""
    notion: FairnessNotion = FairnessNotion.FALSE_NEGATIVE_RATE
    tolerance: AtLeastZero = 0.02
    multiplier_rate: Positive = 0.01
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
    group_weight: tuple[tuple[Positive, ...], ...] = ()
    """The same for each class (a list each) and group: public numbers of the plan, never of a true count."""


@dataclass(frozen=True)
class PrivateMultipliers(MultiplierOptions):
    """method = "tran": basic multipliers (Tran et al.), to compare with: the same vector at the same price."""

    notion: FairnessNotion = FairnessNotion.FALSE_NEGATIVE_RATE

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.notion is FairnessNotion.NONE:
            raise InvalidInput("[training] notion", self.notion.value, "has no multipliers", "use method = 'fpfl'")


@dataclass(frozen=True, eq=False)
class FpflState:
    """All of it follows from published values."""

    descent: Descent
    multipliers: Floats
    """(rates, groups)"""
    best: Tensor
    """The most accurate fair model so far, by published statistics; or the smoothed model, if that is wanted."""
    best_accuracy: float
    """Below zero as long as there is none."""


@final
@dataclass(frozen=True, eq=False)
class Fpfl(Algorithm[FpflState]):
    """Rodriguez-Galvez et al. (arXiv:2109.08604), Algorithm 1; one party, the trusted aggregator of all users.

    Guarantee: with a clip, each user's whole vector [grad L, group sums, group counts, their gradients] is scaled to
    norm `clip` at most before it is added, which is what an FPFL manifest prices, whatever weights its records
    have in it (docs/theorems/fpfl-and-mmd.md#fpfl, "Weights"). The rest of the round (division by noisy counts,
    multipliers, momentum, choice of the model) is post-processing. Unit: all data of one user.

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
    rounds: int = 1
    """The planned updates, which a cosine and a tail are measured by."""

    def __post_init__(self) -> None:
        count("groups", self.groups)
        require_class_weights(self.options.class_weight, self.model.classes)
        require_group_weights(self.options.group_weight, self.model.classes, self.groups)
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
        return Statistics(self.model, layout, self.rates, self.options.rate_value, self._weights())

    def _weights(self) -> tuple[tuple[float, ...], ...]:
        """How often each class and group counts in the loss; empty where all count alike."""
        of_class, of_group = self.options.class_weight, self.options.group_weight
        if not of_class and not of_group:
            return ()
        of_class = of_class or (1.0,) * self.model.classes
        of_group = of_group or ((1.0,) * self.groups,) * self.model.classes
        return tuple(tuple(one * each for each in row) for one, row in zip(of_class, of_group, strict=True))

    @cached_property
    def steps(self) -> DescentRule:
        """How the noisy direction becomes the next model."""
        own = self.options
        tail = own.choice is ModelChoice.TAIL_AVERAGE
        iterate = Iterate.TAIL_AVERAGE if tail else Iterate.LAST
        return DescentRule(own.learning_rate, own.momentum, iterate=iterate, rounds=self.rounds, cosine=own.cosine)

    def clear_values(self) -> tuple[ClearValue, ...]:
        if self.clip is not None:
            return ()
        return (ClearValue(STATISTICS, "Without a clip users' sums are unbounded and sent without privacy.", True),)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {STATISTICS: (self.statistics.layout.size,)}

    def start(self) -> FpflState:
        theta = self.model.initial(self.seed)
        return FpflState(self.steps.start(theta), np.zeros((len(self.rates), self.groups)), theta, _NONE_YET)

    def contribution(self, state: FpflState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        total, largest = self.statistics.summed(state.descent.theta, silo, batch, self.clip)
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
        at = self.steps.advance(state.descent, torch.from_numpy(direction))
        if self.options.choice is ModelChoice.SMOOTHED:
            best = best + max(self.options.smoothing, 1 / at.step) * (at.theta - best)
        return FpflState(at, multipliers, best, accuracy)

    def theta(self, state: FpflState) -> Tensor:
        match self.options.choice:
            case ModelChoice.LAST:
                return state.descent.theta
            case ModelChoice.TAIL_AVERAGE:
                return self.steps.model(state.descent)
            case ModelChoice.BEST_PUBLISHED:
                return state.best if state.best_accuracy > _NONE_YET else state.descent.theta
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
            return state.descent.theta, accuracy
        return state.best, state.best_accuracy


def build(blueprint: Blueprint[Any]) -> Fpfl | TranMultipliers:
    """FPFL and its ladder; without a clip (and so without a promise) FL and FFL; or Tran's multipliers.

    Under a promise there is one party, the trusted aggregator. Without one, several parties each draw a cohort.
    """
    if isinstance(blueprint.parameters, Unpriced):
        given = blueprint.parameters
        ratio, users, clip = given.number("normalisation_noise_ratio"), given.whole("users"), given.number("clip")
        cohort = needed("cohort", given.whole("cohort"))
    else:
        plan = blueprint.plan(FpflPlan)
        ratio, users, cohort = plan.normalisation_noise_ratio, plan.users, float(plan.cohort)
        clip = blueprint.bound(STATISTICS)
    refuse_normalisation(ratio)
    blueprint.require_users(users)
    expected = cohort * len(blueprint.parties)
    own, seed = blueprint.options, blueprint.seed
    if isinstance(own, PrivateMultipliers):
        return TranMultipliers(blueprint.model, own, blueprint.groups, expected, clip, seed)
    return Fpfl(blueprint.model, own, blueprint.groups, expected, clip, seed, blueprint.rounds)


RECIPES: tuple[Recipe[Any], ...] = (
    Recipe("fpfl", FpflOptions, build, USER_ADDED, method="fpfl"),
    Recipe("fpfl", PrivateMultipliers, build, USER_ADDED, method="tran"),
)
