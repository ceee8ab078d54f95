"""Somebody edits the ledger file: every change is found, and found before anything is granted."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import rfc8785

from calibrate.errors import LedgerRefused
from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.ledger import Ledger, LedgerAccess, ManifestTerms, RolledBack, Unavailable
from privfair.ledger.entries import NotIntact
from tests.privfair.ledgers import DATASET, open_ledger

TABLE = "privfair_ledger"
SECOND = f"(SELECT hash FROM {TABLE} WHERE seq = 2)"
BYTES = hashlib.sha256(b"published bytes").hexdigest()


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
    """A ledger with an entry of each kind; claim 'm' has 8 of 10 rounds charged and is open."""
    place = tmp_path / "ledger.db"
    with open_ledger(place) as ledger:
        ledger.set_budget("0" * 64, PrivacyUnit.of(Relation.REPLACE_ONE), 1.0, 1e-5)
        done = ledger.claim(terms("done"))
        done.close()
        claim = ledger.claim(terms())
        claim.charge(4)
        claim.record_release(0, "a", "weights", BYTES)
        claim.flush()
        claim = ledger.resume(claim.token)
        claim.charge(4)
        claim.record_release(4, "a", "weights", BYTES)
        claim.flush()
    return place


@contextmanager
def surgery(path: Path) -> Iterator[sqlite3.Connection]:
    """Edit the file as its owner can: guards off, change, guards on again as if nothing had been."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        guards = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in guards:
            connection.execute(f"DROP TRIGGER {name}")
        yield connection
        for _, sql in guards:
            connection.execute(sql)


def rows(path: Path) -> list[tuple[int, str, str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT seq, prev, hash, body FROM {TABLE} ORDER BY seq").fetchall()


def rewrite(path: Path, bodies: list[dict[str, object]]) -> None:
    """Put a whole new, perfectly chained history in place."""
    with surgery(path) as connection:
        connection.execute(f"DELETE FROM {TABLE}")
        prev = "0" * 64
        for seq, body in enumerate(bodies, start=1):
            raw = rfc8785.dumps({**body, "seq": seq, "prev": prev})  # type: ignore[dict-item]
            digest = hashlib.sha256(raw).hexdigest()
            connection.execute(f"INSERT INTO {TABLE} VALUES (?, ?, ?, ?)", (seq, prev, digest, raw.decode()))
            prev = digest


def bodies(path: Path) -> list[dict[str, object]]:
    return [json.loads(body) for *_, body in rows(path)]


def assert_refused_by_everyone(path: Path, kind: type[LedgerRefused], match: str | None = None) -> None:
    for access in LedgerAccess:
        with pytest.raises(kind, match=match):
            Ledger.open(path, access=access)


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE {TABLE} SET body = '' WHERE seq = 3",
        f"DELETE FROM {TABLE}",
        f"DELETE FROM {TABLE} WHERE seq = (SELECT max(seq) FROM {TABLE})",
        f"REPLACE INTO {TABLE} SELECT seq, prev, hash, 'x' FROM {TABLE} WHERE seq = 2",
        f"REPLACE INTO {TABLE} SELECT max(seq) + 1, 'x', {SECOND}, 'x' FROM {TABLE}",
        f"REPLACE INTO {TABLE} SELECT seq + 1, hash, {SECOND}, 'x' FROM {TABLE} ORDER BY seq DESC LIMIT 1",
        f"INSERT INTO {TABLE} SELECT max(seq) + 2, 'x', 'y', 'z' FROM {TABLE}",
        f"INSERT INTO {TABLE} VALUES (NULL, 'x', 'y', 'z')",
    ],
)
def test_the_database_itself_refuses_to_change_or_drop_a_row(path: Path, statement: str) -> None:
    before = rows(path)
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        connection.execute(statement)
    assert rows(path) == before


@pytest.mark.parametrize("column", ["seq", "prev", "hash", "body"])
def test_an_edit_to_any_column_of_any_row_is_found_and_named(path: Path, column: str) -> None:
    untouched = path.read_bytes()
    for seq, *_ in rows(path):
        path.write_bytes(untouched)
        other = f"CASE substr({column}, 21, 1) WHEN '7' THEN '8' ELSE '7' END"
        edit = f"substr({column}, 1, 20) || {other} || substr({column}, 22)"
        with surgery(path) as connection:
            new = "seq + 100" if column == "seq" else edit
            connection.execute(f"UPDATE {TABLE} SET {column} = {new} WHERE seq = ?", (seq,))
        # Moving the last row leaves a chain that is short but whole: the anchor finds that one.
        with pytest.raises((NotIntact, RolledBack), match=r"entry \d+"):
            open_ledger(path)


def test_verify_finds_an_edit_made_while_the_ledger_is_open(path: Path) -> None:
    ledger = open_ledger(path)
    entries, head = ledger.verify()
    assert (entries, head) == (len(rows(path)), ledger.anchor().head)
    with surgery(path) as connection:
        connection.execute(f"UPDATE {TABLE} SET body = replace(body, '\"end\":4', '\"end\":3') WHERE seq = 6")
    with pytest.raises(NotIntact, match="entry 6: its text does not have the digest"):
        ledger.verify()


