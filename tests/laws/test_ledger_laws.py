"""The ledger against a model of it, and any change to a chain against the reader."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.ledger import Claim, ClaimEnded, ClaimState, ManifestTerms, RolledBack
from privfair.ledger.book import Book
from privfair.ledger.entries import (
    UNIT_OF_TEXT,
    AlreadyClaimed,
    AlreadyReleased,
    Charged,
    Claimed,
    ClaimSuperseded,
    Closed,
    Entry,
    Link,
    NotIntact,
    Opened,
    Released,
    Resumed,
    RoundNotHeld,
    RoundsExhausted,
    decode,
    encode,
    link,
)
from tests.privfair.ledgers import DATASET, open_ledger

BYTES = hashlib.sha256(b"bytes").hexdigest()
PARTIES = st.sampled_from(["a", "b"])
NAMES = st.sampled_from(["weights", "theta"])
MANIFESTS = st.sampled_from(["m1", "m2"])


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


@dataclass
class Model:
    """What one manifest's account must be, kept the simplest way."""

    rounds: int
    session: int = 1
    owner: list[int] = field(default_factory=list)  # owner[r]: the session that charged round r
    written: set[tuple[int, str, str]] = field(default_factory=set)
    closed: bool = False


@dataclass
class Session:
    """A claim object of the real ledger, and what it must know."""

    claim: Claim
    model: Model
    number: int
    waiting: set[tuple[int, str, str]] = field(default_factory=set)
    released: set[tuple[int, str, str]] = field(default_factory=set)


class LedgerMachine(RuleBasedStateMachine):
    """Random claims, charges, releases, crashes, closings and rollbacks."""

    sessions = Bundle("sessions")

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.ledger = open_ledger(self.folder / "ledger.db")
        self.models: dict[str, Model] = {}

    @rule(target=sessions, name=MANIFESTS, rounds=st.integers(1, 12))
    def claim(self, name: str, rounds: int) -> Session | object:
        terms = ManifestTerms(
            manifest_digest=digest(name),
            nonce=name,
            envelope_digest=digest("envelope"),
            rounds=rounds,
            epsilon=1.0,
            delta=1e-5,
            dataset=DATASET,
            data_digest=digest("data"),
            valid_until=datetime.now(UTC) + timedelta(days=1),
            unit=PrivacyUnit.of(Relation.REPLACE_ONE),
        )
        if name in self.models:
            with pytest.raises(AlreadyClaimed):
                self.ledger.claim(terms)
            return multiple()
        self.models[name] = Model(rounds)
        return Session(self.ledger.claim(terms), self.models[name], 1)

    @rule(target=sessions, old=sessions)
    def resume(self, old: Session) -> Session | object:
        if old.model.closed:
            with pytest.raises(ClaimEnded):
                self.ledger.resume(old.claim.token)
            return multiple()
        old.model.session += 1
        new = self.ledger.resume(old.claim.token)
        assert (new.session, new.charged) == (old.model.session, len(old.model.owner))
        return Session(new, old.model, old.model.session)

    @rule(session=sessions, rounds=st.integers(1, 6))
    def charge(self, session: Session, rounds: int) -> None:
        model, first = session.model, len(session.model.owner)
        refusal: type[Exception] | None = None
        if model.closed:
            refusal = ClaimEnded
        elif session.number != model.session:
            refusal = ClaimSuperseded
        elif first + rounds > model.rounds:
            refusal = RoundsExhausted
        if refusal is not None:
            with pytest.raises(refusal):
                session.claim.charge(rounds)
            return
        assert session.claim.charge(rounds) == range(first, first + rounds)
        model.owner += [session.number] * rounds
        self._written(session)

    @rule(session=sessions, number=st.integers(0, 12), party=PARTIES, name=NAMES)
    def release(self, session: Session, number: int, party: str, name: str) -> None:
        key = (number, party, name)
        owner = session.model.owner
        if number >= len(owner) or owner[number] != session.number:
            with pytest.raises(RoundNotHeld):
                session.claim.record_release(*key, BYTES)
        elif key in session.released:
            with pytest.raises(AlreadyReleased):
                session.claim.record_release(*key, BYTES)
        else:
            session.claim.record_release(*key, BYTES)
            session.waiting.add(key)
            session.released.add(key)

    @rule(session=sessions)
    def flush(self, session: Session) -> None:
        if session.model.closed and session.waiting:
            with pytest.raises(ClaimEnded):
                session.claim.flush()
        else:
            session.claim.flush()
            self._written(session)

    @rule(session=sessions)
    def close(self, session: Session) -> None:
        if session.model.closed or session.number != session.model.session:
            with pytest.raises((ClaimEnded, ClaimSuperseded)):
                session.claim.close()
            return
        session.claim.close()
        self._written(session)
        session.model.closed = True

    @rule(session=consumes(sessions))
    def crash(self, session: Session) -> None:
        """The process is gone: its records that wait are lost, its charges are not."""
        session.waiting.clear()
        self.ledger.verify()

    @rule()
    def open_again(self) -> None:
        with open_ledger(self.folder / "ledger.db") as second:
            assert second.verify() == self.ledger.verify()

    @rule()
    def roll_back(self) -> None:
        """An old copy of the file is refused; the newest one is then put back."""
        if not hasattr(self, "backup"):
            self.backup = (self.folder / "ledger.db").read_bytes()
            self.backup_seq = self.ledger.anchor().head.seq
            return
        newest, seq = (self.folder / "ledger.db").read_bytes(), self.ledger.anchor().head.seq
        (self.folder / "ledger.db").write_bytes(self.backup)
        if seq > self.backup_seq:
            with pytest.raises(RolledBack):
                open_ledger(self.folder / "ledger.db")
            with pytest.raises(RolledBack):
                self.ledger.status()
        (self.folder / "ledger.db").write_bytes(newest)
        del self.backup

    @invariant()
    def the_status_is_the_model(self) -> None:
        if not hasattr(self, "ledger"):
            return
        found = {status.claim.manifest: status for status in self.ledger.status().manifests}
        assert found.keys() == {digest(name) for name in self.models}
        for name, model in self.models.items():
            status = found[digest(name)]
            assert status.charged == len(model.owner) <= model.rounds == status.claim.rounds
            assert status.releases == len(model.written)
            assert status.released_rounds == len({key[0] for key in model.written})
            assert (status.state is ClaimState.CLOSED) == model.closed

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
            shutil.rmtree(self.folder)

    @staticmethod
    def _written(session: Session) -> None:
        session.model.written |= session.waiting
        session.waiting.clear()


