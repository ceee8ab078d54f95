"""Claim once, charge ahead, release once, never refund: the rules a trainer meets."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from calibrate.errors import InvalidInput, LedgerRefused
from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.ledger import (
    ClaimEnded,
    ClaimState,
    ClaimToken,
    Ledger,
    LedgerAccess,
    ManifestTerms,
    Release,
    Unavailable,
    UnknownClaim,
)
from privfair.ledger.entries import AlreadyClaimed, AlreadyReleased, ClaimSuperseded, RoundNotHeld, RoundsExhausted
from tests.privfair.ledgers import DATASET, open_ledger

START = datetime(2030, 1, 1, tzinfo=UTC)
UNIT = PrivacyUnit.of(Relation.REPLACE_ONE)
DATA = hashlib.sha256(b"data").hexdigest()
BYTES = hashlib.sha256(b"published bytes").hexdigest()


def terms(name: str = "m", **changes: object) -> ManifestTerms:
    content: dict[str, object] = {
        "manifest_digest": hashlib.sha256(name.encode()).hexdigest(),
        "nonce": f"nonce of {name}",
        "envelope_digest": hashlib.sha256(b"envelope" + name.encode()).hexdigest(),
        "rounds": 10,
        "epsilon": 1.0,
        "delta": 1e-5,
        "dataset": DATASET,
        "data_digest": DATA,
        "valid_until": START + timedelta(days=1),
        "unit": UNIT,
    }
    return ManifestTerms(**{**content, **changes})  # type: ignore[arg-type]


class Clock:
    """A clock the test can move."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Ledger:
    return open_ledger(tmp_path / "ledger.db", now=clock)


def test_a_run_from_claim_to_close_is_all_in_the_status(ledger: Ledger) -> None:
    claim = ledger.claim(terms(), claimant="trainer of ward 3")
    assert claim.charge(4) == range(4)
    assert claim.charge(6) == range(4, 10)
    for number in range(9):
        for party in ("a", "b"):
            claim.record_release(number, party, "weights", BYTES)
    claim.close(transcript_digest=BYTES)

    (status,) = ledger.status().manifests
    assert (status.claim.rounds, status.charged, status.released_rounds, status.releases) == (10, 10, 9, 18)
    assert (status.claim.epsilon, status.claim.delta, status.state) == (1.0, 1e-5, ClaimState.CLOSED)
    assert (status.claim.claimant, status.claim_hash) == ("trainer of ward 3", claim.head.hash)
    assert status.transcript_digest == BYTES
    assert ledger.releases(claim.manifest)[:2] == (Release(0, "a", "weights", BYTES), Release(0, "b", "weights", BYTES))


def test_a_manifest_is_claimed_once_and_the_second_is_told_by_whom(ledger: Ledger) -> None:
    ledger.claim(terms(), claimant="the first trainer")
    with pytest.raises(AlreadyClaimed, match="the first trainer"):
        ledger.claim(terms())


def test_a_nonce_is_used_once_even_by_another_manifest(ledger: Ledger) -> None:
    ledger.claim(terms("m"))
    with pytest.raises(AlreadyClaimed, match="nonce"):
        ledger.claim(terms("other", nonce="nonce of m"))


def test_a_token_belongs_to_one_claim(ledger: Ledger) -> None:
    token = ledger.claim(terms()).token
    with pytest.raises(AlreadyClaimed, match="token"):
        ledger.claim(terms("other"), token)


def test_a_refusal_names_manifest_rule_and_remedy_and_has_exit_code_3(ledger: Ledger) -> None:
    claim = ledger.claim(terms())
    claim.charge(8)
    with pytest.raises(RoundsExhausted) as caught:
        claim.charge(3)
    message = str(caught.value)
    assert claim.manifest[:12] in message
    assert "rounds 8 to 10" in message
    assert "10 rounds were signed and 8 are spent" in message
    assert "ask for at most 2" in message
    assert isinstance(caught.value, LedgerRefused)
    assert caught.value.exit_code == 3


def test_a_refused_charge_costs_nothing(ledger: Ledger) -> None:
    claim = ledger.claim(terms())
    with pytest.raises(RoundsExhausted):
        claim.charge(11)
    assert claim.charge(10) == range(10)


