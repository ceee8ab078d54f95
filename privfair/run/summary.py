"""run.json and receipts.json of a run in one process: how far it got, and what its ledger says about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calibrate.errors import Refused
from calibrate.manifest.verify import VerifiedManifest
from calibrate.sampling import Batch, Sampling
from privfair.ledger import Ledger, ManifestStatus
from privfair.run.folder import RunFolder
from privfair.run.public import Status, describe_run


@dataclass(frozen=True)
class Ran:
    """What of a run its summary tells: the manifest, how batches are drawn, and how many steps are planned."""

    manifest: VerifiedManifest
    sampling: Sampling | None
    planned_steps: int


def summary(
    status: Status,
    run: Ran,
    folder: RunFolder,
    ledger_id: str,
    steps: int,
    metrics: dict[str, Any] | None,
    charged: ManifestStatus | None,
) -> dict[str, Any]:
    """The document of run.json."""
    recorded = run.sampling is not None and run.sampling.batch is Batch.REVEALED
    return {
        **describe_run(status, run.manifest.authentic, run.sampling, recorded),
        "ledger": ledger_id,
        "rounds": {
            "signed": run.manifest.document.rounds,
            "charged": 0 if charged is None else charged.charged,
            "planned_steps": run.planned_steps,
            "steps": steps,
            "sessions": 0 if charged is None else charged.session,
        },
        "metrics": metrics,
        "transcript": None if charged is None else charged.transcript_digest,
        "digests": folder.digests() if status is Status.FINISHED else {},
    }


def require_same_run(folder: RunFolder, manifest: VerifiedManifest, ledger_id: str) -> None:
    """Refuse to go on in a folder that was begun with another manifest, plan or ledger."""
    before = folder.read_json(folder.summary)
    begun = before.get("manifest")
    for what, found, given in (
        ("manifest", begun.get("digest") if isinstance(begun, dict) else None, manifest.digest),
        ("plan", before.get("plan"), manifest.document.config_digest),
        ("ledger", before.get("ledger"), ledger_id),
    ):
        if found != given:
            raise Refused(
                f"{folder.path} was begun with the {what} {str(found)[:12]}, not with {given[:12]}; resume it "
                f"with its own {what}, or begin a new run in another folder"
            )


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
