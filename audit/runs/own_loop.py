"""The audit of a loop of somebody's own (`privfair.BudgetedRun`): nobody but its owner has the data or the computation.

What is left to ask: do manifest, ledger, transcript and batches name one another, is the price right, and is there at
least the signed noise in what was published? The last is the floor of `audit.runs.noise`: given all earlier rounds,
|message - anything known before|^2 / sigma^2 is stochastically at least chi-squared, so that a sum of such squares in
the lower tail shows missing noise, whatever the loop computed. It can show a breach and never speaks for a promise.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import chdtr

from audit.probes.batches import wrong_batches
from audit.report.results import Check, Layer, not_possible, passed_if
from audit.runs.conformance import check_papers
from audit.runs.noise import ALL_MEASURED, DEFAULT_ALPHA
from calibrate.arrays import Floats
from calibrate.manifest.document import BudgetDocument, plan_digest
from calibrate.manifest.mechanism import GaussianNoise
from calibrate.manifest.verify import AuthenticManifest, authenticate, read_unverified
from calibrate.plans.plan import AlgorithmName
from privfair.batches.record import BatchRecord
from privfair.ledger import Ledger
from privfair.run.folder import RunFolder
from privfair.run.folder_trust import FolderTrust
from privfair.transcript import Transcript

_RARE = 1e-6
"""False-alarm probability of the questions about batches."""
_DROWNED = 3.0
"""Where squares are this many times what noise alone would give, missing noise would not be seen."""
_NO_DATA = "the loop's data and computation are its owner's; audit the training function, or the model, for more"


@dataclass(frozen=True, eq=False)
class LoopEvidence:
    """What a loop's run folder holds."""

    folder: RunFolder
    document: BudgetDocument
    manifest_digest: str
    authentic: AuthenticManifest | None
    transcript: Transcript
    batches: BatchRecord | None


def read_loop(path: Path, trusted: FolderTrust) -> LoopEvidence | None:
    """The folder of a loop of somebody's own; None where privfair's own engine made the run."""
    folder = RunFolder.existing(path)
    if not folder.manifest.exists():
        return None
    envelope = folder.manifest.read_bytes()
    claimed = read_unverified(envelope)
    if not _is_loop(folder, claimed.document):
        return None
    authentic = None if trusted.signers is None else authenticate(envelope, trusted.signers, for_reading=True)
    return LoopEvidence(
        folder=folder,
        document=claimed.document,
        manifest_digest=claimed.digest,
        authentic=authentic,
        transcript=Transcript.read(folder.transcript),
        batches=BatchRecord.read(folder.batches) if folder.batches.exists() else None,
    )


def _is_loop(folder: RunFolder, document: BudgetDocument) -> bool:
    if document.algorithm == AlgorithmName.OWN_LOOP.value:
        return True
    planless = document.algorithm == AlgorithmName.GAUSSIAN.value and not folder.plan.exists()
    return planless and document.config_digest == plan_digest(document.algorithm, document.parameters)


def check_loop(evidence: LoopEvidence, ledger: Ledger | None = None) -> tuple[Check, ...]:
    """All questions that can be asked without data, and by name those that cannot."""
    return (
        *check_papers(evidence, ledger),
        _configuration(evidence),
        *_batches(evidence),
        *_noise(evidence),
        not_possible(Layer.PROBE, "probes", _NO_DATA),
        not_possible(Layer.ATTACK, "attack", _NO_DATA),
    )


def _configuration(evidence: LoopEvidence) -> Check:
    document, plan = evidence.document, evidence.folder.plan
    if plan.exists():
        found, text = hashlib.sha256(plan.read_bytes()).hexdigest(), "the plan is the signed one, byte for byte"
    else:
        found, text = plan_digest(document.algorithm, document.parameters), "no plan file: the signed parameters"
    return passed_if(Layer.CONFORMANCE, "plan", found == document.config_digest, text)


def _batches(evidence: LoopEvidence) -> Iterator[Check]:
    if not evidence.document.sampling:
        return
    if evidence.batches is None:
        yield not_possible(Layer.CONFORMANCE, "batches", "they are secret, so how they were drawn cannot be seen")
        return
    scheme, declared = evidence.batches.header.sampling, evidence.document.sampling[0].scheme
    yield passed_if(Layer.CONFORMANCE, "sampling is the signed one", scheme == declared, type(scheme).__name__)
    rounds = sorted({release.round for release in evidence.transcript.releases()})
    sizes = {silo.name: silo.size for silo in evidence.document.data.silos}
    for party in evidence.transcript.header.parties:
        batches = evidence.batches
        drawn = {number: np.asarray(batches.batch(number, party), dtype=np.int64) for number in rounds}
        wrong = wrong_batches(scheme, sizes[party], drawn, _RARE)
        finding = wrong or f"{len(rounds)} batches, drawn as declared"
        yield passed_if(Layer.CONFORMANCE, f"batches of {party}", wrong is None, finding)


def _noise(evidence: LoopEvidence) -> Iterator[Check]:
    """For each value and party: does nothing repeat, and are there at least the squares that the signed noise gives?"""
    header = evidence.transcript.header
    signed = {value.name: value for value in evidence.document.releases if isinstance(value, GaussianNoise)}
    measured = [(party, signed[spec.name]) for party in header.parties for spec in header.values if spec.name in signed]
    for party, declared in measured:
        rows = np.asarray(evidence.transcript.values(party, declared.name), dtype=np.float64)
        if not len(rows):
            continue
        flat = rows.reshape(len(rows), -1) / declared.sigma
        repeated = sum(times - 1 for times in Counter(row.tobytes() for row in flat).values())
        name = f"{declared.name} of {party}"
        finding = f"{repeated} messages equal an earlier one" if repeated else f"{len(flat)} messages, all different"
        yield passed_if(Layer.NOISE, f"noise of {name} is fresh", repeated == 0, finding)
        yield _floor(name, flat, DEFAULT_ALPHA / (2 * len(measured)))
    yield not_possible(Layer.NOISE, ALL_MEASURED, f"{_NO_DATA}; a floor is not all of the noise")


def _floor(name: str, rows: Floats, alpha: float) -> Check:
    """The two references that an observer has before each round: nothing, and the mean of the rounds before."""
    before = np.cumsum(rows, axis=0)[:-1] / np.arange(1, len(rows))[:, None]
    squares = [float((rows**2).sum()), float(((rows[1:] - before) ** 2).sum())]
    numbers = [rows.size, rows[1:].size]
    chances = [chdtr(n, s) if n else 1.0 for n, s in zip(numbers, squares, strict=True)]
    shares = [s / n for n, s in zip(numbers, squares, strict=True) if n]
    question = f"at least the signed noise in {name}"
    if min(chances) < alpha:
        share = float(np.sqrt(min(shares)))
        return passed_if(Layer.NOISE, question, False, f"at most {share:.3g} of the signed scale is there")
    if min(shares) > _DROWNED:
        return not_possible(Layer.NOISE, question, "the sums are so large that missing noise would not be seen")
    return passed_if(Layer.NOISE, question, True, f"squares are {min(shares):.3f} of what noise alone gives, or more")
