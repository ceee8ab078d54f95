"""Eight processes on one ledger: exactly the budget is granted, on SQLite and on PostgreSQL.

The PostgreSQL tests start a server of their own on a unix socket in a temporary folder, from Debian's
`postgresql` package; where that is not installed they are skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.ledger import ClaimToken, Head, Ledger, LedgerAccess, ManifestTerms, RolledBack, Unavailable
from privfair.ledger.entries import (
    AlreadyClaimed,
    BudgetExceeded,
    ClaimSuperseded,
    NotIntact,
    RoundsExhausted,
    WrongLedger,
)
from privfair.ledger.journal import AnchorState
from privfair.ledger.store import Store
from tests.postgres_server import NotInstalled, new_schema, postgres_server
from tests.privfair.ledgers import DATASET, open_ledger

PROCESSES = 8
MAKERS = 16
FORK = multiprocessing.get_context("fork")
UNIT = PrivacyUnit.of(Relation.REPLACE_ONE)
DATA = hashlib.sha256(b"data").hexdigest()
BYTES = hashlib.sha256(b"bytes").hexdigest()


def terms(name: str, rounds: int = 40) -> ManifestTerms:
    return ManifestTerms(
        manifest_digest=hashlib.sha256(name.encode()).hexdigest(),
        nonce=name,
        envelope_digest=hashlib.sha256(b"envelope").hexdigest(),
        rounds=rounds,
        epsilon=0.1,
        delta=1e-6,
        dataset=DATASET,
        data_digest=DATA,
        valid_until=datetime.now(UTC) + timedelta(days=1),
        unit=UNIT,
    )


@dataclass(frozen=True)
class Place:
    """Where a ledger is, and its anchor."""

    location: str
    anchor: Path

    def open(self, access: LedgerAccess = LedgerAccess.WRITE) -> Ledger:
        if access is LedgerAccess.READ:
            return Ledger.open(self.location, self.anchor, access)
        return open_ledger(self.location, self.anchor)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of a server that is gone after the tests."""
    try:
        with postgres_server() as url:
            yield url
    except NotInstalled as missing:
        pytest.skip(str(missing))


@pytest.fixture
def postgres(server: str, tmp_path: Path) -> Place:
    """A new schema on that server: the way several silos share one database."""
    schema = "silo_" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]
    return Place(new_schema(server, schema), tmp_path / "ledger.anchor")


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "postgresql":
        return request.getfixturevalue("postgres")  # type: ignore[no-any-return]
    return Place(str(tmp_path / "ledger.db"), tmp_path / "ledger.anchor")


