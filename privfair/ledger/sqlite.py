"""The ledger embedded in one SQLite file.

journal_mode=DELETE with synchronous=EXTRA syncs the journal, the file and the folder before a commit
returns; the write-ahead log would need more than one file to be kept together. The write lock is taken
before the balance is read (BEGIN IMMEDIATE). Use a local disk: SQLite's locks do not hold on network
file systems.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.pool import QueuePool

from calibrate.errors import InvalidInput
from privfair.ledger.entries import GENESIS, NotIntact, RolledBack, Unavailable
from privfair.ledger.store import TABLE, LedgerAccess

_WAIT_SECONDS = 120.0
_SETTINGS = {"journal_mode": "delete", "synchronous": 3, "trusted_schema": 0}

# The guard on INSERT closes a gap of the one on DELETE: INSERT OR REPLACE deletes without firing it.
_GUARD = f"BEGIN SELECT RAISE(ABORT, '{TABLE} is append-only'); END"
_SCHEMA = {
    TABLE: f"CREATE TABLE {TABLE} (seq INTEGER PRIMARY KEY, prev TEXT NOT NULL UNIQUE, "
    "hash TEXT NOT NULL UNIQUE, body TEXT NOT NULL) STRICT",
    f"{TABLE}_no_update": f"CREATE TRIGGER {TABLE}_no_update BEFORE UPDATE ON {TABLE} {_GUARD}",
    f"{TABLE}_no_delete": f"CREATE TRIGGER {TABLE}_no_delete BEFORE DELETE ON {TABLE} {_GUARD}",
    f"{TABLE}_no_replace": f"CREATE TRIGGER {TABLE}_no_replace BEFORE INSERT ON {TABLE} "
    f"WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM {TABLE}) "
    f"OR NEW.prev IS NOT coalesce((SELECT hash FROM {TABLE} ORDER BY seq DESC LIMIT 1), '{GENESIS.hash}') "
    f"OR EXISTS (SELECT 1 FROM {TABLE} WHERE hash = NEW.hash) {_GUARD}",
}


class SqliteFile:
    """A ledger in one file; final."""

    def __init__(self, path: Path, access: LedgerAccess) -> None:
        if not path.parent.is_dir():
            raise InvalidInput("ledger", str(path), "must lie in an existing folder", "create the folder first")
        self._path = path
        self._access = access
        self._inode: tuple[int, int] | None = None
        self._engine = create_engine(
            "sqlite://", creator=self._connect, poolclass=QueuePool, pool_size=1, max_overflow=0
        )

    @property
    def label(self) -> str:
        return str(self._path)

    @property
    def engine(self) -> Engine:
        return self._engine

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
            isolation_level=None,  # we say BEGIN and what kind, the driver adds none of its own
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
            raise NotIntact(self.label, "the file is a database of something else", "give the ledger a file of its own")
        for statement in _SCHEMA.values():
            connection.exec_driver_sql(statement)

    def check(self, connection: Connection) -> None:
        stored = self._stored_schema(connection)
        for name in sorted(stored.keys() | _SCHEMA.keys()):
            if stored.get(name) != _SCHEMA.get(name):
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
        """A connection goes on writing to a file that was renamed or deleted; charges there are lost."""
        try:
            now = os.stat(self._path)
        except OSError as error:
            raise RolledBack(self.label, "the file is gone", "put the ledger back and start again") from error
        inode = (now.st_dev, now.st_ino)
        if self._inode is None:
            self._inode = inode
        if inode != self._inode:
            raise RolledBack(self.label, "the file was replaced by another while it was open", "put the first one back")
