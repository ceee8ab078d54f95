"""Local training with an MMD penalty of each client's own, and steps that shrink from round to round."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from privfair.fairness.constraints import Score, score_values
from privfair.fairness.mmd import Kernel, Strata, TrackedPenalty, cell_of_rows
from privfair.models.model import Model
from privfair.plan.sections import LocalTrainingOptions, Rate


@dataclass(frozen=True)
class DecayedLocalTraining(LocalTrainingOptions):
    """Local training whose step shrinks from round to round."""

    learning_rate_factor: Rate = 1.0
    """By which it shrinks; the MMD paper's runs on real data use 0.99."""

    def rate(self, step: int) -> float:
        """The length of a local step in this round, counted from 0."""
        return self.learning_rate * self.learning_rate_factor**step


@dataclass(frozen=True, eq=False)
class OwnPenalty:
    """`weight` times the squared MMDs between the groups among the records of one batch.

    A pair of groups of which one has no record there under a condition has no penalty there.
    """

    model: Model
    score: Score
    given: tuple[int | None, ...]
    positive_class: int
    kernel: Kernel
    weight: float
    groups: int = 2
    strata: Strata = field(default_factory=Strata)

    def gradient(self, theta: Tensor, x: Tensor, y: Tensor, s: Tensor) -> Tensor:
        """The gradient of mean loss plus penalty."""
        scores = score_values(self.score, self.model, theta, x, y, self.positive_class).numpy()
        cells = cell_of_rows(self.given, self.strata.of(x, y), s).numpy()
        conditions = range(len(self.given))
        shares = np.bincount(cells[cells >= 0], minlength=self.groups * len(self.given)) / max(1, len(y))
        published = [
            [scores[cells == group * len(self.given) + place] for place in conditions] for group in range(self.groups)
        ]
        own = (self.model, self.score, self.given, self.positive_class, self.kernel, self.weight)
        fixed = TrackedPenalty(*own, published, shares=shares, strata=self.strata)
        return fixed.gradient(theta, x, y, s)
