"""run.json and receipts.json of a run in one process: how far it got, and what its ledger says about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from calibrate.manifest.verify import VerifiedManifest
from calibrate.sampling import Batch, Sampling
from privfair.ledger import Ledger
from privfair.run.folder import RunFolder, json_file
from privfair.run.public import Status, describe_run


@final
@dataclass(frozen=True, eq=False)
class RunRecord:
    """What the folder of a run tells of it: which budget, how batches are drawn, and how many steps are planned."""

    manifest: VerifiedManifest
    sampling: Sampling | None
    planned_steps: int
    folder: RunFolder
    ledger: Ledger

    def document(
        self, status: Status, steps: int = 0, metrics: dict[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        """The document of run.json; `more` are further keys at its end."""
        charged = None if status is Status.BEGUN else self.ledger.manifest_status(self.manifest.digest)
        recorded = self.sampling is not None and self.sampling.batch is Batch.REVEALED
        return {
            **describe_run(status, self.manifest.authentic, self.sampling, recorded),
            "ledger": self.ledger.identity,
            "rounds": {
                "signed": self.manifest.document.rounds,
                "charged": 0 if charged is None else charged.charged,
                "planned_steps": self.planned_steps,
                "steps": steps,
                "sessions": 0 if charged is None else charged.session,
            },
            "metrics": metrics,
            "transcript": None if charged is None else charged.transcript_digest,
            "digests": self.folder.digests() if status is Status.FINISHED else {},
            **more,
        }

    def begun(self, **more: Any) -> dict[str, bytes]:
        """run.json as it is before anything is claimed, by its file name."""
        return {self.folder.summary.name: json_file(self.document(Status.BEGUN, **more))}

    def write(
        self, status: Status, steps: int = 0, metrics: dict[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        """Write run.json; at the end of a run also what its ledger says of it. The document of run.json."""
        if status is Status.FINISHED:
            self.folder.write_json(self.folder.receipts, receipts(self.ledger, self.manifest.digest))
        document = self.document(status, steps, metrics, **more)
        self.folder.write_json(self.folder.summary, document)
        return document

    def require_same_run(self) -> None:
        """Refuse to continue in a folder that was begun with another manifest, plan or ledger."""
        folder, before = self.folder, self.folder.read_json(self.folder.summary)
        begun = before.get("manifest")
        for what, found, given in (
            ("manifest", begun.get("digest") if isinstance(begun, dict) else None, self.manifest.digest),
            ("plan", before.get("plan"), self.manifest.document.config_digest),
            ("ledger", before.get("ledger"), self.ledger.identity),
        ):
            folder.require_begun_with(what, found, given)


def receipts(ledger: Ledger, manifest_digest: str) -> dict[str, Any]:
    """What the ledger holds about this run, and where its chain ended when it was asked."""
    found, anchor = ledger.manifest_status(manifest_digest), ledger.anchor()
    return {
        "ledger": anchor.ledger,
        "head": {"seq": anchor.head.seq, "hash": anchor.head.hash},
        "manifest": found.manifest_digest,
        "claim": {"entry": found.claim_hash, "at": found.claimed_at, "by": found.claimant},
        "state": found.state.value,
        "rounds": {"signed": found.rounds, "charged": found.charged, "released": found.released_rounds},
        "releases": found.releases,
        "sessions": found.session,
        "epsilon": found.epsilon,
        "delta": found.delta,
        "unit": found.unit,
        "data": found.data_digest,
        "transcript": found.transcript_digest,
    }
