"""Group rates and the gaps between them.

Every gap is a difference of conditional rates between groups. A rate over no records is undefined, and an
undefined rate makes a gap undefined: it becomes NaN with the reason, never a silent zero.

None of these numbers is private. They are computed from the true attribute of the measured records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import AnyFloats, Integers
from calibrate.errors import InvalidInput

# Counts from which every rate follows: group x true class x predicted class.


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

    # A run measures after every step, so what several gaps need is computed once.

    @cached_property
    def records(self) -> int:
        return int(self.counts.sum())

    @cached_property
    def of_group(self) -> Integers:
        """Records of each group."""
        records: Integers = self.counts.sum(axis=(1, 2))
        return records

    @cached_property
    def of_class(self) -> Integers:
        """Records of each group and true class."""
        records: Integers = self.counts.sum(axis=2)
        return records

    @cached_property
    def answered(self) -> Integers:
        """Records of each group and predicted class."""
        records: Integers = self.counts.sum(axis=1)
        return records

    @cached_property
    def correct(self) -> Integers:
        """Records of each group and class that were predicted as what they are."""
        return np.diagonal(self.counts, axis1=1, axis2=2)

    @cached_property
    def selected(self) -> AnyFloats:
        """See `selection_rates`."""
        return _ratio(self.answered, self.of_group[:, np.newaxis])

    @cached_property
    def right(self) -> AnyFloats:
        """See `accuracies`."""
        return _ratio(self.correct.sum(axis=1), self.of_group)

    @cached_property
    def found(self) -> AnyFloats:
        """See `true_positive_rates`."""
        return _ratio(self.correct, self.of_class)

    @cached_property
    def alarms(self) -> AnyFloats:
        """See `false_positive_rates`."""
        return _ratio(self.answered - self.correct, self.of_group[:, np.newaxis] - self.of_class)

    @cached_property
    def precise(self) -> AnyFloats:
        """See `precisions`."""
        return _ratio(self.correct, self.answered)

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
                "confusion", other.group_names, "must have the same groups and classes", "use one schema for all silos"
            )
        return Confusion(self.counts + other.counts, self.group_names, self.class_names)


def count_confusion(
    label: NDArray[Any],
    prediction: NDArray[Any],
    group: NDArray[Any],
    class_names: tuple[str, ...],
    group_names: tuple[str, ...],
) -> Confusion:
    """Count in one pass; all three arrays hold codes (positions in the names), one per record."""
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


class Comparison(Enum):
    """What a group's rate is compared with."""

    PAIRWISE = "pairwise"
    """With every other group (SteFFLe, equations 11 and 12; fairlearn's "between groups")."""
    OVERALL = "overall"
    """With the rate of all records together (FPFL's gaps)."""


class EmptyGroups(Enum):
    """What becomes of a gap when a group has no record on which its rate could be measured."""

    UNDEFINED = "undefined"
    LEFT_OUT = "left-out"


@dataclass(frozen=True)
class Gap:
    """A gap in [0, 1], or NaN and the reason why it is undefined; `left_out` names groups that do not count."""

    value: float
    reason: str | None = None
    left_out: tuple[str, ...] = ()

    @property
    def defined(self) -> bool:
        return not math.isnan(self.value)

    def as_json(self) -> dict[str, Any]:
        """JSON knows no NaN: an undefined gap is null with its reason."""
        return {"value": self.value if self.defined else None, "reason": self.reason, "left_out": list(self.left_out)}


@dataclass(frozen=True)
class Measure:
    """How a gap is taken: against what, and what to do about empty groups."""

    comparison: Comparison = Comparison.PAIRWISE
    empty: EmptyGroups = EmptyGroups.UNDEFINED


PAIRWISE = Measure()


def selection_rates(confusion: Confusion) -> AnyFloats:
    """P(prediction = p | group): one row per group, one column per class; NaN where a group is empty."""
    return confusion.selected


def accuracies(confusion: Confusion) -> AnyFloats:
    """P(prediction = class | group)."""
    return confusion.right


def true_positive_rates(confusion: Confusion) -> AnyFloats:
    """P(prediction = c | class = c, group): one row per group, one column per class."""
    return confusion.found


def false_positive_rates(confusion: Confusion) -> AnyFloats:
    """P(prediction = c | class is not c, group): one row per group, one column per class."""
    return confusion.alarms


def precisions(confusion: Confusion) -> AnyFloats:
    """P(class = c | prediction = c, group): one row per group, one column per class."""
    return confusion.precise


def demographic_parity(confusion: Confusion, measure: Measure = PAIRWISE) -> Gap:
    """Largest difference of P(prediction = p | group), over classes p and groups (SteFFLe, equation 11)."""
    return _gap(confusion, selection_rates, measure, "records")


