"""The fair plug-in rule as a model: a classifier, a guess of the group, and how strongly each group is pulled.

With eta(x) = P(y = 1 | x) and rho_g(x) = P(group g | x) the rule answers 1 iff

    2 eta(x) - 1 > w(x) sum_g pull_g rho_g(x),

which is the Bayes rule under a bound on the gap between the groups' rates (Menon and Williamson 2018): w = 1 for
demographic parity; for equal opportunity w = eta, and rho is the group among the records with y = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from calibrate.errors import InvalidInput
from privfair.models.exact import weighted_rows
from privfair.models.linear import LogisticRegression
from privfair.models.model import EXACT, Differentiated, Features, Model
from privfair.models.trees import BoostedTrees

_LEAST = 1e-6
"""No probability comes closer to 0 or 1, so that scores stay finite."""


@final
@dataclass(frozen=True)
class FairRule(Differentiated):
    """theta is [the score's parameters, the group's, one pull per group]; no pull leaves the score as it is.

    The probability of the positive class is eta - w pull / 2, cut to (0, 1): one half is where the rule decides.
    """

    score: Model
    group: LogisticRegression
    opportunity: bool = False
    """Whether records of the positive class alone are to be treated equally."""
    positive: int = 1

    def __post_init__(self) -> None:
        if self.score.classes != 2 or self.positive not in (0, 1):
            given, rule = (self.score.classes, self.positive), "must be two classes, and the number of one of them"
            raise InvalidInput("classes and positive-class", given, rule, "use data with two classes")

    @property
    def size(self) -> int:
        return self.score.size + self.group.size + self.group.classes

    def split(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The score's parameters, the group's, and the pulls."""
        score, group, pulls = torch.split(theta, [self.score.size, self.group.size, self.group.classes])
        return score, group, pulls

    def initial(self, seed: int) -> Tensor:
        start = (self.score.initial(seed), self.group.initial(seed), torch.zeros(self.group.classes, dtype=EXACT))
        return torch.cat([part.to(EXACT) for part in start])

    def margin_and_groups(self, theta: Tensor, x: Features) -> tuple[Tensor, Tensor]:
        """2 eta - 1 of each record, and w rho_g: what one unit of each group's pull takes away from it."""
        score, group, _ = self.split(theta)
        eta = self.score.probabilities(score, x)[:, self.positive]
        rho = self.group.probabilities(group, x).to(eta.dtype)
        return 2 * eta - 1, rho * eta[:, None] if self.opportunity else rho

    def logits(self, theta: Tensor, x: Features) -> Tensor:
        margin, groups = self.margin_and_groups(theta, x)
        pulls = self.split(theta)[2]
        # Where nothing is differentiated, a record's answer is a function of the record.
        pull = groups @ pulls if groups.requires_grad or pulls.requires_grad else weighted_rows(groups, pulls)
        chance = ((1 + margin - pull) / 2).clamp(_LEAST, 1 - _LEAST)
        score = torch.log(chance) - torch.log1p(-chance)
        zero = torch.zeros_like(score)
        return torch.stack((zero, score) if self.positive else (score, zero), dim=1)

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        score, group, pulls = self.split(theta)
        named = {f"score.{name}": value for name, value in self.score.named_parameters(score).items()}
        named |= {f"group.{name}": value for name, value in self.group.named_parameters(group).items()}
        return named | {"pull": pulls}


@final
@dataclass(frozen=True)
class DistilledRule(Differentiated):
    """Trees that learnt what a fair rule answers. theta is theirs alone: nothing in it guesses a group."""

    pupil: BoostedTrees
    rule: FairRule
    """How the rule is made; its parameters are not part of this model."""

    @property
    def size(self) -> int:
        return self.pupil.size

    def initial(self, seed: int) -> Tensor:
        return self.pupil.initial(seed)

    def logits(self, theta: Tensor, x: Features) -> Tensor:
        return self.pupil.logits(theta, x)

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        return {f"pupil.{name}": value for name, value in self.pupil.named_parameters(theta).items()}
