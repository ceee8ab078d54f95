"""The audit of a run folder, cheapest layer first."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from audit.coins.attribute_coins import coin_audit, require_decodable
from audit.coins.canary_audit import Effort, canary_audit
from audit.probes.check_probes import check_probes
from audit.report.results import Attack, AuditReport, Layer, ModelQuality, Promise, not_possible
from audit.runs.conformance import check_conformance
from audit.runs.evidence import RunEvidence
from audit.runs.noise import check_noise, check_noise_floor
from audit.runs.papers import NO_SITES, SitesInHand, check_loop, check_sites, read_loop, read_site_papers
from audit.settings import AuditOptions
from audit.verdict import MORE_EFFORT, judge, on_trial
from calibrate.errors import UnsupportedCombination
from calibrate.manifest.trust import UNTRUSTED, FolderTrust
from calibrate.meaning import Protection
from calibrate.privacy_unit import EpsilonDelta, Relation
from privfair.ledger import Ledger
from privfair.run.folder import load_theta
from privfair.run.metrics import HeldOutRecords

_CANARY_RUNS, _CANARY_SECONDS = 50, 10.0


def audit_run(
    path: Path,
    options: AuditOptions,
    trusted: FolderTrust = UNTRUSTED,
    ledger: Ledger | None = None,
    progress: Callable[[str], None] | None = None,
    plan_path: Path | None = None,
    sites: SitesInHand = NO_SITES,
    counted: Callable[[int, int], None] | None = None,
) -> AuditReport:
    """Judge a run by its folder, its data and, where given, its ledger; `trusted` says how far the folder is.

    `progress` is told what begins, `counted` how many reruns of how many are done; `plan_path` is the plan in its own
    place, needed where it names data files relative to itself. `sites` is what an auditor has of a run over guards:
    some sites' records, ledgers and keys. Without the records of all of them the papers alone are judged.
    """
    say = progress or (lambda text: None)
    loop = read_loop(path, trusted)
    if loop is not None:
        say("a loop of somebody's own: its papers and what it published, without its data")
        document = loop.document
        return judge(on_trial(document), check_loop(loop, ledger), (), options.confidence_for(document.algorithm))
    say("reading the run and redoing its states from the transcript")
    papers = read_site_papers(path, trusted, plan_path)
    say("conformance: do manifest, ledger, transcript, plan and model name one another?")
    if papers is not None:
        checks = check_sites(papers, sites)
        if not papers.covered_by(sites):
            document = papers.document
            return judge(on_trial(document), checks, (), options.confidence_for(document.algorithm))
    evidence = RunEvidence.read(path, trusted, plan_path, sites.files)
    if papers is None:
        checks = check_conformance(evidence, ledger)
    say("noise: is it what was signed?")
    checks += check_noise(evidence) if evidence.batches_known else check_noise_floor(evidence)
    say("probes: noise off, neighbouring data sets, and a rehearsal")
    checks += check_probes(evidence, ledger, options.seed, seconds=options.budget_seconds)
    promise, confidence = on_trial(evidence.document), options.confidence_for(evidence.document.algorithm)
    began = time.process_time()
    try:
        attacks = _attacks(evidence, promise, options, say, counted or (lambda done, total: None))
    except UnsupportedCombination as refusal:
        attacks = ()
        checks += (not_possible(Layer.ATTACK, "attack", str(refusal)),)
    seconds = math.ceil(2 * (time.process_time() - began))
    effort = f"audit with --reruns {2 * max(2, options.reruns)}, about {seconds} s more of processor time"
    report = judge(promise, checks, attacks, confidence, _unseen(evidence), effort if attacks else MORE_EFFORT)
    return report.model_copy(update={**_protection(evidence), "model": _quality(evidence)})


def _unseen(evidence: RunEvidence) -> str:
    """What a retention keeps from every later look; nothing where all values are kept."""
    if evidence.document.retention is None:
        return ""
    seen, steps = len(evidence.seen), len(evidence.finished)
    return (
        f". The transcript keeps {seen} of {steps} steps in full and digests of the rest, whose noise can't be "
        "measured any more: their bounds and grid were checked as they were published"
    )


def _protection(evidence: RunEvidence) -> dict[str, object]:
    """Who is protected, and all that the manifest lists as not protected."""
    promise = evidence.promise
    finite = None if promise.epsilon is None else EpsilonDelta(promise.epsilon, promise.delta)
    words = Protection(promise.unit, finite)
    return {"protected": words.protected, "not_protected": (words.not_protected, *promise.not_protected)}


def _quality(evidence: RunEvidence) -> ModelQuality | None:
    """The model's numbers on the held-out records, computed here and not believed; None before it is finished."""
    plan, test = evidence.plan, evidence.data.test
    if test is None or not evidence.folder.model.exists():
        return None
    held_out = HeldOutRecords(test, plan.model.dtype, plan.training.positive)
    theta = load_theta(evidence.folder, evidence.model)
    overall = held_out.measure(evidence.model, theta, 0, None).as_json()["overall"]
    return ModelQuality.of(overall)


def _attacks(
    evidence: RunEvidence,
    promise: Promise | None,
    options: AuditOptions,
    say: Callable[[str], None],
    counted: Callable[[int, int], None],
) -> tuple[Attack, ...]:
    """Coins on the attribute where that is the protected unit; on whole records or users elsewhere."""
    if promise is None or options.reruns == 0:
        return ()
    on_attributes = evidence.document.guarantee.adjacency is Relation.REPLACE_ATTRIBUTE
    if on_attributes:
        require_decodable(evidence)

    def attempt(reruns: int, confidence: float, seed: int) -> tuple[Attack, ...]:
        if on_attributes:
            say(f"attack: reruns on coins, {reruns} in all")
            attack, most = partial(coin_audit, runs=reruns), reruns
        else:
            effort = Effort(_CANARY_RUNS * reruns, _CANARY_SECONDS * reruns)
            say(f"attack: canaries, up to {effort.most} runs")
            attack, most = partial(canary_audit, effort=effort), effort.most
        return attack(evidence, promise, seed=seed, confidence=confidence, progress=lambda done: counted(done, most))

    return until_decided(attempt, promise, options, options.confidence_for(evidence.document.algorithm))


def until_decided(
    attempt: Callable[[int, float, int], tuple[Attack, ...]], promise: Promise, options: AuditOptions, confidence: float
) -> tuple[Attack, ...]:
    """Attack with the asked-for reruns; while an attack is at its ceiling and refutes nothing, with twice as many.

    Guarantee: with probability at least `confidence` no bound of any attempt exceeds the true epsilon. The j-th
    attempt, on fresh coins and noise, has the share 2^-j of the error, so that looking before going on costs nothing
    that was not paid for (the union bound; shares add up to less than one).
    """
    error, reruns, number = 1 - confidence, options.reruns, 0
    start = time.process_time()
    share = 0.5 if options.budget_seconds > 0 else 1.0
    while True:
        began = time.process_time()
        attacks = attempt(reruns, 1 - share * error, options.seed + number)
        now = time.process_time()
        left = options.budget_seconds - (now - start)
        affordable = int(left * reruns / max(now - began, 1e-6)) if left > 0 else 0
        refuted = any(
            one.bound.epsilon > promise.epsilon or (one.curve is not None and one.curve.refuted) for one in attacks
        )
        if refuted or affordable <= reruns or not any(one.at_ceiling for one in attacks):
            return attacks
        reruns, share, number = min(2 * reruns, affordable), share / 2, number + 1
