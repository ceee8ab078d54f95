"""What a model answers: on the test records, step by step and at each threshold, and for the records of a file.

Numbers about test records are **not private**. They are exact functions of the true class and attribute of the test
records, which are no training records of any party; who may read them is for their holder to decide. A threshold that
is chosen by a target gap or a target rate is inferred from the same records, exactly and without noise.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, TypedDict, final

import numpy as np
import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor
from torch.nn import functional

from calibrate.arrays import Floats, Integers
from calibrate.errors import InvalidInput, Refused, open_unit
from calibrate.manifest.trust import UNTRUSTED, FolderTrust
from privfair.data.dataset import Silos
from privfair.data.encode import Standardisation, encode_features
from privfair.data.infer import FileLayout, recognise
from privfair.data.read import RawTable, read_table
from privfair.data.schema import schema_from_json
from privfair.durable import open_file, write_all
from privfair.fairness.measurement import (
    Measured,
    Measurement,
    SiloMeasurements,
    area_under_curve,
    count_confusion,
    emptiness,
    measure_silos,
)
from privfair.models.model import Model
from privfair.plan.model import build_model
from privfair.plan.plan import AS_IT_IS, ThresholdRule
from privfair.run.folder import RunFolder, load_theta
from privfair.run.public import read_folder_plan
from privfair.run.record import NOT_PRIVATE

_CHUNK = 65_536
_SOFTPLUS_IS_LINEAR = 60.0


@dataclass(frozen=True, eq=False)
class StepMetrics:
    """All numbers of one step."""

    step: int
    round: int | None
    loss: float
    silo_losses: dict[str, float]
    measured: SiloMeasurements
    auc: float | None = None

    def as_json(self) -> Measured:
        """One line of metrics.jsonl."""
        found = self.measured.as_json()
        silos = {name: {"loss": _finite(self.silo_losses[name]), **numbers} for name, numbers in found["silos"].items()}
        overall = {"loss": _finite(self.loss), **found["overall"], "auc": self.auc}
        return {
            "step": self.step,
            "round": self.round,
            "private": False,
            "overall": overall,
            "clients": self.measured.spread(self.silo_losses),
            "silos": silos,
        }


@final
class HeldOutRecords:
    """The test part of every silo, ready to be measured; one forward pass a step for all silos together."""

    def __init__(self, silos: Silos, dtype: torch.dtype, positive: str | None = None) -> None:
        self._silos = silos
        self._sizes = list(silos.sizes)
        self._x = torch.cat([torch.tensor(silo.data.features, dtype=dtype) for silo in silos])
        self.label: Integers = np.concatenate([silo.data.label for silo in silos])
        """The true classes, silo after silo."""
        self.group: Integers = np.concatenate([silo.data.group for silo in silos])
        """The groups, silo after silo."""
        self._y = torch.from_numpy(self.label)
        self._against = (1 - 2 * self._y).to(dtype)
        self.positive = _class_number(silos.class_names, positive)
        self.class_names, self.group_names = silos.class_names, silos.group_names

    def probabilities(self, model: Model, theta: Tensor) -> Tensor:
        """The probability of each class for each record, silo after silo."""
        return torch.cat([model.probabilities(theta, part) for part in torch.split(self._x, _CHUNK)])

    def measure(self, model: Model, theta: Tensor, step: int, round_number: int | None) -> StepMetrics:
        """The numbers of the model with parameters `theta`."""
        with torch.no_grad():
            logits = torch.cat([model.logits(theta, part) for part in torch.split(self._x, _CHUNK)])
            if logits.shape[1] == 2:  # one free number per record: a tenth of the work of the general way
                scores = logits[:, 1] - logits[:, 0]
                losses = functional.softplus(scores * self._against, threshold=_SOFTPLUS_IS_LINEAR).double()
                predictions = (scores > 0).long()
            else:
                losses = functional.cross_entropy(logits, self._y, reduction="none").double()
                scores, predictions = logits.double().softmax(dim=1), logits.argmax(dim=1)
        by_silo = torch.split(losses, self._sizes)
        answers = [part.numpy() for part in torch.split(predictions, self._sizes)]
        return StepMetrics(
            step=step,
            round=round_number,
            loss=float(losses.mean()),
            silo_losses={name: float(part.mean()) for name, part in zip(self._silos.names, by_silo, strict=True)},
            measured=measure_silos(self._silos, answers, self.positive),
            auc=area_under_curve(scores.numpy(), self._y.numpy()),
        )


@final
class MetricsLog:
    """metrics.jsonl: one line per measured step, rising; what a crash left unfinished at its end is cut off."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes() if path.exists() else b""
        whole = content.rfind(b"\n") + 1
        self.last: Measured | None = None
        if whole:
            self.last = _last_line(path, content[:whole])
        self._descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.ftruncate(self._descriptor, whole)

    @property
    def last_step(self) -> int:
        """The last step on file; -1 for none."""
        return -1 if self.last is None else int(self.last["step"])

    def append(self, metrics: StepMetrics) -> Measured:
        """Add a line, unless the step is there already (a resumed run goes through its last steps again)."""
        document = metrics.as_json()
        if metrics.step > self.last_step:
            line = json.dumps(document, allow_nan=False, ensure_ascii=False)
            write_all(self._descriptor, line.encode() + b"\n")
            self.last = document
        return document

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _last_line(path: Path, content: bytes) -> Measured:
    try:
        found = json.loads(content.splitlines()[-1])
        if isinstance(found, dict) and type(found["step"]) is int:
            return found
    except (ValueError, KeyError, RecursionError):
        pass
    raise Refused(f"{path}: its last line is not one of a run's metrics; put an untouched copy back")


