"""Distilling a fair rule into a model of the features alone: trees that silos grow in turn to give the rule's answers.

The rule guesses the group of whom it answers; its pupil does not. It learns what the rule answers on the silos' own
records, so it is sent in the clear where features are not protected, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from calibrate.arrays import Floats
from privfair.algorithms.parts.tree_growing import TreesInTurn
from privfair.models.fair_rule import FairRule


@dataclass(frozen=True, eq=False)
class Distilling:
    """How a pupil learns from `rule`.

    Guarantee: a pupil's tree is a function of features and of published values (the rule's parameters, the pupil's
    earlier trees) alone; where the rule is made of randomised responses this is post-processing of them
    (docs/theorems/fair-plugin.md, equation 6).
    """

    rule: FairRule
    pupil: TreesInTurn
    _known: dict[str, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    def next_tree(self, forest: Tensor, place: int, party: str, theta: Tensor, x: Tensor) -> Floats:
        """What a silo sends for this place of the pupil's forest, if the rule has the parameters theta."""
        mine = party == self.pupil.turns.grower(place)
        answers = self._answers(party, theta, x) if mine else torch.zeros(0)
        return self.pupil.next_tree(forest, place, party, x, answers)

    def _answers(self, party: str, theta: Tensor, x: Tensor) -> Tensor:
        """The class that the rule answers; remembered, since the rule stays as it is while it is distilled."""
        known = self._known.get(party)
        if known is not None and known[0] is x and torch.equal(known[1], theta):
            return known[2]
        answers = self.rule.logits(theta, x).argmax(dim=1)
        self._known[party] = (x, theta, answers)
        return answers
