"""Do manifest, ledger, transcript, plan, data, batches and model name one another, and is the price right?"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from audit.probes.batches import wrong_batches
from audit.report.results import OTHER_CODE, Check, Layer, not_possible, passed_if
from audit.runs.evidence import RunEvidence, sensitive_silos, wrong_answers
from audit.runs.noise import grid_step, off_grid
from calibrate.errors import Refused
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.issue import recompute
from calibrate.manifest.mechanism import GaussianNoise, LaplaceNoise, NoPrivacyPromised
from calibrate.manifest.verify import AuthenticManifest, misfit_of_data
from calibrate.plugins import installed_code
from privfair.algorithms.algorithm import Algorithm
from privfair.federation.coordinator import Position, state_digest
from privfair.ledger import Ledger
from privfair.models.linear import LogisticRegression
from privfair.models.model import Model
from privfair.run.folder import RunFolder, bytes_beside_parameters, load_theta, readable_difference
from privfair.run.record import RunRecord
from privfair.run.replay import last_position
from privfair.transcript import Ending, FloatFormat, Transcript

_CLOSE = 1e-9
_RARE = 1e-6
"""False-alarm probability of each statistical question here: sizes of batches, and who comes back in the next."""


def check_conformance(evidence: RunEvidence, ledger: Ledger | None = None) -> tuple[Check, ...]:
    """All questions that need no statistics of the noise."""
    return (
        *_papers(evidence, ledger),
        *_publications(evidence),
        check_price(evidence),
        check_model(evidence.folder, evidence.model, evidence.algorithm, _last_position(evidence)),
        check_code(evidence.folder),
        *check_kept(evidence),
        *_sampling(evidence),
    )


def check_code(folder: RunFolder) -> Check:
    """Whether the code installed here, which rehearsals and reruns speak of, is the code that trained."""
    trained = RunRecord.read(folder.summary).code if folder.summary.exists() else ""
    if not trained:
        return unknown("code that trained", "run.json names no digest of the code that trained")
    here = installed_code()
    if here != trained:
        why = f"run.json names {trained[:16]}, installed here is {here[:16]}: rehearsals and reruns test other code"
        return unknown(OTHER_CODE, why)
    return agreed(OTHER_CODE, True, f"installed code and the run's have the digest {here[:16]}")


class Papers(Protocol):
    """What every run folder has, whoever made the computation."""

    @property
    def document(self) -> BudgetDocument: ...
    @property
    def manifest_digest(self) -> str: ...
    @property
    def authentic(self) -> AuthenticManifest | None: ...
    @property
    def transcript(self) -> Transcript: ...


def check_papers(evidence: Papers, ledger: Ledger | None) -> tuple[Check, ...]:
    """The questions that need neither plan nor data: signatures, ledger, publications, price."""
    return (check_signatures(evidence), *check_transcript(evidence, ledger), check_price(evidence))


def check_signatures(evidence: Papers) -> Check:
    """Whether trusted keys signed; not known where no one's signature was checked."""
    if evidence.authentic is None:
        return unknown("signatures", "no trust file was given, so nobody's signature was checked")
    signers = ", ".join(signature.role.value for signature in evidence.authentic.signatures)
    remark = evidence.authentic.remark
    return agreed("signatures", True, f"signed by {signers}" + ("" if remark is None else f". {remark}"))


def _papers(evidence: RunEvidence, ledger: Ledger | None) -> Iterator[Check]:
    document = evidence.document
    yield check_signatures(evidence)
    plan = hashlib.sha256(evidence.folder.plan.read_bytes()).hexdigest()
    yield agreed("plan", plan == document.config_digest, "the plan is the signed one, byte for byte")
    misfit = misfit_of_data(document, evidence.data.binding)
    yield agreed("data", misfit is None, "silos, sizes and schema of the data are as signed")
    yield from _transcript_and_ledger(evidence, ledger)


def _transcript_and_ledger(evidence: Papers, ledger: Ledger | None) -> Iterator[Check]:
    header = evidence.transcript.header
    yield agreed(
        "transcript names the manifest", header.manifest_digest == evidence.manifest_digest, header.manifest_digest
    )
    rehearsed = "REHEARSAL" in header.noise_source
    yield agreed("noise is no rehearsal's", not rehearsed, f"drawn by {header.noise_source}")
    if ledger is None:
        yield unknown("ledger", "no ledger was given, so charges were not compared")
        return
    try:
        agreement = evidence.transcript.verify_against(ledger)
        missing = len(agreement.unrecorded)
        yield agreed("ledger", True, f"{agreement.recorded} releases recorded, {missing} charged but not recorded")
    except Refused as refusal:
        yield agreed("ledger", False, str(refusal))


def check_transcript(evidence: Papers, ledger: Ledger | None) -> tuple[Check, ...]:
    """Whether the transcript is the manifest's and the ledger's, and holds what was signed."""
    return (*_transcript_and_ledger(evidence, ledger), *_publications(evidence))


def _publications(evidence: Papers) -> Iterator[Check]:
    allowed = {value.name: value.publications for value in evidence.document.releases}
    sent = Counter((release.party, release.name) for release in evidence.transcript.releases())
    over = [f"{name} of {party}: {times}" for (party, name), times in sent.items() if times > allowed.get(name, 0)]
    yield agreed("publications", not over, "; ".join(over) or "nothing undeclared, and nothing more often than signed")
    last = max((release.round for release in evidence.transcript.releases()), default=-1)
    yield agreed("rounds", last < evidence.document.rounds, f"{last + 1} rounds of {evidence.document.rounds} signed")
    yield from _on_the_grid(evidence)
    yield agreed("transcript is whole", evidence.transcript.ending is Ending.CLOSED, evidence.transcript.ending.value)


