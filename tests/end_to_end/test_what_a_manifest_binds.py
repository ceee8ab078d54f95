"""A manifest is for one ledger, one declared data set and the very code that was signed."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.errors import InvalidInput, ManifestRefused
from calibrate.manifest.verify import read_unverified
from privfair.ledger import Ledger
from privfair.models.alone_module import ISOLATION_ASSUMED
from tests.end_to_end.command_line import privfair
from tests.privfair.small_runs import FEDSGD, GAUSSIAN, Desk

IDENTITY = """[data.identity]
name = "loans"
custodian = "North Bank"
version = "2026"
"""
NET = "from torch import nn\n\ndef build():\n    return nn.Linear(5, 2)\n"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk.at(tmp_path / "desk", FEDSGD.format(rounds=2, more="") + IDENTITY)


def signed(desk: Desk, *more: object) -> Path:
    out = desk.folder / "signed.json"
    words = ("calibrate", desk.plan, "--no-privacy", "a test", "--out", out, "--key", desk.key)
    outcome = privfair(*words, *more)
    assert outcome.code == 0, outcome.err
    return out


@pytest.mark.parametrize("by", ["path", "id", "silos"])
def test_a_second_ledger_does_not_give_a_second_run(desk: Desk, by: str, tmp_path: Path) -> None:
    with Ledger.open(desk.ledger) as ledger:
        identity = ledger.status().ledger
    named = {"path": [desk.ledger], "id": [identity], "silos": [f"{s}={identity}" for s in ("north", "south", "west")]}
    flags = [word for place in named[by] for word in ("--ledger", place)]
    manifest = signed(desk, *flags)
    document = read_unverified(manifest.read_bytes()).document
    assert {bound.ledger for bound in document.ledgers} == {identity}
    desk.train(manifest)
    other = tmp_path / "other.db"
    Ledger.create(other).close()
    words = ("train", desk.plan, "--manifest", manifest, "--trust", desk.trust, "--ledger", other, "--quiet")
    outcome = privfair(*words, "--out", tmp_path / "again")
    assert outcome.code == 3
    assert "signed for ledger" in outcome.err


def test_the_page_says_that_a_budget_is_not_bound_and_which_data_it_is_for(desk: Desk) -> None:
    shown = " ".join(privfair("budget", "show", signed(desk)).out.split())
    assert "NOT BOUND TO A LEDGER" in shown
    assert "data set loans, version 2026, kept by North Bank" in shown


def test_the_declared_identity_is_what_the_ledger_calls_the_data(desk: Desk) -> None:
    desk.train(signed(desk))
    with Ledger.open(desk.ledger) as ledger:
        assert [one.claim.dataset for one in ledger.status().manifests] == ["North Bank/loans/2026"]


def test_a_slash_in_a_name_cannot_make_two_data_sets_one(desk: Desk) -> None:
    desk.plan.write_text(desk.plan.read_text("utf-8").replace('"loans"', '"loans/2026"'), encoding="utf-8")
    with pytest.raises(InvalidInput, match="identity"):
        desk.budget()


def test_isolation_by_one_record_per_pass_is_signed_as_an_assumption(tmp_path: Path) -> None:
    found = []
    for isolation in ("", 'isolation = "exact"', 'isolation = "alone"'):
        table = f'[training.model]\nkind = "module"\nfile = "net.py"\n{isolation}\n'
        desk = Desk.at(tmp_path / (isolation[-6:-1] or "none"), GAUSSIAN.format(rate=0.2, rounds=2, more=table))
        (desk.folder / "net.py").write_text(NET, encoding="utf-8")
        manifest = desk.budget()
        found.append(read_unverified(manifest.read_bytes()).document.accounting.assumptions)
    none, exact, alone = found
    assert none == exact
    assert [one for one in alone if one not in exact] == [ISOLATION_ASSUMED]
    desk.train(manifest)


def test_code_exchanged_after_signing_does_not_run(desk: Desk) -> None:
    text = desk.plan.read_text("utf-8").replace(
        "[data.identity]", '[training.model]\nkind = "module"\nfile = "net.py"\n[data.identity]'
    )
    desk.plan.write_text(text, encoding="utf-8")
    net = desk.folder / "net.py"
    net.write_text(NET, encoding="utf-8")
    manifest = signed(desk)
    (code,) = read_unverified(manifest.read_bytes()).document.code
    assert code.name == "net.py"
    assert f"own code net.py, which sees the records: {code.sha256}" in " ".join(
        privfair("budget", "show", manifest).out.split()
    )
    stolen = desk.folder / "stolen"
    net.write_text(f"open({str(stolen)!r}, 'w').close()\n" + NET, encoding="utf-8")
    with pytest.raises(ManifestRefused, match="is not the file that was signed"):
        desk.train(manifest)
    assert not stolen.exists()
    net.write_text(NET, encoding="utf-8")
    desk.train(manifest)
