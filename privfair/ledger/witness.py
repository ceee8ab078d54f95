"""A transparency log of claims: a Merkle tree that only grows, shared by the silos.

Each ledger knows only itself. A budget that was claimed in two of them, or in two copies of one, is seen when claims
written to a log that others can read: the log's head stands for all of it, so a receipt that is taken out again is
detected. Hashing and proofs follow RFC 6962, Section 2.1.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

import rfc8785
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from calibrate.errors import InvalidInput
from privfair.durable import lock_next_to, locked, opened, replace_file, sync_folder, write_all
from privfair.ledger.book import Account, short
from privfair.ledger.entries import Count, Digest, Label, Moment, NotIntact, Unavailable

# The tree. A leaf and an inner node are hashed with different first bytes, so that neither passes for the other.


def leaf_hash(leaf: bytes) -> bytes:
    """SHA-256(0x00 || leaf)."""
    return hashlib.sha256(b"\x00" + leaf).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def _split(size: int) -> int:
    """The largest power of two below `size`: how many leaves the left half has."""
    return 1 << (size - 1).bit_length() - 1


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """MTH of RFC 6962 over hashed leaves."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = _split(len(leaves))
    return _node(tree_root(leaves[:k]), tree_root(leaves[k:]))


def inclusion_proof(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """PATH(index, leaves): what `included` needs in addition to the leaf to arrive at the root."""
    if len(leaves) == 1:
        return ()
    k = _split(len(leaves))
    if index < k:
        return (*inclusion_proof(leaves[:k], index), tree_root(leaves[k:]))
    return (*inclusion_proof(leaves[k:], index - k), tree_root(leaves[:k]))


def consistency_proof(leaves: Sequence[bytes], first: int) -> tuple[bytes, ...]:
    """PROOF(first, leaves): that a tree of `first` leaves is the beginning of this one."""
    return _subproof(leaves, first, whole=True)


def _subproof(leaves: Sequence[bytes], first: int, whole: bool) -> tuple[bytes, ...]:
    if first == len(leaves):
        return () if whole else (tree_root(leaves),)
    k = _split(len(leaves))
    if first <= k:
        return (*_subproof(leaves[:k], first, whole), tree_root(leaves[k:]))
    return (*_subproof(leaves[k:], first - k, whole=False), tree_root(leaves[:k]))


def included(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether the proof shows that the hashed `leaf` has number `index` in the tree of `size` leaves with `root`."""
    if not 0 <= index < size:
        return False
    found, last = leaf, size - 1
    for step in proof:
        if last == 0:
            return False
        if index & 1 or index == last:
            found = _node(step, found)
            while not index & 1 and index:
                index, last = index >> 1, last >> 1
        else:
            found = _node(found, step)
        index, last = index >> 1, last >> 1
    return last == 0 and found == root


def consistent(first: int, second: int, first_root: bytes, second_root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether the proof shows that the tree of `first` leaves is the beginning of that of `second` leaves."""
    if not 0 <= first <= second:
        return False
    if first in (0, second):
        return not proof and (first == 0 or first_root == second_root)
    steps = list(proof) if first & (first - 1) else [first_root, *proof]
    if not steps:
        return False
    index, last = first - 1, second - 1
    while index & 1:
        index, last = index >> 1, last >> 1
    old = new = steps[0]
    for step in steps[1:]:
        if last == 0:
            return False
        if index & 1 or index == last:
            old, new = _node(step, old), _node(step, new)
            while not index & 1 and index:
                index, last = index >> 1, last >> 1
        else:
            new = _node(new, step)
        index, last = index >> 1, last >> 1
    return last == 0 and old == first_root and new == second_root


@dataclass(frozen=True)
class LogHead:
    """How many receipts a log has, and the root that stands for all of them."""

    size: int
    root: str

    def __str__(self) -> str:
        return f"{self.size}:{self.root}"

    @classmethod
    def parse(cls, text: str) -> LogHead:
        size, _, root = text.partition(":")
        if not (size.isascii() and size.isdecimal() and len(size) < 16 and re.fullmatch("[0-9a-f]{64}", root)):
            raise InvalidInput("head", text, "must be SIZE:ROOT", "give what `ledger publish` printed")
        return cls(int(size), root)


class ClaimReceipt(BaseModel):
    """That a manifest was claimed: in which ledger, by which entry. It names no record and no person.

    `ledgers` are those that the manifest was signed for; empty if it may be claimed in any, which is why it is logged.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    version: Literal[1] = 1
    manifest: Digest
    nonce: Label
    ledger: Digest
    seq: Count
    claim: Digest
    dataset: Label
    claimed_at: Moment
    ledgers: tuple[Digest, ...]

    @classmethod
    def of(cls, account: Account) -> ClaimReceipt:
        claim = account.claim
        return cls(
            manifest=claim.manifest,
            nonce=claim.nonce,
            ledger=account.ledger,
            seq=account.head.seq,
            claim=account.head.hash,
            dataset=claim.dataset,
            claimed_at=claim.at,
            ledgers=claim.ledgers,
        )

    def encode(self) -> bytes:
        return rfc8785.dumps(self.model_dump(mode="json"))


def second_uses(receipts: Iterable[ClaimReceipt]) -> tuple[str, ...]:
    """Every use of a budget beyond the one that was signed, one entry each.

    A budget that names one ledger per silo is claimed once in each of them. Any other second claim of a manifest or
    of its nonce is a second use; so is a second history of one ledger, such as a restored copy.
    """
    claims: dict[str, ClaimReceipt] = {}
    entries: dict[tuple[str, int], ClaimReceipt] = {}
    uses: dict[str, dict[str, ClaimReceipt]] = {}
    found = []
    for receipt in receipts:
        if receipt.claim in claims:
            continue
        claims[receipt.claim] = receipt
        twin = entries.setdefault((receipt.ledger, receipt.seq), receipt)
        if twin is not receipt:
            found.append(
                f"ledger {short(receipt.ledger)} has two histories: entry {receipt.seq} claims "
                f"{short(twin.manifest)} and {short(receipt.manifest)}"
            )
        for key in (f"manifest {short(receipt.manifest)}", f"the nonce {receipt.nonce!r}"):
            others = uses.setdefault(key, {})
            signed = {receipt.ledger, *others} <= set(receipt.ledgers) and receipt.ledger not in others
            same = all(one.manifest == receipt.manifest for one in others.values())
            if others and not (signed and same):
                places = " and ".join(f"ledger {short(one)}" for one in dict.fromkeys([*others, receipt.ledger]))
                found.append(f"{key} was used a second time, in {places}, on {receipt.claimed_at}")
            others.setdefault(receipt.ledger, receipt)
    return tuple(found)


class WitnessLog:
    """One log in a file, one receipt per line; a folder holds one file per ledger that writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def at(cls, place: Path, ledger: str) -> WitnessLog:
        """The log that a ledger writes to at a shared place: the file itself, or its own file in a folder."""
        return cls(place / f"{ledger[:16]}.log" if place.is_dir() else place)

    @classmethod
    def all_at(cls, place: Path) -> tuple[WitnessLog, ...]:
        """Every log at a place that was named."""
        found = sorted(place.glob("*.log")) if place.is_dir() else [place]
        if not found or not all(path.is_file() for path in found):
            raise InvalidInput("log", str(place), "holds no log", "name a file that `ledger publish` wrote")
        return tuple(cls(path) for path in found)

    def read(self) -> tuple[ClaimReceipt, ...]:
        """All receipts; a line that was not finished when a machine stopped is no receipt yet."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self._unavailable(error) from error
        found = []
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                receipt = ClaimReceipt.model_validate_json(line)
            except ValidationError as error:
                raise self._damaged(number) from error
            if receipt.encode() != line:
                raise self._damaged(number)
            found.append(receipt)
        return tuple(found)

    def append(self, receipts: Sequence[ClaimReceipt]) -> tuple[ClaimReceipt, ...]:
        """Write the receipts that are not there yet, durably; returns all that are there then."""
        try:
            with locked(lock_next_to(self.path)):
                there = self.read()
                new = [receipt for receipt in receipts if receipt not in set(there)]
                with opened(self.path, os.O_RDWR | os.O_CREAT) as descriptor:
                    # cut off a line that was not finished when a machine stopped
                    os.ftruncate(descriptor, sum(len(receipt.encode()) + 1 for receipt in there))
                    os.lseek(descriptor, 0, os.SEEK_END)
                    write_all(descriptor, b"".join(receipt.encode() + b"\n" for receipt in new))
                    os.fsync(descriptor)
                sync_folder(self.path.parent)
                return (*there, *new)
        except OSError as error:
            raise self._unavailable(error) from error

    def _damaged(self, line: int) -> NotIntact:
        return NotIntact(f"log {self.path}", f"line {line} is not a receipt", "put an untouched copy back")

    def _unavailable(self, error: OSError) -> Unavailable:
        return Unavailable(f"log {self.path}", f"it cannot be used ({error.strerror})", "check the path and its rights")


def receipts_at(place: Path) -> list[ClaimReceipt]:
    """The receipts of every log at a place."""
    return [receipt for log in WitnessLog.all_at(place) for receipt in log.read()]


def forks(logs: Sequence[WitnessLog]) -> Iterator[str]:
    """Logs of one name of which neither is the beginning of the other, one entry each."""
    for log, other in combinations(logs, 2):
        if other.path.name == log.path.name:
            first, second = sorted((hashed(log.read()), hashed(other.read())), key=len)
            if second[: len(first)] != first:
                yield f"{log.path} and {other.path} are two histories of one log"


def hashed(receipts: Iterable[ClaimReceipt]) -> list[bytes]:
    """The leaves of a log's tree."""
    return [leaf_hash(receipt.encode()) for receipt in receipts]


def head_of(leaves: Sequence[bytes]) -> LogHead:
    """Size and root of a log with these leaves."""
    return LogHead(len(leaves), tree_root(leaves).hex())


def contains_head(leaves: Sequence[bytes], head: LogHead) -> bool:
    """Whether `head` was the head of this very log at some time."""
    return head.size <= len(leaves) and tree_root(leaves[: head.size]).hex() == head.root


_NOTES: TypeAdapter[dict[str, str]] = TypeAdapter(dict[str, str])


class NotedHeads:
    """What a silo remembers of the logs it saw, by file name, so that a cut or rewritten log is detected."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def require(self, log: WitnessLog, leaves: Sequence[bytes]) -> None:
        """Refuse a log that does not begin with what was noted of it."""
        noted = self._read().get(log.path.name)
        if noted is not None and not contains_head(leaves, noted):
            raise NotIntact(
                f"log {log.path}",
                f"it had {noted.size} receipts with root {short(noted.root)} before, and does not begin with them now",
                "ask who keeps it for the untouched log",
            )

    def note(self, log: WitnessLog, leaves: Sequence[bytes]) -> None:
        """Remember the log as it is now."""
        heads = self._read() | {log.path.name: head_of(leaves)}
        replace_file(self.path, json.dumps({name: str(head) for name, head in heads.items()}, indent=1).encode())

    def remember(self, place: Path) -> None:
        """Compare every log at a place with what was noted of it, and note it as it is now."""
        for log in WitnessLog.all_at(place):
            leaves = hashed(log.read())
            self.require(log, leaves)
            self.note(log, leaves)

    def _read(self) -> dict[str, LogHead]:
        try:
            texts = _NOTES.validate_json(self.path.read_bytes())
            return {name: LogHead.parse(text) for name, text in texts.items()}
        except FileNotFoundError:
            return {}
        except (ValidationError, InvalidInput) as error:
            raise NotIntact(f"note {self.path}", "it is not a note of log heads", "put the true one back") from error


class LogProof(BaseModel):
    """That a receipt is in a log (`receipt`, `index`), or that an earlier head is the beginning of it (`since`)."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    version: Literal[1] = 1
    head: str
    path: tuple[Digest, ...]
    receipt: ClaimReceipt | None = None
    index: int | None = None
    since: str | None = None

    @classmethod
    def of_claim(cls, logs: Iterable[WitnessLog], manifest: str) -> LogProof:
        """The proof that a manifest's claim is in the first log that has it."""
        for log in logs:
            receipts = log.read()
            for index, receipt in enumerate(receipts):
                if manifest and receipt.manifest.startswith(manifest):
                    leaves = hashed(receipts)
                    path = tuple(step.hex() for step in inclusion_proof(leaves, index))
                    return cls(head=str(head_of(leaves)), path=path, receipt=receipt, index=index)
        raise InvalidInput("--proof", manifest, "fits no receipt", "give the digest that `ledger status` shows")

    @classmethod
    def of_growth(cls, logs: Iterable[WitnessLog], since: str) -> LogProof:
        """The proof that a log which had the head `since` has only grown."""
        earlier = LogHead.parse(since)
        for log in logs:
            leaves = hashed(log.read())
            if contains_head(leaves, earlier):
                path = tuple(step.hex() for step in consistency_proof(leaves, earlier.size) if earlier.size)
                return cls(head=str(head_of(leaves)), path=path, since=since)
        raise InvalidInput("--proof", since, "is no head that this log had", "ask who keeps it for the untouched log")

    @property
    def statement(self) -> str:
        """What the proof shows, in words."""
        if self.receipt is not None:
            one = self.receipt
            return f"manifest {short(one.manifest)} was claimed in ledger {short(one.ledger)} on {one.claimed_at}"
        return f"the log only grew since {str(self.since)[:24]}"

    def holds_for(self, head: LogHead) -> bool:
        """Whether the proof leads to a head that is known from elsewhere."""
        path, root = [bytes.fromhex(step) for step in self.path], bytes.fromhex(head.root)
        if self.receipt is not None and self.index is not None and self.since is None:
            return included(leaf_hash(self.receipt.encode()), self.index, head.size, path, root)
        if self.since is not None and self.receipt is None:
            earlier = LogHead.parse(self.since)
            return consistent(earlier.size, head.size, bytes.fromhex(earlier.root), root, path)
        return False

    def encode(self) -> bytes:
        return rfc8785.dumps(self.model_dump(mode="json", exclude_none=True))

    @classmethod
    def decode(cls, content: bytes) -> LogProof:
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            raise InvalidInput(
                "PROOF", "(a file)", "is not a proof", "use what `ledger publish --proof` wrote"
            ) from error
