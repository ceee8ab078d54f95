"""Measurements of predictions: counts, group rates and the gaps between them, for each silo and overall.

Every gap is a difference of conditional rates between groups. A rate over no records is undefined, and an
undefined rate makes a gap undefined: it becomes NaN with the reason, never a silent zero.

None of these numbers is private. They are computed from the true attribute of the measured records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import AnyFloats, Integers
from calibrate.errors import InvalidInput, positive

if TYPE_CHECKING:
    from privfair.data.dataset import Silos

Measured = Mapping[str, Any]
"""What a measurement or a line of metrics.jsonl says, ready for JSON; the keys are those of `Measurement.as_json`."""

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
        return np.asarray(self.counts.sum(axis=(1, 2)))

    @cached_property
    def of_class(self) -> Integers:
        """Records of each group and true class."""
        return np.asarray(self.counts.sum(axis=2))

    @cached_property
    def answered(self) -> Integers:
        """Records of each group and predicted class."""
        return np.asarray(self.counts.sum(axis=1))

    @cached_property
    def correct(self) -> Integers:
        """Records of each group and class that were predicted as what they are."""
        return np.diagonal(self.counts, axis1=1, axis2=2)

    @cached_property
    def selection_rates(self) -> AnyFloats:
        """P(prediction = p | group): one row per group, one column per class; NaN where a group is empty."""
        return _ratio(self.answered, self.of_group[:, np.newaxis])

    @cached_property
    def accuracies(self) -> AnyFloats:
        """P(prediction = class | group)."""
        return _ratio(self.correct.sum(axis=1), self.of_group)

    @cached_property
    def true_positive_rates(self) -> AnyFloats:
        """P(prediction = c | class = c, group): one row per group, one column per class."""
        return _ratio(self.correct, self.of_class)

    @cached_property
    def false_positive_rates(self) -> AnyFloats:
        """P(prediction = c | class is not c, group): one row per group, one column per class."""
        return _ratio(self.answered - self.correct, self.of_group[:, np.newaxis] - self.of_class)

    @cached_property
    def precisions(self) -> AnyFloats:
        """P(class = c | prediction = c, group): one row per group, one column per class."""
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


@dataclass(frozen=True)
class Gap:
    """A gap in [0, 1], or NaN and the reason why it is undefined."""

    value: float
    reason: str | None = None

    @property
    def defined(self) -> bool:
        return not math.isnan(self.value)


PAIRWISE = Comparison.PAIRWISE


def demographic_parity(confusion: Confusion, comparison: Comparison = PAIRWISE) -> Gap:
    """Largest difference of P(prediction = p | group), over classes p and groups (SteFFLe, equation 11)."""
    return _gap(confusion, lambda c: c.selection_rates, comparison, "records")


def equalised_odds(confusion: Confusion, comparison: Comparison = PAIRWISE) -> Gap:
    """Largest difference of true and of false positive rates, over classes and groups (SteFFLe, equation 12)."""

    def both(counts: Confusion) -> AnyFloats:
        return np.concatenate([counts.true_positive_rates, counts.false_positive_rates], axis=1)

    return _gap(confusion, both, comparison, "records of every class and its complement")


def equal_opportunity(confusion: Confusion, positive: int = 1, comparison: Comparison = PAIRWISE) -> Gap:
    """Largest difference of the true positive rate of one class."""
    return _gap_of_class(confusion, lambda c: c.true_positive_rates, positive, comparison, "of class")


def false_negative_gap(confusion: Confusion, positive: int = 1, comparison: Comparison = PAIRWISE) -> Gap:
    """Largest difference of P(prediction is not c | class = c, group).

    Pairwise it equals `equal_opportunity`; FPFL measures it against the overall rate.
    """
    return _gap_of_class(confusion, lambda c: 1 - c.true_positive_rates, positive, comparison, "of class")


def predictive_parity(confusion: Confusion, positive: int = 1, comparison: Comparison = PAIRWISE) -> Gap:
    """Largest difference of the precision of one class, P(class = c | prediction = c, group)."""
    return _gap_of_class(confusion, lambda c: c.precisions, positive, comparison, "predicted as")


def accuracy_gap(confusion: Confusion, comparison: Comparison = PAIRWISE) -> Gap:
    """Largest difference of the accuracy."""
    return _gap(confusion, lambda c: c.accuracies[:, np.newaxis], comparison, "records")


_Rates = Callable[[Confusion], AnyFloats]
"""One row per group."""


def _gap_of_class(confusion: Confusion, rates: _Rates, positive: int, comparison: Comparison, which: str) -> Gap:
    """The gap in one column of `rates`; `which` records are needed for it."""
    if not 0 <= positive < confusion.classes:
        raise InvalidInput(
            "positive", positive, f"must lie between 0 and {confusion.classes - 1}", "give the number of a class"
        )
    needed = f"records {which} {confusion.class_names[positive]!r}"
    return _gap(confusion, lambda c: rates(c)[:, [positive]], comparison, needed)


def _gap(confusion: Confusion, rates: _Rates, comparison: Comparison, needed: str) -> Gap:
    """The largest difference over the columns of `rates(confusion)`, whose rows are groups."""
    # Few numbers, very often: plain ones are ten times as fast as arrays.
    rows: list[list[float]] = rates(confusion).tolist()
    empty = [name for name, row in zip(confusion.group_names, rows, strict=True) if any(map(math.isnan, row))]
    if empty:
        return Gap(math.nan, f"no {needed} in group {', '.join(map(repr, empty))}")
    if comparison is Comparison.OVERALL:
        everyone = Confusion(confusion.counts.sum(axis=0, keepdims=True), ("everyone",), confusion.class_names)
        return Gap(float(np.abs(np.array(rows) - rates(everyone)).max()))
    if len(rows) < 2:
        return Gap(math.nan, f"fewer than 2 groups with {needed}")
    return Gap(max(max(column) - min(column) for column in zip(*rows, strict=True)))


def _ratio(part: Integers, whole: Integers) -> AnyFloats:
    """Of counts: where there is nothing, there is no part of it, and the ratio is NaN."""
    with np.errstate(invalid="ignore"):
        result: AnyFloats = part / whole
    result.setflags(write=False)
    return result


_NEARLY_ALL, _CONSTANT = 0.995, 0.005


_TRY = " More records, a larger epsilon or fewer columns help; so may another threshold ([decision])."


def emptiness(overall: Measured) -> str | None:
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
            f"EMPTY MODEL: it answers {most['class']!r} to {of}. Its gaps are small because it tells no one apart, not "
            f"because it is fair; always answering {majority['class']!r} is right for {majority['accuracy']:.1%}.{_TRY}"
        )
    classes = max((len(group["selection_rates"]) for group in overall["groups"].values()), default=2)
    if balanced is not None and balanced <= 1 / classes + _CONSTANT:
        return (
            f"EMPTY MODEL: its balanced accuracy of {balanced:.3f} is that of a constant answer. Small gaps of such a "
            f"model are not fairness; always answering {majority['class']!r} is right for {majority['accuracy']:.1%}."
            f"{_TRY}"
        )
    return None


# All metrics of one round: accuracy, group rates and gaps, for each silo and overall.


@dataclass(frozen=True, eq=False)
class Measurement:
    """What a model's predictions look like on one set of records; `positive` is the class of the one-sided gaps."""

    confusion: Confusion
    positive: int = 1
    comparison: Comparison = PAIRWISE

    @property
    def accuracy(self) -> float:
        if self.confusion.records == 0:
            return math.nan
        return int(self.confusion.correct.sum()) / self.confusion.records

    @property
    def balanced_accuracy(self) -> float:
        """The mean over the classes that occur of the share found: a constant answer gets 1 / classes."""
        correct, of_class = self.confusion.correct.sum(axis=0), self.confusion.of_class.sum(axis=0)
        there = of_class > 0
        return float((correct[there] / of_class[there]).mean()) if there.any() else math.nan

    @property
    def majority(self) -> tuple[str, float]:
        """The most frequent class, and the accuracy of always answering it."""
        return self._most(self.confusion.of_class.sum(axis=0))

    @property
    def favourite(self) -> tuple[str, float]:
        """The class that is predicted most often, and the share of the records that get it."""
        return self._most(self.confusion.answered.sum(axis=0))

    def _most(self, by_class: Integers) -> tuple[str, float]:
        """The class with the most of these records, and its share of all."""
        most = int(by_class.argmax())
        share = float(by_class[most] / self.confusion.records) if self.confusion.records else math.nan
        return self.confusion.class_names[most], share

    @property
    def gaps(self) -> dict[str, Gap]:
        """Every gap by its name in metrics.jsonl."""
        return {
            "demographic_parity": demographic_parity(self.confusion, self.comparison),
            "equalised_odds": equalised_odds(self.confusion, self.comparison),
            "equal_opportunity": equal_opportunity(self.confusion, self.positive, self.comparison),
            "false_negative_gap": false_negative_gap(self.confusion, self.positive, self.comparison),
            "accuracy_gap": accuracy_gap(self.confusion, self.comparison),
            "predictive_parity": predictive_parity(self.confusion, self.positive, self.comparison),
        }

    def against_overall(self) -> dict[str, float | None]:
        """The gaps as FPFL takes them: the largest distance of a group's rate from that of all records together."""
        overall = replace(self, comparison=Comparison.OVERALL)
        return {name: _number(gap.value) for name, gap in overall.gaps.items()}

    def as_json(self) -> Measured:
        """For metrics.jsonl; an undefined number is null and its reason stands beside it."""
        gaps = self.gaps
        names = self.confusion.group_names
        records, accuracy = self.confusion.of_group.tolist(), self.confusion.accuracies.tolist()
        selected = self.confusion.selection_rates.tolist()
        found = self.confusion.true_positive_rates[:, self.positive].tolist()
        alarms = self.confusion.false_positive_rates[:, self.positive].tolist()
        precise = self.confusion.precisions[:, self.positive].tolist()
        (majority, share), (favourite, answered) = self.majority, self.favourite
        rows: dict[str, object] = {
            "records": self.confusion.records,
            "accuracy": _number(self.accuracy),
            "balanced_accuracy": _number(self.balanced_accuracy),
            "majority": {"class": majority, "accuracy": _number(share)},
            "most_predicted": {"class": favourite, "share": _number(answered)},
            "positive_class": self.confusion.class_names[self.positive],
        }
        rows |= {name: _number(gap.value) for name, gap in gaps.items()}
        rows["undefined"] = {name: gap.reason for name, gap in gaps.items() if not gap.defined}
        rows["left_out"] = {}  # an empty group makes a gap undefined and is never left out of it
        rows["groups"] = {
            name: {
                "records": records[g],
                "accuracy": _number(accuracy[g]),
                "selection_rates": [_number(rate) for rate in selected[g]],
                "positive_rate": _number(selected[g][self.positive]),
                "true_positive_rate": _number(found[g]),
                "false_positive_rate": _number(alarms[g]),
                "false_negative_rate": _number(1 - found[g]),
                "precision": _number(precise[g]),
            }
            for g, name in enumerate(names)
        }
        return rows


