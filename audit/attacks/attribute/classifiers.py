"""The classifiers that imputation and learned attacks use: the better of a linear and a boosted-tree one.

A weak imputation would make every attack look strong, so both kinds compete on records set aside for it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from enum import Enum
from typing import Any, assert_never

import numpy as np

from audit.attacks.attribute.records import Codes
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput

_SHARE_TO_CHOOSE = 0.25
_LEAST_TO_CHOOSE = 40


class Kind(Enum):
    LINEAR = "logistic regression"
    TREES = "boosted trees"


@dataclass(frozen=True, eq=False)
class Classifier:
    """Probabilities of every value, for values numbered 0 to `values - 1`."""

    fitted: Any
    values: int

    def probabilities(self, inputs: Floats) -> Floats:
        found = np.zeros((len(inputs), self.values))
        if isinstance(self.fitted, int):
            found[:, self.fitted] = 1.0
        else:
            found[:, self.fitted.classes_] = self.fitted.predict_proba(inputs)
        return found

    def guesses(self, inputs: Floats) -> Codes:
        return np.asarray(self.probabilities(inputs).argmax(axis=1), dtype=np.int64)


def fit_classifier(inputs: Floats, codes: Codes, values: int, seed: int) -> Classifier:
    """Learn codes from inputs; deterministic for a seed. One value only gives a constant answer."""
    present = np.unique(codes)
    if len(present) == 0:
        raise InvalidInput("codes", "none", "must not be empty", "give records to learn from")
    if len(present) == 1:
        return Classifier(int(present[0]), values)
    order = np.random.default_rng(seed).permutation(len(codes))
    aside = int(_SHARE_TO_CHOOSE * len(codes))
    chosen = Kind.LINEAR
    if aside >= _LEAST_TO_CHOOSE:
        judge, learn = order[:aside], order[aside:]
        if len(np.unique(codes[learn])) > 1:
            trials = {kind: _fitted(kind, inputs[learn], codes[learn], seed) for kind in Kind}
            chosen = max(Kind, key=lambda kind: np.mean(trials[kind].predict(inputs[judge]) == codes[judge]))
    return Classifier(_fitted(chosen, inputs, codes, seed), values)


def _fitted(kind: Kind, inputs: Floats, codes: Codes, seed: int) -> Any:
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        raise InvalidInput(
            "attribute inference",
            "scikit-learn",
            "is needed for the imputation baseline and is not installed",
            "pip install 'privfair[audit]'",
        ) from None
    match kind:
        case Kind.LINEAR:
            with warnings.catch_warnings():
                # A descent stopped early is a classifier too, and which one wins is judged by its hits.
                warnings.simplefilter("ignore", ConvergenceWarning)
                return make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)).fit(inputs, codes)
        case Kind.TREES:
            trees = HistGradientBoostingClassifier(
                max_iter=60, max_leaf_nodes=15, early_stopping=False, random_state=seed
            )
            return trees.fit(inputs, codes)
        case _:
            assert_never(kind)
