"""A short run of the production engine on the run's own data, watched from inside: batches, clean and published values.

Whoever audits holds the data, so looking at secret batches of a rehearsal betrays nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from audit.runs.evidence import AuditorsManifest, RunEvidence
from audit.runs.rerun import Answers, GateNoise, RunWatch, Sending, answer_repeatedly, publish_repeatedly, rerun
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import GaussianNoise
from calibrate.sampling import Sampling
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.models.model import Model
from privfair.run.prepare import Run, Sites, prepare_run

DEFAULT_ROUNDS, SPREAD_ROUNDS, _AGAIN = 32, 16, 4
MESSAGES, _MOST_VALUES = 10_000, 200_000
"""Of the gate alone: enough for seeds of 16 bits to come back for certain, and for 22 bits most of the time."""
ANSWERS = 10_000
"""Randomised responses of each silo to known categories."""
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
    later: tuple[Sending, ...]
    """In rounds spread over the rest of the audited run, with its own states and round numbers."""
    again: tuple[Sending, ...]
    """The first rounds once more, under the very same papers and the same seed."""
    gate_alone: dict[str, GateNoise]
    """By value: the noise that the gate put on known messages."""
    answers_alone: dict[str, list[Answers]]
    """By value, for each silo: randomised responses to known categories."""

    def of(self, party: str) -> tuple[Sending, ...]:
        """What one party sent in the rounds that were rehearsed one after the other."""
        return tuple(one for one in self.sendings if one.party == party)

    def later_of(self, party: str) -> tuple[Sending, ...]:
        """What it sent in the later ones."""
        return tuple(one for one in self.later if one.party == party)


def rehearse(
    plan: Path,
    document: BudgetDocument,
    rounds: int = DEFAULT_ROUNDS,
    sites: Sites | None = None,
    audited: RunEvidence | None = None,
) -> Rehearsal:
    """Train `rounds` rounds of the plan (or as many as it has), and keep what was seen.

    For an `audited` run the gate alone is asked too; and where the run is longer, some of its later rounds are
    rehearsed, each from the run's own state.
    """
    auditor, watch, block = AuditorsManifest(), RunWatch(), min(_BLOCK, rounds)
    envelope = auditor.envelope(document)
    run = prepare_run(plan, envelope, auditor.trust, sites)
    seed, once_more = run.plan.training.seed, RunWatch()
    made = rerun(run, auditor, seed=seed, updates=rounds, block=block, observer=watch, envelope=envelope)
    if audited is not None:
        rerun(run, auditor, seed=seed, updates=min(_AGAIN, rounds), block=block, observer=once_more, envelope=envelope)
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
        sendings=watch.numbered(),
        later=() if audited is None else _rehearse_later(run, auditor, audited, rounds),
        again=once_more.numbered(),
        gate_alone={} if audited is None else publish_repeatedly(run, auditor, MESSAGES, _MOST_VALUES),
        answers_alone={} if audited is None else answer_repeatedly(run, auditor, ANSWERS),
    )


def _rehearse_later(run: Run, auditor: AuditorsManifest, audited: RunEvidence, rehearsed: int) -> tuple[Sending, ...]:
    """Rounds after the first `rehearsed` ones, evenly spread up to the last; parties answer and nothing is learned.

    Not where rounds are mixed with those before them: a round alone is not a round of such a run.
    """
    if any(isinstance(one, GaussianNoise) and one.bands > 1 for one in run.document.releases):
        return ()
    steps = [step for step in audited.seen if step >= rehearsed]
    number = min(len(steps), SPREAD_ROUNDS, rehearsed)
    if number == 0:
        return ()
    chosen = {steps[place] for place in np.linspace(0, len(steps) - 1, number).astype(int).tolist()}
    visits = [one for one in audited.rounds() if one.step in chosen]
    watch = RunWatch()
    rerun(run, auditor, seed=run.plan.training.seed + 1, block=_BLOCK, observer=watch, visits=visits)
    return watch.numbered()
