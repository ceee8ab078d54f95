"""Predictions of a trained model for records in a file."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, ValidationError

from calibrate.errors import InvalidInput, Refused
from calibrate.manifest.trust import UNTRUSTED, FolderTrust
from privfair.data.encode import Standardisation, encode_features
from privfair.data.infer import FileLayout, recognise
from privfair.data.read import RawTable, read_table
from privfair.data.schema import schema_from_json
from privfair.plan.model import build_model
from privfair.plan.plan import ThresholdRule
from privfair.run.folder import RunFolder, load_theta
from privfair.run.metrics import DEFAULT, read_threshold
from privfair.run.public import read_folder_plan


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
