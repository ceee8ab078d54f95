"""Shadow models of a scikit-learn estimator: the same estimator, unfitted, trained again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from audit.attacks.membership.shadow.recipe import ShadowRecords
from audit.attacks.membership.signals import phi_from_probabilities
from calibrate.arrays import Booleans, Floats
from calibrate.errors import InvalidInput


@final
@dataclass(frozen=True, eq=False)
class ClonedEstimator:
    """A clone with the target's own settings is the best stand-in; it is trained one model at a time."""

    estimator: Any
    inputs: Any
    """What the estimator is given, one row for each of the records: an array, or a table with named columns."""
    kind: ClassVar[str] = "the target's own estimator"

    @property
    def training(self) -> str:
        return f"clones of {type(self.estimator).__name__} with its own settings"

    def signals(self, records: ShadowRecords, included: Booleans, seeds: tuple[int, ...]) -> Floats:
        return np.stack([self._one(records, own, seed) for own, seed in zip(included, seeds, strict=True)])

    def _one(self, records: ShadowRecords, own: Booleans, seed: int) -> Floats:
        from sklearn.base import clone

        model = clone(self.estimator)
        seeded = {name: seed % 2**31 for name in model.get_params() if name.split("__")[-1] == "random_state"}
        model.set_params(**seeded)
        if len(np.unique(records.labels[own])) < 2:
            raise InvalidInput(
                "records", int(own.sum()), "of a shadow model hold one class only", "give more records"
            )
        rows = np.flatnonzero(own)
        mine = self.inputs.iloc[rows] if hasattr(self.inputs, "iloc") else self.inputs[rows]
        model.fit(mine, records.labels[own])
        table = np.zeros((len(records), records.classes))
        table[:, np.asarray(model.classes_, dtype=np.int64)] = model.predict_proba(self.inputs)
        return phi_from_probabilities(table, records.labels)