def _on_the_grid(evidence: Papers) -> Iterator[Check]:
    """Low bits of a floating-point sum give its summands away; on the signed grid they do not exist."""
    header, off, values = evidence.transcript.header, [], 0
    signed = {value.name: value for value in evidence.document.releases}
    for spec in header.values:
        declared = signed.get(spec.name)
        if not isinstance(declared, GaussianNoise | LaplaceNoise) or spec.format is not FloatFormat.FLOAT64:
            continue
        step = grid_step(declared)
        for party in header.parties if step is not None else ():
            published = np.asarray(evidence.transcript.values(party, spec.name), dtype=np.float64)
            wrong = 0 if step is None else off_grid(published, step)
            values += published.size
            if wrong:
                off.append(f"{wrong} of {published.size} values of {spec.name} of {party}")
    if values:
        whole = evidence.document.retention is None
        on = f"all {values} values" if whole else f"all {values} values that are kept; the others were when published"
        text = f"between the steps lie {', '.join(off)}" if off else on
        yield agreed("published on the signed grid", not off, text)


def check_price(evidence: Papers) -> Check:
    """Whether two accountants find the signed noise within the promise today."""
    if isinstance(evidence.document.guarantee, NoPrivacyPromised):
        return unknown("price", "no privacy is promised, so there is nothing to price")
    try:
        fresh = recompute(evidence.document)
    except Refused as refusal:
        return agreed("price", False, str(refusal))
    assert fresh is not None
    names = f"{fresh.first.accountant} and {fresh.second.accountant}"
    return agreed("price", True, f"recomputed by {names}: within the promise")


def _last_position(evidence: RunEvidence) -> Position[Any] | None:
    return last_position(evidence.algorithm, evidence.transcript, evidence.sessions)


def check_kept(evidence: RunEvidence) -> Iterator[Check]:
    """Where digests are kept: are the promised steps there in full, and does each lead to the state after it?"""
    every, transcript = evidence.document.retention, evidence.transcript
    if transcript.header.retention != every:
        signed, found = (one or 1 for one in (every, transcript.header.retention))
        yield agreed("retention", False, f"the transcript keeps one step in {found}, signed is one in {signed}")
        return
    if every is None:
        return
    steps, kept, led, other = len(evidence.finished), set[int](), 0, []
    for one in evidence.kept():
        kept.add(one.step)
        after = evidence.algorithm.update(one.state, one.received)
        if one.follows == state_digest(evidence.algorithm.checkpoint(after)):
            led += 1
        elif one.follows is not None:
            other.append(one.step)
    missing = sorted(set(range(0, steps, every)) - kept)
    text = f"{len(kept)} of {steps} steps are kept in full, all values by their digests (one step in {every} is signed)"
    yield agreed("retention", not missing, f"step {missing[0]} is not kept; {text}" if missing else text)
    if other:
        why = f"step {other[0]} leads to a state with another digest: it was changed, or this machine rounds otherwise"
        yield unknown("kept steps lead to the next state", why)
    else:
        yield agreed("kept steps lead to the next state", True, f"{led} states, to the bit")


def check_model(folder: RunFolder, model: Model, algorithm: Algorithm[Any], position: Position[Any] | None) -> Check:
    """Whether the saved model is the one that the run's last position leads to."""
    if not folder.model.exists():
        return unknown("model", "the run has saved no model")
    if position is None:
        return unknown("model follows from the transcript", "of the last step only digests are kept")
    saved = load_theta(folder, model)
    redone = algorithm.theta(position.state).to(saved.dtype)
    off = float((saved - redone).abs().max()) if saved.numel() else 0.0
    if isinstance(model, LogisticRegression):  # its readable copy must tell the same
        off = max(off, readable_difference(folder, model, redone))
    beside = bytes_beside_parameters(folder)
    text = f"largest difference {off:.3g}" + (
        f"; the file holds {beside} bytes beside the parameters" if beside else ""
    )
    return agreed("model follows from the transcript", off <= _CLOSE and not beside, text)


def _sampling(evidence: RunEvidence) -> Iterator[Check]:
    if evidence.batches is None:
        if not evidence.batches_known:
            yield unknown("batches", "they are secret, so how they were drawn cannot be seen")
        return
    scheme = evidence.batches.header.sampling
    declared = tuple(declaration.scheme for declaration in evidence.document.sampling)
    promised = not isinstance(evidence.document.guarantee, NoPrivacyPromised)
    yield agreed("sampling is the signed one", not promised or declared == (scheme,), type(scheme).__name__)
    rounds = evidence.finished
    drawn = {s.name: {r: np.asarray(evidence.batch(r, s)) for r in rounds} for s in evidence.silos}
    sensitive = sensitive_silos(evidence.algorithm, evidence.silos)
    for silo in evidence.silos:
        if silo.name in sensitive:
            wrong = wrong_answers(silo, evidence.silos, drawn, sensitive)
        else:
            wrong = wrong_batches(scheme, silo.units, drawn[silo.name], _RARE)
        yield agreed(f"batches of {silo.name}", wrong is None, wrong or f"{len(rounds)} batches, drawn as declared")


def agreed(name: str, condition: bool, finding: str) -> Check:
    """A check of conformance that passed or failed."""
    return passed_if(Layer.CONFORMANCE, name, condition, finding)


def unknown(name: str, why: str) -> Check:
    """A question of conformance that cannot be answered, with the reason."""
    return not_possible(Layer.CONFORMANCE, name, why)
