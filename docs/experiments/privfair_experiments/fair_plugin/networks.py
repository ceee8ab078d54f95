"""Networks as the fair plug-in's model of the outcome, without a rule: do they pay? On splits that are not measured.

One hidden layer of ReLU, full batches, the plug-in's descent; where records are protected each one's gradient is
clipped and the noise of all silos is drawn at once. Beside it the logistic score, and boosted trees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit

from calibrate.plans.fair_plugin import SCORES
from calibrate.privacy_unit import Protected
from privfair.algorithms.fair_plugin import FairPluginOptions
from privfair.algorithms.parts.descent import DescentRule
from privfair.algorithms.parts.tree_growing import TreesInTurn, Turns
from privfair.models.trees import BoostedTrees
from privfair_experiments.fair_plugin.report import NETWORKS, Row
from privfair_experiments.fair_plugin.run import ROUNDS, load_silos, plan_and_noise, rule_scores, train
from privfair_experiments.fair_plugin.trees import LEAVES, NUMBER, grow_forest
from privfair_experiments.steffle.settings import SILOS

SPLITS = (100, 101, 102, 103)
OF_ATTRIBUTES, OF_RECORDS = (64, 6.0, 600), (16, 12.0, ROUNDS)
"""Hidden units, learning rate, rounds: the best of three and of two that were tried on splits 100 and 101."""
Floats32 = NDArray[np.float32]


def run_networks(split: int) -> Iterator[Row]:
    """Error and gap without a rule: logistic, network and trees for attributes; the first two for records."""
    silos, (x, y, s) = load_silos("adult-steps", split)
    features, labels = (np.concatenate([getattr(silo, name).numpy() for silo in silos]) for name in "xy")

    def row(protect: Protected, method: str, positive: Any) -> Row:
        gap = float(abs(positive[s == 0].mean() - positive[s == 1].mean()))
        error = float((positive != y).mean())
        return (NETWORKS, split, protect.value, method, 1.0, 1.0, error, gap)

    for protect in (Protected.ATTRIBUTE, Protected.RECORD):
        ((algorithm, last),) = train(silos, protect, (1.0,), split)
        yield row(protect, "logistic", rule_scores(algorithm, last, 1.0, x) > 0)
        plan, noise, _ = plan_and_noise(protect, 1.0)
        paid = protect is Protected.RECORD
        answers = train_network(
            features.astype(np.float32),
            labels.astype(np.float32),
            *(OF_RECORDS if paid else OF_ATTRIBUTES),
            split,
            plan.clip if paid else None,
            noise.get(SCORES, 0.0) * math.sqrt(SILOS),
        )
        yield row(protect, "network", answers(x.numpy().astype(np.float32)))
    model = BoostedTrees(x.shape[1], NUMBER, LEAVES)
    growing = TreesInTurn(model, Turns(tuple(silo.name for silo in silos)), FairPluginOptions().tree_rate)
    forest: torch.Tensor = grow_forest(growing, silos)
    yield row(Protected.ATTRIBUTE, "trees", model.scores(forest, x).numpy() > 0)


def train_network(
    x: Floats32, y: Floats32, hidden: int, rate: float, rounds: int, seed: int, clip: float | None, sigma: float
) -> Callable[[Floats32], NDArray[np.bool_]]:
    """Whether the mean of the last quarter of the iterates answers 1."""
    random, (records, width) = np.random.default_rng(seed), x.shape
    first = random.normal(0, 1 / math.sqrt(width), (width, hidden))
    theta = [first, np.zeros(hidden), random.normal(0, 1 / math.sqrt(hidden), hidden), np.zeros(1)]
    theta = [part.astype(np.float32) for part in theta]
    velocity, kept, times = [np.zeros_like(part) for part in theta], theta, 0
    rule, norms = DescentRule(rate, FairPluginOptions().momentum, rounds=rounds, cosine=True), (x * x).sum(axis=1) + 1
    for step in range(rounds):
        inner = x @ theta[0] + theta[1]
        active = np.maximum(inner, 0)
        residual = expit(active @ theta[2] + theta[3]) - y
        back = residual[:, None] * theta[2] * (inner > 0)
        if clip is not None:  # of both layers' outer products, so norms factor
            length = np.sqrt(residual**2 * ((active**2).sum(axis=1) + 1) + (back**2).sum(axis=1) * norms)
            factor = np.minimum(1, clip / np.maximum(length, 1e-12))
            residual, back = residual * factor, back * factor[:, None]
        gradients = [x.T @ back, back.sum(axis=0), active.T @ residual, residual.sum(keepdims=True)]
        for place, gradient in enumerate(gradients):
            noisy = (gradient + random.normal(0, 1, gradient.shape) * sigma) / records
            velocity[place] = (rule.momentum * velocity[place] + noisy).astype(np.float32)
            moved = theta[place] - rule.rate(step) * (1 - rule.momentum) * velocity[place]
            theta[place] = moved.astype(np.float32)
        if step + 1 > rounds - max(1, rounds // 4):
            times += 1
            kept = [old + (new - old) / times for old, new in zip(kept, theta, strict=True)]
    return lambda q: (np.maximum(q @ kept[0] + kept[1], 0) @ kept[2] + kept[3]) > 0
