"""What shadow training needs: records as arrays, and a recipe that trains a group of models on parts of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import Booleans, Floats, Integers
from calibrate.errors import InvalidInput
from calibrate.validation import count


@dataclass(frozen=True, eq=False)
class ShadowRecords:
    """Features (records, features), class numbers, and how many classes there are."""

    features: NDArray[np.floating]
    labels: Integers
    classes: int

    def __post_init__(self) -> None:
        count("classes", self.classes, least=2)
        if self.features.ndim != 2 or self.labels.shape != self.features.shape[:1] or not len(self.labels):
            raise InvalidInput(
                "records",
                (self.features.shape, self.labels.shape),
                "must be (records, features) with one label a record",
                "give a row for each record",
            )
        if not np.isfinite(self.features).all():
            raise InvalidInput("features", "NaN or infinite", "must be finite", "drop or mend such records")
        if (
            self.labels.dtype.kind not in "iu"
            or not 0 <= self.labels.min() <= self.labels.max() < self.classes
        ):
            raise InvalidInput(
                "labels", "other values", f"must be 0 .. {self.classes - 1}", "number the classes"
            )

    def __len__(self) -> int:
        return len(self.labels)


class ShadowRecipe(Protocol):
    """How models like the target are trained. Must be a plain value, so that it can be sent to another process."""

    @property
    def kind(self) -> str:
        """In one word."""
        ...

    @property
    def training(self) -> str:
        """In a phrase: how they are trained."""
        ...

    def signals(self, records: ShadowRecords, included: Booleans, seeds: tuple[int, ...]) -> Floats:
        """Train one model for each row of `included` on its records; phi of all of them, (models, records).

        A model depends on its own row and its own seed, never on the company it is trained in (up to rounding).
        """
        ...
