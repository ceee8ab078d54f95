"""Where the rows are: one append-only table, written under one lock, in a SQLite file or in PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import final
from urllib.parse import quote

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Engine,
    MetaData,
    Table,
    Text,
    create_engine,
    insert,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from calibrate.errors import InvalidInput
from privfair.ledger.entries import GENESIS, Link, NotIntact, RolledBack, Unavailable

TABLE = "privfair_ledger"
_ROWS = Table(
    TABLE,
    MetaData(),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("prev", Text, nullable=False, unique=True),
    Column("hash", Text, nullable=False, unique=True),
    Column("body", Text, nullable=False),
)


class LedgerAccess(Enum):
    """READ adds nothing, not even to the anchor."""

    WRITE = "write"
    READ = "read"


class Backend(ABC):
    """What differs between the databases."""

    def __init__(self, label: str, engine: Engine) -> None:
        self.label = label
        """The place in words, without a password."""
        self.engine = engine

    def present(self) -> bool:
        """Whether there is anything to connect to."""
        return True

    @abstractmethod
    def prepare(self) -> None:
        """Create what a connection needs, such as an empty file."""

    @abstractmethod
    def begin_creating(self, connection: Connection) -> None:
        """Start a durable transaction in which the table may be created, alone."""

    @abstractmethod
    def begin_writing(self, connection: Connection) -> None:
        """Start a durable transaction that no other writer can overlap."""

    @abstractmethod
    def begin_reading(self, connection: Connection) -> None:
        """Start a transaction that only reads."""

    @abstractmethod
    def exists(self, connection: Connection) -> bool:
        """Whether the table is there."""

    @abstractmethod
    def create(self, connection: Connection) -> None:
        """Create the table and its append-only guard."""

    @abstractmethod
    def check(self, connection: Connection) -> None:
        """Refuse a table without its guard, or a database that does not keep what it commits."""


class Store:
    """The rows of one ledger."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def label(self) -> str:
        return self._backend.label

    @contextmanager
    def writing(self, make: bool = False) -> Iterator[Connection]:
        """One transaction under the writer's lock; it is durable when the block has ended without error.

        With `make` the table is created in the same transaction where there is none: no one sees it without rows.
        """
        if make:
            self._backend.prepare()
        with self._translated_errors(), self._backend.engine.connect() as connection:
            if make:
                self._backend.begin_creating(connection)
                if not self._backend.exists(connection):
                    self._backend.create(connection)
                self._backend.check(connection)
            else:
                self._backend.begin_writing(connection)
            yield connection
            connection.commit()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._translated_errors(), self._backend.engine.connect() as connection:
            self._backend.begin_reading(connection)
            yield connection

    def exists(self) -> bool:
        if not self._backend.present():
            return False
        with self.reading() as connection:
            return self._backend.exists(connection)

    def check(self) -> None:
        """Refuse a place without a ledger, or whose ledger has lost its guard or its durability."""
        if not self.exists():
            raise Unavailable(
                self.label, "there is no ledger here", "check the place, or make one with `privfair ledger init`"
            )
        with self.reading() as connection:
            self._backend.check(connection)

    def rows(self, connection: Connection, first: int) -> Iterator[Link]:
        """The stored rows from number `first` on, in order, as one consistent picture."""
        query = select(_ROWS).where(_ROWS.c.seq >= first).order_by(_ROWS.c.seq)
        for seq, prev, digest, body in connection.execute(query.execution_options(yield_per=200)):
            yield Link(seq, prev, digest, body)

    def append(self, connection: Connection, links: Sequence[Link]) -> None:
        if not links:
            return
        rows = [{"seq": n.seq, "prev": n.prev, "hash": n.hash, "body": n.body} for n in links]
        connection.execute(insert(_ROWS), rows)

    def close(self) -> None:
        self._backend.engine.dispose()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            reason = str(error.orig).strip().splitlines()[0] if error.orig else str(error)
            raise Unavailable(
                self.label,
                f"the database says {reason!r}, so nothing is granted",
                "fix the database and try again; what was committed stays spent",
            ) from error


# The ledger embedded in one SQLite file.
#
# journal_mode=DELETE with synchronous=EXTRA syncs the journal, the file and the folder before a commit
# returns; the write-ahead log would need more than one file to be kept together. The write lock is taken
# before the balance is read (BEGIN IMMEDIATE). Use a local disk: SQLite's locks do not hold on network
# file systems.

_WAIT_SECONDS = 120.0
_SETTINGS = {"journal_mode": "delete", "synchronous": 3, "trusted_schema": 0}

