"""Whom a run trusts: files signed by a root key, in a sequence that nobody can turn back, also while a run goes on."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from calibrate.errors import ManifestRefused, TrustRefused
from calibrate.manifest.issue import add_signature
from calibrate.manifest.keys import Role, generate, load_private, save
from calibrate.manifest.trust import FolderTrust, Revocation, TrustedKey, TrustFile, read_trust
from calibrate.manifest.verify import authenticate, bind, read_unverified
from privfair.ledger import Ledger
from privfair.ledger.entries import TrustRolledBack
from privfair.run.folder import RunFolder
from privfair.run.open_run import TrustInForce
from privfair.run.public import read_folder_plan
from privfair.training import train
from tests.end_to_end.command_line import config_file, privfair
from tests.privfair.small_runs import FEDSGD, Desk

DAY = timedelta(days=1)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A baseline's plan; its officer's key is trusted by a file that a root key has signed."""
    made = Desk.at(tmp_path / "desk", FEDSGD.format(rounds=6, more="block = 2"))
    root = made.folder / "root.pem"
    save(generate(), None, root)
    assert privfair("keys", "trust", "--out", made.trust, "--root", root).code == 0
    return made


def keys(desk: Desk, command: str, *words: object) -> None:
    outcome = privfair("keys", command, *words, "--out", desk.trust, "--root", desk.folder / "root.pem")
    assert outcome.code == 0, outcome.err


def second_officer(desk: Desk) -> Path:
    path = desk.folder / "second.pem"
    save(generate(), Role.PRIVACY_OFFICER, path)
    return path


def run(desk: Desk, manifest: Path, out: str, **more: object) -> None:
    train(
        desk.plan,
        manifest=manifest,
        trust=desk.trust,
        root=desk.folder / "root.pem.pub",
        ledger=desk.ledger,
        out=desk.folder / out,
        **more,  # type: ignore[arg-type]
    )


def test_a_trust_file_from_before_a_revocation_is_not_accepted_again(desk: Desk) -> None:
    second = second_officer(desk)
    keys(desk, "trust", "--key", second, "--role", "privacy-officer", "--append")
    before = desk.trust.read_bytes()
    keys(desk, "revoke", "--key-id", load_private(second).key_id, "--why", "the laptop was stolen")
    run(desk, desk.budget("first.json"), "run")
    desk.trust.write_bytes(before)
    with pytest.raises(TrustRolledBack, match="was seen before"):
        run(desk, desk.budget("third.json"), "again")
    assert not (desk.folder / "again").exists()


def test_a_ledger_that_knows_a_root_key_takes_no_unsigned_trust_file(desk: Desk) -> None:
    run(desk, desk.budget("first.json"), "run")
    plain = read_trust(desk.trust.read_bytes(), load_private(desk.folder / "root.pem").public)
    desk.trust.write_bytes(plain.with_key(TrustedKey.of(generate().public, Role.AUDITOR, datetime.now(UTC))).to_bytes())
    with pytest.raises(TrustRolledBack, match="of the root key"):
        desk.train(desk.budget("second.json"), "again")


def test_two_different_files_of_one_number_are_not_both_accepted(desk: Desk) -> None:
    root = load_private(desk.folder / "root.pem")
    first = read_trust(desk.trust.read_bytes(), root.public)
    start = datetime.now(UTC) - DAY
    one, other = (first.with_key(TrustedKey.of(generate().public, Role.AUDITOR, start)) for _ in range(2))
    desk.budget("first.json")
    with Ledger.open(desk.ledger) as ledger:
        for _ in range(2):
            ledger.remember_trust(one.seen(root.public))
        with pytest.raises(TrustRolledBack):
            ledger.remember_trust(other.seen(root.public))
        assert ledger.verify()[0] == 2


