"""Where the rows are: one append-only table, written under one lock, on either of two databases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Protocol

from sqlalchemy import BigInteger, Column, Connection, Engine, MetaData, Table, Text, insert, select
from sqlalchemy.exc import DBAPIError

from privfair.ledger.entries import Link, Unavailable

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


class Backend(Protocol):
    """What differs between the databases."""

    @property
    def label(self) -> str:
        """The place in words, without a password."""

    @property
    def engine(self) -> Engine: ...

    def present(self) -> bool:
        """Whether there is anything to connect to."""

    def prepare(self) -> None:
        """Create what a connection needs, such as an empty file."""

    def begin_creating(self, connection: Connection) -> None:
        """Start a transaction in which the table may be created, alone."""

    def begin_writing(self, connection: Connection) -> None:
        """Start a durable transaction that no other writer can overlap."""

    def begin_reading(self, connection: Connection) -> None:
        """Start a transaction that only reads."""

    def exists(self, connection: Connection) -> bool:
        """Whether the table is there."""

    def create(self, connection: Connection) -> None:
        """Create the table and its append-only guard."""

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
    def writing(self) -> Iterator[Connection]:
        """One transaction under the writer's lock; it is durable when the block has ended without error."""
        with self._translated_errors(), self._backend.engine.connect() as connection:
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

    def create_if_absent(self) -> None:
        self._backend.prepare()
        with self._translated_errors(), self._backend.engine.connect() as connection:
            self._backend.begin_creating(connection)
            if not self._backend.exists(connection):
                self._backend.create(connection)
            connection.commit()

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
