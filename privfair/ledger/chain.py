"""The hash chain: each entry's canonical text contains its number and the digest of the one before.

Changing, dropping, inserting or reordering any entry breaks every digest after it. What a chain cannot
show is that its end was cut off, or that an old copy was put back: that is the anchor's task.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from privfair.ledger.entries import Entry, UnreadableEntry, decode, encode, stored_bytes
from privfair.ledger.refusals import NotIntact

_REMEDY = (
    "put back an untouched copy that is not older than the anchor, or ask the privacy officer to start anew"
)


@dataclass(frozen=True)
class Head:
    """The last entry's number and digest: together they stand for the whole ledger up to there."""

    seq: int
    hash: str


GENESIS = Head(0, "0" * 64)


@dataclass(frozen=True)
class Link:
    """One row as it is stored."""

    seq: int
    prev: str
    hash: str
    body: str

    @property
    def head(self) -> Head:
        return Head(self.seq, self.hash)


def link(entry: Entry) -> Link:
    """The row that stores `entry`."""
    body = encode(entry)
    return Link(entry.seq, entry.prev, hashlib.sha256(stored_bytes(body)).hexdigest(), body)


def read_link(row: Link, after: Head) -> Entry:
    """The entry of a stored row that must follow `after`; raises NotIntact and names the entry."""
    if row.seq != after.seq + 1:
        raise broken(after.seq + 1, f"the entry is missing, the next one stored is number {row.seq}")
    if row.prev != after.hash:
        raise broken(row.seq, "it does not follow from the entry before it")
    if hashlib.sha256(stored_bytes(row.body)).hexdigest() != row.hash:
        raise broken(row.seq, "its text does not have the digest it was stored with")
    try:
        entry = decode(row.body)
    except UnreadableEntry as error:
        raise broken(row.seq, f"its text is not an entry of this version ({error})") from error
    if (entry.seq, entry.prev) != (row.seq, row.prev):
        raise broken(row.seq, "its text was written for another place in the chain")
    return entry


def broken(seq: int, rule: str) -> NotIntact:
    """The refusal that says at which entry the ledger stops being trustworthy."""
    return NotIntact(f"entry {seq}", rule, _REMEDY)
