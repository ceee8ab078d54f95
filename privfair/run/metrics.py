"""What a model does on the test records, step by step: loss, accuracy, group rates and gaps.

These numbers are **not private**. They are exact functions of the true class and attribute of the test
records, which are no training records of any party; who may read them is for their holder to decide.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from calibrate.arrays import Integers
from calibrate.errors import InvalidInput, Refused
from privfair.data.silos import Silos
from privfair.durable import write_all
from privfair.fairness.measurement import SiloMeasurements, area_under_curve, measure_silos
from privfair.models.model import Model

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

    def as_json(self) -> dict[str, Any]:
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
        self._y = torch.cat([torch.tensor(silo.data.label) for silo in silos])
        self._against = (1 - 2 * self._y).to(dtype)
        self.positive = _class_number(silos.class_names, positive)
        self.class_names, self.group_names = silos.class_names, silos.group_names

    @property
    def label(self) -> Integers:
        """The true classes, silo after silo."""
        return np.concatenate([silo.data.label for silo in self._silos])

    @property
    def group(self) -> Integers:
        """The groups, silo after silo."""
        return np.concatenate([silo.data.group for silo in self._silos])

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
        measured = measure_silos(
            self._silos, [part.numpy() for part in torch.split(predictions, self._sizes)], self.positive
        )
        return StepMetrics(
            step=step,
            round=round_number,
            loss=float(losses.mean()),
            silo_losses={name: float(part.mean()) for name, part in zip(self._silos.names, by_silo, strict=True)},
            measured=measured,
            auc=area_under_curve(scores.numpy(), self._y.numpy()),
        )


@final
class MetricsLog:
    """metrics.jsonl: one line per measured step, rising; what a crash left unfinished at its end is cut off."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes() if path.exists() else b""
        whole = content.rfind(b"\n") + 1
        self.last: dict[str, Any] | None = None
        if whole:
            self.last = _last_line(path, content[:whole])
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._descriptor, whole)

    @property
    def last_step(self) -> int:
        """The last step on file; -1 for none."""
        return -1 if self.last is None else int(self.last["step"])

    def append(self, metrics: StepMetrics) -> dict[str, Any]:
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


def _last_line(path: Path, content: bytes) -> dict[str, Any]:
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
