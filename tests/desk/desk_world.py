"""A desk with papers on it, for tests: a ledger with claims, an inbox with requests, two runs with an audit."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from calibrate.manifest.document import DataIdentity, Issuer, LedgerBinding
from calibrate.manifest.draft import BudgetSubject, draft_document
from calibrate.manifest.issue import BudgetDraft, issue, request_bytes
from calibrate.manifest.keys import SigningKey, generate
from calibrate.manifest.trust import TrustFile
from calibrate.manifest.verify import IntendedRun, authenticate, read_unverified, verify
from calibrate.plans.gaussian import GaussianPlan
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Protected, Relation
from privfair.api.draft import draft
from privfair.integrations.desk.access import DeskSecrets
from privfair.integrations.desk.app import Desk, DeskPapers
from privfair.plan.plan import Plan
from privfair.run.folder import RunFolder
from privfair.run.prepare import claim_terms
from privfair.run.record import ChainHead, ChargedRounds, ClaimEntry, Receipts, RunRecord, Status
from tests.privfair.ledgers import open_ledger
from tests.privfair.small_runs import trusting, write_silos

ATTACK = "<img src=x onerror=alert(1)><script>alert(2)</script>{{ 7*7 }}\"'`"
"""Markup, a template expression and every kind of quote, for each text that a stranger can write."""
PORT = 4711


@dataclass(frozen=True)
class World:
    """The papers and the secrets of one desk."""

    folder: Path
    papers: DeskPapers
    access: DeskSecrets
    key: SigningKey

    def desk(self) -> Desk:
        return Desk(self.papers, self.access)


def make_world(folder: Path, port: int = PORT) -> World:
    """A ledger with two claims, three letters in the inbox (two of them hostile), and two runs, one audited."""
    from calibrate.budget import calibrate_plan
    from calibrate.manifest.document import DataBinding

    inbox, runs, key = folder / "inbox", folder / "runs", generate()
    inbox.mkdir(parents=True)
    runs.mkdir()
    ledger = open_ledger(folder / "ledger.db")
    identity = DataIdentity(name="readmissions", custodian=ATTACK.replace("/", "|")[:60].strip(), version="2026")
    ledger.set_budget(identity.label, PrivacyUnit(Protected.RECORD, Relation.ADD_REMOVE), 5.0, 1e-3)
    budget = {epsilon: calibrate_plan(GaussianPlan(0.2, 3), EpsilonDelta(epsilon, 1e-5)) for epsilon in (2.0, 2.5)}

    def priced(epsilon: float, why: str) -> Any:
        subject = BudgetSubject(DataBinding.of("ab" * 32, ((ATTACK, 500),)), identity)
        issuer = Issuer(ledgers=(LedgerBinding(ledger=ledger.identity),), lifetime=timedelta(days=30), why=why)
        return draft_document(budget[epsilon], subject, issuer)

    for number, epsilon in enumerate((2.0, 2.5), start=1):
        document = priced(epsilon, f"ward {number} {ATTACK}").document
        envelope = issue(document, key)
        verified = verify(envelope, trusting(key), IntendedRun(document.config_digest, document.data))
        claim = ledger.claim(claim_terms(verified), claimant=ATTACK)
        claim.charge(3)
        _write_run(runs / f"run-{number}", envelope, number, trusting(key))
        if number == 1:  # a manifest that grants something else than the request beside it
            (inbox / "first-signed.json").write_bytes(envelope)
    status = ledger.status()
    ledger.close()
    bound = (LedgerBinding(ledger=status.ledger),)
    last = draft_for(folder, 2.0, Issuer(ledgers=bound, lifetime=timedelta(days=30), why="the last one"))
    (inbox / "last-signed.json").write_bytes(issue(last, key))
    for name, epsilon, why, by in (("first", 2.0, "the first", "Eng"), ("second", 2.5, ATTACK, ATTACK)):
        drafted = draft_for(folder, epsilon, Issuer(ledgers=bound, lifetime=timedelta(days=30), why=why))
        (inbox / f"{name}.json").write_bytes(request_bytes(drafted, by, plan_text(epsilon).encode()))
    (inbox / "broken <b>.json").write_bytes(b'{"a": 1}')
    papers = DeskPapers(str(folder / "ledger.db"), inbox, (runs,), key, trusting(key))
    return World(folder, papers, DeskSecrets(port), key)


def plan_text(epsilon: float) -> str:
    """A plan on data that are not on the desk."""
    return f"""algorithm = "gaussian"
[target]
epsilon = {epsilon}
delta = 1e-5
[privacy]
sampling-rate = 0.2
rounds = 3
clip = 1.0
[data]
files = ["north.csv"]
schema = "schema.toml"
at-least = 100
[data.identity]
name = "readmissions"
custodian = "North Hospital"
version = "2026"
[training]
learning-rate = 1.0
"""


def draft_for(folder: Path, epsilon: float, issuer: Issuer) -> BudgetDraft:
    """The budget for `plan_text`, drafted where the data are."""
    site = folder / "engineer"
    if not site.exists():
        site.mkdir()
        write_silos(site)
    return draft(Plan.parse(plan_text(epsilon).encode(), site / "plan.toml"), issuer)


def copy_world(world: World, folder: Path, signs: bool = True, port: int = PORT) -> World:
    """The same papers in another folder with fresh secrets: a test may then write on them."""
    shutil.copytree(world.folder, folder, dirs_exist_ok=True)
    key = world.key if signs else None
    papers = DeskPapers(str(folder / "ledger.db"), folder / "inbox", (folder / "runs",), key, world.papers.trust)
    return World(folder, papers, DeskSecrets(port), world.key)


def _write_run(path: Path, envelope: bytes, number: int, trust: TrustFile) -> None:
    path.mkdir()
    group = {"n": 50, "accuracy": 0.8, "positive_rate": 0.3}
    overall = {"accuracy": 0.8 + number / 100, "demographic_parity": 0.1, "groups": {ATTACK: group, "b": group}}
    begun = RunRecord.begun(authenticate(envelope, trust), 3, None, ledger=ATTACK, remarks=(ATTACK,))
    rounds = {"steps": 3, "charged": 3, "sessions": 1}
    (path / "budget.json").write_bytes(envelope)
    begun.reached(Status.FINISHED, rounds, metrics={"overall": overall}).write(RunFolder(path))
    receipts = Receipts(
        ledger=ATTACK,
        head=ChainHead(seq=1, hash=ATTACK),
        manifest=begun.manifest.digest,
        claim=ClaimEntry(entry=ATTACK, at="2026-01-01T00:00:00Z", by=ATTACK),
        state=ATTACK,
        rounds=ChargedRounds(signed=3, charged=3, released=0),
        releases=0,
        sessions=1,
        epsilon=None,
        delta=0.0,
        unit=ATTACK,
        data=ATTACK,
        transcript=None,
    )
    (path / "receipts.json").write_text(json.dumps(receipts.as_json()))
    if number == 1:
        digest = read_unverified(envelope).digest
        audit = {
            "verdict": "consistent",
            "why": f"nothing was found {ATTACK}",
            "epsilon_lower": 0.1,
            "confidence": 0.95,
            "promised": {"epsilon": 2.0, "delta": 1e-5, "source": "promised by the manifest"},
            "attacks": [],
            "checks": [],
            "subjects": {"manifest": digest},
        }
        (path.parent / "audit-1.json").write_text(json.dumps(audit))
