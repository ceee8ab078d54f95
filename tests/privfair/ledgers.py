"""Ledgers for tests: made where there is none, and all of one identity, so that terms can name it beforehand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

from privfair.ledger import Ledger, Unavailable

LEDGER = "1e" * 32
DATASET = "patients of north, 2026"


def new_ledger(
    location: str | Path, anchor: Path | None = None, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Ledger:
    """`Ledger.create`, with the identity LEDGER."""
    with patch("privfair.ledger.journal.fresh_identity", lambda: LEDGER):
        return Ledger.create(location, anchor, now)


def open_ledger(
    location: str | Path, anchor: Path | None = None, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Ledger:
    """The ledger at a place; a new one where there is none, or where making it was interrupted."""
    try:
        return Ledger.open(location, anchor, now=now)
    except Unavailable as refusal:
        if not any(why in refusal.rule for why in ("there is no ledger here", "making it was interrupted")):
            raise
        return new_ledger(location, anchor, now)