def equalised_odds(confusion: Confusion, measure: Measure = PAIRWISE) -> Gap:
    """Largest difference of true and of false positive rates, over classes and groups (SteFFLe, equation 12)."""

    def both(counts: Confusion) -> AnyFloats:
        return np.concatenate([true_positive_rates(counts), false_positive_rates(counts)], axis=1)

    return _gap(confusion, both, measure, "records of every class and its complement")


def equal_opportunity(confusion: Confusion, positive: int = 1, measure: Measure = PAIRWISE) -> Gap:
    """Largest difference of the true positive rate of one class."""
    _require_class(confusion, positive)
    name = confusion.class_names[positive]
    return _gap(confusion, lambda c: true_positive_rates(c)[:, [positive]], measure, f"records of class {name!r}")


def false_negative_gap(confusion: Confusion, positive: int = 1, measure: Measure = PAIRWISE) -> Gap:
    """Largest difference of P(prediction is not c | class = c, group).

    Pairwise it equals `equal_opportunity`; FPFL measures it against the overall rate.
    """
    _require_class(confusion, positive)
    name = confusion.class_names[positive]
    return _gap(confusion, lambda c: 1 - true_positive_rates(c)[:, [positive]], measure, f"records of class {name!r}")


def predictive_parity(confusion: Confusion, positive: int = 1, measure: Measure = PAIRWISE) -> Gap:
    """Largest difference of the precision of one class, P(class = c | prediction = c, group)."""
    _require_class(confusion, positive)
    name = confusion.class_names[positive]
    return _gap(confusion, lambda c: precisions(c)[:, [positive]], measure, f"records predicted as {name!r}")


def accuracy_gap(confusion: Confusion, measure: Measure = PAIRWISE) -> Gap:
    """Largest difference of the accuracy."""
    return _gap(confusion, lambda c: accuracies(c)[:, np.newaxis], measure, "records")


def _gap(confusion: Confusion, rates: Callable[[Confusion], AnyFloats], measure: Measure, needed: str) -> Gap:
    """The largest difference over the columns of `rates(confusion)`, whose rows are groups."""
    # Few numbers, very often: plain ones are ten times as fast as arrays.
    rows: list[list[float]] = rates(confusion).tolist()
    there = [not any(map(math.isnan, row)) for row in rows]
    names = tuple(name for name, is_there in zip(confusion.group_names, there, strict=True) if not is_there)
    if names and measure.empty is EmptyGroups.UNDEFINED:
        return Gap(math.nan, f"no {needed} in group {', '.join(map(repr, names))}")
    rows = [row for row, is_there in zip(rows, there, strict=True) if is_there]
    least = 2 if measure.comparison is Comparison.PAIRWISE else 1
    if len(rows) < least:
        return Gap(math.nan, f"fewer than {least} groups with {needed}", names)
    if measure.comparison is Comparison.PAIRWISE:
        return Gap(max(max(column) - min(column) for column in zip(*rows, strict=True)), left_out=names)
    everyone = Confusion(confusion.counts.sum(axis=0, keepdims=True), ("everyone",), confusion.class_names)
    return Gap(float(np.abs(np.array(rows) - rates(everyone)).max()), left_out=names)


def _ratio(part: Integers, whole: Integers) -> AnyFloats:
    """Of counts: where there is nothing, there is no part of it, and the ratio is NaN."""
    with np.errstate(invalid="ignore"):
        result: AnyFloats = part / whole
    result.setflags(write=False)
    return result


def _require_class(confusion: Confusion, positive: int) -> None:
    if not 0 <= positive < confusion.classes:
        raise InvalidInput(
            "positive", positive, f"must lie between 0 and {confusion.classes - 1}", "give the number of a class"
        )


_NEARLY_ALL, _CONSTANT = 0.995, 0.005


def emptiness(overall: Mapping[str, Any]) -> str | None:
    """Why a model that was measured is worth nothing, in one sentence; None for a model that tells records apart.

    `overall` is what `Measurement.as_json` gave. A model that answers all records alike has no gap between any groups,
    which must not be read as fairness.
    """
    most, majority, balanced = overall.get("most_predicted"), overall.get("majority"), overall.get("balanced_accuracy")
    if most is None or majority is None or most["share"] is None:
        return None
    if most["share"] >= _NEARLY_ALL:
        of = "every record" if most["share"] == 1 else f"{math.floor(1000 * most['share']) / 10:g}% of the records"
        return (
            f"EMPTY MODEL: it answers {most['class']!r} to {of}. Its gaps are small because it tells nobody apart, not "
            f"because it is fair; always answering {majority['class']!r} is right for {majority['accuracy']:.1%}."
        )
    classes = max((len(group["selection_rates"]) for group in overall["groups"].values()), default=2)
    if balanced is not None and balanced <= 1 / classes + _CONSTANT:
        return (
            f"EMPTY MODEL: its balanced accuracy of {balanced:.3f} is that of a constant answer. Small gaps of such a "
            f"model are not fairness; always answering {majority['class']!r} is right for {majority['accuracy']:.1%}."
        )
    return None