def execute(url: str, *statements: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with contextlib.closing(engine.connect()) as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def wait_for_fsync(url: str, wanted: str) -> None:
    """A server takes up a reloaded setting a little later."""
    engine = create_engine(url)
    for _ in range(600):
        with contextlib.closing(engine.connect()) as connection:
            if connection.execute(text("SHOW fsync")).scalar_one() == wanted:
                break
        engine.dispose()
        time.sleep(0.1)
    else:
        pytest.fail(f"the server did not take up fsync = {wanted} within a minute")
    engine.dispose()


def race(place: Place, racer: Callable[..., object], *arguments: object, opened: bool = True) -> list[Any]:
    """Let eight processes begin at once, each with its own ledger object; what each returned.

    Sixteen begin where they make the ledger. There is no time limit: a process that fails hands in its
    error, and one that dies closes its pipe.
    """
    if opened:
        place.open().close()
    processes = PROCESSES if opened else MAKERS
    start = FORK.Barrier(processes)

    def run(number: int, results: Connection) -> None:
        random.seed(number)
        try:
            with place.open() if opened else contextlib.nullcontext() as ledger:
                start.wait()
                results.send(racer(*([ledger] if opened else []), number, *arguments))
        except Exception as error:
            start.abort()
            results.send(error)

    pipes = [FORK.Pipe(duplex=False) for _ in range(processes)]
    runners = [FORK.Process(target=run, args=(number, pipe[1])) for number, pipe in enumerate(pipes)]
    for runner in runners:
        runner.start()
    for _, sender in pipes:
        sender.close()
    collected = [receiver.recv() for receiver, _ in pipes]
    for runner in runners:
        runner.join()
    assert [one for one in collected if isinstance(one, Exception)] == []
    return collected


def make(place: Place) -> bool:
    try:
        Ledger.create(place.location, place.anchor).close()
    except WrongLedger:
        return False
    return True


def claim_one(ledger: Ledger, number: int) -> str:
    try:
        ledger.claim(terms("wanted by all"), claimant=f"trainer {number}")
    except AlreadyClaimed:
        return "lost"
    return f"trainer {number}"


def test_one_of_eight_trainers_wins_a_manifest(place: Place) -> None:
    results = race(place, claim_one)
    assert results.count("lost") == PROCESSES - 1
    with place.open(LedgerAccess.READ) as ledger:
        (status,) = ledger.status().manifests
        assert status.claim.claimant in results


def test_of_sixteen_processes_that_make_the_ledger_at_once_one_does(place: Place) -> None:
    made = race(place, lambda number: make(place), opened=False)
    assert made.count(True) == 1
    with place.open(LedgerAccess.READ) as ledger:
        assert ledger.verify()[0] == 1


def between_the_looks(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let `act` happen right after a process has seen that there is no ledger yet."""
    looked = Store.exists

    def look(store: Store) -> bool:
        found = looked(store)
        monkeypatch.setattr(Store, "exists", looked)
        act()
        return found

    monkeypatch.setattr(Store, "exists", look)


def test_a_ledger_made_between_two_looks_is_there_already(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    between_the_looks(monkeypatch, lambda: make(place))
    with pytest.raises(WrongLedger, match="a ledger here already"):
        Ledger.create(place.location, place.anchor)
    place.open().close()


def test_a_ledger_made_while_it_is_opened_is_not_taken_for_an_old_copy(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    between_the_looks(monkeypatch, lambda: make(place))
    Ledger.open(place.location, place.anchor).close()


def test_a_process_killed_while_it_makes_a_ledger_leaves_none(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(Store, "append", die)
        with pytest.raises(SystemExit):
            Ledger.create(place.location, place.anchor)
    with pytest.raises(Unavailable, match="no ledger here"):
        Ledger.open(place.location, place.anchor)
    assert make(place)


def spend_shared(ledger: Ledger, number: int, token: ClaimToken) -> list[int]:
    """A copied run folder: everybody has the token, resumes and charges until nothing is left."""
    granted: list[int] = []
    while True:
        try:
            claim = ledger.resume(token)
            for _ in range(3):
                granted += claim.charge_ahead(random.randint(1, 3))
        except ClaimSuperseded:
            time.sleep(random.uniform(0.0, 0.4))  # or all would only ever supersede one another
        except RoundsExhausted:
            return granted


def test_a_shared_token_gives_each_round_to_one_process(place: Place) -> None:
    with place.open() as ledger:
        token = ledger.claim(terms("shared")).token
    granted = race(place, spend_shared, token)
    assert sorted(number for some in granted for number in some) == list(range(40))
    with place.open() as ledger:
        ledger.verify()
        assert ledger.status().anchor is AnchorState.CURRENT
        assert ledger.status().manifests[0].charged == 40


def spend_own(ledger: Ledger, number: int) -> int:
    claim = ledger.claim(terms(f"own {number}", rounds=12))
    granted = 0
    with contextlib.suppress(RoundsExhausted):
        while True:
            for round_number in claim.charge_ahead(5):
                claim.record_release(round_number, "a", "weights", BYTES)
                granted += 1
    claim.close()
    return granted


def test_eight_manifests_are_spent_side_by_side(place: Place) -> None:
    assert race(place, spend_own) == [12] * PROCESSES
    with place.open() as ledger:
        entries, _ = ledger.verify()
        assert entries == 1 + PROCESSES * (1 + 3 + 3 + 1)
        assert [status.releases for status in ledger.status().manifests] == [12] * PROCESSES


def claim_within_budget(ledger: Ledger, number: int) -> bool:
    try:
        ledger.claim(terms(f"budgeted {number}"))
    except BudgetExceeded:
        return False
    return True


def test_a_data_sets_budget_is_granted_exactly(place: Place) -> None:
    with place.open() as ledger:
        ledger.set_budget(DATASET, UNIT, epsilon=0.3, delta=1e-3)
    assert race(place, claim_within_budget).count(True) == 3
    with place.open(LedgerAccess.READ) as ledger:
        assert ledger.status().budgets[0].claimed_epsilon == 0.3


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE privfair_ledger SET body = ''",
        "DELETE FROM privfair_ledger",
        "TRUNCATE privfair_ledger",
        "INSERT INTO privfair_ledger SELECT * FROM privfair_ledger ON CONFLICT (seq) DO UPDATE SET body = ''",
    ],
)
def test_postgres_itself_refuses_to_change_or_drop_a_row(postgres: Place, statement: str) -> None:
    with postgres.open() as ledger:
        ledger.claim(terms("m")).charge(3)
    with pytest.raises(DBAPIError, match="append-only"):
        execute(postgres.location, "SET session_replication_role = replica", statement)
    with postgres.open() as ledger:
        ledger.verify()


def change_rows(place: Place, statement: str) -> None:
    off, on = "DISABLE TRIGGER ALL", "ENABLE ALWAYS TRIGGER"
    execute(
        place.location,
        f"ALTER TABLE privfair_ledger {off}",
        statement,
        f"ALTER TABLE privfair_ledger {on} privfair_ledger_no_change",
        f"ALTER TABLE privfair_ledger {on} privfair_ledger_no_truncate",
    )


def test_postgres_edits_and_cut_ends_are_found(postgres: Place) -> None:
    with postgres.open() as ledger:
        ledger.claim(terms("m")).charge(3)
    change_rows(postgres, "DELETE FROM privfair_ledger WHERE seq = 3")
    with pytest.raises(RolledBack, match="ends at entry 2, but its anchor has seen entry 3"):
        postgres.open()
    change_rows(postgres, "UPDATE privfair_ledger SET body = replace(body, '40', '90') WHERE seq = 2")
    with pytest.raises(NotIntact, match="entry 2"):
        postgres.open(LedgerAccess.READ)


def test_postgres_guards_are_checked_at_every_open(postgres: Place) -> None:
    postgres.open().close()
    execute(postgres.location, "ALTER TABLE privfair_ledger DISABLE TRIGGER privfair_ledger_no_truncate")
    with pytest.raises(NotIntact, match="no_truncate"):
        postgres.open()


def test_a_server_that_may_lose_a_commit_is_refused(postgres: Place) -> None:
    postgres.open().close()
    execute(postgres.location, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
    try:
        wait_for_fsync(postgres.location, "off")
        with pytest.raises(Unavailable, match="fsync=off, so a crash could lose a charge"):
            postgres.open()
    finally:
        execute(postgres.location, "ALTER SYSTEM RESET fsync", "SELECT pg_reload_conf()")
        wait_for_fsync(postgres.location, "on")


def test_a_dropped_postgres_table_is_not_silently_begun_anew(postgres: Place) -> None:
    postgres.open().close()
    execute(postgres.location, "DROP TABLE privfair_ledger")
    with pytest.raises(RolledBack, match="it is empty"):
        postgres.open()
    with pytest.raises(Unavailable, match="no ledger here"):
        postgres.open(LedgerAccess.READ)


def test_two_schemas_of_one_database_are_two_ledgers(postgres: Place, server: str, tmp_path: Path) -> None:
    execute(server, "CREATE SCHEMA IF NOT EXISTS another_silo")
    other = Place(f"{server}&options=-csearch_path%3Danother_silo", tmp_path / "other.anchor")
    with postgres.open() as first, other.open() as second:
        first.claim(terms("m"))
        second.claim(terms("m"))
        assert first.anchor().head.hash != second.anchor().head.hash


def test_another_host_adopts_a_postgres_ledger_by_an_end_it_was_told(postgres: Place, tmp_path: Path) -> None:
    with postgres.open() as ledger:
        ledger.claim(terms("m"))
        told = ledger.anchor().head
    second = Place(postgres.location, tmp_path / "second.anchor")
    with pytest.raises(RolledBack, match="missing"):
        second.open()
    with pytest.raises(RolledBack, match="not there"):
        Ledger.adopt(second.location, second.anchor, Head(told.seq, "0" * 64))
    with Ledger.adopt(second.location, second.anchor, told) as ledger:
        ledger.claim(terms("other"))
    with postgres.open() as ledger:
        assert ledger.status().entries == 3


def test_charges_are_durable_though_the_servers_default_is_not(postgres: Place) -> None:
    """This server runs with synchronous_commit=off; the ledger's own transactions switch it on."""
    with postgres.open() as ledger:
        store = ledger._journal.store
        with store.writing() as connection:
            assert connection.scalar(text("SHOW synchronous_commit")) == "on"
            assert connection.scalar(text("SHOW transaction_isolation")) == "read committed"
        with store.reading() as connection:
            assert connection.scalar(text("SHOW synchronous_commit")) == "off"


def test_a_trainers_role_needs_only_to_select_and_insert(postgres: Place, server: str) -> None:
    postgres.open().close()
    schema = postgres.location.rsplit("%3D", 1)[1]
    role = f"trainer_{schema}"
    execute(
        postgres.location,
        f"CREATE ROLE {role} LOGIN",
        f"GRANT USAGE ON SCHEMA {schema} TO {role}",
        f"GRANT SELECT, INSERT ON privfair_ledger TO {role}",
    )
    trainer = Place(postgres.location.replace("privfair@", f"{role}@"), postgres.anchor)
    with trainer.open() as ledger:
        claim = ledger.claim(terms("m"))
        assert claim.charge(3) == range(3)
    with pytest.raises(DBAPIError, match=r"permission denied|must be owner"):
        execute(trainer.location, "ALTER TABLE privfair_ledger DISABLE TRIGGER ALL")


def test_an_unreachable_server_is_refused_without_its_password(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    url = f"postgresql+psycopg://user:secret@/db?host={tmp_path}"
    with pytest.raises(Unavailable) as caught:
        open_ledger(url, tmp_path / "anchor")
    assert "secret" not in str(caught.value)