@dataclass(frozen=True, eq=False)
class SiloMeasurements:
    """One measurement for each silo and one of all records together."""

    overall: Measurement
    silos: tuple[tuple[str, Measurement], ...]

    def as_json(self) -> Measured:
        overall = {**self.overall.as_json(), "against_overall": self.overall.against_overall()}
        return {"overall": overall, "silos": {name: m.as_json() for name, m in self.silos}}

    def spread(self, losses: Mapping[str, float]) -> Measured | None:
        """How evenly one model serves the clients: Psi of their losses (FedFDP), the worst one, the accuracies' spread.

        None with fewer than two clients that have records.
        """
        there = {name: m for name, m in self.silos if m.confusion.records > 0}
        if len(there) < 2:
            return None
        accuracy = {name: m.accuracy for name, m in there.items()}
        worst = min(accuracy, key=lambda name: accuracy[name])
        sizes = {name: float(m.confusion.records) for name, m in there.items()}
        finite = all(math.isfinite(losses[name]) for name in there)
        return {
            "psi": psi({name: losses[name] for name in there}, sizes) if finite else None,
            "worst": {"silo": worst, "accuracy": accuracy[worst]},
            "accuracy_deviation": float(np.std(list(accuracy.values()))),
            "accuracy_range": max(accuracy.values()) - accuracy[worst],
        }


