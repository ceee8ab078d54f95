"""The digest by which ledger, transcript and wire speak of one published value."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
from numpy.typing import NDArray

from calibrate.errors import InvalidInput
from privfair.transcript.header import ValueSpec

_DOMAIN = "privfair release 1"


def published_bytes(spec: ValueSpec, values: NDArray[np.floating]) -> bytes:
    """The exact bytes of a published array; another shape or type, or a number that is none, is refused."""
    array = np.asarray(values)
    if array.dtype != np.dtype(spec.format.value):
        raise InvalidInput(
            spec.name, array.dtype.str, f"must be {spec.format.value}", "convert it before it is published"
        )
    if array.shape != spec.shape:
        raise InvalidInput(
            spec.name, array.shape, f"must have shape {spec.shape}", "publish what was declared"
        )
    if not np.isfinite(array).all():
        raise InvalidInput(
            spec.name, "(not finite)", "must be finite", "mend the contribution before the gate"
        )
    return array.astype(spec.format.value, copy=False).tobytes()


def release_digest(manifest: str, round: int, party: str, spec: ValueSpec, content: bytes) -> str:
    """SHA-256 over a fixed word, manifest, round, party, name, format, shape and bytes, each with its length in front.

    The lengths make it injective: no two different releases share the text that is hashed.
    """
    hasher = hashlib.sha256()
    shape = ",".join(str(side) for side in spec.shape)
    for part in (_DOMAIN, manifest, str(round), party, spec.name, spec.format.value, shape):
        raw = part.encode("utf-8")
        hasher.update(struct.pack("<Q", len(raw)) + raw)
    hasher.update(struct.pack("<Q", len(content)))
    hasher.update(content)
    return hasher.hexdigest()
