"""The tie between a manifest and the data it speaks of: names, sizes and a schema digest, no contents."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import rfc8785

from calibrate.errors import InvalidInput
from calibrate.validation import count

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def digest(value: Json) -> str:
    """SHA-256 of the canonical JSON (RFC 8785) of a value, as `sha256:` and 64 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(rfc8785.dumps(value)).hexdigest()


@dataclass(frozen=True)
class DataBinding:
    """What a manifest may say about the data.

    The records themselves are deliberately not hashed: a digest of private records is a publication (whoever
    guesses the records can check the guess). Sizes are part of the calibration and thus public already.
    """

    schema_digest: str
    silos: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.schema_digest):
            raise InvalidInput(
                "schema_digest",
                self.schema_digest,
                "must be sha256: and 64 hexadecimal digits",
                "take Schema.digest",
            )
        if len({name for name, _ in self.silos}) != len(self.silos) or not self.silos:
            raise InvalidInput("silos", self.silos, "must be distinct and not empty", "name each silo once")
        for name, size in self.silos:
            count(f"size of silo {name!r}", size, least=0)

    def as_json(self) -> dict[str, Json]:
        return {
            "schemaDigest": self.schema_digest,
            "silos": [{"name": name, "records": size} for name, size in self.silos],
        }

    @property
    def digest(self) -> str:
        return digest(self.as_json())
