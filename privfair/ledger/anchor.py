"""The anchor: the ledger's last entry, kept outside the ledger.

A restored backup of a ledger is a perfectly valid chain that has forgotten the newest charges. The
anchor remembers (seq, head). It is written after each commit, so it may lag behind the ledger when a
process dies between the two; it can never be ahead of an honest one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import rfc8785
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privfair.durable import replace_file
from privfair.ledger.book import Book, short
from privfair.ledger.entries import Digest, Head, RolledBack, Unavailable

_LOST = (
    "put the newest copy of the ledger back; if it is lost, treat every manifest claimed in it as spent, "
    "start a new ledger and have new manifests signed"
)


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
    """The anchor in a file of its own, best on other storage than the ledger."""

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
            with self._alone():
                earlier = self.read()
                if earlier is None or earlier.head.seq < anchor.head.seq:
                    replace_file(self.path, rfc8785.dumps(document.model_dump()))
        except OSError as error:
            raise self._unavailable(error) from error

    def set_aside(self) -> None:
        """Give the place of an anchor free, keeping its file under another name."""
        if self.path.is_file():
            os.replace(self.path, self.path.with_name(f"{self.path.name}.lost"))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

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
            f"so an old copy was put back or its end was cut off",
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
