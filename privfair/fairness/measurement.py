"""All metrics of one round: accuracy, group rates and gaps, for each silo and overall."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import AnyFloats, Integers
from calibrate.errors import InvalidInput, positive
from privfair.fairness.gaps import (
    PAIRWISE,
    Comparison,
    Confusion,
    Gap,
    Measure,
    accuracies,
    accuracy_gap,
    count_confusion,
    demographic_parity,
    equal_opportunity,
    equalised_odds,
    false_negative_gap,
    false_positive_rates,
    precisions,
    predictive_parity,
    selection_rates,
    true_positive_rates,
)

if TYPE_CHECKING:
    from privfair.data.silos import Silos


@dataclass(frozen=True, eq=False)
class Measurement:
    """What a model's predictions look like on one set of records; `positive` is the class of the one-sided gaps."""

    confusion: Confusion
    positive: int = 1
    measure: Measure = PAIRWISE

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
        of_class = self.confusion.of_class.sum(axis=0)
        most = int(of_class.argmax())
        share = float(of_class[most] / self.confusion.records) if self.confusion.records else math.nan
        return self.confusion.class_names[most], share

    @property
    def favourite(self) -> tuple[str, float]:
        """The class that is predicted most often, and the share of the records that get it."""
        predicted = self.confusion.answered.sum(axis=0)
        most = int(predicted.argmax())
        share = float(predicted[most] / self.confusion.records) if self.confusion.records else math.nan
        return self.confusion.class_names[most], share

    @property
    def demographic_parity(self) -> Gap:
        return demographic_parity(self.confusion, self.measure)

    @property
    def equalised_odds(self) -> Gap:
        return equalised_odds(self.confusion, self.measure)

    @property
    def equal_opportunity(self) -> Gap:
        return equal_opportunity(self.confusion, self.positive, self.measure)

    @property
    def false_negative_gap(self) -> Gap:
        return false_negative_gap(self.confusion, self.positive, self.measure)

    @property
    def accuracy_gap(self) -> Gap:
        return accuracy_gap(self.confusion, self.measure)

    @property
    def predictive_parity(self) -> Gap:
        return predictive_parity(self.confusion, self.positive, self.measure)

    @property
    def gaps(self) -> dict[str, Gap]:
        """Every gap by its name in metrics.jsonl."""
        return {
            "demographic_parity": self.demographic_parity,
            "equalised_odds": self.equalised_odds,
            "equal_opportunity": self.equal_opportunity,
            "false_negative_gap": self.false_negative_gap,
            "accuracy_gap": self.accuracy_gap,
            "predictive_parity": self.predictive_parity,
        }

    def against_overall(self) -> dict[str, float | None]:
        """The gaps as FPFL takes them: the largest distance of a group's rate from that of all records together."""
        measure = replace(self.measure, comparison=Comparison.OVERALL)
        return {name: _number(gap.value) for name, gap in replace(self, measure=measure).gaps.items()}

    def as_json(self) -> dict[str, Any]:
        """For metrics.jsonl; an undefined number is null and its reason stands beside it."""
        gaps = self.gaps
        names = self.confusion.group_names
        records, accuracy = self.confusion.of_group.tolist(), accuracies(self.confusion).tolist()
        selected = selection_rates(self.confusion).tolist()
        found = true_positive_rates(self.confusion)[:, self.positive].tolist()
        alarms = false_positive_rates(self.confusion)[:, self.positive].tolist()
        precise = precisions(self.confusion)[:, self.positive].tolist()
        (majority, share), (favourite, answered) = self.majority, self.favourite
        rows: dict[str, Any] = {
            "records": self.confusion.records,
            "accuracy": _number(self.accuracy),
            "balanced_accuracy": _number(self.balanced_accuracy),
            "majority": {"class": majority, "accuracy": _number(share)},
            "most_predicted": {"class": favourite, "share": _number(answered)},
            "positive_class": self.confusion.class_names[self.positive],
        }
        rows |= {name: _number(gap.value) for name, gap in gaps.items()}
        rows["undefined"] = {name: gap.reason for name, gap in gaps.items() if not gap.defined}
        rows["left_out"] = {name: list(gap.left_out) for name, gap in gaps.items() if gap.left_out}
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

    def as_json(self) -> dict[str, Any]:
        overall = {**self.overall.as_json(), "against_overall": self.overall.against_overall()}
        return {"overall": overall, "silos": {name: m.as_json() for name, m in self.silos}}

    def spread(self, losses: Mapping[str, float]) -> dict[str, Any] | None:
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
    silos: Silos, predictions: Sequence[NDArray[Any]], positive: int = 1, measure: Measure = PAIRWISE
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
        Measurement(overall, positive, measure),
        tuple((name, Measurement(c, positive, measure)) for name, c in zip(silos.names, counted, strict=True)),
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
