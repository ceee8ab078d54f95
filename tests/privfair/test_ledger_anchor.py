"""Old copies, cut ends and lost anchors: what the chain alone cannot see."""

from __future__ import annotations

import hashlib
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.ledger import Claim, Head, Ledger, LedgerAccess, ManifestTerms, RolledBack, Unavailable
from privfair.ledger.journal import AnchorState
from tests.privfair.ledgers import DATASET, open_ledger


def terms(name: str = "m") -> ManifestTerms:
    return ManifestTerms(
        manifest_digest=hashlib.sha256(name.encode()).hexdigest(),
        nonce=f"nonce of {name}",
        envelope_digest=hashlib.sha256(b"envelope").hexdigest(),
        rounds=10,
        epsilon=1.5,
        delta=1e-5,
        dataset=DATASET,
        data_digest=hashlib.sha256(b"data").hexdigest(),
        valid_until=datetime.now(UTC) + timedelta(days=1),
        unit=PrivacyUnit.of(Relation.REPLACE_ONE),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def claim(path: Path) -> Claim:
    return open_ledger(path).claim(terms())


def anchor_of(path: Path) -> Path:
    return path.with_name("ledger.db.anchor")


def test_an_old_copy_put_back_is_refused_and_told_apart(path: Path, claim: Claim, tmp_path: Path) -> None:
    claim.charge(2)
    shutil.copy(path, tmp_path / "backup.db")
    claim.charge(8)
    shutil.copy(tmp_path / "backup.db", path)
    for access in LedgerAccess:
        with pytest.raises(RolledBack, match=r"ends at entry 3, but its anchor has seen entry 4.*old copy") as e:
            Ledger.open(path, access=access)
    assert "treat every manifest claimed in it as spent" in str(e.value)


def test_a_running_process_notices_that_the_rows_went_back(path: Path, claim: Claim, tmp_path: Path) -> None:
    """Also without looking at the anchor: the process remembers what it has seen."""
    claim.charge(2)
    old, old_anchor = path.read_bytes(), anchor_of(path).read_bytes()
    claim.charge(2)
    path.write_bytes(old)
    anchor_of(path).write_bytes(old_anchor)
    with pytest.raises(RolledBack, match=r"entry 4 .* was seen before"):
        claim.charge(2)


def test_reading_everything_again_does_not_forget_what_was_seen(path: Path) -> None:
    ledger = open_ledger(path)
    claim = ledger.claim(terms())
    old, old_anchor = path.read_bytes(), anchor_of(path).read_bytes()
    claim.charge(2)
    path.write_bytes(old)
    anchor_of(path).write_bytes(old_anchor)
    for look in (ledger.verify, ledger.status, ledger.verify):
        with pytest.raises(RolledBack, match=r"entry 3 .* was seen before"):
            look()


@pytest.mark.parametrize("swap", [os.replace, lambda new, old: os.unlink(old)], ids=["replaced", "deleted"])
def test_a_running_process_notices_that_the_file_is_another(
    path: Path, claim: Claim, tmp_path: Path, swap: object
) -> None:
    claim.charge(2)
    shutil.copy(path, tmp_path / "backup.db")
    swap(tmp_path / "backup.db", path)  # type: ignore[operator]
    with pytest.raises(RolledBack, match=r"replaced|gone"):
        claim.charge(2)


def test_a_deleted_ledger_is_not_silently_begun_anew(path: Path, claim: Claim) -> None:
    claim.charge(10)
    path.unlink()
    with pytest.raises(RolledBack, match="it is empty, but its anchor knows 3 entries"):
        open_ledger(path)
    assert not path.exists()


def test_a_crash_between_commit_and_anchor_is_fine(path: Path, claim: Claim) -> None:
    before = anchor_of(path).read_bytes()
    claim.charge(2)
    after = anchor_of(path).read_bytes()
    anchor_of(path).write_bytes(before)
    with Ledger.open(path, access=LedgerAccess.READ) as reader:
        assert reader.status().anchor is AnchorState.BEHIND
    assert anchor_of(path).read_bytes() == before
    with open_ledger(path) as ledger:
        assert ledger.status().anchor is AnchorState.CURRENT
    assert anchor_of(path).read_bytes() == after


def test_a_late_anchor_writer_does_not_move_it_back(path: Path, claim: Claim) -> None:
    from privfair.ledger.journal import AnchorFile

    file = AnchorFile(anchor_of(path))
    early = file.read()
    assert early is not None
    claim.charge(2)
    late = file.read()
    file.advance(early)
    assert file.read() == late


def test_a_missing_anchor_stops_writing_but_not_reading(path: Path, claim: Claim) -> None:
    anchor_of(path).unlink()
    with pytest.raises(RolledBack, match=r"2 entries but its anchor .* is missing"):
        open_ledger(path)
    with Ledger.open(path, access=LedgerAccess.READ) as reader:
        assert reader.status().anchor is AnchorState.ABSENT
        reader.verify()


def test_a_ledger_is_adopted_only_with_an_end_it_had(path: Path, claim: Claim, tmp_path: Path) -> None:
    noted = Ledger.open(path, access=LedgerAccess.READ).anchor().head
    claim.charge(3)
    elsewhere = tmp_path / "other host.anchor"
    with pytest.raises(RolledBack, match=r"entry 2 .* is not there"):
        Ledger.adopt(path, elsewhere, Head(noted.seq, "0" * 64))
    with pytest.raises(RolledBack, match="entry 99"):
        Ledger.adopt(path, elsewhere, Head(99, noted.hash))
    assert not elsewhere.exists()
    with Ledger.adopt(path, elsewhere, noted) as ledger:
        assert ledger.status().anchor is AnchorState.CURRENT


def test_anchors_are_not_mixed_up(path: Path, claim: Claim, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    Ledger.create(other).close()
    with pytest.raises(RolledBack, match="the anchor belongs to"):
        open_ledger(path, tmp_path / "other.db.anchor")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, 2]", b"\xff", b'{"version":2}'])
def test_a_file_that_is_no_anchor_is_refused(path: Path, claim: Claim, content: bytes) -> None:
    anchor_of(path).write_bytes(content)
    with pytest.raises(RolledBack, match="not an anchor"):
        open_ledger(path)


def test_an_anchor_that_cannot_be_written_grants_nothing(path: Path, claim: Claim, tmp_path: Path) -> None:
    """The charge is committed and stays spent, but the caller does not get the rounds.

    The records that were committed with it are not written a second time when the claim goes on.
    """
    claim.charge(1)
    claim.record_release(0, "a", "weights", "0" * 64)
    hidden = tmp_path / "hidden"
    anchor_of(path).rename(hidden)
    anchor_of(path).mkdir()
    with pytest.raises(Unavailable, match="anchor"):
        claim.charge(2)
    anchor_of(path).rmdir()
    hidden.rename(anchor_of(path))
    assert claim.charge(2) == range(3, 5)
    assert len(open_ledger(path).releases(claim.manifest)) == 1


def test_a_creation_cut_short_before_the_anchor_is_completed(path: Path) -> None:
    open_ledger(path).close()
    anchor_of(path).unlink()
    with open_ledger(path) as ledger:
        assert ledger.status().entries == 1
    assert anchor_of(path).exists()


def test_an_anchor_may_live_in_another_folder(path: Path, tmp_path: Path) -> None:
    (tmp_path / "usb").mkdir()
    with open_ledger(path, tmp_path / "usb" / "anchor.json") as ledger:
        ledger.claim(terms()).charge(1)
    assert not anchor_of(path).exists()
    open_ledger(path, tmp_path / "usb" / "anchor.json").verify()
