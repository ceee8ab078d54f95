"""A search under one budget: the best of a secret number of tries is shown, and of the others nothing is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from audit.runs.evidence import RunEvidence
from calibrate.errors import InvalidInput, Refused, UnsupportedCombination
from calibrate.manifest.document import SearchTerms
from calibrate.manifest.trust import TrustFile
from calibrate.manifest.verify import read_unverified
from calibrate.tries import RandomTries
from privfair.ledger import Ledger
from privfair.ledger.entries import AlreadyClaimed
from privfair.plan.plan import Plan, SearchPlan, TryScore, search_plan
from privfair.run import search as searching
from privfair.run.open_run import OpenRun, TrustInForce
from privfair.run.prepare import PreparedRun, prepare_run
from tests.privfair.small_runs import GAUSSIAN, Desk

SEARCH = """
[search]
tries = 5
[[search.settings]]
learning-rate = 0.001
[[search.settings]]
learning-rate = 2.0
"""
ROUNDS = 6


def _plan(search: str = SEARCH) -> str:
    held_out = "at-least = 100\ntest-fraction = 0.3"
    return GAUSSIAN.format(rate=0.5, rounds=ROUNDS, more=search).replace("at-least = 100", held_out)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk.at(tmp_path / "desk", _plan())


def _tries(monkeypatch: pytest.MonkeyPatch, number: int) -> list[Path]:
    """Let the number of tries be this one, and note the hidden folder of each."""
    monkeypatch.setattr(RandomTries, "drawn_by", lambda self, bits: number)
    hidden, real = [], searching._one_try

    def noting(spending: OpenRun, run: PreparedRun, setting: int, plan: SearchPlan, folder: Path) -> searching._Try:
        hidden.append(folder)
        return real(spending, run, setting, plan, folder)

    monkeypatch.setattr(searching, "_one_try", noting)
    return hidden


def test_the_best_try_is_shown_and_nothing_of_the_others(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, hidden = desk.budget(), _tries(monkeypatch, 3)
    result = desk.train(manifest)
    assert len(hidden) == 3
    assert not any(folder.exists() for folder in hidden)
    left = {path.name for path in result.run.iterdir()}
    assert {"model.pt", "search.json", "run.json", "receipts.json"} <= left
    assert not left & {"transcript.bin", "sessions.jsonl", "checkpoint.npz", "batches.bin"}
    assert not [name for name in left if name.startswith(".")]
    assert (result.run / "metrics.jsonl").read_bytes() == b""
    chosen = json.loads((result.run / "search.json").read_text("utf-8"))
    assert chosen["setting"]["learning-rate"] in (0.001, 2.0)
    assert chosen["value"] == result.accuracy
    assert result.to_json()["best"] == chosen
    assert result.summary["rounds"]["steps"] == ROUNDS
    with Ledger.open(desk.ledger) as ledger:
        (claimed,) = ledger.status().manifests
        assert (claimed.charged, claimed.releases, claimed.session) == (ROUNDS, 0, 1)
        assert claimed.claim.epsilon == read_unverified(manifest.read_bytes()).document.guarantee.epsilon  # type: ignore[union-attr]
    with pytest.raises(AlreadyClaimed):
        desk.train(manifest, "again")
    with pytest.raises(Refused, match="does not continue"):
        desk.train(manifest, resume=True)
    with pytest.raises(UnsupportedCombination, match="only the best try may be shown"):
        RunEvidence.read(result.run)


def test_what_is_written_does_not_tell_how_many_tries_there_were(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for number in (1, 4):
        with monkeypatch.context() as patched:
            _tries(patched, number)
            run = desk.train(desk.budget(f"{number}.json"), f"run-{number}").run
        summary, receipts = (json.loads((run / name).read_text("utf-8")) for name in ("run.json", "receipts.json"))
        told.append(
            (sorted(path.name for path in run.iterdir()), sorted(summary), summary["rounds"], receipts["rounds"])
        )
    assert told[0] == told[1]


def test_the_larger_score_wins_and_of_equal_ones_the_first(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RandomTries, "drawn_by", lambda self, bits: 4)
    scores, seen, real = iter((0.2, float("-inf"), 0.7, 0.7)), [], searching._one_try

    def judged(spending: OpenRun, run: PreparedRun, setting: int, plan: SearchPlan, folder: Path) -> searching._Try:
        one = real(spending, run, setting, plan, folder)
        seen.append(searching._Try(next(scores), setting, one.theta, one.metrics, one.steps))
        return seen[-1]

    monkeypatch.setattr(searching, "_one_try", judged)
    result = desk.train(desk.budget())
    assert result.summary["metrics"] == seen[2].metrics
    assert TryScore.LOSS.of({"loss": 0.5}) == -0.5
    assert TryScore.AUC.of({"auc": None}) == float("-inf")


def test_a_search_that_fails_has_spent_everything_and_shows_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden: list[Path] = []

    def failing(spending: object, run: object, setting: int, plan: object, folder: Path) -> searching._Try:
        hidden.append(folder)
        (folder / "transcript.bin").write_bytes(b"secret")
        raise KeyboardInterrupt

    monkeypatch.setattr(searching, "_one_try", failing)
    manifest = desk.budget()
    with pytest.raises(KeyboardInterrupt):
        desk.train(manifest)
    run = desk.folder / "run"
    assert json.loads((run / "run.json").read_text("utf-8"))["status"] == "interrupted"
    assert not (run / "model.pt").exists()
    assert not hidden[0].exists()
    with Ledger.open(desk.ledger) as ledger:
        assert ledger.status().manifests[0].charged == ROUNDS


def test_the_charge_is_on_disk_before_the_number_of_tries_is_drawn(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    charged = []

    def drawing(self: RandomTries, bits: int) -> int:
        with Ledger.open(desk.ledger) as ledger:
            charged.append(ledger.status().manifests[0].charged)
        return 1

    monkeypatch.setattr(RandomTries, "drawn_by", drawing)
    desk.train(desk.budget())
    assert charged == [ROUNDS]


def test_a_budget_for_another_number_of_tries_is_refused(desk: Desk) -> None:
    """A document that pays for one run, under a plan with a search."""
    manifest = desk.budget()
    prepared = prepare_run(desk.plan, manifest.read_bytes(), _trust(desk), searching=True)
    assert prepared.search is not None
    accounting = prepared.document.accounting
    for search in (None, SearchTerms(gamma=0.5, shape=0.0)):
        wrong = prepared.document.model_copy(update={"accounting": accounting.model_copy(update={"search": search})})
        with pytest.raises(Refused, match="does not pay for"):
            searching._require_signed_law(wrong, prepared.search)
    with pytest.raises(UnsupportedCombination, match="neither guards nor a transcript"):
        prepare_run(desk.plan, manifest.read_bytes(), _trust(desk))


def _trust(desk: Desk) -> TrustFile:
    return TrustInForce(desk.trust).file


@pytest.mark.parametrize(
    ("search", "names"),
    [
        ("[search]\ntries = 5", "settings"),
        ("[search]\n[[search.settings]]\nlearning-rate = 1.0", "tries"),
        (SEARCH.replace("tries = 5", "tries = 1"), "tries"),
        (SEARCH.replace("tries = 5", "tries = true"), "tries"),
        (SEARCH.replace("tries = 5", "tries = 5\nshape = -1"), "shape"),
        (SEARCH.replace("tries = 5", 'tries = 5\nscore = "fairness"'), "score"),
        (SEARCH.replace("tries = 5", "tries = 5\nbest = 1"), "best"),
        (SEARCH.replace("learning-rate = 2.0", "rounds = 3"), "rounds"),
        (SEARCH.replace("learning-rate = 2.0", "lerning-rate = 3"), "lerning-rate"),
        ("[search]\ntries = 5\nsettings = 3", "settings"),
    ],
)
def test_what_a_search_can_not_be_is_named(tmp_path: Path, search: str, names: str) -> None:
    desk = Desk.at(tmp_path / "desk", _plan(search))
    with pytest.raises(InvalidInput, match=names):
        desk.budget()


def test_a_search_needs_held_out_records_and_a_promise(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path / "desk", _plan().replace("test-fraction = 0.3", "test-fraction = 0.0"))
    with pytest.raises(InvalidInput, match="held-out records"):
        desk.train(desk.budget())
    plan = desk.plan.read_text("utf-8").replace("[target]\nepsilon = 8.0\ndelta = 1e-5\n", "")
    desk.plan.write_text(plan, encoding="utf-8")
    assert search_plan(Plan.read(desk.plan)) is not None
    with pytest.raises(InvalidInput, match="belongs to a promise"):
        desk.budget()