def test_a_removed_guard_is_missed(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"DROP TRIGGER {TABLE}_no_update")
    assert_refused_by_everyone(path, NotIntact, "guard")


def test_an_added_trigger_is_found(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TRIGGER eve AFTER INSERT ON {TABLE} BEGIN SELECT 1; END")
    assert_refused_by_everyone(path, NotIntact, "eve")


def test_dropped_inserted_and_swapped_rows_are_found(path: Path) -> None:
    untouched = path.read_bytes()
    for statement in (
        f"DELETE FROM {TABLE} WHERE seq = 4",
        f"DELETE FROM {TABLE} WHERE seq = 1",
        f"DELETE FROM {TABLE} WHERE seq > 5",
        f"DELETE FROM {TABLE}",
        f"UPDATE {TABLE} SET seq = CASE seq WHEN 5 THEN -6 WHEN 6 THEN -5 ELSE seq END",
        f"INSERT INTO {TABLE} SELECT max(seq) + 1, 'x', 'y', body FROM {TABLE}",
    ):
        path.write_bytes(untouched)
        with surgery(path) as connection:
            connection.execute(statement)
            connection.execute(f"UPDATE {TABLE} SET seq = -seq WHERE seq < 0")
        assert_refused_by_everyone(path, LedgerRefused)


def test_a_new_history_with_correct_digests_fails_at_the_anchor(path: Path) -> None:
    history = bodies(path)
    history[5]["end"] = 2  # two rounds given back
    history[8]["first"] = 2
    assert (history[5]["kind"], history[8]["kind"]) == ("charge", "charge")
    rewrite(path, history)
    assert_refused_by_everyone(path, RolledBack, "another history")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda h: h[5].update(end=11), "10 rounds were signed"),
        (lambda h: h[8].update(first=3), "charged once and in order"),
        (lambda h: h[8].update(session=1), "superseded"),
        (lambda h: h[6].update(values=[[4, "a", "w", BYTES]]), "only rounds below 4"),
        (lambda h: h.append(h[9]), "at most once"),
        (lambda h: h.append(h[4]), "claimed once"),
        (lambda h: h.append({**h[4], "manifest": "1" * 64}), "nonce was used"),
        (lambda h: h.append(h[0]), "one opening entry"),
        (lambda h: h.append({**h[8], "manifest": "1" * 64, "first": 8, "end": 9}), "never claimed"),
        (lambda h: h.append({**h[3], "session": 1}), "closed it"),
        (lambda h: h[5].update(first=-1), "not an entry"),
        (lambda h: h[5].update(end=4.5), "not an entry"),
        (lambda h: h[5].update(refund=4), "not an entry"),
        (lambda h: h[5].pop("session"), "not an entry"),
        (lambda h: h[5].update(kind="refund"), "not an entry"),
        (lambda h: h[0].update(version=4), "not an entry"),
        (lambda h: h[4].update(epsilon="1.5"), "not an entry"),
        (lambda h: h[4].update(token=None), "not an entry"),
    ],
)
def test_a_chain_that_breaks_a_rule_is_not_a_ledger(path: Path, change: object, why: str) -> None:
    """Correct digests do not help: replaying applies the same rules as writing, even without an anchor."""
    history = bodies(path)
    change(history)  # type: ignore[operator]
    rewrite(path, history)
    path.with_name("ledger.db.anchor").unlink()
    assert_refused_by_everyone(path, NotIntact, why)


@pytest.mark.parametrize(
    "respell",
    [
        lambda body: body + " ",
        lambda body: body.replace(",", ", ", 1),
        lambda body: body[:-1] + ',"end":4}',
        lambda body: body.replace('"end":4', '"end":4.0'),
        lambda body: body.replace('"end":4', '"end":04'),
        lambda body: body.replace("{", '{"end":4,', 1),
        lambda body: body.replace("charge", "ch\\u0061rge"),
    ],
)
def test_another_spelling_of_the_same_entry_is_refused(path: Path, respell: object) -> None:
    seq, prev, _, body = rows(path)[5]
    other = respell(body)  # type: ignore[operator]
    assert other != body
    with surgery(path) as connection:
        connection.execute(f"DELETE FROM {TABLE} WHERE seq >= 6")
        digest = hashlib.sha256(other.encode()).hexdigest()
        connection.execute(f"INSERT INTO {TABLE} VALUES (?, ?, ?, ?)", (seq, prev, digest, other))
    assert_refused_by_everyone(path, NotIntact, "entry 6: its text is not an entry")


def test_bytes_that_are_no_text_are_found(path: Path) -> None:
    with surgery(path) as connection:
        connection.execute(f"UPDATE {TABLE} SET body = CAST(x'ff00fe' AS TEXT) WHERE seq = 3")
    assert_refused_by_everyone(path, NotIntact, "entry 3")


def test_a_file_of_something_else_is_not_written_to(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("these are notes, not a database " * 100)
    with pytest.raises(Unavailable, match="not a database"):
        open_ledger(text)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE patients (name TEXT)")
    with pytest.raises(NotIntact, match="something else"):
        open_ledger(other)


def test_a_ledger_switched_to_the_write_ahead_log_is_switched_back(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    with pytest.raises(Unavailable, match="journal_mode is 'wal'"):
        Ledger.open(path, access=LedgerAccess.READ)
    open_ledger(path).verify()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
