"""run.json and receipts.json: what ran under which promise, how far it got, and what the ledger says about it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from calibrate.errors import Refused
from calibrate.manifest.encoding import encode_sampling
from calibrate.manifest.verify import VerifiedManifest
from calibrate.sampling import Batch, Sampling
from privfair.ledger import Ledger, ManifestStatus
from privfair.run.folder import RunFolder
from privfair.run.metrics import NOT_PRIVATE
from privfair.run.public import promise_of

_PACKAGES = ("privfair", "torch", "numpy", "scipy", "cryptography", "securesystemslib", "SQLAlchemy")


class Status(Enum):
    BEGUN = "begun"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"


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
    document = run.manifest.document
    return {
        "version": 1,
        "status": status.value,
        "algorithm": document.algorithm,
        "promise": promise_of(document).as_json(),
        "manifest": {
            "digest": run.manifest.digest,
            "envelope": run.manifest.authentic.envelope_digest,
            "signed_by": [
                {"role": signature.role.value, "key_id": signature.key_id} for signature in run.manifest.signatures
            ],
        },
        "plan": document.config_digest,
        "ledger": ledger_id,
        "data": {
            "silos": {silo.name: silo.size for silo in document.data.silos},
            "schema_digest": document.data.schema_digest,
        },
        "noise_source": document.noise_source.value,
        "batches": {
            "sampling": None if run.sampling is None else encode_sampling(run.sampling),
            "recorded": run.sampling is not None and run.sampling.batch is Batch.REVEALED,
        },
        "rounds": {
            "signed": document.rounds,
            "charged": 0 if charged is None else charged.charged,
            "planned_steps": run.planned_steps,
            "steps": steps,
            "sessions": 0 if charged is None else charged.session,
        },
        "metrics": metrics,
        "metrics_note": NOT_PRIVATE,
        "transcript": None if charged is None else charged.transcript_digest,
        "digests": folder.digests() if status is Status.FINISHED else {},
        "versions": _versions(),
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


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