def _finite(value: float) -> float | None:
    """JSON knows no infinity: a model that diverged has no loss."""
    return value if math.isfinite(value) else None


def _class_number(names: tuple[str, ...], positive: str | None) -> int:
    if positive is None:
        return 1
    if positive not in names:
        raise InvalidInput(
            "[training] positive", positive, "is not a class of the data", f"use one of {', '.join(names)}"
        )
    return names.index(positive)


# From probabilities to answers: what each threshold does, and which one predictions use.

DEFAULT = 0.5
GRID = np.arange(1, 100) / 100
"""Thresholds that are measured: these, and the quantiles of the scores at these levels."""
_DIGITS = 6
_VERSION = 1


class Frontier(TypedDict):
    """frontier.json; `fairness` is the weight the run was trained with, None where its algorithm has none."""

    version: int
    private: bool
    note: str
    positive_class: str
    fairness: float | None
    points: list[Measured]


class Decision(TypedDict):
    """decision.json: the threshold in use, why, and the point of the frontier next to it."""

    version: int
    threshold: float
    rule: str
    positive_class: str | None
    not_reached: str | None
    held_out: Measured | None


UNDECIDED: Decision = {
    "version": _VERSION,
    "threshold": DEFAULT,
    "rule": AS_IT_IS.text,
    "positive_class": None,
    "not_reached": None,
    "held_out": None,
}
"""The decision of a run without held-out records."""


def measure_thresholds(held_out: HeldOutRecords, model: Model, theta: Tensor, fairness: float | None) -> Frontier:
    """The document of frontier.json: accuracy, rates and gaps of the held-out records at many thresholds.

    With more than two classes there is no threshold, and the list of points is empty.
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


def measure_at(held_out: HeldOutRecords, score: Floats, threshold: float) -> Measured:
    """All numbers of the held-out records if a record is positive from `threshold` on."""
    predicted = np.where(score >= threshold, held_out.positive, 1 - held_out.positive)
    label, group = held_out.label, held_out.group
    counted = count_confusion(label, predicted, group, held_out.class_names, held_out.group_names)
    measured = Measurement(counted, held_out.positive).as_json()
    rate = float((score >= threshold).mean())
    return {"threshold": threshold, "positive_rate": rate, **measured}


def decide(frontier: Frontier, rule: ThresholdRule) -> Decision:
    """The threshold in use, why, and what it does on the held-out records.

    Among the thresholds that keep a target gap the one with the largest balanced accuracy is taken, and none that
    answers all records the same; where no threshold is left, one half stays, and `not_reached` says so.
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


def read_frontier(folder: RunFolder) -> Frontier:
    """What `measure_thresholds` left in a run; refused where it is something else."""
    found = folder.read_json(folder.frontier)
    try:
        points = list(found["points"])
        # every number that is shown or compared must be there, and be a number
        for point in points:
            for name in ("threshold", "positive_rate", "accuracy", "balanced_accuracy"):
                float(point[name])
            emptiness(point)
        return {
            "version": _VERSION,
            "private": False,
            "note": NOT_PRIVATE,
            "positive_class": str(found["positive_class"]),
            "fairness": None if found["fairness"] is None else float(found["fairness"]),
            "points": points,
        }
    except (KeyError, TypeError, ValueError):
        raise Refused(f"{folder.frontier} is not what a run writes; put an untouched copy back") from None


def read_threshold(folder: RunFolder) -> tuple[float, str]:
    """The threshold that predictions of this run use, and why; one half where nothing was decided."""
    if not folder.decision.exists():
        return DEFAULT, AS_IT_IS.text
    try:
        found = folder.read_json(folder.decision)
        return open_unit("threshold", float(found["threshold"])), str(found["rule"])
    except (ValueError, KeyError, TypeError, InvalidInput):
        raise Refused(f"{folder.decision} is not what a run writes; put an untouched copy back") from None


# Predictions for records in a file.


