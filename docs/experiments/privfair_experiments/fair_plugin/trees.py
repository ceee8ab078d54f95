"""The fair plug-in for attributes with boosted trees as its score: x and y are public there, so any model may help.

The trees are grown by the production code, in turn, as `FairPlugin` grows them. Since they don't depend on epsilon,
they are grown once per split, and their score is given to the rule as one more column of the features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from calibrate.privacy_unit import Protected
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.fair_plugin import FairPluginOptions
from privfair.algorithms.parts.tree_growing import TreesInTurn, Turns
from privfair.models.trees import BoostedTrees
from privfair_experiments.fair_plugin.report import DISTILLED, TREES, Row
from privfair_experiments.fair_plugin.run import TARGETS, load_silos, rule_scores, train

EPSILONS = (0.25, 0.5, 1.0)
NUMBER, LEAVES = 240, 15
"""Compared on split 100 and settled while splits 0 and 1 were looked at; none of the three is measured."""
DISTILLED_AT = 1.0
"""The epsilon at which the rule is distilled too, into as many trees; ways to do it were compared on split 100."""


def run_trees(setting_name: str, split: int) -> Iterator[Row]:
    """All rows of one split; `no rule` (target 1) is the trees' own answer."""
    silos, (x, y, s) = load_silos(setting_name, split)
    model = BoostedTrees(x.shape[1], NUMBER, LEAVES)
    growing = TreesInTurn(model, Turns(tuple(silo.name for silo in silos)), FairPluginOptions().tree_rate)
    forest = grow_forest(growing, silos)
    known = [replace(silo, x=with_score(model, growing.turns.unseen(forest, silo.name), silo.x)) for silo in silos]
    wide = with_score(model, forest, x)

    def measured(positive: np.ndarray) -> tuple[float, float]:
        return float((positive != y).mean()), float(abs(positive[s == 0].mean() - positive[s == 1].mean()))

    last = train(known, Protected.ATTRIBUTE, EPSILONS, split, scored=True, rounds=NUMBER + 2)
    for epsilon, (algorithm, state) in zip(EPSILONS, last, strict=True):
        for target in TARGETS[setting_name]:
            shown = measured(rule_scores(algorithm, state, target, wide) > 0)
            yield (setting_name, split, "attribute", TREES, epsilon, target, *shown)
            if epsilon == DISTILLED_AT and target < 1.0:
                told = [torch.from_numpy(rule_scores(algorithm, state, target, one.x) > 0).long() for one in known]
                pupils = [replace(silo, y=answers) for silo, answers in zip(silos, told, strict=True)]
                answers = model.scores(grow_forest(growing, pupils), x).numpy() > 0
                yield (setting_name, split, "attribute", DISTILLED, epsilon, target, *measured(answers))


def grow_forest(growing: TreesInTurn, silos: list[SiloTensors]) -> Tensor:
    """The trees of a run: one per round, by the silos in turn."""
    forest, named = growing.start(), {silo.name: silo for silo in silos}
    for place in range(growing.model.trees):
        silo = named[growing.turns.grower(place)]
        sent = {silo.name: growing.next_tree(forest, place, silo.name, silo.x, silo.y)}
        forest = growing.with_tree(forest, place, sent)
    return forest


def with_score(model: BoostedTrees, forest: Tensor, x: Tensor) -> Tensor:
    """The features and, last, the trees' log-odds of class 1."""
    return torch.cat((x, model.scores(forest, x)[:, None].to(x.dtype)), dim=1)