TestLedgerAgainstItsModel = LedgerMachine.TestCase
TestLedgerAgainstItsModel.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def history() -> tuple[Link, ...]:
    """A small ledger with releases, as rows."""
    at, manifest = "2030-01-01T00:00:00Z", digest("m")
    drafts = [
        partial(Opened, ledger=digest("ledger")),
        partial(
            Claimed,
            manifest=manifest,
            nonce="n",
            envelope=digest("e"),
            rounds=9,
            epsilon=1.5,
            delta=1e-5,
            dataset=DATASET,
            data=digest("d"),
            unit="record by replace-one",
            ledgers=(digest("ledger"),),
            purpose="a test",
            signers=("privacy-officer",),
            valid_until="2031-01-01T00:00:00Z",
            claimant="c",
            token=digest("t"),
        ),
        partial(Charged, manifest=manifest, session=1, first=0, end=4),
        partial(Released, manifest=manifest, session=1, values=((0, "a", "w", BYTES), (3, "b", "w", BYTES))),
        partial(Resumed, manifest=manifest, session=2, claimant="c"),
        partial(Charged, manifest=manifest, session=2, first=4, end=9),
        partial(Closed, manifest=manifest, session=2, transcript=None, abandoned=None),
    ]
    links: list[Link] = []
    for seq, draft in enumerate(drafts, start=1):
        links.append(link(draft(seq=seq, prev=links[-1].hash if links else "0" * 64, at=at)))
    return tuple(links)


HISTORY = history()


def read(rows: list[Link]) -> Book:
    book = Book()
    for row in rows:
        book.replay(row)
    return book


def test_the_history_itself_is_accepted() -> None:
    assert read(list(HISTORY)).head == HISTORY[-1].head


