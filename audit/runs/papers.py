"""Runs of which the auditor has documents and not all the data: gathered from guards, or a loop of its owner's own.

A site alone can judge its own half by its transcript, steps, batches and ledger; a gathered run is judged whole. With
the records of all sites in hand the audit continues as for a run in one process (`audit.runs.run_audit`).

Of a loop (`privfair.BudgetedRun`) only its owner has the data and the computation. What is left to ask: do manifest,
ledger, transcript and batches match each other, is the price right, and is there at least the signed noise in what was
published? The last is the floor of `audit.runs.noise`: given all earlier rounds, |message - anything known before|^2 /
sigma^2 is stochastically at least chi-squared, so that a sum of such squares in the lower tail shows missing noise,
whatever the loop computed. It can show a breach and never speaks for a promise.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from scipy.special import chdtr

from audit.probes.batches import wrong_batches
from audit.report.results import Check, Layer, not_possible, passed_if
from audit.runs.conformance import (
    agreed,
    check_model,
    check_papers,
    check_price,
    check_signatures,
    check_transcript,
    unknown,
)
from audit.runs.noise import ALL_MEASURED, DEFAULT_ALPHA
from calibrate.arrays import Floats
from calibrate.errors import PrivfairError, Refused
from calibrate.manifest.document import BudgetDocument, DataBinding, plan_digest
from calibrate.manifest.keys import BadSignature, BrokenEnvelope, PublicKey, check_signature, open_envelope
from calibrate.manifest.mechanism import GaussianNoise
from calibrate.manifest.strict_json import canonical
from calibrate.manifest.trust import FolderTrust
from calibrate.manifest.verify import AuthenticManifest, authenticate, misfit_of_data, read_unverified
from calibrate.plans.plan import AlgorithmName
from calibrate.privacy_unit import Relation
from privfair.algorithms.recipe import signed_parameters
from privfair.batches.participation import BatchRecord
from privfair.batches.randomness import Indexes
from privfair.data.training_data import load_site_data, site_facts
from privfair.federation.gather import STEPS, SitePart, is_merged_from, parties_of
from privfair.federation.registries import most_participations
from privfair.ledger import Ledger
from privfair.plan.data import AttributesAtSites, SiteSource
from privfair.plan.training import TrainingPlan, build
from privfair.run.folder import RunFolder
from privfair.run.public import read_folder_plan
from privfair.run.record import read_sessions
from privfair.run.replay import last_position
from privfair.transcript import Transcript

_RARE = 1e-6
"""False-alarm probability of the questions about batches."""


@dataclass(frozen=True)
class SitesInHand:
    """What an auditor has of the sites: the files of some silos, and by party the ledgers and public keys of some."""

    files: Mapping[str, Path] = field(default_factory=dict)
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)
    keys: Mapping[str, PublicKey] = field(default_factory=dict)


NO_SITES = SitesInHand()


@dataclass(frozen=True, eq=False)
class RunPapers:
    """What every run folder has, whoever made the computation."""

    folder: RunFolder
    document: BudgetDocument
    manifest_digest: str
    authentic: AuthenticManifest | None
    transcript: Transcript


@dataclass(frozen=True, eq=False)
class SitePapers(RunPapers):
    """The folder of a run over guards, gathered; or of one guard alone."""

    plan: TrainingPlan
    parts: tuple[SitePart, ...]
    gathered: bool
    """Whether all parties are here."""

    def covered_by(self, sites: SitesInHand) -> bool:
        """Whether all parties are here, and the records of all silos are in hand."""
        source = self.plan.data.source
        if not self.gathered or not isinstance(source, SiteSource):
            return False
        return source.silos.keys() | self.registries.keys() <= sites.files.keys()

    @property
    def registries(self) -> Mapping[str, int]:
        """The sites that hold nothing but attributes."""
        attributes = self.plan.data.attributes
        return attributes.registries if isinstance(attributes, AttributesAtSites) else {}


def read_site_papers(path: Path, trusted: FolderTrust, plan_path: Path | None = None) -> SitePapers | None:
    """The papers of a run whose plan names silos and no files; None for any other run."""
    folder = RunFolder.existing(path)
    found = read_folder_plan(folder, trusted, plan_path)
    if not isinstance(found.plan.data.source, SiteSource):
        return None
    parts = parties_of(path)
    names = tuple(silo.name for silo in found.document.data.silos)
    if not parts and (path / STEPS).exists():
        (own,) = Transcript.read(folder.transcript).header.parties
        parts = (SitePart.read(own, path),)
    if not parts:
        raise Refused(
            f"{path} holds the coordinator's half alone; put the sites' folders into it with "
            f"`privfair audit run {path} {' '.join(f'--site {name}=FOLDER' for name in names)}`"
        )
    gathered = tuple(part.name for part in parts) == names and (path / "parties").is_dir()
    papers = (folder, found.document, found.manifest_digest, found.authentic, Transcript.read(folder.transcript))
    return SitePapers(*papers, found.plan, parts, gathered)


def check_sites(papers: SitePapers, sites: SitesInHand) -> tuple[Check, ...]:
    """All questions that papers answer, and what is left open without the records."""
    return (
        *_common(papers),
        *(check for part in papers.parts for check in _part(papers, part, sites)),
        *(_whole(papers) if papers.gathered else _half(papers)),
        *_records(papers, sites),
    )


def _common(papers: SitePapers) -> Iterator[Check]:
    yield check_signatures(papers)
    plan = hashlib.sha256(papers.folder.plan.read_bytes()).hexdigest()
    yield agreed("plan", plan == papers.document.config_digest, "the plan is the signed one, byte for byte")
    yield check_price(papers)


def _part(papers: SitePapers, part: SitePart, sites: SitesInHand) -> Iterator[Check]:
    for check in check_transcript(replace(papers, transcript=part.transcript), sites.ledgers.get(part.name)):
        yield check.model_copy(update={"name": f"{check.name}, {part.name}"})
    bound = {one.ledger for one in papers.document.ledgers if one.silo in (None, part.name)}
    if bound:
        right = part.transcript.header.ledger in bound
        yield agreed(f"signed ledger of {part.name}", right, part.transcript.header.ledger)
    yield from _receipt(part, sites.keys.get(part.name))


def _receipt(part: SitePart, key: PublicKey | None) -> Iterator[Check]:
    """The party's own word: that its ledger was closed over this transcript, signed by its key if it has one."""
    name, path = f"receipt of {part.name}", part.folder.receipts
    if not path.exists():
        yield unknown(name, "the site handed none over")
        return
    statement = dict(part.folder.read_json(path))
    signed = statement.pop("signed", None)
    right = statement.get("transcript") == part.transcript.digest and statement.get("party") == part.name
    yield agreed(name, right, "it names this transcript" if right else "it names another transcript or party")
    if key is None:
        yield unknown(f"signature under the {name}", "no public key of the silo was given")
        return
    try:
        opened = open_envelope(str(signed).encode())
        check_signature(opened, key)
        same = opened.payload == canonical(statement)
        yield agreed(f"signature under the {name}", same, f"by {key.key_id[:16]}" if same else "of another receipt")
    except (BrokenEnvelope, BadSignature) as broken:
        yield agreed(f"signature under the {name}", False, str(broken))


