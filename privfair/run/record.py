"""run.json, sessions.jsonl, receipts.json: how far a run got, by which processes, and what its ledgers hold about it.

This is their only writer and only reader.

A record is made before anything is claimed (`RunRecord.begun`); each later one is a copy with newer numbers. A damaged
file, or one of another kind, is refused with the place of its first fault.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

from calibrate.errors import Refused
from calibrate.manifest.strict_json import first_fault
from calibrate.manifest.verify import AuthenticManifest
from calibrate.plugins import installed_code
from calibrate.releases import encode_sampling
from calibrate.sampling import Batch, Sampling
from privfair.durable import opened, sync_folder, write_all
from privfair.fairness.measurement import Measured
from privfair.run.folder import RUN_VERSION, RunFolder, json_file
from privfair.run.public import RunPromise, promise_of

_PACKAGES = ("privfair", "torch", "numpy", "scipy", "cryptography", "securesystemslib", "SQLAlchemy")
NOT_PRIVATE = (
    "Metrics are exact functions of the test records' true classes and attributes, and are not private: read them "
    "where these records may be known."
)


class Status(Enum):
    BEGUN = "begun"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"


class _Part(BaseModel):
    """Written with the keys that were set, in the order of the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def as_json(self) -> Mapping[str, JsonValue]:
        return self.model_dump(mode="json", exclude_unset=True)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Refused, with the first fault, where the file is not one that a run writes."""
        try:
            RunFolder.read_json(path)  # another version is reported as such
            return cls.model_validate_json(path.read_bytes(), strict=True)
        except ValidationError as broken:
            raise Refused(
                f"{path} is not what a run writes ({first_fault(broken)}); put an untouched copy back"
            ) from None


class Signer(_Part):
    role: str
    key_id: str


class SpentManifest(_Part):
    """The signed manifest that a run spends, by digests."""

    digest: str
    envelope: str
    signed_by: tuple[Signer, ...]


class SignedData(_Part):
    silos: Mapping[str, int]
    schema_digest: str


class RecordedBatches(_Part):
    sampling: Mapping[str, object] | None
    recorded: bool
    """Whether batches are treated as known, and are on file."""


class Rounds(_Part):
    signed: int
    charged: int
    planned_steps: int
    steps: int
    sessions: int


class RunRecord(_Part):
    """run.json: what ran, under which promise, and how far it got.

    A run in one process has a `ledger`; a run over guards has an `engine`, and a ledger and a transcript of each party.
    """

    version: int
    status: Status
    algorithm: str
    promise: RunPromise
    manifest: SpentManifest
    plan: str
    data: SignedData
    noise_source: str
    batches: RecordedBatches
    metrics_note: str
    versions: Mapping[str, str]
    code: str = ""
    """SHA-256 of privfair's installed code (`calibrate.plugins.installed_code`); empty in runs before it was kept."""
    engine: str = ""
    ledger: str = ""
    ledgers: Mapping[str, str] = {}
    rounds: Rounds
    metrics: Measured | None
    """The last line of metrics.jsonl."""
    transcript: str | None
    transcripts: Mapping[str, str] = {}
    digests: Mapping[str, str]
    remarks: tuple[str, ...] = ()
    """What training did not reach."""

    @classmethod
    def begun(cls, manifest: AuthenticManifest, planned_steps: int, sampling: Sampling | None, **where: object) -> Self:
        """The record of a run that has spent nothing; `where` are the fields that not every run has.

        Batches that are treated as known are on file where one process draws them; a coordinator has none.
        """
        document = manifest.document
        recorded = sampling is not None and sampling.batch is Batch.REVEALED and "engine" not in where
        signers = tuple(Signer(role=one.role.value, key_id=one.key_id) for one in manifest.signatures)
        return cls.model_validate(
            {
                "version": RUN_VERSION,
                "status": Status.BEGUN,
                "algorithm": document.algorithm,
                "promise": promise_of(document),
                "manifest": SpentManifest(digest=manifest.digest, envelope=manifest.envelope_digest, signed_by=signers),
                "plan": document.config_digest,
                "data": SignedData(
                    silos={silo.name: silo.size for silo in document.data.silos},
                    schema_digest=document.data.schema_digest,
                ),
                "noise_source": document.noise_source.value,
                "batches": RecordedBatches(
                    sampling=None if sampling is None else encode_sampling(sampling), recorded=recorded
                ),
                "metrics_note": NOT_PRIVATE,
                "versions": _versions(),
                "code": installed_code(),
                "rounds": Rounds(signed=document.rounds, charged=0, planned_steps=planned_steps, steps=0, sessions=0),
                "metrics": None,
                "transcript": None,
                "digests": {},
                **where,
            }
        )

    @property
    def overall(self) -> Measured:
        """The last metrics of all held-out records together; empty where nothing was measured."""
        found: Measured = (self.metrics or {}).get("overall", {})
        return found

    def reached(self, status: Status, rounds: Mapping[str, int], **more: object) -> Self:
        """The record of the same run some `rounds` later; `more` are the other fields that changed."""
        counted = self.rounds.model_copy(update=rounds)
        return self.model_copy(update={"status": status, "rounds": counted, **more})

    def file(self) -> dict[str, bytes]:
        """The content of run.json, by its name."""
        return {"run.json": json_file(self.as_json())}

    def write(self, folder: RunFolder) -> Self:
        folder.write_json(folder.summary, self.as_json())
        return self

    def require_same_run(self, folder: RunFolder) -> None:
        """Refuse to continue in a folder that was begun with another manifest, plan or ledger."""
        before = RunRecord.read(folder.summary)
        folder.require_begun_with("manifest", before.manifest.digest, self.manifest.digest)
        folder.require_begun_with("plan", before.plan, self.plan)
        folder.require_begun_with("ledger", before.ledger, self.ledger)


