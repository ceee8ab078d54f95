"""What a run says, to an experiment tracker: the promise, the signed files, and numbers named as not private.

::

    with mlflow.start_run():
        model = plan.train(budget, ledger="ledger.db", progress=LiveProgress(MlflowSink()))    # while it trains
        log_run(model.folder)                                                                  # once it has ended

Nothing here spends or promises anything: it reads a run folder. Anyone who may read the tracker may read test metrics,
which are exact numbers about held-out records; they are logged under `not_private/`, or not at all (`metrics=False`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, final

from calibrate.errors import InvalidInput
from privfair.run.folder import RunFolder
from privfair.run.public import Progress
from privfair.run.record import RunRecord

NOT_PRIVATE = "not_private"
"""The first part of the name of every number that is measured on true records."""
_LONGEST = 4000


class Sink(Protocol):
    """Where a run is logged: MLflow below, or anything with these four methods."""

    def params(self, values: Mapping[str, str]) -> None:
        """Settings, each once."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Words about the run."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of one step."""

    def artifact(self, path: Path) -> None:
        """A file to be kept."""


@final
class MlflowSink:
    """MLflow's active run; needs the extra `mlflow`."""

    def __init__(self) -> None:
        try:
            self._mlflow = import_module("mlflow")
        except ImportError as error:
            rule = "is not installed"
            raise InvalidInput("mlflow", None, rule, "pip install 'privfair[mlflow]'") from error

    def params(self, values: Mapping[str, str]) -> None:
        self._mlflow.log_params(dict(values))

    def tags(self, values: Mapping[str, str]) -> None:
        self._mlflow.set_tags({name: text[:_LONGEST] for name, text in values.items()})

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def artifact(self, path: Path) -> None:
        self._mlflow.log_artifact(str(path), artifact_path="privfair")


def log_run(run: str | Path, sink: Sink | None = None, *, metrics: bool = True) -> None:
    """Log a run: its promise as parameters and tags, its signed files as artifacts, its metrics as not private.

    Args:
        run: the run folder.
        sink: where to; MLflow's active run without it.
        metrics: whether the numbers on held-out records, which are not private, are logged as well.
    """
    folder = RunFolder.existing(Path(run))
    place = MlflowSink() if sink is None else sink
    record = RunRecord.read(folder.summary)
    promise = record.promise.as_json()
    settings = {name: promise[name] for name in ("epsilon", "delta", "unit", "adjacency", "claimed_epsilon")}
    settings |= {"algorithm": record.algorithm, "noise_source": record.noise_source}
    settings |= {f"rounds_{name}": number for name, number in record.rounds.as_json().items()}
    place.params({f"privfair.{name}": "none" if value is None else str(value) for name, value in settings.items()})
    words = {
        "promise": record.promise.text,
        "not_protected": "; ".join(record.promise.not_protected),
        "manifest_digest": record.manifest.digest,
        "ledger": record.ledger or ", ".join(record.ledgers.values()),
        "status": record.status.value,
    }
    if folder.model.exists():
        words["model_sha256"] = hashlib.sha256(folder.model.read_bytes()).hexdigest()
    place.tags({f"privfair.{name}": text for name, text in words.items()})
    for path in (folder.manifest, folder.receipts, folder.summary):
        if path.exists():
            place.artifact(path)
    if metrics and folder.metrics.exists():
        for line in folder.metrics.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            place.metrics(_named(entry["overall"]), int(entry["step"]))


@final
class LiveProgress:
    """For `progress=` of `pf.train` and `Plan.train`: each measured step as it comes.

    Args:
        sink: where to log.
        metrics: whether the numbers on held-out records, which are not private, are logged.
    """

    def __init__(self, sink: Sink, *, metrics: bool = True) -> None:
        self._sink, self._metrics = sink, metrics

    def __call__(self, progress: Progress) -> None:
        found: dict[str, float] = {"privfair/rounds_charged": float(progress.charged)}
        if self._metrics and progress.metrics is not None:
            found |= _named(progress.metrics["overall"])
        self._sink.metrics(found, progress.step)


def _named(overall: Mapping[str, Any]) -> dict[str, float]:
    """The plain numbers of a step, under names that say what they are."""
    return {
        f"{NOT_PRIVATE}/{name}": float(value)
        for name, value in overall.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