# The guard on INSERT closes a gap of the one on DELETE: INSERT OR REPLACE deletes without firing it.
_GUARD = f"BEGIN SELECT RAISE(ABORT, '{TABLE} is append-only'); END"
_SQLITE_SCHEMA = {
    TABLE: f"CREATE TABLE {TABLE} (seq INTEGER PRIMARY KEY, prev TEXT NOT NULL UNIQUE, "
    "hash TEXT NOT NULL UNIQUE, body TEXT NOT NULL) STRICT",
    f"{TABLE}_no_update": f"CREATE TRIGGER {TABLE}_no_update BEFORE UPDATE ON {TABLE} {_GUARD}",
    f"{TABLE}_no_delete": f"CREATE TRIGGER {TABLE}_no_delete BEFORE DELETE ON {TABLE} {_GUARD}",
    f"{TABLE}_no_replace": f"CREATE TRIGGER {TABLE}_no_replace BEFORE INSERT ON {TABLE} "
    f"WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM {TABLE}) "
    f"OR NEW.prev IS NOT coalesce((SELECT hash FROM {TABLE} ORDER BY seq DESC LIMIT 1), '{GENESIS.hash}') "
    f"OR EXISTS (SELECT 1 FROM {TABLE} WHERE hash = NEW.hash) {_GUARD}",
}


