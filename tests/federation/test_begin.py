"""Every way to begin a run: what is refused before anything was claimed leaves no folder, and so nothing to resume."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import privfair as pf
from audit.runs import rerun as reruns
from audit.runs.evidence import AuditorsManifest
from calibrate.errors import GateRefused, InvalidInput, ManifestRefused, Refused
from calibrate.manifest.document import LedgerBinding
from calibrate.manifest.issue import issue
from calibrate.manifest.keys import generate, load_private
from calibrate.manifest.verify import read_unverified
from privfair.federation.guard import Guard
from privfair.ledger import ClaimEnded, Ledger, Unavailable
from privfair.ledger.entries import WrongLedger
from privfair.run.folder import RunFolder
from privfair.run.open_run import OpenRun, TrustInForce
from privfair.run.prepare import PreparedRun, prepare_run
from privfair.training import execute, prepare
from tests.federation.sites import Sites
from tests.privfair.small_runs import FEDSGD, GAUSSIAN, Desk, trusting

pytestmark = pytest.mark.filterwarnings("ignore")
SEARCH = """
[search]
tries = 2
[[search.settings]]
learning-rate = 0.001
[[search.settings]]
learning-rate = 2.0
"""
TRIED = GAUSSIAN.format(rate=0.5, rounds=3, more=SEARCH).replace(
    "at-least = 100", "at-least = 100\ntest-fraction = 0.3"
)


@dataclass(frozen=True)
class Beginning:
    """A run that was verified and has claimed nothing yet; `begin` claims, and `resume` takes the claim up."""

    desk: Desk
    out: Path
    begin: Callable[[], Any]
    resume: Callable[[], Any]


Change = dict[str, Any]


def _signed(desk: Desk, envelope: bytes, change: Change) -> Path:
    """The budget with something else in it, signed again."""
    path = desk.folder / "changed.json"
    document = read_unverified(envelope).document.model_copy(update=change)
    path.write_bytes(issue(document, load_private(desk.key)))
    return path


def _training(plan: str) -> Callable[[Path, Change], Beginning]:
    def prepared(folder: Path, change: Change) -> Beginning:
        desk = Desk.at(folder / "desk", plan)
        manifest, trust = _signed(desk, desk.budget().read_bytes(), change), TrustInForce(desk.trust)
        run, out = prepare(desk.plan, manifest, trust), folder / "run"

        def start(resume: bool) -> Any:
            return execute(run, out, desk.ledger, resume=resume, trust=trust)

        return Beginning(desk, out, lambda: start(False), lambda: start(True))

    return prepared


def _loop(folder: Path, change: Change) -> Beginning:
    desk = Desk.at(folder / "desk", FEDSGD)
    priced = pf.budget(1.0, 1e-5, units=100, rounds=2, sampling_rate=0.1, shapes={"gradient": (3,)})
    budget, out = _signed(desk, priced.sign(load_private(desk.key)).envelope, change), folder / "run"

    def enter(**more: Any) -> None:
        run = more.pop("run", None) or pf.BudgetedRun(
            budget, trust=desk.trust, ledger=desk.ledger, units=100, out=out, **more
        )
        with run:
            pass

    first = pf.BudgetedRun(budget, trust=desk.trust, ledger=desk.ledger, units=100, out=out)
    return Beginning(desk, out, lambda: enter(run=first), lambda: enter(resume=True))


def _guard(folder: Path, change: Change) -> Beginning:
    sites = Sites.at(folder / "desk", "steffle, shuffled", rounds=2)
    _signed(sites.desk, sites.desk.budget().read_bytes(), change).rename(sites.manifest)
    run, trust, out = sites.prepare("north"), TrustInForce(sites.desk.trust), folder / "run"

    def start() -> None:
        out.mkdir(exist_ok=True)
        with Ledger.open(sites.desk.ledger) as ledger:
            guard = Guard(run, RunFolder(out), ledger, logging.getLogger("test"), trust=trust)
            guard.close()

    return Beginning(sites.desk, out, start, start)


WAYS = {
    "train": _training(FEDSGD.format(rounds=2, more="")),
    "search": _training(TRIED),
    "loop": _loop,
    "guard": _guard,
}
ways = pytest.mark.parametrize("way", WAYS)


@ways
def test_a_wrong_ledger_leaves_no_folder(way: str, tmp_path: Path) -> None:
    world = WAYS[way](tmp_path, {"ledgers": (LedgerBinding(ledger="ab" * 32),)})
    with pytest.raises(WrongLedger):
        world.begin()
    assert not world.out.exists()


@ways
def test_a_ledger_that_is_not_there_leaves_no_folder(way: str, tmp_path: Path) -> None:
    world = WAYS[way](tmp_path, {})
    world.desk.ledger.unlink()
    with pytest.raises((Refused, InvalidInput)):
        world.begin()
    assert way == "guard" or not world.out.exists()


@ways
def test_a_signer_who_is_not_trusted_any_more_leaves_no_folder(way: str, tmp_path: Path) -> None:
    world = WAYS[way](tmp_path, {})
    world.desk.trust.write_bytes(trusting(generate()).to_bytes())
    with pytest.raises(ManifestRefused, match="no trusted key"):
        world.begin()
    assert not world.out.exists()


@ways
def test_a_budget_that_has_expired_leaves_no_folder(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, real = WAYS[way](tmp_path, {}), Ledger.open
    later = datetime.now(UTC) + timedelta(days=1000)
    monkeypatch.setattr(Ledger, "open", lambda place, anchor=None: real(place, anchor, now=lambda: later))
    with pytest.raises(ClaimEnded, match="expired"):
        world.begin()
    assert not world.out.exists()


@ways
def test_a_ledger_that_was_not_reached_after_the_claim_keeps_the_token(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, real = WAYS[way](tmp_path, {}), Ledger.claim

    def cut_off(self: Ledger, *given: Any, **more: Any) -> None:
        real(self, *given, **more)
        raise Unavailable("the ledger", "the connection was cut", "try again")

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "claim", cut_off)
        with pytest.raises(Unavailable):
            world.begin()
    assert (world.out / "claim.token").exists()
    if way == "search":
        with pytest.raises(Refused, match="does not continue"):
            world.resume()
    else:
        world.resume()


def test_an_auditors_rerun_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, auditor = Desk.at(tmp_path / "desk", FEDSGD.format(rounds=2, more="")), AuditorsManifest()
    document = read_unverified(desk.budget().read_bytes()).document
    run = prepare_run(desk.plan, auditor.envelope(document), auditor.trust)
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(reruns, "in_memory", lambda: memory)
    wrong = document.model_copy(update={"ledgers": (LedgerBinding(ledger="ab" * 32),)})
    with pytest.raises(WrongLedger):
        reruns.rerun(run, auditor, seed=0, envelope=issue(wrong, auditor.key))
    assert not list(memory.iterdir())


def _budget(folder: Path, rounds: int) -> tuple[Desk, PreparedRun]:
    desk = Desk.at(folder, FEDSGD.format(rounds=rounds, more=""))
    return desk, prepare(desk.plan, desk.budget(), TrustInForce(desk.trust))


def test_a_folder_that_holds_a_claim_is_not_begun_again(tmp_path: Path) -> None:
    desk, run = _budget(tmp_path / "desk", 2)
    folder = RunFolder.create(tmp_path / "run", resume=False)
    with Ledger.open(desk.ledger) as ledger:
        with OpenRun(run.manifest, ledger, folder).begin({"kept.txt": b"first"}):
            pass
        with pytest.raises(Refused, match="resume it"):
            OpenRun(run.manifest, ledger, folder).begin({"kept.txt": b"second"})
    assert (folder.path / "kept.txt").read_bytes() == b"first"
    assert folder.token.exists()


def test_a_claim_is_resumed_under_its_own_budget_only(tmp_path: Path) -> None:
    desk, run = _budget(tmp_path / "desk", 2)
    other = prepare(desk.plan, desk.budget("other.json"), TrustInForce(desk.trust))
    folder = RunFolder.create(tmp_path / "run", resume=False)
    with Ledger.open(desk.ledger) as ledger:
        with OpenRun(run.manifest, ledger, folder).begin():
            pass
        with pytest.raises(Refused, match="begun with the manifest"):
            OpenRun(other.manifest, ledger, folder).resume()


def test_a_search_publishes_in_its_tries_alone(tmp_path: Path) -> None:
    _, run = _budget(tmp_path / "desk", 2)
    tried = RunFolder.create(tmp_path / "try", resume=False)
    (tmp_path / "run").mkdir()
    with OpenRun.apart(run.manifest, tmp_path / "run") as spending, Ledger.create(tried.path / "own.db") as own:
        with pytest.raises(GateRefused, match="charge_all"):
            spending.attempt(own, tried)
        spending.charge_all()
        with pytest.raises(GateRefused, match="tries"):
            spending.parties(run)
        with spending.attempt(own, tried) as attempt:
            attempt.parties(run).finish()


def test_rounds_left_out_beyond_a_block_are_charged_like_the_next_block(tmp_path: Path) -> None:
    _, run = _budget(tmp_path / "desk", 6)
    (tmp_path / "run").mkdir()
    with OpenRun.apart(run.manifest, tmp_path / "run") as spending:
        parties = spending.parties(replace(run, block=2))
        parties.contribute(0, run.algorithm.checkpoint(run.algorithm.start()))
        assert not spending.gate.at_end_of_block
        spending.gate.leave_out_before(4)
        assert spending.gate.at_end_of_block


def _site(folder: Path) -> tuple[Sites, PreparedRun]:
    sites = Sites.at(folder, "steffle, shuffled", rounds=2)
    sites.desk.budget()
    return sites, sites.prepare("north")


def test_a_guard_that_lost_its_token_claims_nothing_and_keeps_its_files(tmp_path: Path) -> None:
    (sites, run), folder = _site(tmp_path / "desk"), RunFolder(tmp_path / "run")
    folder.path.mkdir()

    def start(ledger: Ledger) -> Guard:
        return Guard(run, folder, ledger, logging.getLogger("test"), trust=TrustInForce(sites.desk.trust))

    with Ledger.open(sites.desk.ledger) as ledger, Ledger.create(tmp_path / "other.db") as other:
        guard = start(ledger)
        guard.contribute(0, run.algorithm.checkpoint(run.algorithm.start()))
        guard.close()
        folder.token.unlink()
        before = sorted(folder.path.iterdir())
        with pytest.raises(Refused, match="missing"):
            start(ledger)
        with pytest.raises(Refused):
            start(other)
        assert not other.receipts()
        assert sorted(folder.path.iterdir()) == before


def test_a_refusal_deletes_no_file_that_was_there_before(tmp_path: Path) -> None:
    (sites, run), folder = _site(tmp_path / "desk"), tmp_path / "run"
    folder.mkdir()
    (folder / "plan.toml").write_bytes(run.plan.file.content)
    trust = TrustInForce(sites.desk.trust)
    sites.desk.trust.write_bytes(trusting(generate()).to_bytes())
    with Ledger.open(sites.desk.ledger) as ledger, pytest.raises(ManifestRefused, match="no trusted key"):
        Guard(run, RunFolder(folder), ledger, logging.getLogger("test"), trust=trust)
    assert [path.name for path in folder.iterdir()] == ["plan.toml"]
