"""run.json and receipts.json: what ran under which promise, how far it got, and what the ledger says about it."""

from __future__ import annotations

import platform
from enum import Enum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from calibrate.manifest.encoding import encode_sampling
from privfair.ledger import Ledger, ManifestStatus
from privfair.run.folder import RunFolder
from privfair.run.metrics import NOT_PRIVATE
from privfair.run.prepare import PreparedRun

_PACKAGES = ("privfair", "torch", "numpy", "scipy", "cryptography", "securesystemslib", "SQLAlchemy")


class Status(Enum):
    BEGUN = "begun"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"


def summary(
    status: Status,
    run: PreparedRun,
    folder: RunFolder,
    ledger_id: str,
    steps: int,
    metrics: dict[str, Any] | None,
    charged: ManifestStatus | None,
) -> dict[str, Any]:
    """The document of run.json."""
    document = run.document
    return {
        "version": 1,
        "status": status.value,
        "algorithm": document.algorithm,
        "promise": run.promise.as_json(),
        "manifest": {
            "digest": run.manifest.digest,
            "envelope": run.manifest.authentic.envelope_digest,
            "signed_by": [
                {"role": signature.role.value, "key_id": signature.key_id} for signature in run.manifest.signatures
            ],
        },
        "plan": run.plan.file.digest,
        "ledger": ledger_id,
        "data": {"silos": run.setup.sizes, "schema_digest": document.data.schema_digest},
        "noise_source": document.noise_source.value,
        "batches": {
            "sampling": None if run.sampling is None else encode_sampling(run.sampling),
            "recorded": run.setup.batches_recorded,
        },
        "rounds": {
            "signed": document.rounds,
            "charged": 0 if charged is None else charged.charged,
            "planned_steps": run.updates,
            "steps": steps,
            "sessions": 0 if charged is None else charged.session,
        },
        "metrics": metrics,
        "metrics_note": NOT_PRIVATE,
        "transcript": None if charged is None else charged.transcript_digest,
        "digests": folder.digests() if status is Status.FINISHED else {},
        "versions": _versions(),
    }


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
