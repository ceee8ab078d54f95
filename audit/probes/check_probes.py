"""All probes of one run, with counts of steps and scales of features; about a second each, mostly for the rehearsal."""

from __future__ import annotations

import math

import numpy as np
import torch

from audit.probes.fresh_noise import check_gate_alone
from audit.probes.isolation import check_isolation
from audit.probes.known_key import check_known_key
from audit.probes.neighbouring_files import check_files
from audit.probes.sensitivity import check_every_unit, check_sensitivity
from audit.probes.setting import ProbeSetting
from audit.report.results import Check, Layer, not_possible, passed_if
from audit.runs.evidence import RunEvidence
from audit.runs.rerun import DEFAULT_ROUNDS, Rehearsal, rehearse
from calibrate.errors import PrivfairError
from calibrate.manifest.mechanism import NoPrivacyPromised
from calibrate.privacy_unit import Protected
from privfair.algorithms.algorithm import SiloTensors
from privfair.data.dataset import Silo
from privfair.ledger import Ledger, UnknownClaim
from privfair.run.prepare import facts_covered
from privfair.transcript import Ending

# Steps taken, rounds published, rounds charged, rounds signed: four counts of one thing.


def check_steps(evidence: RunEvidence, ledger: Ledger | None) -> Check:
    """The run's own: every step has its round, every round was charged, every charge was signed.

    A run that was ended before its last step must have no round left: where it stops may depend on no record.
    """
    name = "steps are counted"
    steps = len(evidence.finished)
    published = len({key.round for key in evidence.transcript.keys})
    signed = evidence.document.rounds
    text = f"{steps} updates, {published} rounds published, {signed} signed"
    right = steps <= published <= signed
    last = max((key.round for key in evidence.transcript.keys), default=-1)
    if evidence.transcript.ending is Ending.CLOSED and steps < evidence.updates and last + 1 < signed:
        right, text = False, f"{text}; it ended before step {evidence.updates} of the plan, and rounds were left"
    if ledger is not None:
        try:
            charged = ledger.manifest_status(evidence.manifest_digest).charged
        except UnknownClaim:
            return passed_if(Layer.PROBE, name, False, f"{text}, and the ledger knows nothing of the run")
        text, right = f"{text}, {charged} charged", right and published <= charged <= signed
    return passed_if(Layer.PROBE, name, right, text)


