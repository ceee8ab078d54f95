"""Predictions of a trained model for records in a file."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field, ValidationError

from calibrate.errors import InvalidInput, Refused
from privfair.data.benchmark_files import Standardisation
from privfair.data.own_files import load_own_features
from privfair.data.read import RawTable
from privfair.data.schema import schema_from_json
from privfair.plan.model import build_model
from privfair.run.folder import RunFolder, load_theta
from privfair.run.trusted_plan import UNTRUSTED, FolderTrust, read_folder_plan


@dataclass(frozen=True)
class Predictions:
    """For each record the most likely class, and the probability of every class."""

    class_names: tuple[str, ...]
    predicted: tuple[str, ...]
    probabilities: tuple[tuple[float, ...], ...]

    def as_csv(self) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["prediction", *(f"probability of {name}" for name in self.class_names)])
        for name, row in zip(self.predicted, self.probabilities, strict=True):
            writer.writerow([name, *(f"{value:.9g}" for value in row)])
        return text.getvalue().encode()


class _Encoding(BaseModel):
    """What of encoding.json a prediction needs."""

    schema_: dict[str, Any] | None = Field(alias="schema")
    standardisation: Standardisation | None
    class_names: tuple[str, ...]
    delimiter: str


def _read_encoding(folder: RunFolder) -> _Encoding:
    try:
        return _Encoding.model_validate(folder.read_json(folder.encoding))
    except (ValidationError, InvalidInput):
        raise Refused(f"{folder.encoding} is not what a run writes; put an untouched copy back") from None


def predict(run: str | Path, input: str | Path | RawTable, trusted: FolderTrust = UNTRUSTED) -> Predictions:
    """Encode the records as the training records were, and apply the run's model.

    Args:
        run: the run folder.
        input: a file of records (CSV or Parquet), or records that were read already.
        trusted: how far the folder is trusted, which matters for a model that the user's own code builds.

    Guarantee: post-processing. What the model protects, it protects whatever it is asked; the predictions say
    nothing new about training records.
    """
    folder = RunFolder.existing(Path(run))
    if not folder.model.exists():
        raise InvalidInput("RUN", str(run), "has no model yet", "let the training finish (privfair train ... --resume)")
    plan = read_folder_plan(folder, trusted, model_only=True).plan
    encoding = _read_encoding(folder)
    if encoding.schema_ is None:
        raise InvalidInput("RUN", str(run), "was trained on images, which come in no table", "load the model in Python")
    records = input if isinstance(input, RawTable) else Path(input)
    features = load_own_features(records, schema_from_json(encoding.schema_), encoding.delimiter)
    if encoding.standardisation is not None:
        features = encoding.standardisation.apply(features)
    classes = encoding.class_names
    model = build_model(plan.model, (features.shape[1],), len(classes))
    with torch.no_grad():
        x = torch.from_numpy(features).to(plan.model.dtype)
        probabilities = model.probabilities(load_theta(folder, model), x)
    return Predictions(
        classes,
        tuple(classes[number] for number in probabilities.argmax(dim=1).tolist()),
        tuple(tuple(row) for row in probabilities.tolist()),
    )
