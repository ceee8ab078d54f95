"""A fitted scikit-learn classifier with predict_proba, or a pipeline that ends in one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from audit.membership.records import AuditedRecords, class_text
from audit.membership.shadow.train import ShadowRecipe, ShadowRecords
from audit.membership.signals import phi_from_probabilities
from audit.membership.targets.target import numeric_inputs
from calibrate.arrays import Booleans, Floats
from calibrate.errors import InvalidInput
from privfair.data.read import BadData

# Shadow models of a scikit-learn estimator: the same estimator, unfitted, trained again and again.


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
            raise InvalidInput("records", int(own.sum()), "of a shadow model hold one class only", "give more records")
        rows = np.flatnonzero(own)
        mine = self.inputs.iloc[rows] if hasattr(self.inputs, "iloc") else self.inputs[rows]
        model.fit(mine, records.labels[own])
        table = np.zeros((len(records), records.classes))
        table[:, np.asarray(model.classes_, dtype=np.int64)] = model.predict_proba(self.inputs)
        return phi_from_probabilities(table, records.labels)


@final
@dataclass(frozen=True, eq=False)
class SklearnTarget:
    """If the estimator was fitted on named columns it gets them by name, text included; else all, as numbers."""

    estimator: Any
    source: str = "estimator"
    kind: ClassVar[str] = "scikit-learn"

    def __post_init__(self) -> None:
        if not hasattr(self.estimator, "predict_proba"):
            raise InvalidInput(
                "model",
                f"{self.source} ({type(self.estimator).__name__})",
                "has no predict_proba, so it gives no confidence",
                "wrap it in sklearn.calibration.CalibratedClassifierCV, or bring scores (--score)",
            )
        if not hasattr(self.estimator, "classes_"):
            raise InvalidInput("model", self.source, "is not fitted", "fit it before it is audited")

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(class_text(value) for value in np.asarray(self.estimator.classes_).tolist())

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        names = getattr(self.estimator, "feature_names_in_", None)
        return None if names is None else tuple(str(name) for name in names)

    def signal(self, records: AuditedRecords) -> Floats:
        try:
            table = np.asarray(self.estimator.predict_proba(self._inputs(records)), dtype=np.float64)
        except (ValueError, TypeError) as error:
            raise InvalidInput(
                "model",
                self.source,
                f"does not take these records ({str(error).splitlines()[0]})",
                "give the columns it was fitted on, no more (--drop) and no fewer",
            ) from error
        return phi_from_probabilities(table, records.labels)

    def shadow_recipe(self, records: AuditedRecords) -> ShadowRecipe:
        return ClonedEstimator(self.estimator, self._inputs(records))

    def _inputs(self, records: AuditedRecords) -> Any:
        names = self.feature_names
        if names is None:
            return numeric_inputs(records, self.source)
        import pandas as pd

        for name in names:
            if name not in records.columns:
                raise BadData(
                    self.source,
                    "was fitted on this column, and the records do not have it",
                    "add the column, or do not drop it",
                    column=name,
                )
        return pd.DataFrame({name: records.columns[name] for name in names})