@final
class SqliteFile(Backend):
    """A ledger in one file."""

    def __init__(self, path: Path, access: LedgerAccess) -> None:
        if not path.parent.is_dir():
            raise InvalidInput("ledger", str(path), "must be in an existing folder", "create the folder first")
        self._path = path
        self._access = access
        self._inode: tuple[int, int] | None = None
        engine = create_engine("sqlite://", creator=self._connect, poolclass=QueuePool, pool_size=1, max_overflow=0)
        super().__init__(str(path), engine)

    def present(self) -> bool:
        return self._path.is_file()

    def prepare(self) -> None:
        self._path.touch()

    def _connect(self) -> sqlite3.Connection:
        # A reader that may, has to undo the half-written commit of a killed writer like anybody else.
        mode = "rw" if self._access is LedgerAccess.WRITE or os.access(self._path, os.W_OK) else "ro"
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(self._path.absolute()))}?mode={mode}",
            uri=True,
            timeout=_WAIT_SECONDS,
            isolation_level=None,  # our code sends BEGIN and its kind; the driver adds none
            check_same_thread=False,  # the ledger's own lock lets one thread in at a time
        )
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        connection.execute("PRAGMA synchronous=EXTRA")
        connection.execute("PRAGMA fullfsync=ON")  # macOS only: fsync alone leaves bytes in the drive there
        connection.execute("PRAGMA trusted_schema=OFF")
        if self._access is LedgerAccess.WRITE:
            connection.execute("PRAGMA journal_mode=DELETE")
        else:
            connection.execute("PRAGMA query_only=ON")
        return connection

    def begin_creating(self, connection: Connection) -> None:
        self.begin_writing(connection)

    def begin_writing(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        self._check_same_file()

    def begin_reading(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")
        self._check_same_file()

    def exists(self, connection: Connection) -> bool:
        return TABLE in self._stored_schema(connection)

    def create(self, connection: Connection) -> None:
        if self._stored_schema(connection):
            raise NotIntact(self.label, "the file is a database of something else", "give the ledger a separate file")
        for statement in _SQLITE_SCHEMA.values():
            connection.exec_driver_sql(statement)

    def check(self, connection: Connection) -> None:
        stored = self._stored_schema(connection)
        for name in sorted(stored.keys() | _SQLITE_SCHEMA.keys()):
            if stored.get(name) != _SQLITE_SCHEMA.get(name):
                raise NotIntact(
                    self.label,
                    f"the append-only guard was tampered with at {name!r}",
                    "find out who changed the file, then put an untouched copy back",
                )
        for name, wanted in _SETTINGS.items():
            found = connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            if found != wanted:
                raise Unavailable(
                    self.label,
                    f"{name} is {found!r}, but durable charges need {wanted!r}",
                    "open it once for writing while no other program uses it",
                )

    @staticmethod
    def _stored_schema(connection: Connection) -> dict[str, str]:
        rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {row.name: row.sql for row in rows}

    def _check_same_file(self) -> None:
        """A connection keeps writing to a file that was renamed or deleted; charges there are lost."""
        try:
            now = os.stat(self._path)
        except OSError as error:
            raise RolledBack(self.label, "the file is gone", "restore the ledger and start again") from error
        inode = (now.st_dev, now.st_ino)
        if self._inode is None:
            self._inode = inode
        if inode != self._inode:
            raise RolledBack(self.label, "the file was replaced by another while it was open", "put the first one back")


# The ledger in a PostgreSQL table, for silos that share a server.
#
# Writers queue on an advisory lock that the end of the transaction gives back. The isolation level has to
# be READ COMMITTED: a snapshot kept from before the wait would not show what the previous writer did.
# Durability is asked for in each transaction, whatever the server's default is. The unique predecessor
# column would stop a second successor of one entry even if a process wrote without the lock.

_LOCK_SPACE = 0x70666C64 << 32  # "pfld", so that other programs' advisory locks are not met by accident
_TRIGGERS = frozenset({f"{TABLE}_no_change", f"{TABLE}_no_truncate"})
_POSTGRES_SCHEMA = f"""
CREATE TABLE {TABLE} (
  seq BIGINT PRIMARY KEY CHECK (seq > 0), prev TEXT NOT NULL UNIQUE, hash TEXT NOT NULL UNIQUE, body TEXT NOT NULL
);
CREATE FUNCTION {TABLE}_refuse() RETURNS trigger LANGUAGE plpgsql AS
  $$BEGIN RAISE EXCEPTION '{TABLE} is append-only'; END$$;
CREATE TRIGGER {TABLE}_no_change BEFORE UPDATE OR DELETE ON {TABLE}
  FOR EACH ROW EXECUTE FUNCTION {TABLE}_refuse();
CREATE TRIGGER {TABLE}_no_truncate BEFORE TRUNCATE ON {TABLE}
  FOR EACH STATEMENT EXECUTE FUNCTION {TABLE}_refuse();
-- ALWAYS: also in a session that calls itself a replica, where ordinary triggers do not fire.
ALTER TABLE {TABLE} ENABLE ALWAYS TRIGGER {TABLE}_no_change;
ALTER TABLE {TABLE} ENABLE ALWAYS TRIGGER {TABLE}_no_truncate;
"""


@final
class PostgresTable(Backend):
    """A ledger in the table `privfair_ledger` of the URL's schema."""

    def __init__(self, url: URL) -> None:
        label = url.render_as_string(hide_password=True)
        try:
            engine = create_engine(
                url, isolation_level="READ COMMITTED", pool_size=1, max_overflow=0, pool_pre_ping=True
            )
        except ModuleNotFoundError as error:
            raise InvalidInput(
                "ledger", label, "needs psycopg 3", "install it with `pip install 'privfair[postgres]'`"
            ) from error
        super().__init__(label, engine)

    def prepare(self) -> None:
        """Nothing to do: the database itself is the server administrator's to create."""

    def begin_creating(self, connection: Connection) -> None:
        # Nothing may look the table up before the lock is held: PostgreSQL would still remember that it
        # was not there.
        self._lock(connection, "0")

    def begin_writing(self, connection: Connection) -> None:
        # By table, however a role's search path leads to it.
        self._lock(connection, f"'{TABLE}'::regclass::oid::bigint")

    @staticmethod
    def _lock(connection: Connection, what: str) -> None:
        connection.execute(text("SET LOCAL synchronous_commit = on"))
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK_SPACE} + {what})"))

    def begin_reading(self, connection: Connection) -> None:
        connection.execute(text("SET TRANSACTION READ ONLY"))

    def exists(self, connection: Connection) -> bool:
        return connection.scalar(text("SELECT to_regclass(:name)"), {"name": TABLE}) is not None

    def create(self, connection: Connection) -> None:
        connection.exec_driver_sql(_POSTGRES_SCHEMA)

    def check(self, connection: Connection) -> None:
        rows = connection.execute(
            text(
                "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled = 'A' "
                "AND tgrelid = to_regclass(:name)"
            ),
            {"name": TABLE},
        )
        missing = _TRIGGERS - {name for (name,) in rows}
        if missing:
            raise NotIntact(
                self.label,
                f"the append-only guard {min(missing)!r} is missing or switched off",
                "find out who changed the table, then put an untouched copy back",
            )
        for setting in ("fsync", "full_page_writes"):
            found = connection.scalar(text(f"SHOW {setting}"))
            if found != "on":
                raise Unavailable(
                    self.label,
                    f"the server runs with {setting}={found}, so a crash could lose a charge",
                    f"switch {setting} on",
                )
