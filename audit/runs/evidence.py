"""What an auditor has in hand: a run folder, the data it was trained on, and a manifest in the auditor's name.

The states before every round are redone from the transcript (`privfair.run.replay`), so the auditor's view of the run
is that of an observer who also holds the data: nothing is taken from the trainer's word. Rehearsals and reruns make the
same promise once more in the auditor's name, so that they touch no one's budget.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrate.errors import InvalidInput
from calibrate.manifest import keys as signature
from calibrate.manifest.document import PAYLOAD_TYPE, BudgetDocument, statement_bytes
from calibrate.manifest.draft import fresh_nonce, valid_for
from calibrate.manifest.keys import Role, SigningKey, generate
from calibrate.manifest.trust import UNTRUSTED, FolderTrust, TrustedKey, TrustFile
from calibrate.manifest.verify import AuthenticManifest
from calibrate.sampling import Cyclic
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.algorithms.recipe import signed_parameters
from privfair.algorithms.steffle import Steffle
from privfair.batches.participation import BatchRecord, group_of_units
from privfair.federation.coordinator import Position
from privfair.plan.data import FileSource
from privfair.plan.training import TrainingPlan, build
from privfair.run.folder import RunFolder
from privfair.run.prepare import Run, Sites, load_data
from privfair.run.public import read_folder_plan, refuse_search
from privfair.run.record import Session, read_sessions
from privfair.run.replay import KeptStep, finished_steps, kept_steps, replay
from privfair.transcript import Transcript

# Where an auditor's runs keep their files: in memory, if the system has a place for that.


def in_memory() -> Path | None:
    """A folder that never meets a disk; None (the default place) where there is none.

    An auditor's ledger and transcripts are thrown away after each run, so they need not outlive a power cut.
    """
    place = Path("/dev/shm")
    return place if place.is_dir() and os.access(place, os.W_OK) else None


# The same promise once more, in the auditor's name: for rehearsals and reruns that touch no one's budget.


@final
@dataclass(frozen=True)
class AuditorsManifest:
    """A key made for one audit and trusted by no one else; what it signs was priced when it was first issued."""

    key: SigningKey = field(default_factory=generate)
    since: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))

    @property
    def trust(self) -> TrustFile:
        return TrustFile(keys=(TrustedKey.of(self.key.public, Role.PRIVACY_OFFICER, self.since),))

    def envelope(self, document: BudgetDocument) -> bytes:
        """The document for another single use."""
        once = {"nonce": fresh_nonce(), "validity": valid_for(), "ledgers": (), "retention": None, "witness": None}
        copy = document.model_copy(update=once)
        return signature.sign(PAYLOAD_TYPE, statement_bytes(copy), self.key)


@dataclass(frozen=True, eq=False)
class RoundEvidence:
    """One finished round: the state before it, and what each silo published in it."""

    step: int
    round: int
    state: Any


@dataclass(frozen=True, eq=False, kw_only=True)
class RunEvidence(Run):
    """A run folder, opened and understood."""

    folder: RunFolder
    plan_path: Path
    manifest_digest: str
    authentic: AuthenticManifest | None
    """The manifest with its signatures checked; None where no trust file was given."""
    transcript: Transcript
    sessions: tuple[Session, ...]
    batches: BatchRecord | None
    sites: Sites = field(default_factory=dict)
    """Where each silo's file is, for a run whose plan names silos and no files."""

    @classmethod
    def read(
        cls,
        path: Path,
        trusted: FolderTrust = UNTRUSTED,
        plan_path: Path | None = None,
        sites: Sites = MappingProxyType({}),
    ) -> RunEvidence:
        """Open a run folder; refused with a reason where a file is missing or damaged.

        `trusted` says whose signatures count and whether code in the folder may run. `plan_path` is the plan in its
        own place, for a plan that names data files relative to it. `sites` are the silos' files where the plan names
        none.
        """
        folder = RunFolder.existing(path)
        if plan_path is not None:
            _require_same_plan(folder, plan_path)
        found = read_folder_plan(folder, trusted, plan_path)
        plan, document = found.plan, found.document
        refuse_search(plan)
        if plan_path is None:
            _require_files_here(plan)
        plan_path = plan_path or folder.plan
        data = load_data(plan, document, sites)
        model, algorithm = build(plan, data.facts, signed_parameters(document), document.data, document)
        return cls.planned(
            plan,
            document,
            algorithm,
            data,
            folder=folder,
            plan_path=plan_path,
            envelope=found.envelope,
            manifest_digest=found.manifest_digest,
            authentic=found.authentic,
            facts=data.facts,
            model=model,
            silos=data.tensors(plan.model.dtype),
            transcript=Transcript.read(folder.transcript),
            sessions=read_sessions(folder.sessions),
            batches=BatchRecord.read(folder.batches) if folder.batches.exists() else None,
            sites=sites,
        )

    def positions(self) -> Iterator[Position[Any]]:
        """Every state of the run, redone from published values alone; only where all of them are kept."""
        return replay(self.algorithm, self.transcript, self.sessions)

    def kept(self) -> Iterator[KeptStep[Any]]:
        """The steps that a transcript with a retention keeps in full."""
        return kept_steps(self.algorithm, self.transcript, self.sessions)

    @property
    def finished(self) -> tuple[int, ...]:
        """The last round of every finished step, whether its values are kept or not."""
        return tuple(rounds[-1] for rounds in finished_steps(self.transcript, self.sessions))

    @property
    def seen(self) -> tuple[int, ...]:
        """The steps that `rounds` shows: all that were finished, or those that are kept."""
        if self.document.retention is None:
            return tuple(range(len(self.finished)))
        return tuple(one.step for one in self.kept())

    def rounds(self) -> Iterator[RoundEvidence]:
        """The finished rounds with the state each of them started from; where digests are kept, the kept ones."""
        if self.document.retention is not None:
            yield from (RoundEvidence(one.step, one.round, one.state) for one in self.kept())
            return
        for before, after in pairwise(self.positions()):
            if after.step > before.step and after.round is not None:
                yield RoundEvidence(before.step, after.round, before.state)

    @property
    def batches_known(self) -> bool:
        """Whether the auditor can tell who took part: full batches, or batches on record."""
        if self.algorithm.draws:
            return False
        whole_groups = isinstance(self.sampling, Cyclic) and self.sampling.rate == 1
        return self.batches is not None or self.sampling is None or whole_groups

    def batch(self, round_number: int, silo: SiloTensors) -> Tensor:
        """Who took part; only where `batches_known`."""
        if isinstance(self.sampling, Cyclic):
            groups = torch.from_numpy(group_of_units(silo, self.sampling.groups))
            return (groups == round_number % self.sampling.groups).nonzero()[:, 0]
        if self.batches is None:
            units = len(silo) if silo.unit_of_row is None else int(silo.unit_of_row.max()) + 1
            return torch.arange(units)
        return torch.from_numpy(np.asarray(self.batches.batch(round_number, silo.name), dtype=np.int64))