@pytest.mark.slow
@given(
    at=st.integers(0, len(HISTORY) - 1),
    column=st.sampled_from(["seq", "prev", "hash", "body"]),
    place=st.integers(0, 10**6),
    other=st.characters(codec="utf-8"),
)
@settings(max_examples=400, deadline=None)
def test_one_changed_character_anywhere_is_found(at: int, column: str, place: int, other: str) -> None:
    row = HISTORY[at]
    if column == "seq":
        changed = dataclasses.replace(row, seq=row.seq + 1 + place)
    else:
        text = getattr(row, column)
        place %= len(text)
        changed = dataclasses.replace(row, **{column: text[:place] + other + text[place + 1 :]})
    rows = [*HISTORY[:at], changed, *HISTORY[at + 1 :]]
    if changed == row:
        assert read(rows).head == HISTORY[-1].head
    else:
        with pytest.raises(NotIntact):
            read(rows)


@pytest.mark.parametrize("at", range(len(HISTORY)))
def test_an_entry_rewritten_with_its_own_digest_breaks_the_next_one(at: int) -> None:
    """Only the last entry can be exchanged without a trace in the chain: the anchor sees that one."""
    entry = decode(HISTORY[at].body)
    forged = link(entry.model_copy(update={"at": "2030-01-01T00:00:01Z"}))
    rows = [*HISTORY[:at], forged, *HISTORY[at + 1 :]]
    if at == len(HISTORY) - 1:
        assert not read(rows).contains(HISTORY[-1].head)
    else:
        with pytest.raises(NotIntact, match=f"entry {at + 2}: it does not follow"):
            read(rows)


@pytest.mark.parametrize("change", [{"seq": 99}, {"prev": "0" * 64}])
@pytest.mark.parametrize("columns", ["as the text says", "as the chain needs"])
def test_an_entry_for_another_place_does_not_fit_whatever_its_columns_say(
    change: dict[str, object], columns: str
) -> None:
    last = HISTORY[-1]
    forged = link(decode(last.body).model_copy(update=change))
    if columns == "as the chain needs":
        forged = dataclasses.replace(forged, seq=last.seq, prev=last.prev)
    with pytest.raises(NotIntact, match=r"entry 7: (it does not follow|the entry is missing|.*another place)"):
        read([*HISTORY[:-1], forged])


@given(st.lists(st.sampled_from(HISTORY), min_size=1, max_size=len(HISTORY) + 1))
@settings(max_examples=300, deadline=None)
def test_any_other_selection_or_order_of_rows_is_refused_unless_it_is_a_beginning(rows: list[Link]) -> None:
    if rows == list(HISTORY[: len(rows)]):
        read(rows)
    else:
        with pytest.raises(NotIntact):
            read(rows)


NUMBERS = st.integers(1, 2**53 - 1)
LABELS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=50)
DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)
VALUES = st.tuples(st.integers(0, 2**53 - 1), LABELS, LABELS, DIGESTS)
ENTRIES: st.SearchStrategy[Entry] = st.one_of(
    st.builds(
        Released,
        seq=NUMBERS,
        prev=DIGESTS,
        at=st.just("2030-01-01T00:00:00Z"),
        manifest=DIGESTS,
        session=NUMBERS,
        values=st.lists(VALUES, min_size=1, max_size=5).map(tuple),
    ),
    st.builds(
        Claimed,
        seq=NUMBERS,
        prev=DIGESTS,
        at=st.just("2030-01-01T00:00:00Z"),
        manifest=DIGESTS,
        nonce=LABELS,
        envelope=DIGESTS,
        rounds=NUMBERS,
        epsilon=st.floats(min_value=1e-300, allow_infinity=False),
        delta=st.floats(min_value=0, max_value=1, exclude_max=True),
        dataset=LABELS,
        data=DIGESTS,
        unit=st.sampled_from(sorted(UNIT_OF_TEXT)),
        ledgers=st.lists(DIGESTS, max_size=3).map(tuple),
        purpose=st.text(st.characters(codec="utf-8"), max_size=50),
        signers=st.lists(LABELS, max_size=3).map(tuple),
        valid_until=st.just("2031-01-01T00:00:00Z"),
        claimant=LABELS,
        token=DIGESTS,
    ),
)


@given(ENTRIES)
def test_an_entry_is_what_its_text_says_and_the_text_is_canonical(entry: Entry) -> None:
    body = encode(entry)
    assert decode(body) == entry
    assert body.encode() == rfc8785.dumps(entry.model_dump(mode="json"))
