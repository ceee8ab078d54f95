"""A run folder: what a run leaves behind, and how each file is written and read."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import pickle
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrate.errors import CheckFailed, InvalidInput, Refused
from privfair.algorithms.algorithm import Algorithm
from privfair.durable import (
    LARGEST_DOCUMENT,
    LARGEST_FILE,
    OTHER_VERSION,
    locked,
    replace_file,
    require_bounded_archive,
)
from privfair.federation.coordinator import Position
from privfair.models.linear import LogisticRegression
from privfair.models.model import Model

State = TypeVar("State")
RUN_VERSION = 1
"""Of the JSON files of a run folder."""

_LARGE_FILES = (".bin", ".npz", ".pt", ".json", ".jsonl")
"""What grows with the model or with the rounds."""

# What a run leaves behind, one file per purpose; all of it may go to an auditor except the claim token.
#
# ::
#
#     plan.toml       the plan, byte for byte as signed; of a plan with five keys also its schema.toml
#     budget.json     the signed manifest that was spent
#     run.json        what ran: promise, digests, versions, how far it got, the last metrics
#     claim.token     the secret that lets this run continue after a crash (mode 0600)
#     sessions.jsonl  one line per process: which rounds are its own
#     transcript.bin  every published value
#     batches.bin     who took part in each round, only where the manifest counts that as known
#     metrics.jsonl   one line per measured step, on the test records; not private
#     checkpoint.npz  the state at the end of the last block
#     encoding.json   how a record becomes features, for predictions
#     model.pt        the parameters, as a torch state dict;  model.json  the same for linear models
#     frontier.json   accuracy and gaps of the test records at many thresholds; not private
#     decision.json   the threshold that predictions use
#     origin.json     where the plan lay, for an audit on the same machine
#     receipts.json   the ledger's entries about this run
#     search.json     of a search alone: the setting and the score of the best try (and no transcript)


@final
class RunFolder:
    """The paths of a run, and the few ways in which they are written."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.plan = self.path / "plan.toml"
        self.manifest = self.path / "budget.json"
        self.summary = self.path / "run.json"
        self.token = self.path / "claim.token"
        self.sessions = self.path / "sessions.jsonl"
        self.transcript = self.path / "transcript.bin"
        self.batches = self.path / "batches.bin"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoint = self.path / "checkpoint.npz"
        self.encoding = self.path / "encoding.json"
        self.model = self.path / "model.pt"
        self.linear_model = self.path / "model.json"
        self.receipts = self.path / "receipts.json"
        self.frontier = self.path / "frontier.json"
        self.decision = self.path / "decision.json"
        self.origin = self.path / "origin.json"
        self.search = self.path / "search.json"
        self._lock = self.path / "lock"
        self._require_plain_files()

    def _require_plain_files(self) -> None:
        """Refuse links out of the folder, devices, and files beyond any that a run writes: it may come from anyone."""
        inside = self.path.resolve()
        for path in filter(os.path.lexists, (path for path in vars(self).values() if path != self.path)):
            if not path.resolve().is_relative_to(inside) or (path.exists() and not path.is_file()):
                raise Refused(f"{path} leads out of the run folder or is no regular file; put the run's file there")
            most = LARGEST_FILE if path.suffix in _LARGE_FILES else LARGEST_DOCUMENT
            if path.exists() and path.stat().st_size > most:
                raise Refused(f"{path} has more than {most} bytes; put the run's file there")

    @classmethod
    def create(cls, path: Path, *, resume: bool = False) -> RunFolder:
        """A new folder, or an empty one; anything else is refused, so that no run is written over.

        With `resume`, also the folder of a run that was begun, or prepared and stopped before it claimed anything.
        """
        folder = cls(path)
        if folder.begun:
            if resume:
                return folder
            raise InvalidInput(
                "--out", str(path), "holds a run already", "add --resume to continue it, or name another folder"
            )
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            found = {entry for entry in folder.path.iterdir() if entry != folder._lock}
            prepared = {entry for entry in found if entry in folder._prepared or _is_half_written(entry)}
            if found and not (resume and found == prepared):
                remedy = "add --resume to begin the run that was prepared in it" if found == prepared else ""
                raise InvalidInput("--out", str(path), "is not empty", remedy or "name a new folder")
        except OSError as error:
            raise InvalidInput(
                "--out", str(path), f"cannot be made ({error.strerror})", "name another place"
            ) from error
        return folder

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """The folder of a run that was begun."""
        folder = cls(path)
        if not folder.begun:
            raise InvalidInput("run folder", str(path), "holds no run", "name the --out of a training run")
        return folder

    @property
    def _prepared(self) -> tuple[Path, ...]:
        """What is written before a run is treated as begun."""
        return (self.plan, self.manifest, self.encoding, self.metrics, self.origin)

    @property
    def begun(self) -> bool:
        return self.summary.exists() or self.token.exists()

    @property
    def claimed(self) -> bool:
        """Whether a run claimed or published from this folder, so that it can only be resumed."""
        return self.token.exists() or self.transcript.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time: a second one would take the claim away from the first."""
        busy = f"another process is training in {self.path}; let it finish, or stop it first"
        with locked(self._lock, busy=busy, mode=0o600):
            for left in filter(_is_half_written, self.path.iterdir()):
                left.unlink()
            yield

    def write_json(self, path: Path, document: Mapping[str, Any]) -> None:
        replace_file(path, json_file(document))

    @staticmethod
    def read_json(path: Path) -> Mapping[str, Any]:
        try:
            document = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as broken:
            raise Refused(f"{path} cannot be read ({broken}); put an untouched copy back") from None
        if not isinstance(document, dict):
            raise Refused(f"{path} is not what a run writes; put an untouched copy back")
        if document.get("version", RUN_VERSION) != RUN_VERSION:
            raise Refused(f"{path} is of another version than {RUN_VERSION}; {OTHER_VERSION}")
        return document

    def digests(self) -> dict[str, str]:
        """SHA-256 of what an auditor is handed, by file name."""
        handed = (self.plan, self.manifest, self.transcript, self.batches, self.model, self.linear_model)
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in handed if path.exists()}

    def require_begun_with(self, what: str, found: object, given: str) -> None:
        """Refuse to continue with another manifest, plan or ledger than the run was begun with."""
        if found != given:
            raise Refused(
                f"{self.path} was begun with the {what} {str(found)[:12]}, not with {given[:12]}; resume it with its "
                f"own {what}, or begin a new run in another folder"
            )

    def discard(self, files: Iterable[str]) -> None:
        """Remove the token and `files`, which were written for a run that was refused; then the folder, if empty."""
        unused = [self.metrics] if self.metrics.exists() and not self.metrics.stat().st_size else []
        for path in (self.token, *unused, *(self.path / name for name in files)):
            path.unlink(missing_ok=True)
        if not set(self.path.iterdir()) - {self._lock}:
            self._lock.unlink(missing_ok=True)
            self.path.rmdir()


def json_file(document: Mapping[str, Any]) -> bytes:
    """The content of a JSON file of a run folder."""
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False).encode() + b"\n"


def _is_half_written(path: Path) -> bool:
    """Whether it is the beginning of a file that a killed process never gave its name."""
    return path.name.startswith(".") and path.suffix[1:].isdigit()


def save_model(folder: RunFolder, model: Model, theta: Tensor, encoding: Mapping[str, Any], promise: str) -> None:
    """Write model.pt, and model.json where the model is linear; each in one atomic step."""
    content = io.BytesIO()
    torch.save(state_dict(model, theta), content)
    replace_file(folder.model, content.getvalue())
    if isinstance(model, LogisticRegression):
        weight, bias = state_dict(model, theta).values()
        scored = encoding["class_names"][1:] if model.classes == 2 else encoding["class_names"]
        folder.write_json(
            folder.linear_model,
            {
                "kind": "logistic",
                "promise": promise,
                "classes": encoding["class_names"],
                "features": encoding["feature_names"],
                "scores": "softmax over the classes; a class without weights has score 0",
                "weights": {name: row.tolist() for name, row in zip(scored, weight, strict=True)},
                "intercepts": dict(zip(scored, bias.tolist(), strict=True)),
            },
        )


def load_theta(folder: RunFolder, model: Model) -> Tensor:
    """The parameter vector of a saved model; only tensors are read, never code."""
    try:
        require_bounded_archive(folder.model, "model")
        saved = torch.load(folder.model, weights_only=True)
        return _theta(model, saved)
    except (OSError, EOFError, RuntimeError, LookupError, TypeError, ValueError, pickle.UnpicklingError) as broken:
        raise Refused(
            f"{folder.model} is not the model of this run ({type(broken).__name__}); train it again"
        ) from None


def bytes_beside_parameters(folder: RunFolder) -> int:
    """How much of a saved model is no parameter: a part of a larger tensor is written with all that it is a part of."""
    saved: dict[str, Tensor] = torch.load(folder.model, weights_only=True)
    held = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in saved.values()}
    return max(0, sum(held.values()) - sum(value.numel() * value.element_size() for value in saved.values()))


def readable_difference(folder: RunFolder, model: LogisticRegression, theta: Tensor) -> float:
    """By how much model.json differs from the given parameters; infinite if it is another model's, or damaged."""
    weight, bias = state_dict(model, theta).values()
    try:
        found = json.loads(folder.linear_model.read_text("utf-8"))
        rows = torch.tensor([found["weights"][name] for name in found["weights"]], dtype=weight.dtype)
        intercepts = torch.tensor([found["intercepts"][name] for name in found["weights"]], dtype=bias.dtype)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return math.inf
    if rows.shape != weight.shape or intercepts.shape != bias.shape:
        return math.inf
    return max(float((rows - weight).abs().max()), float((intercepts - bias).abs().max()))


