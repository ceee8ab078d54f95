"""Each layer of an audit, asked through its public function whether it sees anything wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from audit.claims import catalogue
from audit.claims.falsify import Search
from audit.coins.attribute_coins import coin_audit
from audit.coins.canary_audit import Effort, canary_audit
from audit.probes.check_probes import check_probes
from audit.report.results import Attack, Check, CheckOutcome, Conclusion
from audit.runs.conformance import check_conformance
from audit.runs.evidence import RunEvidence
from audit.runs.noise import check_noise, check_noise_floor
from audit.verdict import judge, on_trial
from calibrate.privacy_unit import Relation
from privfair.ledger import Ledger, LedgerAccess
from tests.planted_bugs.bug import Bug, Caught
from tests.planted_bugs.fixed_randomness import fixed_randomness
from tests.planted_bugs.workshop import Engine, Trained, Workshop

SEARCH = Search(pairs=60, climbs=1, steps=4)
RERUNS, CANARY_RUNS, CONFIDENCE = 4, 60, 0.95


def findings(layer: Caught, workshop: Workshop, engine: Engine, trained: Trained, bug: Bug | None) -> list[str]:
    """What the layer has against the run; an empty list if nothing."""
    match layer:
        case Caught.SEARCH:
            return _search(bug)
        case Caught.CONFORMANCE:
            with _ledger(trained) as ledger:
                return _failed(check_conformance(trained.evidence(), ledger))
        case Caught.PROBE:
            with _ledger(trained) as ledger:
                return _failed(check_probes(trained.evidence(), ledger))
        case Caught.NOISE:
            evidence = trained.evidence()
            known = evidence.batches_known
            return _failed(check_noise(evidence) if known else check_noise_floor(evidence))
        case Caught.ATTACK:
            return _attack(trained.evidence())


def findings_of(bug: Bug, layer: Caught, workshop: Workshop) -> list[str]:
    """What the layer says with the bug in place: in a run made under it, or in the code that made a clean one."""
    clean = workshop.clean(bug.engine)
    with fixed_randomness(2), bug.plant():
        if not needs_a_run(layer, bug):
            return findings(layer, workshop, bug.engine, clean, bug)
        with workshop.trained(bug.engine, bug.updates) as trained:
            return findings(layer, workshop, bug.engine, trained, bug)


def needs_a_run(layer: Caught, bug: Bug) -> bool:
    """Whether the layer looks at messages that were really sent, or at the code that sends them."""
    return layer in (Caught.CONFORMANCE, Caught.NOISE) or bug.updates is not None


def _failed(checks: tuple[Check, ...]) -> list[str]:
    return [f"{one.name}: {one.finding}" for one in checks if one.outcome is CheckOutcome.FAILED]


@contextmanager
def _ledger(trained: Trained) -> Iterator[Ledger]:
    with Ledger.open(trained.ledger, None, LedgerAccess.READ) as ledger:
        yield ledger


def _search(bug: Bug | None) -> list[str]:
    if bug is None or bug.claim is None:
        return []
    finding = catalogue.claim_named(bug.claim).check(SEARCH)
    return [str(finding)] if finding.refuted else []


def _attack(evidence: RunEvidence) -> list[str]:
    """Coins on attributes or canaries, as `privfair audit` would have it; runs are counted, not timed."""
    promise = on_trial(evidence.document)
    assert promise is not None
    attacks: tuple[Attack, ...]
    if evidence.document.guarantee.adjacency is Relation.REPLACE_ATTRIBUTE:
        attacks = coin_audit(evidence, promise, runs=RERUNS, seed=0, confidence=CONFIDENCE)
    else:
        effort = Effort(CANARY_RUNS, seconds=1e6)
        attacks = canary_audit(evidence, promise, effort=effort, seed=0, confidence=CONFIDENCE)
    verdict = judge(promise, (), attacks, CONFIDENCE)
    return [verdict.why] if verdict.verdict is Conclusion.VIOLATED else []