def check_rehearsed_steps(rehearsal: Rehearsal) -> Check:
    """In a rehearsal: one round per step, charged a block ahead and not a round less."""
    steps, charged = rehearsal.made.last.step, rehearsal.made.charged
    rounds = {key.round for key in rehearsal.made.evidence.transcript.keys}
    whole_blocks = -(-(1 + max(rounds, default=-1)) // rehearsal.block) * rehearsal.block
    right = len(rounds) == steps and charged == min(whole_blocks, rehearsal.document.rounds)
    right = right and (steps == rehearsal.wanted or 1 + max(rounds, default=-1) == rehearsal.document.rounds)
    text = f"{steps} updates of {rehearsal.wanted}, {len(rounds)} rounds published, {charged} charged"
    return passed_if(Layer.PROBE, "steps are counted in a rehearsal", right, text)


def check_rehearsed_messages(rehearsal: Rehearsal) -> Check:
    """Silos that send a value send it in the same rounds: that nothing came from one tells something of its batch."""
    left_out = []
    for value in rehearsal.document.releases:
        sent = {
            silo.name: {one.step for one in rehearsal.of(silo.name) if value.name in one.published}
            for silo in rehearsal.run.silos
        }
        due = set[int]().union(*sent.values())
        left_out += [
            f"{value.name} of {silo} was sent in {len(steps)} rounds where others sent it in {len(due)}"
            for silo, steps in sent.items()
            if steps and steps != due
        ]
    text = left_out[0] if left_out else "no silo left out a message that another one sent"
    return passed_if(Layer.PROBE, "messages are complete in a rehearsal", not left_out, text)


# Were features scaled by statistics of the private records? By what the data says of itself, and by its looks.

_EXACT = 1e-5
"""Single precision; a public scale leaves means and deviations that differ from 0 and 1 by far more."""
_FEWEST = 20


def check_scaling(evidence: RunEvidence) -> tuple[Check, ...]:
    """A feature with mean 0 and deviation 1 to five digits was brought there by the very records."""
    name = "features scaled by public facts"
    if isinstance(evidence.document.guarantee, NoPrivacyPromised):
        return ()
    others = [
        silo.name for silo, party in zip(evidence.silos, evidence.data.parties, strict=True) if _apart(silo, party)
    ]
    if others:
        return (
            passed_if(Layer.PROBE, name, False, f"{others[0]} trains on other records than those that were loaded"),
        )
    try:
        evidence.data.require_allowed(facts_covered(evidence.document))
    except PrivfairError as refusal:
        return (passed_if(Layer.PROBE, name, False, str(refusal)),)
    if evidence.document.guarantee.unit is Protected.ATTRIBUTE:
        return (passed_if(Layer.PROBE, name, True, "features are not protected, so their scale is free"),)
    tables = {silo.name: silo.x for silo in evidence.silos}
    tables["all silos"] = torch.cat([silo.x for silo in evidence.silos])
    suspicious = [f"{of}, feature {column}" for of, x in tables.items() for column in _standardised_columns(x)]
    text = f"mean 0 and deviation 1 exactly: {suspicious[0]}" if suspicious else "no feature was standardised"
    return (passed_if(Layer.PROBE, name, not suspicious, text),)


def _apart(silo: SiloTensors, party: Silo) -> bool:
    """Whether a party's tensors are not the records that were loaded, row by row."""
    columns = ((silo.x, party.data.features), (silo.y, party.data.label), (silo.s, party.data.group))
    return any(
        tuple(tensor.shape) != given.shape
        or not torch.equal(tensor, torch.from_numpy(np.array(given)).to(tensor.dtype))
        for tensor, given in columns
    )


def _standardised_columns(x: torch.Tensor) -> list[int]:
    flat = x.reshape(len(x), -1).to(torch.float64)
    if len(flat) < _FEWEST:
        return []
    means = flat.mean(dim=0).abs()
    apart = torch.stack([(flat.std(dim=0, correction=each) - 1).abs() for each in (0, 1)]).amin(dim=0)
    coded = (flat.abs() == 1).all(dim=0)  # yes and no as 1 and -1, as many of each: that may happen
    return [int(column) for column in ((means < _EXACT) & (apart < _EXACT) & ~coded).nonzero()[:, 0]]


_FEWEST_ROUNDS, _MOST_VALUES = 4, 400_000


def check_probes(
    evidence: RunEvidence, ledger: Ledger | None = None, seed: int = 0, seconds: float = 0.0
) -> tuple[Check, ...]:
    """L0: sensitivities, isolation, neighbouring files, step counts, fresh noise and batches of the code that trained.

    Up to `seconds` of processor time (and not less than a few) are for trying the units one by one. A clean run is
    flagged with probability at most `fresh_noise.GATE_ALPHA`; all else is deterministic.
    """
    if isinstance(evidence.document.guarantee, NoPrivacyPromised):
        why = "no privacy is promised, so there is no bound to keep"
        return (not_possible(Layer.PROBE, "probes", why),)
    setting = ProbeSetting.of(evidence)
    return (
        *check_sensitivity(setting, seed, evidence.silos),
        *check_every_unit(setting, evidence.silos, seed, seconds),
        *check_isolation(setting, seed),
        *check_scaling(evidence),
        *check_files(evidence, setting),
        check_steps(evidence, ledger),
        *check_rehearsal(evidence),
    )


def check_rehearsal(evidence: RunEvidence) -> tuple[Check, ...]:
    """The part of L0 that runs the engine: a few rounds whose randomness is known, and the gate alone."""
    few = min(DEFAULT_ROUNDS, _affordable(evidence))
    try:
        rehearsal = rehearse(evidence.plan_path, evidence.document, few, evidence.sites, evidence)
    except PrivfairError as refusal:
        return (passed_if(Layer.PROBE, "rehearsal", False, f"the engine refuses: {refusal}"),)
    return (
        check_rehearsed_steps(rehearsal),
        check_rehearsed_messages(rehearsal),
        *check_known_key(rehearsal),
        *check_gate_alone(rehearsal),
    )


def _affordable(evidence: RunEvidence) -> int:
    """Rounds whose noise is drawn in about a second; more would tell little more."""
    values = sum(math.prod(shape) for shape in evidence.algorithm.shapes().values()) * len(evidence.silos)
    return max(_FEWEST_ROUNDS, _MOST_VALUES // max(1, values))