def _whole(papers: SitePapers) -> Iterator[Check]:
    merged = papers.transcript
    made = is_merged_from(merged, papers.parts)
    yield agreed("merged transcript", made, f"of {len(papers.parts)} parties" if made else "holds what no site sent")
    unit = papers.document.guarantee.privacy_unit()
    facts, binding = site_facts(papers.plan.data, central=papers.plan.recipe.central, unit=unit)
    signed = papers.document.data
    yield agreed("data", binding == signed, "silos, sizes and schema of the plan are as signed")
    model, algorithm = build(papers.plan, facts, signed_parameters(papers.document), signed, papers.document)
    last = last_position(algorithm, merged, read_sessions(papers.folder.sessions))
    yield check_model(papers.folder, model, algorithm, last)


def _half(papers: SitePapers) -> Iterator[Check]:
    others = len(papers.document.data.silos) - len(papers.parts)
    if others:
        why = f"what {others} other parties published is needed to redo the states; gather the run"
        yield unknown("model follows from the transcripts", why)


def _records(papers: SitePapers, sites: SitesInHand) -> Iterator[Check]:
    """What can be asked of the records of one site at a time: its size and schema, and who took part."""
    plan, document = papers.plan, papers.document
    unit = document.guarantee.privacy_unit()
    together = plan.recipe.central or plan.data.users is not None
    for part in papers.parts:
        own = dict(sites.files) if together else {k: v for k, v in sites.files.items() if k == part.name}
        signed = next(silo for silo in document.data.silos if silo.name == part.name)
        units = None if unit.relation is Relation.ADD_REMOVE else signed.size
        if own:
            try:
                (found,) = load_site_data(plan.data, own, central=plan.recipe.central, unit=unit).binding.silos
                units, digest = found.size, document.data.schema_digest
                misfit = misfit_of_data(document, DataBinding.of(digest, [(found.name, found.size)]), (signed,))
                yield agreed(f"records of {part.name}", misfit is None, misfit or "as many as signed, of this schema")
            except PrivfairError as refusal:
                yield agreed(f"records of {part.name}", False, str(refusal))
        if part.batches is not None and units is not None:
            drawn = part.drawn()
            sampling = part.batches.header.sampling
            if part.name in papers.registries:
                wrong = _asked_too_often(drawn, units, most_participations(sampling, document.rounds))
            else:
                wrong = wrong_batches(sampling, units, drawn, _RARE)
            yield agreed(f"batches of {part.name}", wrong is None, wrong or f"{len(drawn)}, drawn as declared")
    yield from _asked_records(papers, sites)
    if not papers.covered_by(sites):
        why = "the records of all silos are needed (--data SILO=FILE for each) in a gathered run"
        yield not_possible(Layer.PROBE, "noise, probes and attacks", why)


