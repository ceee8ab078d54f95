"""Whose signatures count: the trust file and its policy.

The policy: *every role that appears in the trust file must have signed, with a key of that
role which is valid and not revoked*. A file with an officer's key only asks for the officer; adding a data
owner's key makes both necessary. Revoking all keys of a role does not remove the role: nothing passes until
the role has a new key. Auditors, coordinators and guards may be listed too; they sign audits, questions and answers,
and a budget never needs or takes their word.

A key holds one role. The file itself is signed by a root key, whose holder decides who the officers are; an unsigned
file is for trying things out. Each change makes the next file in the sequence. A ledger remembers the last file that
it has seen (`TrustSeen`) and refuses to go back to an earlier one, in which a key is not revoked yet.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError, model_validator

from calibrate.errors import TrustRefused
from calibrate.manifest.keys import (
    BadSignature,
    BrokenEnvelope,
    PublicKey,
    Role,
    SigningKey,
    check_signature,
    open_envelope,
    public_key_from_pem,
    sign,
)
from calibrate.manifest.mechanism import Count, Instant, Sha256, StrictModel, Text, is_none
from calibrate.manifest.strict_json import Json, NotStrictJson, canonical, digest, parse_object

TRUST_TYPE: Final = "urn:privfair:trust:v1"
TRUST_PAYLOAD_TYPE = "application/vnd.privfair.trust.v1+json"
DEFAULT_KEY_LIFETIME = timedelta(days=730)


class Revocation(StrictModel):
    """From `at` on the key counts for nothing, also on what it signed earlier: a thief can write any date."""

    at: Instant
    why: Text


class TrustedKey(StrictModel):
    """One public key, the role it speaks for, and the time in which it may."""

    key_id: Sha256
    role: Role
    public_key: Annotated[str, Field(max_length=2000)]
    valid_from: Instant
    valid_until: Instant
    revoked: Revocation | None = None
    party: Text | None = Field(default=None, exclude_if=is_none)
    """Whose answers a guard's key signs; no other key has one."""

    @model_validator(mode="after")
    def _is_what_it_says(self) -> TrustedKey:
        if (self.role is Role.GUARD) is not (self.party is not None):
            raise TrustRefused(f"key {self.key_id} must name its party if it is a guard's, and no party otherwise")
        derived = self.key()
        if derived.key_id != self.key_id or derived.pem != self.public_key:
            raise TrustRefused(f"key {self.key_id} is not the id of the key beside it; add the key again")
        if not self.valid_from < self.valid_until:
            raise TrustRefused(f"key {self.key_id} has validFrom not before validUntil; give a later end")
        return self

    @classmethod
    def of(
        cls,
        key: PublicKey,
        role: Role,
        valid_from: datetime,
        valid_until: datetime | None = None,
        party: str | None = None,
    ) -> TrustedKey:
        """The entry for a key; without an end it is valid for two years."""
        return cls(
            key_id=key.key_id,
            role=role,
            public_key=key.pem,
            valid_from=valid_from,
            valid_until=valid_until or valid_from + DEFAULT_KEY_LIFETIME,
            party=party,
        )

    def key(self) -> PublicKey:
        return public_key_from_pem(self.public_key.encode(), f"key {self.key_id}")

    def has_expired(self, at: datetime) -> bool:
        """Whether its time alone is over: it was not revoked, so what it signed in its time stays signed."""
        return at >= self.valid_until and (self.revoked is None or self.revoked.at > at)

    def objection(self, at: datetime) -> str | None:
        """Why the key may not speak at that instant; None if it may."""
        if self.revoked is not None and self.revoked.at <= at:
            return f"key {self.key_id} was revoked: {self.revoked.why}"
        if at < self.valid_from:
            return f"key {self.key_id} is not valid before {self.valid_from:%Y-%m-%d}"
        if at >= self.valid_until:
            return f"key {self.key_id} is not valid since {self.valid_until:%Y-%m-%d}"
        return None