def _require_same_plan(folder: RunFolder, given: Path) -> None:
    if not (given.is_file() and folder.plan.is_file()) or given.read_bytes() != folder.plan.read_bytes():
        raise InvalidInput(
            "--plan", str(given), "is not the plan this run was trained with", f"name the original of {folder.plan}"
        )


def _require_files_here(plan: TrainingPlan) -> None:
    """The folder's copy of a plan finds only files that it names by absolute paths."""
    if isinstance(plan.data.source, FileSource) and not plan.data.source.schema.is_file():
        raise InvalidInput(
            "--plan",
            None,
            "is needed, because the plan names data files relative to its own place",
            "name the plan where it was trained, with its files beside it",
        )


def rows_only(silo: SiloTensors, rows: Tensor) -> SiloTensors:
    """The silo with these of its rows, in this order; it has the users that own one."""

    def of(column: Tensor | None) -> Tensor | None:
        return None if column is None else column[rows]

    kept = replace(silo, x=silo.x[rows], y=silo.y[rows], s=silo.s[rows], users=0, unit_of_row=of(silo.unit_of_row))
    return replace(kept, client_of_row=of(silo.client_of_row), record_numbers=of(silo.record_numbers))


# Batches of sensitive silos, which draw nothing: are they what the holders of the records drew?

Batches = Mapping[int, NDArray[np.int64]]
"""By round or step."""


def sensitive_silos(algorithm: Algorithm[object], silos: Sequence[SiloTensors]) -> frozenset[str]:
    """Who holds nothing but attributes, and so is asked instead of drawing."""
    if not isinstance(algorithm, Steffle):
        return frozenset()
    return frozenset(silo.name for silo in silos if not algorithm.sends_loss(silo.name))


def wrong_answers(
    silo: SiloTensors, silos: Sequence[SiloTensors], batches: Mapping[str, Batches], sensitive: frozenset[str]
) -> str | None:
    """What is wrong with a sensitive silo's batches; None if each is what was asked for."""
    numbers = {one.name: one.record_numbers.numpy() for one in silos if one.record_numbers is not None}
    held = numbers[silo.name]
    for round_number, batch in batches[silo.name].items():
        drawn = [numbers[one.name][batches[one.name][round_number]] for one in silos if one.name not in sensitive]
        asked = np.concatenate(drawn)
        if not np.array_equal(np.sort(held[batch]), np.sort(asked[np.isin(asked, held)])):
            return f"batch {round_number} is not what the holders of its records drew"
    return None