class ChainHead(_Part):
    seq: int
    hash: str


class ClaimEntry(_Part):
    entry: str
    at: str
    by: str


class ChargedRounds(_Part):
    signed: int
    charged: int
    released: int


class Receipts(_Part):
    """receipts.json of one process: what its ledger holds about the run, and where its chain ended by then."""

    party: str = ""
    """Which silo says so, where each has its own ledger."""
    ledger: str
    head: ChainHead
    manifest: str
    claim: ClaimEntry
    state: str
    rounds: ChargedRounds
    releases: int
    sessions: int
    epsilon: float | None
    delta: float
    unit: str
    data: str
    transcript: str | None
    signed: str | None = None
    """The same in an envelope signed by the silo's own key, if it has one."""


class PartiesReceipts(_Part):
    """receipts.json of a run over guards."""

    engine: str
    parties: Mapping[str, Receipts]


@dataclass(frozen=True)
class Session:
    """Written before a process publishes anything: which rounds are its own, and at which step it continues.

    `carried` are rounds of earlier sessions that were left incomplete; their values count for step `step`.
    """

    session: int
    first_round: int
    step: int
    carried: tuple[int, ...]


FIRST_SESSION = Session(1, 0, 0, ())
_SESSION = TypeAdapter(Session)


def read_sessions(path: Path) -> tuple[Session, ...]:
    """The sessions of a run so far; an unfinished last line was followed by no publication and is left out."""
    sessions = []
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    for number, line in enumerate(lines[:-1], start=1):
        try:
            sessions.append(_SESSION.validate_json(line, strict=True))
        except ValidationError:
            raise Refused(f"{path}, line {number}: is not a session; put an untouched copy back") from None
    return tuple(sessions)


def append_session(path: Path, session: Session) -> None:
    """Durable before the session publishes anything; a half-written line before it is cut off."""
    with opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        os.ftruncate(descriptor, whole)
        os.lseek(descriptor, whole, os.SEEK_SET)
        write_all(descriptor, json.dumps(asdict(session), sort_keys=True).encode() + b"\n")
        os.fsync(descriptor)
    sync_folder(path.parent)


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