def test_a_key_revoked_in_the_middle_stops_the_run_at_the_next_block_and_its_rounds_stay_spent(desk: Desk) -> None:
    manifest, officer = desk.budget(), load_private(desk.key)
    revoked = False

    def revoke(progress: object) -> None:
        nonlocal revoked
        if not revoked:
            keys(desk, "revoke", "--key-id", officer.key_id, "--why", "the laptop was stolen")
            revoked = True

    with pytest.raises(ManifestRefused, match="was revoked: the laptop was stolen"):
        run(desk, manifest, "run", progress=revoke)
    with Ledger.open(desk.ledger) as ledger:
        (spent,) = ledger.status().manifests
        assert (spent.charged, spent.released_rounds, spent.claim.rounds) == (2, 2, 6)
    with pytest.raises(ManifestRefused, match="revoked"):
        run(desk, manifest, "run", resume=True)
    second = second_officer(desk)
    keys(desk, "trust", "--key", second, "--role", "privacy-officer", "--append")
    manifest.write_bytes(add_signature(manifest.read_bytes(), load_private(second)))
    run(desk, manifest, "run", resume=True)
    with Ledger.open(desk.ledger) as ledger:
        assert ledger.status().manifests[0].charged == 6


def test_a_rotated_key_needs_the_budget_signed_again_by_its_successor(desk: Desk) -> None:
    manifest, second = desk.budget(), second_officer(desk)
    keys(desk, "trust", "--replaces", load_private(desk.key).key_id, "--key", second)
    trusted = read_trust(desk.trust.read_bytes(), load_private(desk.folder / "root.pem").public)
    assert trusted.sequence == 2
    with pytest.raises(ManifestRefused, match="replaced by key"):
        authenticate(manifest.read_bytes(), trusted)
    signed = add_signature(manifest.read_bytes(), load_private(second))
    assert [each.key_id for each in authenticate(signed, trusted).signatures] == [load_private(second).key_id]


def test_a_key_that_expires_during_a_run_stops_it(desk: Desk) -> None:
    manifest, officer, start = desk.budget(), load_private(desk.key), datetime.now(UTC) - DAY
    trust = TrustFile(keys=(TrustedKey.of(officer.public, Role.PRIVACY_OFFICER, start, start + 3 * DAY),))
    path = desk.folder / "short.json"
    path.write_bytes(trust.to_bytes())
    authentic, in_force = authenticate(manifest.read_bytes(), trust), TrustInForce(path)
    in_force.require_signed(authentic, start + 2 * DAY)
    with pytest.raises(ManifestRefused, match="is not valid since"):
        in_force.require_signed(authentic, start + 3 * DAY)
    path.write_bytes(trust.until(start + 2 * DAY).to_bytes())
    with pytest.raises(TrustRefused, match="stale"):
        in_force.require_signed(authentic, start + 2 * DAY)


def test_a_trust_file_replaced_by_an_earlier_one_during_a_run_is_refused(desk: Desk) -> None:
    manifest, officer = desk.budget(), load_private(desk.key)
    first = TrustFile(keys=(TrustedKey.of(officer.public, Role.PRIVACY_OFFICER, datetime.now(UTC) - DAY),))
    path = desk.folder / "plain.json"
    path.write_bytes(first.with_key(TrustedKey.of(generate().public, Role.AUDITOR, datetime.now(UTC))).to_bytes())
    in_force = TrustInForce(path)
    path.write_bytes(first.to_bytes())
    with pytest.raises(TrustRefused, match="sequence 1, but 2 was seen"):
        in_force.require_signed(authenticate(manifest.read_bytes(), first))
    revoked = first.with_revoked(officer.key_id, Revocation(at=datetime.now(UTC) - DAY, why="left"))
    path.write_bytes(revoked.with_key(TrustedKey.of(generate().public, Role.AUDITOR, datetime.now(UTC))).to_bytes())
    with pytest.raises(ManifestRefused, match="revoked"):
        in_force.require_signed(authenticate(manifest.read_bytes(), first))


def test_a_signed_trust_file_is_changed_with_its_root_key_alone(desk: Desk) -> None:
    words = ("keys", "trust", "--key", second_officer(desk), "--role", "privacy-officer", "--append")
    outcome = privfair(*words, "--out", desk.trust)
    assert (outcome.code, outcome.err.count("\n")) == (3, 1)
    assert "give the root key" in outcome.err
    stranger = desk.folder / "stranger.pem"
    assert privfair("keys", "generate", "--role", "root", "--out", stranger).code == 0
    outcome = privfair(*words, "--out", desk.trust, "--root", stranger)
    assert (outcome.code, "not signed by the root key" in outcome.err) == (3, True)


