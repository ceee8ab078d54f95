"""What an auditor has in hand: a run folder, and the data it was trained on.

The states before every round are redone from the transcript (`privfair.replay`), so the auditor's view of the run
is that of an observer who also holds the data: nothing is taken from the trainer's word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrate.errors import InvalidInput
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.trust import TrustFile
from calibrate.manifest.verify import AuthenticManifest, authenticate, read_unverified
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.algorithms.phases import Drawing
from privfair.batch_record import BatchRecord
from privfair.data_plan import FileSource
from privfair.models.model import Model
from privfair.participation import declared_sampling
from privfair.prepared_run import build
from privfair.replay import Session, read_sessions, replay
from privfair.rounds import Position
from privfair.run_folder import RunFolder
from privfair.training_data import TrainingData, load_training_data
from privfair.training_plan import TrainingPlan, read_training_plan
from privfair.transcript import Transcript


@dataclass(frozen=True, eq=False)
class RoundEvidence:
    """One finished round: the state before it, and what each silo published in it."""

    step: int
    round: int
    state: Any


@dataclass(frozen=True, eq=False)
class RunEvidence:
    """A run folder, opened and understood."""

    folder: RunFolder
    plan_path: Path
    envelope: bytes
    document: BudgetDocument
    manifest_digest: str
    authentic: AuthenticManifest | None
    """The manifest with its signatures checked; None where no trust file was given."""
    plan: TrainingPlan
    data: TrainingData
    model: Model
    algorithm: Algorithm[Any]
    silos: tuple[SiloTensors, ...]
    transcript: Transcript
    sessions: tuple[Session, ...]
    batches: BatchRecord | None

    @classmethod
    def read(cls, path: Path, trust: TrustFile | None = None, plan_path: Path | None = None) -> RunEvidence:
        """Open a run folder; refused with a reason where a file is missing or damaged.

        `plan_path` is the plan in its own place, for a plan that names data files relative to it.
        """
        folder = RunFolder.existing(path)
        given, plan_path = plan_path, _same_plan(folder, plan_path)
        envelope = folder.manifest.read_bytes()
        claimed = read_unverified(envelope)
        plan = read_training_plan(plan_path)
        if given is None:
            _require_files_here(plan)
        data = load_training_data(plan.data, central=plan.recipe.central)
        model, algorithm = build(plan, data, claimed.document)
        return cls(
            folder=folder,
            plan_path=plan_path,
            envelope=envelope,
            document=claimed.document,
            manifest_digest=claimed.digest,
            authentic=None if trust is None else authenticate(envelope, trust),
            plan=plan,
            data=data,
            model=model,
            algorithm=algorithm,
            silos=data.tensors(plan.model.dtype),
            transcript=Transcript.read(folder.transcript),
            sessions=read_sessions(folder.sessions),
            batches=BatchRecord.read(folder.batches) if folder.batches.exists() else None,
        )

    def positions(self) -> Iterator[Position[Any]]:
        """Every state of the run, redone from published values alone."""
        return replay(self.algorithm, self.transcript, self.sessions)

    def rounds(self) -> Iterator[RoundEvidence]:
        """The finished rounds with the state each of them started from."""
        for before, after in pairwise(self.positions()):
            if after.step > before.step and after.round is not None:
                yield RoundEvidence(before.step, after.round, before.state)

    @property
    def batches_known(self) -> bool:
        """Whether the auditor can tell who took part: full batches, or batches on record."""
        if isinstance(self.algorithm, Drawing):
            return False
        return self.batches is not None or declared_sampling(self.document) is None

    def batch(self, round: int, silo: SiloTensors) -> Tensor:
        """Who took part; only where `batches_known`."""
        if self.batches is None:
            units = len(silo) if silo.unit_of_row is None else int(silo.unit_of_row.max()) + 1
            return torch.arange(units)
        return torch.from_numpy(np.asarray(self.batches.batch(round, silo.name), dtype=np.int64))


def _same_plan(folder: RunFolder, given: Path | None) -> Path:
    if given is None:
        return folder.plan
    if not given.is_file() or given.read_bytes() != folder.plan.read_bytes():
        raise InvalidInput(
            "--plan",
            str(given),
            "is not the plan this run was trained with",
            f"name the original of {folder.plan}",
        )
    return given


def _require_files_here(plan: TrainingPlan) -> None:
    """The folder's copy of a plan finds only files that it names by absolute paths."""
    if isinstance(plan.data.source, FileSource) and not plan.data.source.schema.is_file():
        raise InvalidInput(
            "--plan",
            None,
            "is needed, because the plan names data files relative to its own place",
            "name the plan where it was trained, with its files beside it",
        )