def _asked_records(papers: SitePapers, sites: SitesInHand) -> Iterator[Check]:
    """With all files in hand: whether each registry summed over what the holders drew."""
    attributes = papers.plan.data.attributes
    known = all(part.batches is not None for part in papers.parts)
    if not isinstance(attributes, AttributesAtSites) or not known or not papers.covered_by(sites):
        return
    data = load_site_data(papers.plan.data, sites.files, unit=papers.document.guarantee.privacy_unit())
    numbers = {silo.name: silo.data.side_column(attributes.record) for silo in data.parties}
    drawn = {
        part.name: {part.steps.step_of_round[n]: set(numbers[part.name][rows]) for n, rows in part.drawn().items()}
        for part in papers.parts
    }
    for registry in attributes.registries:
        holders = [batches for name, batches in drawn.items() if name not in attributes.registries]
        wrong = [
            step
            for step, asked in drawn[registry].items()
            if asked != set(numbers[registry]) & set().union(*(one.get(step, set()) for one in holders))
        ]
        finding = f"step {wrong[0]} is not what the holders drew" if wrong else f"{len(drawn[registry])} steps"
        yield agreed(f"records that {registry} was asked for", not wrong, finding)


def _asked_too_often(drawn: Mapping[int, Indexes], units: int, most: int) -> str | None:
    """A registry draws nothing: what was priced is how often each of its records takes part."""
    times = np.bincount(np.concatenate([*drawn.values(), np.zeros(0, dtype=np.int64)]), minlength=units)
    return None if times.max(initial=0) <= most else f"a record takes part {times.max()} times, and {most} were priced"


# A loop of a user's own (`privfair.BudgetedRun`).

_DROWNED = 3.0
"""Where squares are this many times what noise alone would give, missing noise would not be seen."""
_NO_DATA = "the loop's data and computation are its owner's; audit the training function, or the model, for more"


@dataclass(frozen=True, eq=False)
class LoopEvidence(RunPapers):
    """What a loop's run folder holds."""

    batches: BatchRecord | None


def read_loop(path: Path, trusted: FolderTrust) -> LoopEvidence | None:
    """The folder of a loop of a user's own; None where privfair's own engine made the run."""
    folder = RunFolder.existing(path)
    if not folder.manifest.exists():
        return None
    envelope = folder.manifest.read_bytes()
    claimed = read_unverified(envelope)
    if not _is_loop(folder, claimed.document):
        return None
    authentic = None if trusted.signers is None else authenticate(envelope, trusted.signers, for_reading=True)
    batches = BatchRecord.read(folder.batches) if folder.batches.exists() else None
    papers = (folder, claimed.document, claimed.digest, authentic, Transcript.read(folder.transcript))
    return LoopEvidence(*papers, batches)


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
    return agreed("plan", found == document.config_digest, text)


def _batches(evidence: LoopEvidence) -> Iterator[Check]:
    if not evidence.document.sampling:
        return
    if evidence.batches is None:
        yield unknown("batches", "they are secret, so how they were drawn cannot be seen")
        return
    scheme, declared = evidence.batches.header.sampling, evidence.document.sampling[0].scheme
    yield agreed("sampling is the signed one", scheme == declared, type(scheme).__name__)
    rounds = sorted({release.round for release in evidence.transcript.releases()})
    sizes = {silo.name: silo.size for silo in evidence.document.data.silos}
    for party in evidence.transcript.header.parties:
        batches = evidence.batches
        drawn = {number: np.asarray(batches.batch(number, party), dtype=np.int64) for number in rounds}
        wrong = wrong_batches(scheme, sizes[party], drawn, _RARE)
        finding = wrong or f"{len(rounds)} batches, drawn as declared"
        yield agreed(f"batches of {party}", wrong is None, finding)


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
    # Both references are known before the round, so that each square is at least central chi-squared.
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
