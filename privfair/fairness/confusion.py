"""Counts from which every rate follows: group x true class x predicted class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import Integers
from calibrate.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class Confusion:
    """`counts[g, y, p]` records of group g and class y were predicted as p."""

    counts: Integers
    group_names: tuple[str, ...]
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        counts = np.asarray(self.counts)
        expected = (len(self.group_names), len(self.class_names), len(self.class_names))
        if counts.shape != expected or not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any():
            raise InvalidInput(
                "counts", counts.shape, f"must be whole numbers of shape {expected}", "use count_confusion"
            )
        counts = counts.astype(np.int64)
        counts.setflags(write=False)
        object.__setattr__(self, "counts", counts)

    @property
    def records(self) -> int:
        return int(self.counts.sum())

    @property
    def groups(self) -> int:
        return len(self.group_names)

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def __add__(self, other: Confusion) -> Confusion:
        """The counts of two disjoint sets of records together; rates do not add, counts do."""
        if (self.group_names, self.class_names) != (other.group_names, other.class_names):
            raise InvalidInput(
                "confusion",
                other.group_names,
                "must have the same groups and classes",
                "use one schema for all silos",
            )
        return Confusion(self.counts + other.counts, self.group_names, self.class_names)


def count_confusion(
    label: NDArray[Any],
    prediction: NDArray[Any],
    group: NDArray[Any],
    class_names: tuple[str, ...],
    group_names: tuple[str, ...],
) -> Confusion:
    """Count in one pass; all three arrays hold codes (positions in the names), one a record."""
    classes, groups = len(class_names), len(group_names)
    coded = (("label", label, classes), ("prediction", prediction, classes), ("group", group, groups))
    length = np.asarray(label).shape
    for argument, values, limit in coded:
        values = np.asarray(values)
        if values.ndim != 1 or values.shape != length or not np.issubdtype(values.dtype, np.integer):
            raise InvalidInput(
                argument,
                (values.shape, str(values.dtype)),
                "must be one whole number a record, as many as labels",
                "give codes; for scores take the most likely class first",
            )
        if values.size and (values.min() < 0 or values.max() >= limit):
            raise InvalidInput(
                argument, int(values.max()), f"must lie between 0 and {limit - 1}", "check the numbering"
            )
    cell = (np.asarray(group, dtype=np.int64) * classes + label) * classes + prediction
    counts = np.bincount(cell, minlength=groups * classes * classes)
    return Confusion(counts.reshape(groups, classes, classes), group_names, class_names)
