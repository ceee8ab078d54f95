"""`privfair check --sensitivity`: how far real data is from the worst case, and that this never lowers noise."""

from __future__ import annotations

from pathlib import Path

from privfair.ledger import Ledger
from tests.end_to_end.command_line import privfair
from tests.privfair.small_runs import FEDSGD, GAUSSIAN, Desk


def test_the_report_of_a_plan(tmp_path: Path) -> None:
    """A clip of 1 is reached by some record; one of 50 by none, and nothing else changes."""
    plan = GAUSSIAN.format(rate=0.3, rounds=6, more="")
    shares = {}
    for clip in ("1.0", "50.0"):
        desk = Desk.at(tmp_path / clip, plan.replace("clip = 1.0", f"clip = {clip}"))
        outcome = privfair("check", desk.plan, "--sensitivity", "--units", 5, "--rounds", 4, "--json")
        assert outcome.code == 0, outcome.err
        report = outcome.json()
        assert report["noise_may_be_lowered"] is False
        assert "never" in report["note"]
        (value,) = report["releases"]
        assert value["worst_case"] == float(clip)
        assert [one["step"] for one in value["by_step"]] == [0, 1, 2, 3]
        shares[clip] = value["largest_share"]
        with Ledger.open(desk.ledger) as ledger:
            assert not ledger.status().manifests
    assert 0.9 < shares["1.0"] <= 1 + 1e-9
    assert 0 < shares["50.0"] < 0.2


def test_it_is_readable_and_takes_a_manifest(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, GAUSSIAN.format(rate=0.3, rounds=4, more=""))
    words = ("check", desk.plan, "--sensitivity", "--units", 2, "--rounds", 2)
    outcome = privfair(*words, "--budget", desk.budget())
    assert outcome.code == 0, outcome.err
    assert "worst case 1" in outcome.out
    assert "do not publish" in " ".join(outcome.out.split())


def test_without_a_promise_there_is_no_worst_case(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, FEDSGD.format(rounds=2, more=""))
    outcome = privfair("check", desk.plan, "--sensitivity", "--budget", desk.budget())
    assert outcome.code == 2
    assert "promises no privacy" in outcome.err
