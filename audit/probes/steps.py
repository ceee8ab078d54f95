"""Steps taken, rounds published, rounds charged, rounds signed: four counts of one thing."""

from __future__ import annotations

from audit.check import Check, Layer, Outcome, passed_if
from audit.evidence import RunEvidence
from audit.probes.rehearsal import Rehearsal
from privfair.ledger import Ledger, UnknownClaim


def check_steps(evidence: RunEvidence, ledger: Ledger | None) -> Check:
    """The run's own: every step has its round, every round was charged, every charge was signed."""
    name = "steps are counted"
    steps = sum(1 for _ in evidence.rounds())
    published = len({key.round for key in evidence.transcript.keys})
    signed = evidence.document.rounds
    text = f"{steps} updates, {published} rounds published, {signed} signed"
    right = steps <= published <= signed
    if ledger is not None:
        try:
            charged = ledger.manifest_status(evidence.manifest_digest).charged
        except UnknownClaim:
            return Check(
                Layer.PROBE, name, Outcome.FAILED, f"{text}, and the ledger knows nothing of the run"
            )
        text, right = f"{text}, {charged} charged", right and published <= charged <= signed
    return passed_if(Layer.PROBE, name, right, text)


def check_rehearsed_steps(rehearsal: Rehearsal) -> Check:
    """In a rehearsal without interruptions: one round a step, charged a block ahead and not a round less."""
    whole_blocks = -(-rehearsal.steps // rehearsal.block) * rehearsal.block
    expected = min(whole_blocks, rehearsal.document.rounds)
    right = rehearsal.published_rounds == rehearsal.steps and rehearsal.charged == expected
    text = f"{rehearsal.steps} updates, {rehearsal.published_rounds} rounds published, {rehearsal.charged} charged"
    return passed_if(Layer.PROBE, "steps are counted in a rehearsal", right, text)
