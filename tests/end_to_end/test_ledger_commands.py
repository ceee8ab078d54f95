"""`privfair ledger` and the sum of several budgets as an officer types them, on one small private run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.ledger import Ledger, LedgerAccess, ManifestTerms
from tests.end_to_end.command_line import config_file, privfair
from tests.privfair.small_runs import GAUSSIAN, Desk


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk.at(tmp_path_factory.mktemp("desk"), GAUSSIAN.format(rate=1.0, rounds=3, more=""))
    desk.train(desk.budget())
    return desk


def test_status_shows_dates_purpose_signers_and_what_was_spent(desk: Desk) -> None:
    found = privfair("ledger", "status", desk.ledger, "--json").json()
    (manifest,), (spent,) = found["manifests"], found["budgets"]
    assert manifest["rounds_charged"] == manifest["rounds_signed"] == 3
    assert manifest["purpose"]
    assert manifest["claimed_at"].endswith("Z")
    assert manifest["signers"][0].startswith("privacy-officer")
    assert (spent["claimed_epsilon"], spent["epsilon"], spent["left"]) == (8.0, None, None)
    text = privfair("ledger", "status", desk.ledger).out
    assert "3 of 3 rounds charged" in text
    assert "signed for no ledger in particular" in text
    assert "its data set was not declared" in text
    shown = privfair("budget", "show", desk.folder / "budget.json").out
    assert "A second use of this budget in another ledger" in " ".join(shown.split())
    assert (manifest["bound"], manifest["dataset_declared"]) == (False, False)
    assert max(map(len, text.splitlines()[1:])) <= 140


def test_a_budget_is_set_shown_as_a_bar_and_enforced(desk: Desk) -> None:
    dataset = privfair("ledger", "status", desk.ledger, "--json").json()["manifests"][0]["dataset"]
    words = ("--ledger", desk.ledger, "--unit", "record", "--epsilon", 10, "--delta", 1e-4)
    done = privfair("ledger", "limit", dataset, *words)
    assert done.code == 0, done.err
    assert "epsilon 8 of 10 [################....] 2 left" in done.out
    assert privfair("ledger", "limit", dataset, *words).code == 3
    second = privfair(
        *("train", desk.plan, "--manifest", desk.budget("second.json"), "--trust", desk.trust),
        *("--ledger", desk.ledger, "--out", desk.folder / "second", "--quiet"),
    )
    assert second.code == 3
    assert "earlier claims took 8 and this one asks for 8" in second.err


def test_backup_and_restore_say_what_they_cost(desk: Desk, tmp_path: Path) -> None:
    copy, place = tmp_path / "copy", tmp_path / "restored.db"
    assert privfair("ledger", "backup", desk.ledger, "--out", copy).code == 0
    assert privfair("ledger", "backup", desk.ledger, "--out", copy).code == 2, "a backup is never overwritten"
    done = privfair("ledger", "restore", copy, place)
    assert done.code == 0, done.err
    assert "every budget is treated as spent" in done.out
    assert privfair("verify", place).code == 0
    assert privfair("ledger", "restore", copy, place).code == 3


def test_a_run_is_abandoned_once(desk: Desk) -> None:
    digest = privfair("ledger", "status", desk.ledger, "--json").json()["manifests"][0]["manifest"]
    why = ("--why", "given up")
    assert privfair("ledger", "abandon", desk.ledger, "--run", digest[:10], *why).code == 3, "it is closed"
    assert privfair("ledger", "abandon", desk.ledger, "--run", "", *why).code == 2


def test_a_lost_anchor_is_made_anew_from_a_noted_end(desk: Desk, tmp_path: Path) -> None:
    noted = privfair("ledger", "status", desk.ledger, "--anchor", "--json").json()
    config = config_file(tmp_path, ledger=desk.ledger, anchor=tmp_path / "anchor")
    words = ("ledger", "restore", desk.ledger, "--config", config, "--head")
    assert privfair(*words, f"{noted['seq']}:{'0' * 64}").code == 3
    assert privfair(*words, noted["head"]).code == 2
    made = privfair(*words, f"{noted['seq']}:{noted['head']}", "--json")
    assert made.json() == noted | {"anchor": str(tmp_path / "anchor")}
    assert privfair("ledger", "status", "--anchor", "--config", config).out == f"{noted['seq']}:{noted['head']}\n"


@pytest.mark.parametrize("command", [("ledger", "init"), ("ledger", "status"), ("ledger", "backup"), ("verify",)])
@pytest.mark.parametrize("place", ["", ".", "/", "no/such/folder/ledger.db", "mysql://x"])
def test_a_place_that_is_none_is_refused_in_one_sentence(
    command: tuple[str, ...], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if command == ("verify",) and place == "/":
        place = ".."  # logs may be in the root folder of the machine
    done = privfair(*command, place, *(("--out", "copy") if "backup" in command else ()))
    assert done.code == 2
    assert len(done.err.splitlines()) == 1


def test_training_makes_no_ledger(desk: Desk, tmp_path: Path) -> None:
    done = privfair(
        *("train", desk.plan, "--manifest", desk.budget("typo.json"), "--trust", desk.trust),
        *("--ledger", tmp_path / "typo.db", "--out", tmp_path / "run", "--quiet"),
    )
    assert done.code == 3
    assert "privfair ledger init" in done.err
    assert not (tmp_path / "typo.db").exists()


def test_a_person_in_several_silos_and_budgets_pays_each(desk: Desk) -> None:
    budget = desk.folder / "budget.json"
    everywhere = privfair("budget", "show", budget, budget, "--json").json()
    assert (everywhere["kind"], everywhere["basic_epsilon"]) == ("composition", 48.0), "three silos, twice"
    assert 8.0 < everywhere["epsilon"] < 48.0, "by Renyi composition"
    twice = privfair("budget", "show", budget, budget, "--silos", 1, "--json").json()
    assert (twice["unit"], twice["basic_epsilon"], twice["delta"], twice["by"]) == ("record", 16.0, 2e-5, "renyi")
    assert "by basic composition, which holds for any: epsilon 16" in privfair(
        "budget", "show", budget, budget, "--silos", 1
    ).out.replace("\n", " ")


def test_a_second_ledger_gives_no_second_run(desk: Desk, tmp_path: Path) -> None:
    """A budget that was signed for a ledger is worth nothing in another one, however new it is."""
    budget, second = tmp_path / "bound.json", tmp_path / "second.db"
    signed = privfair("calibrate", desk.plan, "--ledger", desk.ledger, "--out", budget, "--key", desk.key)
    assert signed.code == 0, signed.err
    assert privfair("ledger", "init", second).code == 0
    done = privfair(
        *("train", desk.plan, "--manifest", budget, "--trust", desk.trust),
        *("--ledger", second, "--out", tmp_path / "run", "--quiet"),
    )
    assert done.code == 3
    assert "it was signed for ledger" in done.err


def test_a_budget_trained_under_twice_is_seen_by_who_compares_logs(desk: Desk, tmp_path: Path) -> None:
    """An unbound budget runs on a second machine; the shared log, or both logs side by side, tell."""
    shared, second = tmp_path / "logs", tmp_path / "second.db"
    shared.mkdir()
    logged = privfair("ledger", "publish", shared, "--ledger", desk.ledger, "--json")
    assert logged.code == 0, logged.err
    head = f"{logged.json()['size']}:{logged.json()['root']}"
    verified = privfair("verify", desk.ledger, "--log", shared, "--json")
    assert (verified.code, verified.json()["kind"], verified.json()["intact"]) == (0, "ledger", True)
    assert privfair("verify", shared, "--log", head).code == 0
    assert privfair("verify", shared, "--log", f"1:{'0' * 64}").code == 3
    digest = privfair("ledger", "status", desk.ledger, "--json").json()["manifests"][0]["manifest"]
    proof, growth = tmp_path / "proof.json", tmp_path / "growth.json"
    proofs = ("--proof", f"{digest[:12]}={proof}", "--proof", f"{head}={growth}")
    assert privfair("ledger", "publish", shared, *proofs).code == 0
    for one in (proof, growth):
        assert privfair("verify", one, "--log", head, "--json").json()["kind"] == "proof"
        assert privfair("verify", one, "--log", shared).code == 0
        assert privfair("verify", one).code == 2
    assert privfair("verify", proof, "--log", f"1:{'0' * 64}").code == 3
    assert privfair("ledger", "publish", shared).code == 2
    assert privfair("ledger", "publish", shared, "--proof", digest).code == 2

    assert privfair("ledger", "init", second).code == 0
    with Ledger.open(second) as ledger, Ledger.open(desk.ledger, access=LedgerAccess.READ) as first:
        claimed = first.status().manifests[0]
        ledger.claim(
            ManifestTerms(
                manifest_digest=claimed.claim.manifest,
                nonce=first.receipts()[0].nonce,
                envelope_digest="e" * 64,
                rounds=1,
                epsilon=1.0,
                delta=1e-5,
                dataset=claimed.claim.dataset,
                data_digest=claimed.claim.data,
                valid_until=datetime.now(UTC) + timedelta(days=1),
                unit=PrivacyUnit.of(Relation.REPLACE_ONE),
            )
        )
    alone = tmp_path / "alone.log"
    assert privfair("ledger", "publish", alone, "--ledger", second).code == 0
    compared = privfair("verify", shared, "--log", alone, "--json")
    assert compared.code == 3
    assert "was used a second time" in compared.json()["problems"][0]
    assert privfair("verify", second, "--log", shared).code == 3, "its claim is not there"
    assert privfair("ledger", "publish", shared, "--ledger", second).code == 3
    assert privfair("verify", shared).code == 3
    alone.write_bytes(b"")
    cut = privfair("verify", second, "--log", alone)
    assert cut.code == 3
    assert "does not begin with them now" in cut.err
    assert privfair("verify", tmp_path / "nothing.log").code == 2