def measure_silos(
    silos: Silos, predictions: Sequence[NDArray[Any]], positive: int = 1, comparison: Comparison = PAIRWISE
) -> SiloMeasurements:
    """Measure predictions (class codes, one array per silo, in the silos' order)."""
    if len(predictions) != len(silos):
        raise InvalidInput(
            "predictions", len(predictions), f"must be one array for each of {len(silos)} silos", "predict silo by silo"
        )
    counted = [
        count_confusion(silo.data.label, np.asarray(guess), silo.data.group, silos.class_names, silos.group_names)
        for silo, guess in zip(silos, predictions, strict=True)
    ]
    overall = sum(counted[1:], start=counted[0])
    return SiloMeasurements(
        Measurement(overall, positive, comparison),
        tuple((name, Measurement(c, positive, comparison)) for name, c in zip(silos.names, counted, strict=True)),
    )


def psi(losses: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """sum_i p_i (F_i - F)^2 with F = sum_i p_i F_i; the losses are those of one and the same model."""
    if set(losses) != set(weights):
        raise InvalidInput("weights", sorted(weights), f"must name the clients {sorted(losses)}", "weigh each client")
    total = math.fsum(weights.values())
    mean = math.fsum(weights[name] * losses[name] for name in losses) / positive("sum of weights", total)
    return math.fsum(weights[name] * (losses[name] - mean) ** 2 for name in losses) / total


def area_under_curve(scores: AnyFloats, labels: Integers) -> float | None:
    """The chance that a record of a class scores higher for it than a record of none, ties counting half.

    `scores` has one row per record and one column per class, or is one number per record: how much the second of two
    classes is preferred. With more than two classes it is the mean over those that occur; None where a single class
    occurs, or a score is not finite.
    """
    if not np.isfinite(scores).all():
        return None
    if scores.ndim == 1:
        columns = {1: scores}
    else:
        ranked = (1,) if scores.shape[1] == 2 else range(scores.shape[1])
        columns = {number: scores[:, number] for number in ranked}
    areas = []
    for number, column in columns.items():
        of_class = labels == number
        inside, outside = np.sort(column[of_class]), np.sort(column[~of_class])
        if inside.size and outside.size:
            below = np.searchsorted(outside, inside, "left").sum() + np.searchsorted(outside, inside, "right").sum()
            areas.append(int(below) / 2 / (inside.size * outside.size))
    return sum(areas) / len(areas) if areas else None


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
