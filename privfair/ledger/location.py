"""From what the user wrote to a database: a file path, or a PostgreSQL URL."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from calibrate.errors import InvalidInput
from privfair.ledger.postgres import PostgresTable
from privfair.ledger.sqlite import SqliteFile
from privfair.ledger.store import Access, Backend

_DRIVER = "postgresql+psycopg"


def backend_for(location: str | Path, access: Access) -> Backend:
    """The database behind a location."""
    if not _is_url(location):
        return SqliteFile(Path(location), access)
    try:
        url = make_url(str(location))
    except ArgumentError as error:
        raise _bad_location(location) from error
    if url.drivername not in ("postgresql", _DRIVER):
        raise _bad_location(url.render_as_string(hide_password=True))
    return PostgresTable(url.set(drivername=_DRIVER))


def default_anchor(location: str | Path, access: Access) -> Path | None:
    """Beside a file; nowhere for a server, which is refused where the ledger is to be written."""
    if not _is_url(location):
        path = Path(location)
        return path.with_name(f"{path.name}.anchor")
    if access is Access.WRITE:
        raise InvalidInput(
            "anchor", None, "a PostgreSQL ledger needs an anchor on this side", "name a file, kept for good"
        )
    return None


def _is_url(location: str | Path) -> bool:
    return isinstance(location, str) and (":" in location.split("/", 1)[0])


def _bad_location(shown: str | Path) -> InvalidInput:
    return InvalidInput(
        "ledger", str(shown), f"must be a file path or {_DRIVER}://...", "give one of the two"
    )
