"""From probabilities to answers: which threshold, what each would do on the held-out records, and which one is used.

A threshold changes nothing about the training records, so any may be chosen. One chosen by a target gap or a target
rate is read off the held-out records, exactly and without noise: like all metrics it is **not private**.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrate.errors import InvalidInput, Refused, open_unit
from privfair.fairness.gaps import count_confusion, emptiness
from privfair.fairness.measurement import Measurement
from privfair.models.model import Model
from privfair.run.folder import RunFolder
from privfair.run.metrics import HeldOutRecords
from privfair.run.public import NOT_PRIVATE

DEFAULT = 0.5
GRID = np.arange(1, 100) / 100
"""Thresholds that are measured: these, and the quantiles of the scores at these levels."""
_DIGITS = 6
_VERSION = 1


@dataclass(frozen=True)
class ThresholdRule:
    """How the threshold is chosen: as given, by a target, or (all None) one half. At most one is given."""

    threshold: float | None = None
    target_gap: float | None = None
    target_rate: float | None = None

    def __post_init__(self) -> None:
        given = {f"--{name.replace('_', '-')}": value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            raise InvalidInput(" and ".join(given), tuple(given.values()), "exclude each other", "give one of them")
        for name, value in given.items():
            open_unit(name, value)

    @property
    def text(self) -> str:
        """The rule in words, for files and screens."""
        if self.threshold is not None:
            return "given"
        if self.target_gap is not None:
            return f"target gap {self.target_gap:g} on the held-out records"
        if self.target_rate is not None:
            return f"target rate {self.target_rate:g} on the held-out records"
        return "default"


AS_IT_IS = ThresholdRule()
UNDECIDED: Mapping[str, Any] = {
    "version": _VERSION,
    "threshold": DEFAULT,
    "rule": AS_IT_IS.text,
    "positive_class": None,
    "not_reached": None,
    "held_out": None,
}
"""The decision of a run without held-out records."""


def measure_thresholds(held_out: HeldOutRecords, model: Model, theta: Tensor, fairness: float | None) -> dict[str, Any]:
    """The document of frontier.json: accuracy, rates and gaps of the held-out records at many thresholds.

    `fairness` is the weight the run was trained with, None where its algorithm has none. With more than two classes
    there is no threshold, and the list of points is empty.
    """
    with torch.no_grad():
        score = held_out.probabilities(model, theta)[:, held_out.positive].double().numpy()
    points = []
    if len(held_out.class_names) == 2:
        grid = np.round(np.concatenate([GRID, np.quantile(score, GRID)]), _DIGITS)
        points = [measure_at(held_out, score, float(cut)) for cut in np.unique(grid) if 0 < cut < 1]
    return {
        "version": _VERSION,
        "private": False,
        "note": NOT_PRIVATE,
        "positive_class": held_out.class_names[held_out.positive],
        "fairness": fairness,
        "points": points,
    }


def measure_at(held_out: HeldOutRecords, score: np.ndarray[Any, Any], threshold: float) -> dict[str, Any]:
    """All numbers of the held-out records if a record is positive from `threshold` on."""
    predicted = np.where(score >= threshold, held_out.positive, 1 - held_out.positive)
    label, group = held_out.label, held_out.group
    counted = count_confusion(label, predicted, group, held_out.class_names, held_out.group_names)
    measured = Measurement(counted, held_out.positive).as_json()
    rate = float((score >= threshold).mean())
    return {"threshold": threshold, "positive_rate": rate, **measured}


def decide(frontier: dict[str, Any], rule: ThresholdRule) -> dict[str, Any]:
    """The document of decision.json: the threshold in use, why, and what it does on the held-out records.

    Among the thresholds that keep a target gap the one with the largest balanced accuracy is taken, and none that
    answers all records alike; where no threshold is left, one half stays, and `not_reached` says so.
    """
    points = frontier["points"]
    if not points and rule != AS_IT_IS:
        raise InvalidInput(
            "threshold", rule.text, "needs a model with two classes", "drop it; the most likely class is predicted"
        )
    not_reached = None
    wanted = DEFAULT if rule.threshold is None else rule.threshold
    if rule.target_gap is not None:
        useful = [p for p in points if emptiness(p) is None and p["demographic_parity"] is not None]
        kept = [p for p in useful if p["demographic_parity"] <= rule.target_gap]
        if kept:
            wanted = max(kept, key=lambda p: float(p["balanced_accuracy"]))["threshold"]
        else:
            least = min((p["demographic_parity"] for p in useful), default=None)
            smallest = "" if least is None else f" (the smallest gap is {least:.3f})"
            not_reached = f"no threshold with a gap of at most {rule.target_gap:g} tells records apart{smallest}"
    if rule.target_rate is not None:
        rate = rule.target_rate
        wanted = min(points, key=lambda p: abs(float(p["positive_rate"]) - rate))["threshold"]
    nearest = min(points, key=lambda p: abs(float(p["threshold"]) - wanted), default=None)
    return {
        "version": _VERSION,
        "threshold": wanted,
        "rule": rule.text,
        "positive_class": frontier["positive_class"],
        "not_reached": not_reached,
        "held_out": nearest,
    }


def read_frontier(folder: RunFolder) -> dict[str, Any]:
    """What `measure_thresholds` left in a run; refused where it is something else."""
    found = folder.read_json(folder.frontier)
    try:
        # every number that is shown or compared must be there, and be a number
        for point in found["points"]:
            for name in ("threshold", "positive_rate", "accuracy", "balanced_accuracy"):
                float(point[name])
            emptiness(point)
        str(found["positive_class"])
    except (KeyError, TypeError, ValueError):
        raise Refused(f"{folder.frontier} is not what a run writes; put an untouched copy back") from None
    return found


def read_threshold(folder: RunFolder) -> tuple[float, str]:
    """The threshold that predictions of this run use, and why; one half where nothing was decided."""
    if not folder.decision.exists():
        return DEFAULT, AS_IT_IS.text
    try:
        found = folder.read_json(folder.decision)
        return open_unit("threshold", float(found["threshold"])), str(found["rule"])
    except (ValueError, KeyError, TypeError, InvalidInput):
        raise Refused(f"{folder.decision} is not what a run writes; put an untouched copy back") from None
