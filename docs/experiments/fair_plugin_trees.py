"""The fair plug-in for attributes with boosted trees as its score: x and y are public there, so any model may help.

Each silo grows trees on its own records and sends them in the clear. A record's score is the mean of the *other*
silos' trees, so that nobody is judged by trees that saw it; a new record's is the mean of all. The scores are one more
column of features, and everything after that is the fair plug-in as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from fair_plugin_report import TREES, Row
from numpy.typing import NDArray
from run_fair_plugin import TARGETS, rule_scores, train
from sklearn.ensemble import HistGradientBoostingClassifier
from steffle_settings import SETTINGS, SILOS
from steffle_split import _whole

from calibrate.privacy_unit import Protected
from privfair.algorithms.algorithm import SiloTensors
from privfair.data.partition import Heterogeneous, cut_into_silos, split_silos

EPSILONS = (0.25, 0.5, 1.0)
_SURE = 1e-4


def run_trees(setting_name: str, split: int) -> Iterator[Row]:
    """All rows of one split; `no rule` (target 1) is the trees' own answer, nearly."""
    setting = next(one for one in SETTINGS if one.name == setting_name)
    parts = split_silos(cut_into_silos(_whole(setting), Heterogeneous(SILOS, setting.age, 0.0), split), split)
    trees = [grown(silo.data.features, silo.data.label) for silo in parts.train]
    silos = []
    for place, silo in enumerate(parts.train):
        others = [tree for number, tree in enumerate(trees) if number != place]
        x = with_scores(silo.data.features, others)
        silos.append(
            SiloTensors(silo.name, x, *(torch.from_numpy(np.array(t)) for t in (silo.data.label, silo.data.group)))
        )
    held = parts.test.pooled()
    x, y, s = with_scores(held.features, trees), np.array(held.label), np.array(held.group)
    for epsilon, (algorithm, last) in zip(EPSILONS, train(silos, Protected.ATTRIBUTE, EPSILONS, split), strict=True):
        for target in TARGETS[setting_name]:
            positive = rule_scores(algorithm, last, target, x) > 0
            gap = float(abs(positive[s == 0].mean() - positive[s == 1].mean()))
            yield (setting_name, split, "attribute", TREES, epsilon, target, float((positive != y).mean()), gap)


def grown(features: NDArray[np.floating], label: NDArray[np.integer]) -> HistGradientBoostingClassifier:
    """A silo's own trees; their size was chosen on split 100."""
    trees = HistGradientBoostingClassifier(
        learning_rate=0.1,
        max_iter=120,
        max_leaf_nodes=15,
        min_samples_leaf=30,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=0,
    )
    return trees.fit(features, label)


def with_scores(features: NDArray[np.floating], trees: list[HistGradientBoostingClassifier]) -> torch.Tensor:
    """The features and, last, the mean log-odds of class 1."""
    sure = [np.clip(tree.predict_proba(features)[:, 1], _SURE, 1 - _SURE) for tree in trees]
    score = np.mean([np.log(p / (1 - p)) for p in sure], axis=0)
    return torch.from_numpy(np.c_[features, score].astype(np.float32))