@pytest.mark.parametrize(
    "words",
    [
        ("trust", "--key", "KEY", "--role", "privacy-officer", "--valid-days", "4000000"),
        ("trust", "--key", "KEY", "--role", "privacy-officer", "--file-valid-days", "4000000"),
        ("revoke", "--key-id", "ID", "--why", ""),
        ("revoke", "--key-id", "ID", "--why", "two\nlines"),
    ],
)
def test_impossible_days_and_empty_reasons_are_one_sentence(words: tuple[str, ...], desk: Desk) -> None:
    officer = load_private(desk.key)
    given = [str(desk.key) if word == "KEY" else officer.key_id if word == "ID" else word for word in words]
    outcome = privfair("keys", *given, "--out", desk.folder / "new.json")
    assert outcome.code == 2, outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.err.strip().splitlines()[-1].count(". ") == 0


def test_a_report_says_in_red_that_nobody_checked_and_names_a_forgery(desk: Desk) -> None:
    run(desk, desk.budget(), "run")
    page, folder = desk.folder / "report.html", desk.folder / "run"
    outcome = privfair("report", folder, "--out", page)
    assert outcome.code == 0
    assert "SIGNATURES NOT CHECKED" in outcome.out
    assert '<section class="verdict violated"><div class="word">Signatures not checked</div>' in page.read_text("utf-8")
    trust = ("--config", config_file(desk.folder, trust=desk.trust, root=desk.folder / "root.pem.pub"))
    assert privfair("report", folder, *trust, "--out", page).code == 0
    text = page.read_text("utf-8")
    assert "Signatures not checked" not in text
    assert f"signed by the privacy-officer (key {load_private(desk.key).key_id[:12]})" in text
    envelope = json.loads((folder / "budget.json").read_bytes())
    payload = base64.b64decode(envelope["payload"]).replace(b'"a test"', b'"a toast"')
    envelope["payload"] = base64.b64encode(payload).decode()
    (folder / "budget.json").write_text(json.dumps(envelope), encoding="utf-8")
    page.unlink()
    outcome = privfair("report", folder, *trust, "--out", page)
    assert outcome.code == 3
    assert "forged, or was changed after it was signed" in outcome.err
    assert not page.exists()


def test_a_manifest_read_after_it_expired_cannot_be_bound_to_a_run(desk: Desk) -> None:
    manifest, root = desk.budget().read_bytes(), load_private(desk.folder / "root.pem").public
    trusted = read_trust(desk.trust.read_bytes(), root)
    late = read_unverified(manifest).document.validity.not_after + DAY
    with pytest.raises(ManifestRefused, match="expired"):
        authenticate(manifest, trusted, late)
    read = authenticate(manifest, trusted, late, for_reading=True)
    with pytest.raises(ManifestRefused, match="for reading only"):
        bind(read, None)  # type: ignore[arg-type]


def test_a_root_key_gives_way_to_a_new_one_and_is_taken_no_more(desk: Desk) -> None:
    """A ledger takes the new root key's files after it saw the old one name it, and then none of the old one."""
    old, new, handover = desk.folder / "root.pem", desk.folder / "new-root.pem", desk.folder / "trust-handover.json"
    save(generate(), None, new)
    run(desk, desk.budget(), "first")
    before = desk.trust.read_bytes()
    words = ("keys", "trust", "--out", desk.trust, "--root", old)
    assert privfair(*words, "--new-root", old).code == 3
    rotated = privfair(*words, "--new-root", new)
    assert rotated.code == 0, rotated.err
    assert privfair(*words, "--new-root", new).code == 3, "the handover exists"

    note = ("keys", "trust", "--ledger", desk.ledger)
    unseen = privfair(*note, "--out", desk.trust, "--root", new.with_suffix(".pem.pub"))
    assert unseen.code == 3
    assert "takes trust files of the root key" in unseen.err
    shown = privfair(*note, "--out", handover, "--root", old.with_suffix(".pem.pub"), "--json")
    assert shown.code == 0, shown.err
    assert shown.json()["successor"] == load_private(new).key_id
    read = read_trust(handover.read_bytes(), load_private(old).public)
    again = desk.folder / "again.json"
    again.write_bytes(read.until(datetime.now(UTC).replace(microsecond=0) + DAY).signed(load_private(old)))
    refused = privfair(*note, "--out", again, "--root", old.with_suffix(".pem.pub"))
    assert refused.code == 3
    assert "handed over to the root key" in refused.err

    assert privfair(*note, "--out", desk.trust, "--root", new.with_suffix(".pem.pub")).code == 0
    for content, root in ((before, old), (handover.read_bytes(), old)):
        again.write_bytes(content)
        assert privfair(*note, "--out", again, "--root", root.with_suffix(".pem.pub")).code == 3
    train(
        desk.plan,
        manifest=desk.budget("second.json"),
        trust=desk.trust,
        root=new.with_suffix(".pem.pub"),
        ledger=desk.ledger,
        out=desk.folder / "second",
    )
    with Ledger.open(desk.ledger) as ledger:
        ledger.verify()