@dataclass(frozen=True)
class TrustSeen:
    """What a ledger remembers of a trust file: whose it is, which one it was, and what it said.

    `root` is the id of the root key that signed it, or None; `first_key` the id of the first key that it lists, which
    stays the first in every later file; `successor` the id of the root key that it hands over to.
    """

    root: str | None
    first_key: str
    sequence: int
    digest: str
    successor: str | None = None


class TrustFile(StrictModel):
    """Roles and keys; every change makes a new file with the next sequence number."""

    type: Literal["urn:privfair:trust:v1"] = TRUST_TYPE
    sequence: Count = 1
    valid_until: Instant | None = None
    """After this a signed file is stale, so that an old one without a revocation cannot be kept in use."""
    successor: Sha256 | None = Field(default=None, exclude_if=is_none)
    """Id of the root key that signs every later file; the root key that signed this one signs no more."""
    keys: Annotated[tuple[TrustedKey, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _one_key_one_role(self) -> TrustFile:
        ids = [key.key_id for key in self.keys]
        for key_id in ids:
            if ids.count(key_id) > 1:
                raise TrustRefused(f"key {key_id} is listed twice; a key holds one role, once")
        return self

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that must sign a budget, in the order of the enumeration; none if only others are listed."""
        present = {key.role for key in self.keys}
        return tuple(role for role in Role if role in present and role.signs_budgets)

    def keys_of(self, role: Role) -> tuple[TrustedKey, ...]:
        """The keys of one `role`, revoked ones too."""
        return tuple(key for key in self.keys if key.role is role)

    def guards(self, party: str) -> tuple[TrustedKey, ...]:
        """The keys that sign the answers of one `party`."""
        return tuple(key for key in self.keys_of(Role.GUARD) if key.party == party)

    @property
    def knows_services(self) -> bool:
        """Whether coordinators or guards have keys; then every question and answer of a run is signed."""
        return any(key.role in (Role.COORDINATOR, Role.GUARD) for key in self.keys)

    def with_key(self, key: TrustedKey) -> TrustFile:
        """The next file, with one more key; a key that is in it already is refused."""
        return self._followed_by((*self.keys, key))

    def with_revoked(self, key_id: str, revocation: Revocation) -> TrustFile:
        """The next file, with one key revoked; what is revoked stays listed, so that its role stays required.

        key_id: Of the key. revocation: When, and why.
        """
        if key_id not in {key.key_id for key in self.keys}:
            raise TrustRefused(f"key {key_id} is not in the trust file; check the id")
        if any(key.key_id == key_id and key.revoked is not None for key in self.keys):
            raise TrustRefused(f"key {key_id} is revoked already; nothing is left to do")
        keys = tuple(
            key.model_copy(update={"revoked": revocation}) if key.key_id == key_id else key for key in self.keys
        )
        return self._followed_by(keys)

    def with_rotated(self, key_id: str, successor: PublicKey, at: datetime, valid_until: datetime) -> TrustFile:
        """The next file, in which a new key takes the role of an old one, which is revoked at the same instant.

        key_id: Of the old key. successor: The new one. at: From when on, valid_until: until when it is valid.
        """
        revoked = self.with_revoked(key_id, Revocation(at=at, why=f"replaced by key {successor.key_id}"))
        old = next(key for key in self.keys if key.key_id == key_id)
        return self._followed_by((*revoked.keys, TrustedKey.of(successor, old.role, at, valid_until, old.party)))

    def handed_over(self, successor: PublicKey) -> TrustFile:
        """The next file, the last one of its root key: later ones are signed by `successor`."""
        return self._followed_by(self.keys).model_copy(update={"successor": successor.key_id})

    def taken_over(self) -> TrustFile:
        """The first file that the new root key signs."""
        return self._followed_by(self.keys)

    def until(self, valid_until: datetime) -> TrustFile:
        """The next file, which is stale from `valid_until` on."""
        return self._followed_by(self.keys).model_copy(update={"valid_until": valid_until})

    def seen(self, root: PublicKey | None = None) -> TrustSeen:
        """What a ledger is to remember of this file, given the root key that its signature was checked with."""
        content = digest(self.model_dump(mode="json", by_alias=True))
        signer = None if root is None else root.key_id
        return TrustSeen(signer, self.keys[0].key_id, self.sequence, content, self.successor)

    def _followed_by(self, keys: tuple[TrustedKey, ...]) -> TrustFile:
        return TrustFile(sequence=self.sequence + 1, valid_until=self.valid_until, keys=keys)

    def to_bytes(self) -> bytes:
        """The plain file, indented for people to read."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), indent=2).encode() + b"\n"

    def signed(self, root: SigningKey) -> bytes:
        """The file in an envelope signed by the root key."""
        _refuse_root_with_role(self, root.public)
        return sign(TRUST_PAYLOAD_TYPE, canonical(self.model_dump(mode="json", by_alias=True)), root)


def read_trust(
    content: bytes, root: PublicKey | None = None, at: datetime | None = None, least_sequence: int = 1
) -> TrustFile:
    """The trust file in these bytes; raises `TrustRefused`.

    With a root key the file must be signed by it. Without one it must be unsigned: a signature that no one checks
    would only look like protection. `least_sequence` refuses an older file than one seen before.
    """
    try:
        fields = parse_object(content)
    except NotStrictJson as broken:
        raise TrustRefused(f"the trust file cannot be read: {broken}; write it again with `keys trust`") from broken
    if root is not None:
        fields = _signed_fields(content, root)
    elif "payload" in fields:
        raise TrustRefused("the trust file is signed, but no root key was given to check it; give the root key")
    trust = _validate(fields)
    if root is not None:
        _refuse_root_with_role(trust, root)
    now = datetime.now(UTC) if at is None else at
    if trust.valid_until is not None and now >= trust.valid_until:
        raise TrustRefused(f"the trust file is stale since {trust.valid_until:%Y-%m-%d}; ask for a new one")
    if trust.sequence < least_sequence:
        raise TrustRefused(
            f"the trust file has sequence {trust.sequence}, but {least_sequence} was seen; use the newest"
        )
    return trust


def _signed_fields(content: bytes, root: PublicKey) -> dict[str, Json]:
    try:
        opened = open_envelope(content)
        if opened.payload_type != TRUST_PAYLOAD_TYPE:
            raise TrustRefused(f"the envelope holds {opened.payload_type!r}, not a trust file; give the trust file")
        check_signature(opened, root)
        return parse_object(opened.payload)
    except (BrokenEnvelope, BadSignature, NotStrictJson) as broken:
        raise TrustRefused(f"the trust file is not signed by the root key: {broken}; sign it again") from broken


def _validate(fields: dict[str, Json]) -> TrustFile:
    try:
        text = canonical(fields)
        trust = TrustFile.model_validate_json(text)
    except (ValidationError, NotStrictJson) as broken:
        first = broken.errors()[0] if isinstance(broken, ValidationError) else {"loc": (), "msg": str(broken)}
        where = ".".join(str(part) for part in first["loc"])
        raise TrustRefused(
            f"the trust file cannot be read at {where or 'its top'}: {first['msg']}; write it again with `keys trust`"
        ) from broken
    if canonical(trust.model_dump(mode="json", by_alias=True)) != text:
        raise TrustRefused("the trust file is not spelled as privfair writes it; write it again with `keys trust`")
    return trust


def _refuse_root_with_role(trust: TrustFile, root: PublicKey) -> None:
    if root.key_id in {key.key_id for key in trust.keys}:
        raise TrustRefused(f"key {root.key_id} is root and holds a role; use a separate root key")


@dataclass(frozen=True)
class FolderTrust:
    """How far a run folder is trusted: whose signatures count, and whether the code it brings may run."""

    signers: TrustFile | None = None
    code: bool = False


UNTRUSTED = FolderTrust()