@dataclass(frozen=True)
class Predictions:
    """For each record the most likely class, and the probability of every class."""

    class_names: tuple[str, ...]
    predicted: tuple[str, ...]
    probabilities: tuple[tuple[float, ...], ...]
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns of the input that go into the output, in front."""
    threshold: float | None = None
    """From which probability on the positive class was predicted; None: the most likely class."""
    notes: tuple[str, ...] = ()
    """What was recognised about the input file."""
    remark: str | None = None
    """What a reader must know about the signatures; None if all keys are still valid, or none were checked."""

    def as_csv(self) -> bytes:
        """One row per record; a text that a spreadsheet would run as a formula gets an apostrophe in front."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        header = [*self.kept, "prediction", *(f"probability of {name}" for name in self.class_names)]
        writer.writerow(spreadsheet_safe(name) for name in header)
        columns = zip(*self.kept.values(), strict=True) if self.kept else repeat(())
        for cells, name, row in zip(columns, self.predicted, self.probabilities, strict=False):
            shown = [spreadsheet_safe(cell) for cell in (*cells, name)]
            writer.writerow([*shown, *(f"{value:.9g}" for value in row)])
        return text.getvalue().encode()


def spreadsheet_safe(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula; numbers, negative ones too, stay what they are."""
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) or _NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}"


_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?([eE][+-]?\d+)?")


class _Encoding(BaseModel):
    """What of encoding.json a prediction needs."""

    schema_: dict[str, Any] | None = Field(alias="schema")
    standardisation: Standardisation | None
    class_names: tuple[str, ...]
    delimiter: str
    decimal: Literal[".", ","] = "."


def _read_encoding(folder: RunFolder) -> tuple[_Encoding, FileLayout]:
    """How records become features, and how most training files were written."""
    try:
        encoding = _Encoding.model_validate(folder.read_json(folder.encoding))
        return encoding, FileLayout(encoding.delimiter, encoding.decimal)
    except (ValidationError, InvalidInput):
        raise Refused(f"{folder.encoding} is not what a run writes; put an untouched copy back") from None


def predict(
    run: str | Path,
    input: str | Path | RawTable,
    trusted: FolderTrust = UNTRUSTED,
    *,
    keep: Sequence[str] = (),
    threshold: float | None = None,
    target_rate: float | None = None,
) -> Predictions:
    """Encode the records as the training records were, and apply the run's model.

    Args:
        run: the run folder.
        input: a file of records (CSV or Parquet), or records that were read already.
        trusted: how far the folder is trusted, which matters for a model that the user's own code builds.
        keep: columns of the input that the output repeats.
        threshold: from which probability on the positive class is predicted; left out, as the run decided.
        target_rate: instead of a threshold, the share of these records that gets the positive class.

    Guarantee: post-processing. What the model protects, it protects whatever it is asked; the predictions say
    nothing new about training records.
    """
    folder = RunFolder.existing(Path(run))
    if not folder.model.exists():
        raise InvalidInput("RUN", str(run), "has no model yet", "let the training finish (privfair train ... --resume)")
    papers = read_folder_plan(folder, trusted, model_only=True)
    plan = papers.plan
    encoding, expected = _read_encoding(folder)
    if encoding.schema_ is None:
        raise InvalidInput("RUN", str(run), "was trained on images, which come in no table", "load the model in Python")
    layout = expected
    if isinstance(input, RawTable):
        table = input
    else:
        layout = recognise(Path(input), expected)
        table = read_table(Path(input), layout.delimiter, layout.decimal)
    features = encode_features(table, schema_from_json(encoding.schema_), predicting=True)
    if encoding.standardisation is not None:
        features = encoding.standardisation.apply(features)
    classes = encoding.class_names
    model = build_model(plan.model, (features.shape[1],), len(classes))
    with torch.no_grad():
        x = torch.from_numpy(features).to(plan.model.dtype)
        probabilities = model.probabilities(load_theta(folder, model), x)
    chosen, cut = probabilities.argmax(dim=1), None
    if len(classes) == 2:
        positive = 1 if plan.training.positive is None else classes.index(plan.training.positive)
        cut = _threshold(folder, probabilities[:, positive], threshold, target_rate)
        if cut is not None:
            chosen = torch.where(probabilities[:, positive] >= cut, positive, 1 - positive)
    elif threshold is not None or target_rate is not None:
        raise InvalidInput("--threshold", threshold or target_rate, "needs a model with two classes", "drop it")
    return Predictions(
        classes,
        tuple(classes[number] for number in chosen.tolist()),
        tuple(tuple(row) for row in probabilities.tolist()),
        {name: tuple(str(cell).strip() for cell in table.column(name).tolist()) for name in keep},
        cut,
        layout.notes(expected),
        None if papers.authentic is None else papers.authentic.remark,
    )


def _threshold(folder: RunFolder, score: torch.Tensor, threshold: float | None, rate: float | None) -> float | None:
    """The one that was given, that gives the wanted share of these records, or that the run decided; None is 1/2."""
    rule = ThresholdRule(threshold=threshold, target_rate=rate)
    if rule.target_rate is not None:
        return float(torch.quantile(score.double(), 1 - rule.target_rate))
    cut = read_threshold(folder)[0] if rule.threshold is None else rule.threshold
    return None if cut == DEFAULT and rule.threshold is None else cut
