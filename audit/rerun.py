"""Runs of the production code on coins: same plan, same noise, same gate; only the attribute is drawn afresh.

Each rerun claims a manifest of the auditor's own (same document, new nonce, the auditor's key) in a ledger of the
auditor's own, so that nobody's budget is touched. What is tested is the code that trained, not a copy of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from audit.evidence import AuditorsManifest, RunEvidence, in_memory
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.verify import Run, verify
from privfair.algorithms.algorithm import SiloTensors
from privfair.batches.record import BatchRecord
from privfair.ledger import Ledger
from privfair.run.folder import RunFolder
from privfair.run.prepare import PreparedRun, prepare_run
from privfair.run.replay import read_sessions
from privfair.run.session import RunSession
from privfair.transcript import Transcript

Coins = dict[str, NDArray[np.int64]]
"""By silo: the side of each record's coin, 0 or 1, which stands for its attribute."""
_NEVER = 10**9


@dataclass(frozen=True, eq=False)
class CoinRun:
    """One rerun: the coins that were thrown, and what an observer was left with."""

    coins: Coins
    evidence: RunEvidence


def coin_runs(
    plan: Path, document: BudgetDocument, number: int, seed: int, progress: Callable[[int], None] | None = None
) -> Iterator[CoinRun]:
    """Train `number` times, each time with fresh fair coins for every record's attribute, where attributes are held.

    Two coin vectors that differ in one coin are neighbours under replacement of one attribute, so the one-run
    theorems apply to the coins as they stand (docs/theorems/audit-bounds.md).
    """
    random = np.random.default_rng(seed)
    auditor = AuditorsManifest()
    first = prepare_run(plan, auditor.envelope(document), auditor.trust)
    for run in range(number):
        prepared = _renewed(first, auditor, int(random.integers(2**31)))
        apart = prepared.data.apart
        holding = [silo for silo in prepared.silos if apart is None or silo.name in apart.sensitive]
        coins = {silo.name: random.integers(0, 2, len(silo)) for silo in holding}
        thrown = (with_coins(s, coins[s.name]) if s.name in coins else s for s in prepared.silos)
        prepared = replace(prepared, silos=tuple(thrown))
        with TemporaryDirectory(prefix="privfair-audit-", dir=in_memory()) as folder:
            yield CoinRun(coins, _trained(prepared, Path(folder), plan))
        if progress is not None:
            progress(run + 1)


def with_coins(silo: SiloTensors, coins: NDArray[np.int64]) -> SiloTensors:
    """The silo with the coins in the place of its attribute: groups 0 and 1."""
    return replace(silo, s=torch.from_numpy(coins.astype(np.int64)))


def _trained(prepared: PreparedRun, place: Path, plan: Path) -> RunEvidence:
    """One run in a folder of its own, and what it left there; the data are those at hand, not read again."""
    folder = RunFolder.create(place / "run")
    with Ledger.open(place / "ledger.db") as ledger, folder.locked():
        session = RunSession(prepared, folder, ledger)
        try:
            session.begin()
        finally:
            session.close()
    return RunEvidence(
        folder=folder,
        plan_path=plan,
        envelope=prepared.envelope,
        document=prepared.manifest.document,
        manifest_digest=prepared.manifest.digest,
        authentic=prepared.manifest.authentic,
        plan=prepared.plan,
        data=prepared.data,
        model=prepared.model,
        algorithm=prepared.algorithm,
        silos=prepared.silos,
        transcript=Transcript.read(folder.transcript),
        sessions=read_sessions(folder.sessions),
        batches=BatchRecord.read(folder.batches) if folder.batches.exists() else None,
    )


def _renewed(first: PreparedRun, auditor: AuditorsManifest, seed: int) -> PreparedRun:
    """The same run for another single use; without metrics, and with research noise (where signed) of its own."""
    envelope = auditor.envelope(first.manifest.document)
    manifest = verify(envelope, auditor.trust, Run(first.plan.file.digest, first.data.binding))
    training = replace(first.plan.training, measure_every=_NEVER, seed=seed)
    return replace(first, envelope=envelope, manifest=manifest, plan=replace(first.plan, training=training))
