"""The ledger in a PostgreSQL table, for silos that share a server.

Writers queue on an advisory lock that the end of the transaction gives back. The isolation level has to
be READ COMMITTED: a snapshot kept from before the wait would not show what the previous writer did.
Durability is asked for in each transaction, whatever the server's default is. The unique predecessor
column would stop a second successor of one entry even if somebody wrote without the lock.
"""

from __future__ import annotations

from sqlalchemy import URL, Connection, Engine, create_engine, text

from calibrate.errors import InvalidInput
from privfair.ledger.entries import NotIntact, Unavailable
from privfair.ledger.store import TABLE

_LOCK_SPACE = 0x70666C64 << 32  # "pfld", so that other programs' advisory locks are not met by accident
_TRIGGERS = frozenset({f"{TABLE}_no_change", f"{TABLE}_no_truncate"})
_SCHEMA = f"""
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


class PostgresTable:
    """A ledger in the table `privfair_ledger` of the URL's schema; final."""

    def __init__(self, url: URL) -> None:
        self._label = url.render_as_string(hide_password=True)
        try:
            self._engine = create_engine(
                url, isolation_level="READ COMMITTED", pool_size=1, max_overflow=0, pool_pre_ping=True
            )
        except ModuleNotFoundError as error:
            raise InvalidInput(
                "ledger", self._label, "needs psycopg 3", "install it with `pip install 'privfair[postgres]'`"
            ) from error

    @property
    def label(self) -> str:
        return self._label

    @property
    def engine(self) -> Engine:
        return self._engine

    def present(self) -> bool:
        return True

    def prepare(self) -> None:
        """Nothing to do: the database itself is the server administrator's to create."""

    def begin_creating(self, connection: Connection) -> None:
        # Nothing may look the table up before the lock is held: PostgreSQL would go on remembering that it
        # was not there.
        self._lock(connection, "0")

    def begin_writing(self, connection: Connection) -> None:
        connection.execute(text("SET LOCAL synchronous_commit = on"))
        # By table, however a role's search path leads to it.
        self._lock(connection, f"'{TABLE}'::regclass::oid::bigint")

    @staticmethod
    def _lock(connection: Connection, what: str) -> None:
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK_SPACE} + {what})"))

    def begin_reading(self, connection: Connection) -> None:
        connection.execute(text("SET TRANSACTION READ ONLY"))

    def exists(self, connection: Connection) -> bool:
        return connection.scalar(text("SELECT to_regclass(:name)"), {"name": TABLE}) is not None

    def create(self, connection: Connection) -> None:
        connection.exec_driver_sql(_SCHEMA)

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
