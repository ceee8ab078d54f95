"""How entries get in and out: replay what is new, append in one transaction, then move the anchor.

The anchor is the ledger's last entry, kept outside the ledger. A restored backup of a ledger is a perfectly valid
chain that has forgotten the newest charges. The anchor remembers (seq, head). It is written after each commit, so it
may lag behind the ledger when a process dies between the two; it can never be ahead of an honest one.

`Journal` is the part of a ledger that its claims share. It keeps a `Book` of everything read so far, so
that each entry is read and checked once by each process.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import rfc8785
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import Connection

from privfair.durable import lock_next_to, locked, replace_file
from privfair.ledger.book import Book, short
from privfair.ledger.entries import (
    ClaimSuperseded,
    Digest,
    Entry,
    Head,
    Link,
    Opened,
    Refusal,
    Restored,
    RolledBack,
    Unavailable,
    WrongLedger,
    decode,
    link,
    timestamp,
)
from privfair.ledger.store import LedgerAccess, Store

EVENTS = logging.getLogger("privfair.events")
"""What a host application's log hears of: entries of ledgers, refusals, halts. No private value is in any of them."""
_NAMES = {"claim": "claimed", "resume": "resumed", "charge": "charged", "release": "published", "close": "closed"}
_UNTOLD = {"prev", "kind", "token", "curve"}

_LOST = (
    "put the newest copy of the ledger back; if it is lost, treat every manifest claimed in it as spent, "
    "start a new ledger and have new manifests signed"
)


def note_event(event: str, level: int = logging.INFO, **facts: object) -> None:
    """Log an event with facts that an observer may see; `JsonEvents` writes them as one JSON object."""
    if EVENTS.isEnabledFor(level):
        EVENTS.log(level, "%s %s", event, json.dumps(facts, sort_keys=True), extra={"event": event, "facts": facts})


class JsonEvents(logging.Formatter):
    """One line of JSON per record, as log collectors read it."""

    def format(self, record: logging.LogRecord) -> str:
        told = {"event": getattr(record, "event", "message"), "level": record.levelname, "logger": record.name}
        facts = getattr(record, "facts", None) or {"message": record.getMessage()}
        return json.dumps(told | {"time": self.formatTime(record)} | facts, sort_keys=True)


class AnchorState(Enum):
    """How the anchor stands to the ledger."""

    CURRENT = "current"
    BEHIND = "behind"
    ABSENT = "absent"


@dataclass(frozen=True)
class Anchor:
    """Which ledger, and how far it had got."""

    ledger: str
    head: Head


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    version: Literal[1] = 1
    ledger: Digest
    seq: Annotated[int, Field(ge=1)]
    head: Digest