def state_dict(model: Model, theta: Tensor) -> dict[str, Tensor]:
    """The parameters with their names, as torch's own layers name them; linear models have weight and bias."""
    return {name: value.detach().clone() for name, value in model.named_parameters(theta).items()}


def _theta(model: Model, saved: dict[str, Tensor]) -> Tensor:
    theta = torch.zeros(model.size, dtype=torch.float64)
    places = model.named_parameters(theta)
    if set(places) != set(saved):
        raise ValueError("other parameters")
    for name, place in places.items():
        if place.shape != saved[name].shape:
            raise ValueError("another shape")
        place.copy_(saved[name])  # a view of theta
    return theta


# The state of a run on disk, as plain arrays (npz without pickle), put in place at one stroke.
#
# A checkpoint only saves time: whatever it holds follows from the transcript, and it never says what is spent.
# That is the ledger's to know, so restoring an old checkpoint gives an old model and no new rounds.

_STATE = "state."


def save_checkpoint(path: Path, manifest_digest: str, algorithm: Algorithm[State], position: Position[State]) -> None:
    """Write a position between two steps; the transcript must be durable up to its round before."""
    arrays: dict[str, NDArray[Any]] = {
        "manifest": np.array(manifest_digest),
        "step": np.array(position.step),
        "round": np.array(-1 if position.round is None else position.round),
    }
    arrays |= {f"{_STATE}{name}": values for name, values in algorithm.checkpoint(position.state).items()}
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    replace_file(path, content.getvalue())


def load_checkpoint(path: Path, manifest_digest: str, algorithm: Algorithm[State]) -> Position[State] | None:
    """The position saved there; None if there is none. Damage and other runs' checkpoints are refused."""
    if not path.exists():
        return None
    try:
        require_bounded_archive(path, "checkpoint")
        with np.load(path, allow_pickle=False) as found:
            if str(found["manifest"]) != manifest_digest:
                raise Refused(
                    f"checkpoint {path} belongs to another manifest; delete it, the run is rebuilt without it"
                )
            arrays = {name.removeprefix(_STATE): found[name] for name in found.files if name.startswith(_STATE)}
            step, last_round = int(found["step"]), int(found["round"])
            state = algorithm.restore(arrays)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, CheckFailed) as broken:
        raise Refused(
            f"checkpoint {path} cannot be read ({broken}); delete it, the run is rebuilt without it"
        ) from broken
    return Position(state, step, None if last_round < 0 else last_round)
