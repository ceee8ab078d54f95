"""The seven kinds of ledger entry, and their one canonical spelling.

An entry is written as canonical JSON (RFC 8785). Reading is strict: no unknown or missing field, no
other type, and the bytes must be exactly what writing the parsed entry again gives, which also refuses
duplicate keys, NaN, other orders and other spellings of a number.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

import rfc8785
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from calibrate.privacy_unit import PrivacyUnit

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}\z")]
Label = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=1, lt=2**53)]
RoundNumber = Annotated[int, Field(ge=0, lt=2**53)]
Moment = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\z")]
Epsilon = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Delta = Annotated[float, Field(ge=0, lt=1)]
ReleasedValue = tuple[RoundNumber, Label, Label, Digest]


class _Entry(BaseModel):
    """What all kinds share: the place in the chain, and when it was written."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    seq: Count
    prev: Digest
    at: Moment


class Opened(_Entry):
    """The first entry: gives the ledger an identity, so that an anchor cannot be mistaken for another's."""

    kind: Literal["open"] = "open"
    version: Literal[1] = 1
    ledger: Digest


class BudgetSet(_Entry):
    """The most that all claims on one data set may add up to, by basic composition."""

    kind: Literal["budget"] = "budget"
    data: Digest
    unit: Label
    epsilon: Epsilon
    delta: Delta


class Claimed(_Entry):
    """A manifest is taken into use, once and for ever; `token` is the digest of the claimer's secret."""

    kind: Literal["claim"] = "claim"
    manifest: Digest
    nonce: Label
    envelope: Digest
    rounds: Count
    epsilon: Epsilon | None
    delta: Delta
    data: Digest
    unit: Label
    valid_until: Moment
    claimant: Label
    token: Digest


class Resumed(_Entry):
    """The token's holder starts again, in a new process; earlier sessions may not charge any more."""

    kind: Literal["resume"] = "resume"
    manifest: Digest
    session: Count
    claimant: Label


class Charged(_Entry):
    """Rounds `first` .. `end` - 1 are spent, whether or not they are ever released."""

    kind: Literal["charge"] = "charge"
    manifest: Digest
    session: Count
    first: RoundNumber
    end: Count


class Released(_Entry):
    """Values that left the gate: (round, party, name, digest of the bytes)."""

    kind: Literal["release"] = "release"
    manifest: Digest
    session: Count
    values: Annotated[tuple[ReleasedValue, ...], Field(min_length=1)]


class Closed(_Entry):
    """The claim is over; `transcript` is the final digest of what an observer saw, where one was kept."""

    kind: Literal["close"] = "close"
    manifest: Digest
    session: Count
    transcript: Digest | None


Entry = Opened | BudgetSet | Claimed | Resumed | Charged | Released | Closed
_ADAPTER: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="kind")])


class UnreadableEntry(ValueError):
    """The text is not the canonical spelling of an entry."""


def encode(entry: Entry) -> str:
    """The canonical JSON text of an entry."""
    document = entry.model_dump(mode="json")
    if isinstance(entry, Released):
        # Text and small whole numbers under ASCII keys: here plain JSON is canonical (tested as a law),
        # several times faster, and releases are nearly all of a ledger's text.
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return rfc8785.dumps(document).decode("utf-8")


def decode(body: str) -> Entry:
    """The entry that `body` is the canonical spelling of; raises UnreadableEntry."""
    try:
        entry = _ADAPTER.validate_json(stored_bytes(body))
        canonical = encode(entry)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the text"
        raise UnreadableEntry(f"{place}: {first['msg']}") from error
    except rfc8785.CanonicalizationError as error:
        raise UnreadableEntry(str(error)) from error
    if canonical != body:
        raise UnreadableEntry("the text is not in canonical form")
    return entry


def stored_bytes(body: str) -> bytes:
    """The bytes behind a stored text, also where somebody stored bytes that are not UTF-8."""
    return body.encode("utf-8", "surrogateescape")


def unit_text(unit: PrivacyUnit) -> str:
    """A privacy unit as entries spell it, for example "record by replace-one"."""
    return f"{unit.protected.value} by {unit.relation.value}"
