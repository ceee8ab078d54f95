"""What a host application's log hears of a run: each step of the budget, without private values."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from calibrate.errors import LedgerRefused
from privfair.ledger import Ledger
from privfair.ledger.journal import JsonEvents
from tests.privfair.small_runs import GAUSSIAN, Desk


def test_a_run_tells_the_log_what_was_verified_claimed_charged_and_published(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk.at(tmp_path, GAUSSIAN.format(rate=0.2, rounds=2, more=""))
    with caplog.at_level(logging.INFO, logger="privfair"):
        desk.train(desk.budget())
    events = [(one.event, one.facts) for one in caplog.records if one.name == "privfair.events"]  # type: ignore[attr-defined]
    names = [name for name, _ in events if name != "trust"]
    assert list(dict.fromkeys(names)) == ["verified", "claimed", "charged", "published", "closed"]
    facts = dict(events)
    assert facts["claimed"]["epsilon"] == 8.0
    assert (facts["charged"]["first"], facts["charged"]["end"]) == (1, 2)
    (round_number, party, _, digest), *_ = facts["published"]["values"]
    assert (round_number, party, len(digest)) == (1, "north", 64)
    assert not {"token", "curve"} & set(facts["claimed"])
    (_, line) = [JsonEvents().format(one) for one in caplog.records if getattr(one, "event", "") == "charged"]
    assert json.loads(line)["event"] == "charged"
    assert json.loads(line)["end"] == 2


def test_a_refusal_is_told_and_nothing_is_where_no_one_listens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="privfair")
    with Ledger.create(tmp_path / "ledger.db") as ledger, pytest.raises(LedgerRefused):
        ledger.abandon("0" * 64, "a test")
    (told,) = caplog.records
    assert (told.levelname, told.event, told.facts["kind"]) == ("WARNING", "refused", "UnknownClaim")  # type: ignore[attr-defined]
