"""What a transcript says about itself first: under which claim, from whom, which values, which noise."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import Enum
from math import prod
from pathlib import Path
from typing import Annotated

import numpy as np
import rfc8785
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter

from calibrate.errors import InvalidInput, Refused, count
from privfair.ledger import Claim
from privfair.ledger.terms import digest_text, label

# The one way in which a transcript says no.


class TranscriptRefused(Refused):
    """The transcript is damaged, does not fit its ledger, or may not be written so."""

    def __init__(self, subject: str, rule: str, remedy: str) -> None:
        self.subject = subject
        self.rule = rule
        self.remedy = remedy
        super().__init__(f"transcript refused {subject}: {rule}; {remedy}")


def refused(
    subject: str | Path, rule: str, remedy: str = "put an untouched copy of the transcript back"
) -> TranscriptRefused:
    """The refusal of a transcript; the remedy is an untouched copy unless another one is given."""
    return TranscriptRefused(str(subject), rule, remedy)


_MOST_GRID = 900
_STRICT = ConfigDict(strict=True, extra="forbid")
"""Of the JSON in which a header is stored."""


class FloatFormat(Enum):
    """How numbers are stored: little-endian IEEE 754."""

    FLOAT64 = "<f8"
    FLOAT32 = "<f4"

    @property
    def size(self) -> int:
        return int(self.value[-1])


@dataclass(frozen=True)
class ValueSpec:
    """One value that each party publishes in a round: its name, its shape, its numbers."""

    __pydantic_config__ = _STRICT
    name: str
    shape: tuple[int, ...]
    format: FloatFormat = FloatFormat.FLOAT64
    grid: int | None = None
    """Its numbers are whole multiples of 2^-grid; None where they are any numbers."""

    def __post_init__(self) -> None:
        label("name", self.name)
        for side in self.shape:
            count("shape", side)
        if self.grid is not None and (self.format is not FloatFormat.FLOAT64 or abs(self.grid) > _MOST_GRID):
            raise InvalidInput("grid", self.grid, "must be of doubles, at most 2^900 either way", "leave it out")

    @property
    def size(self) -> int:
        """Bytes of one value."""
        return prod(self.shape) * self.format.size


VERSION = 3
"""Of a transcript: until 2, what a record contributed could depend on its place in the batch, by rounding."""


@dataclass(frozen=True)
class TranscriptHeader:
    """Bound to the manifest by its digest, and to the ledger by its identity and the claim's entry."""

    __pydantic_config__ = _STRICT
    manifest_digest: Annotated[str, Field(alias="manifest")]
    ledger: str
    claim_hash: Annotated[str, Field(alias="claim")]
    noise_source: str
    parties: tuple[str, ...]
    values: tuple[ValueSpec, ...]
    retention: int | None = None
    """Every so many steps values are kept in full, else by their digests alone; None keeps all."""
    version: Annotated[int, Field(ge=2, le=VERSION)] = VERSION

    def __post_init__(self) -> None:
        if self.retention is not None:
            count("retention", self.retention)
        digest_text("manifest_digest", self.manifest_digest)
        digest_text("ledger", self.ledger)
        digest_text("claim_hash", self.claim_hash)
        label("noise_source", self.noise_source)
        for party in self.parties:
            label("party", party)
        _distinct("parties", self.parties)
        _distinct("values", tuple(value.name for value in self.values))

    @classmethod
    def of(
        cls,
        claim: Claim,
        noise_source: str,
        parties: tuple[str, ...],
        values: tuple[ValueSpec, ...],
        retention: int | None = None,
    ) -> TranscriptHeader:
        """The header of a run under `claim`."""
        return cls(claim.manifest, claim.ledger, claim.head.hash, noise_source, parties, values, retention)


_ADAPTER = TypeAdapter(TranscriptHeader)


def encode_header(header: TranscriptHeader) -> bytes:
    """Canonical JSON, so that one header has one spelling."""
    return rfc8785.dumps(_ADAPTER.dump_python(header, mode="json", by_alias=True))


def decode_header(payload: bytes) -> TranscriptHeader:
    """The header of exactly these bytes; anything else is refused."""
    try:
        header = _ADAPTER.validate_json(payload)
        if encode_header(header) != payload:
            raise ValueError("another spelling of the same header")
    except ValueError as error:  # of pydantic and rfc8785, and InvalidInput is one
        raise refused("the header", "it is not a header of this version") from error
    return header


def _distinct(argument: str, names: tuple[str, ...]) -> None:
    if not names or len(set(names)) != len(names) or len(names) > 65535:
        raise InvalidInput(argument, names, "must be 1 to 65535 distinct names", "name each one once")


# The digest by which ledger, transcript and wire speak of one published value.

_DOMAIN = "privfair release 1"


def published_bytes(spec: ValueSpec, values: NDArray[np.floating]) -> bytes:
    """The exact bytes of a published array; another shape or type, or a number that is none, is refused."""
    array = np.asarray(values)
    if array.dtype != np.dtype(spec.format.value):
        raise InvalidInput(
            spec.name, array.dtype.str, f"must be {spec.format.value}", "convert it before it is published"
        )
    if array.shape != spec.shape:
        raise InvalidInput(spec.name, array.shape, f"must have shape {spec.shape}", "publish what was declared")
    if not np.isfinite(array).all():
        raise InvalidInput(spec.name, "(not finite)", "must be finite", "fix the contribution before the gate")
    return array.astype(spec.format.value, copy=False).tobytes()


def release_digest(manifest: str, round_number: int, party: str, spec: ValueSpec, content: bytes) -> str:
    """SHA-256 over a fixed word, manifest, round, party, name, format, shape and bytes, each with its length in front.

    The lengths make it injective: no two different releases share the text that is hashed.
    """
    hasher = hashlib.sha256()
    shape = ",".join(str(side) for side in spec.shape)
    for part in (_DOMAIN, manifest, str(round_number), party, spec.name, spec.format.value, shape):
        raw = part.encode("utf-8")
        hasher.update(struct.pack("<Q", len(raw)) + raw)
    hasher.update(struct.pack("<Q", len(content)))
    hasher.update(content)
    return hasher.hexdigest()
