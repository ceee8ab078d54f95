"""A short run of the production engine on the run's own data, watched from inside: batches, clean and published values.

Whoever audits holds the data, so looking at secret batches of a rehearsal betrays nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit.evidence import AuditorsManifest
from audit.rerun import Sending, Watch, publish_repeatedly, rerun
from calibrate.arrays import Floats
from calibrate.manifest.document import BudgetDocument
from calibrate.sampling import Sampling
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.models.model import Model
from privfair.run.prepare import Sites, prepare_run

DEFAULT_ROUNDS = 32
DEFAULT_MESSAGES, _MOST_VALUES = 1000, 1_000_000
_BLOCK = 8


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """All that was seen; `charged` is what the ledger says, `published_rounds` what the transcript says."""

    document: BudgetDocument
    algorithm: Algorithm[Any]
    model: Model
    silos: tuple[SiloTensors, ...]
    sampling: Sampling | None
    steps: int
    charged: int
    published_rounds: int
    block: int
    states: tuple[Any, ...]
    """The state before each step."""
    sendings: tuple[Sending, ...]
    gate_alone: dict[str, list[Floats]]
    """By value: what the gate made of one and the same message."""

    def of(self, party: str) -> tuple[Sending, ...]:
        return tuple(one for one in self.sendings if one.party == party)


def rehearse(
    plan: Path,
    document: BudgetDocument,
    rounds: int = DEFAULT_ROUNDS,
    sites: Sites | None = None,
    messages: int = DEFAULT_MESSAGES,
) -> Rehearsal:
    """Train `rounds` rounds of the plan (or as many as it has), ask the gate alone, and keep what was seen."""
    auditor, watch, block = AuditorsManifest(), Watch(), min(_BLOCK, rounds)
    run = prepare_run(plan, auditor.envelope(document), auditor.trust, sites)
    made = rerun(run, auditor, seed=run.plan.training.seed, updates=rounds, block=block, observer=watch)
    return Rehearsal(
        document=document,
        algorithm=run.algorithm,
        model=run.model,
        silos=run.silos,
        sampling=run.sampling,
        steps=len(watch.states),
        charged=made.charged,
        published_rounds=len({key.round for key in made.evidence.transcript.keys}),
        block=block,
        states=tuple(watch.states),
        sendings=tuple(watch.sendings.values()),
        gate_alone=publish_repeatedly(run, auditor, messages, _MOST_VALUES),
    )