class AnchorFile:
    """The anchor in a separate file, best on other storage than the ledger."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Anchor | None:
        """The anchor, or None if the file does not exist; a file that is not an anchor is refused."""
        try:
            document = _Document.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unavailable(error) from error
        except ValidationError as error:
            raise RolledBack(
                f"anchor {self.path}", "the file is not an anchor of this version", "put the true anchor back"
            ) from error
        return Anchor(document.ledger, Head(document.seq, document.head))

    def advance(self, anchor: Anchor) -> None:
        """Write `anchor` durably, unless another process has already written a later one."""
        document = _Document(ledger=anchor.ledger, seq=anchor.head.seq, head=anchor.head.hash)
        try:
            with locked(lock_next_to(self.path)):
                earlier = self.read()
                if earlier is None or earlier.head.seq < anchor.head.seq:
                    replace_file(self.path, rfc8785.dumps(document.model_dump()))
        except OSError as error:
            raise self._unavailable(error) from error

    def set_aside(self) -> None:
        """Give the place of an anchor free, keeping its file under another name."""
        if self.path.is_file():
            os.replace(self.path, self.path.with_name(f"{self.path.name}.lost"))

    def _unavailable(self, error: OSError) -> Unavailable:
        return Unavailable(f"anchor {self.path}", f"it cannot be used ({error.strerror})", "make its folder writable")


def check_anchor(anchor: Anchor | None, book: Book) -> AnchorState:
    """How `anchor`, read *before* the entries in `book`, stands to them; a ledger behind it is refused."""
    if anchor is None:
        return AnchorState.ABSENT
    if book.head.seq == 0:
        raise RolledBack("the ledger", f"it is empty, but its anchor knows {anchor.head.seq} entries", _LOST)
    if anchor.ledger != book.ledger:
        raise RolledBack(
            "the ledger",
            f"it is ledger {short(book.ledger)}, but the anchor belongs to {short(anchor.ledger)}",
            "give each ledger its own anchor file, or put the right ledger back",
        )
    if anchor.head.seq > book.head.seq:
        raise RolledBack(
            "the ledger",
            f"it ends at entry {book.head.seq}, but its anchor has seen entry {anchor.head.seq}, "
            f"so an old copy replaced it or its end was cut off",
            _LOST,
        )
    if not book.contains(anchor.head):
        raise RolledBack(
            "the ledger",
            f"entry {anchor.head.seq} is {short(book.hashes[anchor.head.seq])}, "
            f"but its anchor has seen {short(anchor.head.hash)} there, so the ledger has another history",
            _LOST,
        )
    return AnchorState.CURRENT if anchor.head == book.head else AnchorState.BEHIND


Draft = Callable[..., Entry]
"""An entry but for its place in the chain: called with seq, prev and at."""


def fresh_identity() -> str:
    """What tells a ledger from all others."""
    return secrets.token_hex(32)


class Journal:
    """The entries of one open ledger."""

    def __init__(
        self, store: Store, anchor: AnchorFile | None, access: LedgerAccess, now: Callable[[], datetime]
    ) -> None:
        self.store = store
        self.lock = threading.RLock()
        self._anchor = anchor
        self._access = access
        self._now = now
        self._book = Book()
        self._seen = self._book.head
        self._process = os.getpid()

    def create(self, bound_only: bool = False) -> None:
        """Make the ledger where there is neither a ledger nor an anchor; one of several at once succeeds."""
        identity = fresh_identity()

        def first(book: Book) -> tuple[Draft]:
            if book.head.seq:
                raise self._occupied()
            return (partial(Opened, ledger=identity, bound_only=True if bound_only else None),)

        self._prepare()
        self.append(first, make=True)

    def restore(self, rows: Sequence[Link], complete: bool) -> None:
        """Make the ledger of a backup's rows; unless it is `complete`, an entry says so and takes the rest back.

        A crash in between leaves a ledger without an anchor, which is refused.
        """
        if self.store.exists():
            raise self._occupied()
        self.anchor_file.set_aside()
        self._prepare()
        with self._forgetting_on_error(), self.store.writing(make=True) as connection:
            self.store.append(connection, rows)
        identity = fresh_identity()
        self.append(lambda book: () if complete else (partial(Restored, ledger=identity),))
        self.move_anchor()

    def _prepare(self) -> None:
        """Refuse an anchor without its ledger; it is read first, as in `refresh`: another process may make both now."""
        anchor = self._anchor.read() if self._anchor else None
        if not self.store.exists():
            check_anchor(anchor, Book())
            self.store.close()  # a PostgreSQL connection still remembers that the table was not there

    def _occupied(self) -> WrongLedger:
        return WrongLedger(
            self.store.label, "there is a ledger here already, and a ledger is never replaced", "choose another place"
        )

    def begin(self) -> None:
        """Verify the whole ledger and hold it against its anchor."""
        if self._access is LedgerAccess.WRITE:
            self._prepare()
        self.store.check()
        _, state = self.refresh()
        if self._access is LedgerAccess.READ:
            return
        if state is AnchorState.ABSENT:
            _, state = self.refresh()  # the process that made the ledger may have been about to write its anchor
        if state is AnchorState.ABSENT and self._book.head.seq > 1:
            raise RolledBack(
                self.store.label,
                f"it has {self._book.head.seq} entries but its anchor {self.anchor_file.path} is missing",
                "restore the anchor, or adopt the ledger with an end that was noted elsewhere",
            )
        if self._book.head.seq == 0:
            raise Unavailable(
                self.store.label, "it is empty: making it was interrupted", "make it with `privfair ledger init`"
            )
        self.move_anchor()

    def append(self, plan: Callable[[Book], Iterable[Draft]], make: bool = False) -> Book:
        """Write what `plan` wants, given the newest state, in one durable transaction; then the anchor.

        The book that comes back shows the state right after; hold `lock` around call and use, because
        the next look at the database changes it.
        """
        with self.lock:
            self.require_own_process()
            if self._access is LedgerAccess.READ:
                raise Unavailable(self.store.label, "it was opened for reading only", "open it for writing")
            links: list[Link] = []
            written: list[Entry] = []
            with self._forgetting_on_error(), self.store.writing(make) as connection:
                self._catch_up(connection)
                at = timestamp(self._now())
                for draft in plan(self._book):
                    head = self._book.head
                    entry = draft(seq=head.seq + 1, prev=head.hash, at=at)
                    links.append(link(entry))
                    written.append(entry)
                    self._book.admit(entry, links[-1].hash)
                if links:
                    self.store.append(connection, links)
            self._seen = self._book.head
            if links:
                self.move_anchor()
            for entry in written if EVENTS.isEnabledFor(logging.INFO) else ():
                facts = entry.model_dump(mode="json", exclude=_UNTOLD, exclude_none=True)
                note_event(_NAMES.get(entry.kind, entry.kind), **({"ledger": self._book.ledger} | facts))
            return self._book

    def refresh(self) -> tuple[Book, AnchorState]:
        """Read what is new, and hold it against the anchor as it was before."""
        with self.lock:
            self.require_own_process()
            # The anchor first: commits come before it, so an honest ledger read afterwards is never behind.
            anchor = self._anchor.read() if self._anchor else None
            with self._forgetting_on_error(), self.store.reading() as connection:
                self._catch_up(connection)
                return self._book, check_anchor(anchor, self._book)

    def reread(self) -> Book:
        """Verify everything again from the first entry on."""
        with self.lock:
            self.require_own_process()
            self.store.check()
            self._book = Book()
            book, _ = self.refresh()
            return book

    def entries(self) -> Iterator[Entry]:
        """All entries in order, for callers that need more than the book remembers."""
        with self.lock:
            self.refresh()
            with self.store.reading() as connection:
                for row in self.store.rows(connection, 1):
                    yield decode(row.body)

    def require(self, head: Head) -> None:
        """Refuse a ledger that does not contain an end it once had."""
        if not self._book.contains(head):
            raise RolledBack(
                self.store.label,
                f"entry {head.seq} ({head.hash[:12]}) was seen before and is not there now",
                "put the newest copy of the ledger back before any further charge",
            )

    def move_anchor(self) -> None:
        self.anchor_file.advance(Anchor(self._book.ledger, self._book.head))

    @property
    def anchor_file(self) -> AnchorFile:
        if self._anchor is None:
            raise Unavailable(self.store.label, "it was opened without an anchor", "name an anchor file")
        return self._anchor

    def require_own_process(self) -> None:
        """A fork copies the claims in memory: two processes would hold the same rounds."""
        if os.getpid() != self._process:
            raise ClaimSuperseded(
                self.store.label,
                f"process {self._process} opened it and process {os.getpid()} inherited it by a fork",
                "open the ledger again in the new process",
            )

    def _catch_up(self, connection: Connection) -> None:
        """Replay the rows not read yet, after checking that the last one read is still there."""
        rows = self.store.rows(connection, max(1, self._book.head.seq))
        if self._book.head.seq:
            last = next(rows, None)
            if last is None or last.head != self._book.head:
                self._book = Book()
                self.require(self._seen)
        for row in rows:
            self._book.replay(row)
        self.require(self._seen)
        self._seen = self._book.head

    @contextmanager
    def _forgetting_on_error(self) -> Iterator[None]:
        """Forget the book where it may hold entries that were not committed; the next look reads the file again."""
        try:
            yield
        except BaseException as error:
            if self._book.head != self._seen:
                self._book = Book()
            if isinstance(error, Refusal):
                note_event("refused", logging.WARNING, kind=type(error).__name__, subject=error.subject)
            raise