def test_charging_ahead_takes_what_is_left_then_refuses(ledger: Ledger) -> None:
    claim = ledger.claim(terms())
    assert claim.charge_ahead(7) == range(7)
    assert claim.charge_ahead(7) == range(7, 10)
    assert claim.remaining == 0
    with pytest.raises(RoundsExhausted):
        claim.charge_ahead(7)


@pytest.mark.parametrize("rounds", [0, -1, True, 1.5])
def test_a_charge_is_a_whole_positive_number_of_rounds(ledger: Ledger, rounds: object) -> None:
    with pytest.raises(InvalidInput):
        ledger.claim(terms()).charge(rounds)  # type: ignore[arg-type]


def test_only_charged_rounds_are_released(ledger: Ledger) -> None:
    claim = ledger.claim(terms())
    claim.charge(2)
    with pytest.raises(RoundNotHeld, match=r"round 2 .* only rounds below 2 are charged"):
        claim.record_release(2, "a", "weights", BYTES)


def test_a_value_is_released_once_a_round_before_and_after_it_is_written(ledger: Ledger) -> None:
    claim = ledger.claim(terms())
    claim.charge(2)
    claim.record_release(0, "a", "weights", BYTES)
    with pytest.raises(AlreadyReleased):
        claim.require_unreleased(0, "a", "weights")
    claim.flush()
    with pytest.raises(AlreadyReleased, match="'weights' of 'a' in round 0"):
        claim.record_release(0, "a", "weights", BYTES)
    claim.record_release(0, "a", "bias", BYTES)
    claim.record_release(0, "b", "weights", BYTES)
    claim.record_release(1, "a", "weights", BYTES)
    claim.flush()
    assert len(ledger.releases(claim.manifest)) == 4


def test_records_wait_for_the_next_charge_and_share_its_transaction(ledger: Ledger) -> None:
    claim = ledger.claim(terms())
    claim.charge(1)
    claim.record_release(0, "a", "weights", BYTES)
    entries = ledger.status().entries
    assert ledger.releases(claim.manifest) == ()
    claim.charge(1)
    assert len(ledger.releases(claim.manifest)) == 1
    assert ledger.status().entries == entries + 2


def test_many_records_are_split_over_entries(ledger: Ledger) -> None:
    claim = ledger.claim(terms())
    claim.charge(1)
    for number in range(4100):
        claim.record_release(0, f"silo {number}", "weights", BYTES)
    entries = ledger.status().entries
    claim.flush()
    assert ledger.status().entries == entries + 3
    assert len(ledger.releases(claim.manifest)) == 4100


def test_after_a_crash_the_rest_of_the_block_is_spent_and_rounds_are_fresh(ledger: Ledger, tmp_path: Path) -> None:
    token = ClaimToken.fresh()
    token.save(tmp_path / "token")
    crashed = ledger.claim(terms(), token)
    crashed.charge(6)
    crashed.record_release(0, "a", "weights", BYTES)  # never flushed: the process is gone

    resumed = ledger.resume(ClaimToken.load(tmp_path / "token"))
    assert (resumed.charged, resumed.remaining, resumed.held) == (6, 4, range(6, 6))
    with pytest.raises(RoundNotHeld, match="an earlier session charged it"):
        resumed.record_release(3, "a", "weights", BYTES)
    assert resumed.charge(4) == range(6, 10)
    resumed.record_release(6, "a", "weights", BYTES)


def test_a_resumed_claim_stops_the_session_before_it(ledger: Ledger) -> None:
    first = ledger.claim(terms())
    first.charge(1)
    first.record_release(0, "a", "weights", BYTES)
    second = ledger.resume(first.token)
    with pytest.raises(ClaimSuperseded, match="session 1 was superseded by session 2"):
        first.charge(1)
    first.flush()  # what was published is still written down
    assert second.charge(1) == range(1, 2)
    assert len(ledger.releases(first.manifest)) == 1


def test_resuming_needs_the_token_of_the_claim(ledger: Ledger) -> None:
    ledger.claim(terms())
    with pytest.raises(UnknownClaim, match="no claim in this ledger was made with this token"):
        ledger.resume(ClaimToken.fresh())


