"""Registries at separate sites: who takes part in a step crosses sealed, and how often is counted where it costs.

A registry holds the attributes of records that others hold. It sums over the records that the holders drew, so they
must tell it which these are, past a coordinator that is to learn neither who is in a silo nor who took part. Holders
and registries share a key that the coordinator does not have. A holder seals the tags of its batch for one step of one
run; the coordinator carries the bytes.

Asking for a record more often than was priced would break the guarantee for it, and neither a coordinator
nor a holder is trusted with that: each registry counts. What a record's attribute costs follows from how often it takes
part and from nothing else (docs/theorems/steffle.md, "When others choose the batches"), so a limit on the number of
times is the promise itself, whatever is asked, in which order, and by whom. Chance can't be counted: Poisson batches
and draws with replacement are refused.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from calibrate.arrays import Integers
from calibrate.errors import InvalidInput, Refused, UnsupportedCombination
from calibrate.sampling import Sampling, ShuffledEpochs
from privfair.durable import read_named

Batches = Mapping[str, str]
"""By holder of records, what it sealed for the registries about one step."""
NO_BATCHES: Batches = MappingProxyType({})
HOW_TO_MAKE = "make it with `openssl rand -hex 32`, once for all sites"
_KEY_BYTES = 32
_TAG_BYTES = 16


class BatchRefused(Refused):
    """What a registry was told about a step's batch is not of the holders, or asks for a record too often."""


@final
@dataclass(frozen=True, repr=False)
class SitesKey:
    """What holders and registries know, and the coordinator does not; a file of 64 hexadecimal digits."""

    secret: bytes

    @classmethod
    def read(cls, path: Path) -> SitesKey:
        """The key in a file; the file's content is not shown."""
        content, secret = read_named(path, "--sites-key", "check it"), b""
        with suppress(ValueError):
            secret = bytes.fromhex(content.decode("ascii").strip())
        if len(secret) != _KEY_BYTES:
            rule = "does not hold 64 hexadecimal digits"
            raise InvalidInput(
                "--sites-key", str(path), rule, "make it with `openssl rand -hex 32`, once for all sites"
            )
        return cls(secret)

    def tags(self, records: Sequence[str]) -> list[bytes]:
        """One tag per record's number, which reveals nothing without the key."""
        own = self._derived(b"tags")
        return [hashlib.blake2b(name.encode(), digest_size=_TAG_BYTES, key=own).digest() for name in records]

    def seal(self, run: str, step: int, holder: str, tags: Sequence[bytes]) -> str:
        """A batch of `holder` for one step of one run; the same text for the same batch."""
        return b64encode(self._cipher.encrypt(b"".join(tags) or b"\0", _place(run, step, holder))).decode()

    def unseal(self, run: str, step: int, holder: str, sealed: str) -> list[bytes]:
        """The tags that `holder` sealed for this very step; anything else is refused."""
        try:
            content = self._cipher.decrypt(b64decode(sealed, validate=True), _place(run, step, holder))
        except (ValueError, InvalidTag):
            raise BatchRefused(
                f"what was told as the batch of {holder!r} in step {step} was not sealed by it for this step; give all "
                "sites the same --sites-key"
            ) from None
        whole = content if content != b"\0" else b""
        return [whole[at : at + _TAG_BYTES] for at in range(0, len(whole), _TAG_BYTES)]

    @property
    def _cipher(self) -> AESSIV:
        # Deterministic and without a nonce: asked again, a holder sends the same bytes (RFC 5297).
        return AESSIV(self._derived(b"batches") + self._derived(b"batches, second half"))

    def _derived(self, purpose: bytes) -> bytes:
        return hashlib.blake2b(purpose, digest_size=_KEY_BYTES, key=self.secret, person=b"privfair sites").digest()


def _place(run: str, step: int, holder: str) -> list[bytes]:
    return [run.encode(), step.to_bytes(8, "big"), holder.encode()]


def most_participations(sampling: Sampling | None, rounds: int) -> int:
    """How often one record may take part, as it was priced; refused where that is left to chance."""
    match sampling:
        case None:
            return rounds
        case ShuffledEpochs():
            return sampling.epochs_for(rounds)
        case _:
            raise UnsupportedCombination(
                f"registries at sites of their own with {type(sampling).__name__} batches",
                "a registry can count how often a record is asked for, and can't see whether chance decided it",
                'write sampling = "shuffled" or "full", or train in one process with files = [...]',
            )


@final
class AskedRecords:
    """The rows of a registry that each step asks for.

    Guarantee: no record takes part in more than `most` steps, whatever holders and coordinator send; so a run costs one
    record's attribute at most what was priced for these epochs (docs/theorems/steffle.md, "When others choose the
    batches"). Unit: one record's attribute.
    """

    def __init__(self, key: SitesKey, run: str, holders: Sequence[str], records: Sequence[str], most: int) -> None:
        self._key = key
        self._run = run
        self._holders = tuple(holders)
        self._row = {tag: row for row, tag in enumerate(key.tags(records))}
        self._most = most
        self._times: Integers = np.zeros(len(records), dtype=np.int64)
        self._counted = set[int]()

    def count(self, step: int, rows: Integers | None) -> None:
        """A step was answered for these rows, once; None where it is not known which, so that it counts for all."""
        if step not in self._counted:
            self._counted.add(step)
            self._times[slice(None) if rows is None else rows] += 1

    def rows(self, step: int, batches: Batches) -> Integers:
        """The own rows among what all holders sealed for this step, in ascending order."""
        if set(batches) != set(self._holders):
            raise BatchRefused(f"step {step} comes without the batches of all of {', '.join(self._holders)}")
        tags = [tag for name in self._holders for tag in self._key.unseal(self._run, step, name, batches[name])]
        found = [self._row[tag] for tag in tags if tag in self._row]
        rows = np.array(sorted(set(found)), dtype=np.int64)
        if len(rows) != len(found):
            raise BatchRefused(f"step {step} asks for a record twice")
        if step not in self._counted and (self._times[rows] >= self._most).any():
            raise BatchRefused(f"step {step} asks for a record more often than the {self._most} times that were priced")
        return rows


def digest_of_batches(state: str, batches: Batches) -> str:
    """What a registry's step was asked with: the state's digest and what the holders sealed."""
    if not batches:
        return state
    listed = "".join(f"\n{len(name)} {name} {batches[name]}" for name in sorted(batches))
    return hashlib.sha256(f"{state}{listed}".encode()).hexdigest()
