"""All metrics of one round: accuracy, group rates and gaps, for each silo and overall."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.errors import InvalidInput
from privfair.fairness.confusion import Confusion, count_confusion
from privfair.fairness.gaps import (
    PAIRWISE,
    Gap,
    Measure,
    accuracies,
    accuracy_gap,
    demographic_parity,
    equal_opportunity,
    equalised_odds,
    false_negative_gap,
    selection_rates,
    true_positive_rates,
)
from privfair.silos import Silos


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
        return float(np.trace(self.confusion.counts.sum(axis=0)) / self.confusion.records)

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

    def as_json(self) -> dict[str, Any]:
        """For metrics.jsonl; an undefined number is null and its reason stands beside it."""
        gaps = {
            "demographic_parity": self.demographic_parity,
            "equalised_odds": self.equalised_odds,
            "equal_opportunity": self.equal_opportunity,
            "false_negative_gap": self.false_negative_gap,
            "accuracy_gap": self.accuracy_gap,
        }
        names = self.confusion.group_names
        accuracy, selected = accuracies(self.confusion), selection_rates(self.confusion)
        found = true_positive_rates(self.confusion)[:, self.positive]
        rows: dict[str, Any] = {"records": self.confusion.records, "accuracy": _number(self.accuracy)}
        rows |= {name: _number(gap.value) for name, gap in gaps.items()}
        rows["undefined"] = {name: gap.reason for name, gap in gaps.items() if not gap.defined}
        rows["left_out"] = {name: list(gap.left_out) for name, gap in gaps.items() if gap.left_out}
        rows["groups"] = {
            name: {
                "records": int(self.confusion.counts[g].sum()),
                "accuracy": _number(accuracy[g]),
                "selection_rates": [_number(rate) for rate in selected[g]],
                "false_negative_rate": _number(1 - found[g]),
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
        return {"overall": self.overall.as_json(), "silos": {name: m.as_json() for name, m in self.silos}}


def measure_silos(
    silos: Silos, predictions: Sequence[NDArray[Any]], positive: int = 1, measure: Measure = PAIRWISE
) -> SiloMeasurements:
    """Measure predictions (class codes, one array a silo, in the silos' order)."""
    if len(predictions) != len(silos):
        raise InvalidInput(
            "predictions",
            len(predictions),
            f"must be one array for each of {len(silos)} silos",
            "predict silo by silo",
        )
    counted = [
        count_confusion(
            silo.data.label, np.asarray(guess), silo.data.group, silos.class_names, silos.group_names
        )
        for silo, guess in zip(silos, predictions, strict=True)
    ]
    overall = sum(counted[1:], start=counted[0])
    return SiloMeasurements(
        Measurement(overall, positive, measure),
        tuple(
            (name, Measurement(c, positive, measure)) for name, c in zip(silos.names, counted, strict=True)
        ),
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