def test_lost_records_come_back_from_the_transcript_once(ledger: Ledger) -> None:
    crashed = ledger.claim(terms())
    crashed.charge(3)
    crashed.record_release(0, "a", "weights", BYTES)
    crashed.flush()
    published = [Release(number, "a", "weights", BYTES) for number in range(2)]
    resumed = ledger.resume(crashed.token)
    assert resumed.reconcile(published) == 1
    assert resumed.reconcile(published) == 0
    assert set(ledger.releases(crashed.manifest)) == set(published)


def test_a_redrawn_value_is_caught_when_reconciling(ledger: Ledger) -> None:
    crashed = ledger.claim(terms())
    crashed.charge(3)
    crashed.record_release(0, "a", "weights", BYTES)
    crashed.flush()
    with pytest.raises(AlreadyReleased, match="noise was drawn twice"):
        ledger.resume(crashed.token).reconcile([Release(0, "a", "weights", "0" * 64)])
    with pytest.raises(RoundNotHeld, match="round 3"):
        ledger.resume(crashed.token).reconcile([Release(3, "a", "weights", BYTES)])


def test_a_closed_claim_stays_closed(ledger: Ledger) -> None:
    claim = ledger.claim(terms())
    claim.charge(1)
    claim.close()
    with pytest.raises(ClaimEnded, match="closed it"):
        claim.charge(1)
    with pytest.raises(ClaimEnded):
        claim.close()
    with pytest.raises(ClaimEnded):
        ledger.resume(claim.token)


def test_an_expired_manifest_can_neither_be_claimed_nor_charged(ledger: Ledger, clock: Clock) -> None:
    claim = ledger.claim(terms())
    claim.charge(1)
    claim.record_release(0, "a", "weights", BYTES)
    clock.time = START + timedelta(days=1)
    with pytest.raises(ClaimEnded, match="expired at 2030-01-02T00:00:00Z"):
        claim.charge(1)
    with pytest.raises(ClaimEnded, match="expired"):
        ledger.claim(terms("other"))
    claim.close()  # what happened in time can still be written down
    assert ledger.status().manifests[0].releases == 1


def test_a_reader_changes_nothing(ledger: Ledger, tmp_path: Path) -> None:
    ledger.claim(terms())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with Ledger.open(tmp_path / "ledger.db", access=LedgerAccess.READ) as reader:
        assert reader.status().manifests == ledger.status().manifests
        with pytest.raises(Unavailable, match="reading only"):
            reader.claim(terms("other"))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_reader_does_not_create_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no ledger here"):
        Ledger.open(tmp_path / "none.db", access=LedgerAccess.READ)
    assert list(tmp_path.iterdir()) == []


def test_two_open_ledgers_see_each_others_entries(ledger: Ledger, tmp_path: Path, clock: Clock) -> None:
    other = open_ledger(tmp_path / "ledger.db", now=clock)
    claim = ledger.claim(terms())
    with pytest.raises(AlreadyClaimed):
        other.claim(terms())
    claim.charge(3)
    assert other.status().manifests[0].charged == 3
    assert other.resume(claim.token).charge(1) == range(3, 4)


def test_a_fork_does_not_inherit_the_rounds(ledger: Ledger) -> None:
    claim = ledger.claim(terms())
    claim.charge(2)
    child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child
        refused = 0
        for act in (
            lambda: claim.require_unreleased(0, "a", "w"),
            lambda: claim.record_release(0, "a", "w", BYTES),
            lambda: claim.charge(1),
            ledger.status,
        ):
            try:
                act()
            except ClaimSuperseded:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    claim.record_release(0, "a", "w", BYTES)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_neither_ledger_nor_claim_can_be_copied(ledger: Ledger, copied: object) -> None:
    claim = ledger.claim(terms())
    for original in (ledger, claim):
        with pytest.raises(TypeError, match="cannot be copied"):
            copied(original)  # type: ignore[operator]


def test_the_token_is_secret(ledger: Ledger, tmp_path: Path) -> None:
    token = ClaimToken.fresh()
    token.save(tmp_path / "token")
    ledger.claim(terms(), token)
    assert token.secret not in repr(token)
    assert token.secret.encode() not in (tmp_path / "ledger.db").read_bytes()
    assert (tmp_path / "token").stat().st_mode & 0o077 == 0
    with pytest.raises(FileExistsError):
        token.save(tmp_path / "token")
