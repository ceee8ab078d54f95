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

from audit.auditors_manifest import AuditorsManifest
from audit.evidence import RunEvidence
from calibrate.manifest.document import BudgetDocument
from privfair.algorithms.algorithm import SiloTensors
from privfair.ledger import Ledger
from privfair.prepared_run import PreparedRun, prepare_run
from privfair.run_folder import RunFolder
from privfair.run_session import RunSession

Coins = dict[str, NDArray[np.int64]]
"""By silo: the side of each record's coin, 0 or 1, which stands for its attribute."""
_NEVER = 10**9


@dataclass(frozen=True, eq=False)
class CoinRun:
    """One rerun: the coins that were thrown, and what an observer was left with."""

    coins: Coins
    evidence: RunEvidence


def coin_runs(
    plan: Path,
    document: BudgetDocument,
    number: int,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> Iterator[CoinRun]:
    """Train `number` times, each time with fresh fair coins for every record's attribute.

    Two coin vectors that differ in one coin are neighbours under replacement of one attribute, so the one-run
    theorems apply to the coins as they stand (docs/theorems/audit-bounds.md).
    """
    random = np.random.default_rng(seed)
    auditor = AuditorsManifest()
    for run in range(number):
        fresh = prepare_run(plan, auditor.envelope(document), auditor.trust)
        prepared = replace(
            fresh, plan=replace(fresh.plan, training=replace(fresh.plan.training, measure_every=_NEVER))
        )
        coins = {silo.name: random.integers(0, 2, len(silo)) for silo in prepared.silos}
        prepared = replace(
            prepared, silos=tuple(with_coins(silo, coins[silo.name]) for silo in prepared.silos)
        )
        with TemporaryDirectory(prefix="privfair-audit-") as folder:
            yield CoinRun(coins, _trained(prepared, Path(folder), plan))
        if progress is not None:
            progress(run + 1)


def with_coins(silo: SiloTensors, coins: NDArray[np.int64]) -> SiloTensors:
    """The silo with the coins in the place of its attribute: groups 0 and 1."""
    return replace(silo, s=torch.from_numpy(coins.astype(np.int64)))


def _trained(prepared: PreparedRun, place: Path, plan: Path) -> RunEvidence:
    folder = RunFolder.create(place / "run")
    with Ledger.open(place / "ledger.db") as ledger, folder.locked():
        RunSession(prepared, folder, ledger).begin()
    return replace(RunEvidence.read(folder.path, plan_path=plan), silos=prepared.silos)