def test_a_run_stays_readable_after_its_officers_key_expired_and_nothing_can_be_spent(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages and predictions say that the key has expired; training refuses, and so does what was issued afterwards."""
    from calibrate.manifest import verify

    run(desk, desk.budget(), "run")
    folder, page = desk.folder / "run", desk.folder / "page.html"
    trusted = read_trust(desk.trust.read_bytes(), load_private(desk.folder / "root.pem").public)
    late = trusted.keys[0].valid_until + DAY
    monkeypatch.setattr(verify, "_instant", lambda at: late if at is None else at)
    configured = ("--config", config_file(desk.folder, trust=desk.trust, root=desk.folder / "root.pem.pub"))
    said = f"expired since: {load_private(desk.key).key_id[:12]} (privacy-officer)"
    for words in (
        ("budget", "show", folder / "budget.json", *configured),
        ("budget", "show", folder / "budget.json", "--explain", *configured),
        ("predict", folder, "--input", desk.folder / "north.csv", *configured, "--out", desk.folder / "predicted.csv"),
        ("report", folder, *configured, "--out", page),
    ):
        outcome = privfair(*words)
        assert outcome.code == 0, outcome.err
        shown = page.read_text("utf-8") if words[0] == "report" else outcome.out
        assert said in " ".join(shown.split()), words
    found = read_folder_plan(RunFolder(folder), FolderTrust(trusted))
    assert found.authentic is not None
    assert found.authentic.remark is not None
    assert said in found.authentic.remark
    with pytest.raises(ManifestRefused, match="is not valid since"):
        run(desk, desk.budget("later.json"), "later")
    with pytest.raises(ManifestRefused, match="is not valid since"):
        authenticate((folder / "budget.json").read_bytes(), trusted)

    issued = read_unverified((folder / "budget.json").read_bytes()).document.validity.issued_at
    old = trusted.keys[0].model_copy(update={"valid_from": issued - 9 * DAY, "valid_until": issued - DAY})
    with pytest.raises(ManifestRefused, match="is not valid since"):
        authenticate((folder / "budget.json").read_bytes(), TrustFile(keys=(old,)), for_reading=True)
    revoked = trusted.with_revoked(old.key_id, Revocation(at=late - DAY, why="lost"))
    with pytest.raises(ManifestRefused, match="was revoked: lost"):
        authenticate((folder / "budget.json").read_bytes(), revoked, for_reading=True)


def test_a_run_stays_readable_after_its_budget_expired(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit or a prediction under --trust spends nothing, so the budget's window does not matter to it."""
    from calibrate.manifest import verify

    run(desk, desk.budget(), "run")
    root = load_private(desk.folder / "root.pem").public
    trusted = read_trust(desk.trust.read_bytes(), root)
    late = read_unverified(desk.budget().read_bytes()).document.validity.not_after + DAY
    monkeypatch.setattr(verify, "_instant", lambda at: late)
    found = read_folder_plan(RunFolder(desk.folder / "run"), FolderTrust(trusted))
    assert found.authentic is not None
    configured = ("--config", config_file(desk.folder, trust=desk.trust, root=desk.folder / "root.pem.pub"))
    assert privfair("budget", "show", desk.folder / "run" / "budget.json", *configured).code == 0
    assert privfair("verify", desk.folder / "run" / "budget.json", *configured).code == 3
