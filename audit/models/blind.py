"""Do members and non-members differ without any model? Then no attack on the model proves anything.

If the two files come from different years, sources or filters, a classifier that never sees the model tells them apart,
and an attack's success is no leak. So the auditor first plays blind: a linear rule on the features, their squares and
the label is fitted to one half of the records and tried on the other.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import rankdata

from audit.models.roc import area_value
from audit.report.results import BlindRule, Check, Layer, not_possible, passed_if
from calibrate.arrays import Booleans, Floats, Integers

_RIDGE = 1e-2
_MOST_FEATURES = 500
_NAME = "members and non-members look alike without the model"


def check_alike(rule: BlindRule) -> Check:
    """Not a fault of the model, so never "failed": the bound on epsilon becomes impossible."""
    finding = f"area {rule.auc:.3f} for a rule that never sees the model, p = {rule.p_value:.2g}"
    if not rule.tells_apart:
        return passed_if(Layer.PROBE, _NAME, True, finding)
    return not_possible(
        Layer.PROBE,
        _NAME,
        f"{finding}: the files differ by themselves, so no bound on epsilon is drawn; take members and "
        "non-members at random from one source",
    )


def blind_rule(features: NDArray[np.floating], labels: Integers, is_member: Booleans, seed: int) -> BlindRule:
    """Fit on a random half, try on the other; under a random assignment the p-value is valid up to normality."""
    table = _describe(features, labels)
    random = np.random.default_rng((seed, 0xB11D))
    fitting = np.zeros(len(table), dtype=np.bool_)
    fitting[random.permutation(len(table))[: len(table) // 2]] = True
    if min(is_member[fitting].sum(), (~is_member)[fitting].sum()) < 2:
        return BlindRule(auc=0.5, p_value=1.0)
    rule = _ridge(table[fitting], is_member[fitting])
    scores, truth = table[~fitting] @ rule, is_member[~fitting]
    if not truth.any() or truth.all():
        return BlindRule(auc=0.5, p_value=1.0)
    auc = area_value(scores[truth], scores[~truth])
    return BlindRule(auc=auc, p_value=_p_value(auc, scores, int(truth.sum())))


def _describe(features: NDArray[np.floating], labels: Integers) -> Floats:
    x = np.asarray(features, dtype=np.float64)[:, :_MOST_FEATURES]
    x = x[:, x.std(axis=0) > 1e-9 * np.abs(x).max(axis=0, initial=0.0)]  # a constant tells nothing, and has no scale
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    classes = np.eye(int(labels.max()) + 1)[labels]
    squares = x**2 - 1
    return np.hstack((x, squares / np.maximum(squares.std(axis=0), 1e-12), classes, np.ones((len(x), 1))))


def _ridge(table: Floats, truth: Booleans) -> Floats:
    aim = np.where(truth, 1.0 / truth.sum(), -1.0 / (~truth).sum())
    gram = table.T @ table / len(table) + _RIDGE * np.eye(table.shape[1])
    return np.asarray(np.linalg.solve(gram, table.T @ aim))


def _p_value(auc: float, scores: Floats, members: int) -> float:
    """One-sided, of the rank sum under a random assignment; its exact variance, ties included."""
    ranks = rankdata(scores)
    total = len(scores)
    others = total - members
    variance = ranks.var() * total / (total - 1) / (members * others) ** 2 * (members * others / total)
    return 1.0 if variance == 0 else float(ndtr(-(auc - 0.5) / math.sqrt(variance)))
