"""DSSE envelopes: signed, opened, and checked against one key at a time.

securesystemslib does the signing and the verifying. Around it stand the checks it leaves out: it accepts
several spellings of base64, keeps unknown fields, stops at the first sufficient signature, raises KeyError
for an envelope without key ids, and empties the dictionary it is given.
"""

from __future__ import annotations

import base64
import binascii
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import UnverifiedSignatureError

from calibrate.manifest.keys import PublicKey, SigningKey
from calibrate.manifest.strict_json import Json, NotStrictJson, canonical, parse_object

LARGEST_ENVELOPE = 2 << 20
MOST_SIGNATURES = 16
_KEY_ID_LENGTH = 64


class BrokenEnvelope(ValueError):
    """The bytes are not a DSSE envelope in the one spelling that is accepted."""


class BadSignature(ValueError):
    """A signature under this key's id does not verify."""


@dataclass(frozen=True)
class SignedPayload:
    """An envelope that parses. Its payload is NOT trustworthy: no signature was checked to get here."""

    payload_type: str
    payload: bytes = field(repr=False)
    key_ids: tuple[str, ...]
    _fields: Mapping[str, Json] = field(repr=False, compare=False)

    def envelope(self) -> Envelope:
        """securesystemslib's envelope, made from a copy because `from_dict` destroys its input."""
        return Envelope.from_dict(copy.deepcopy(dict(self._fields)))


def sign(payload_type: str, payload: bytes, key: SigningKey) -> bytes:
    """A new envelope with one signature."""
    envelope = Envelope(payload, payload_type, {})
    envelope.sign(key.signer)
    return _written(envelope)


def add_signature(opened: SignedPayload, key: SigningKey) -> bytes:
    """The same envelope with one more signature; a key that signed already is refused, not counted twice."""
    if key.key_id in opened.key_ids:
        raise BrokenEnvelope(f"key {key.key_id} has signed already")
    if len(opened.key_ids) >= MOST_SIGNATURES:
        raise BrokenEnvelope(f"the envelope holds {MOST_SIGNATURES} signatures, the most allowed")
    envelope = opened.envelope()
    envelope.sign(key.signer)
    return _written(envelope)


def open_envelope(content: bytes) -> SignedPayload:
    """The parts of an envelope; raises `BrokenEnvelope` unless it is spelled in the one accepted way."""
    try:
        fields = parse_object(content, LARGEST_ENVELOPE)
    except NotStrictJson as broken:
        raise BrokenEnvelope(str(broken)) from broken
    _exactly("the envelope", fields, "payload", "payloadType", "signatures")
    payload_type = _text("payloadType", fields["payloadType"])
    payload = _base64("payload", fields["payload"])
    signatures = fields["signatures"]
    if not isinstance(signatures, list) or not 1 <= len(signatures) <= MOST_SIGNATURES:
        raise BrokenEnvelope(f"signatures must be a list of 1 to {MOST_SIGNATURES}")
    key_ids = tuple(_key_id(signature) for signature in signatures)
    if len(set(key_ids)) != len(key_ids):
        raise BrokenEnvelope("one key id signs twice")
    return SignedPayload(payload_type, payload, key_ids, fields)


def check_signature(opened: SignedPayload, key: PublicKey) -> None:
    """Returns if the envelope holds a valid signature by this key; raises `BadSignature` otherwise.

    One key and a threshold of one: thresholds count keys, and what we need to know is who signed.
    """
    if key.key_id not in opened.key_ids:
        raise BadSignature(f"there is no signature by {key.key_id}")
    try:
        accepted = opened.envelope().verify([key.verifier], threshold=1)
    except UnverifiedSignatureError as broken:
        raise BadSignature(f"the signature by {key.key_id} does not verify") from broken
    if set(accepted) != {key.key_id}:
        raise BadSignature(f"the signature by {key.key_id} was not the one accepted")


def _written(envelope: Envelope) -> bytes:
    return canonical(envelope.to_dict()) + b"\n"


def _key_id(signature: Json) -> str:
    if not isinstance(signature, dict):
        raise BrokenEnvelope("a signature must be an object")
    if "keyid" not in signature:
        raise BrokenEnvelope("a signature without keyid cannot be attributed to anyone")
    _exactly("a signature", signature, "keyid", "sig")
    key_id = _text("keyid", signature["keyid"])
    if len(key_id) != _KEY_ID_LENGTH or set(key_id) - set("0123456789abcdef"):
        raise BrokenEnvelope("keyid must be the SHA-256 of the public key, in lower-case hexadecimal")
    if not _base64("sig", signature["sig"]):
        raise BrokenEnvelope("a signature is empty")
    return key_id


def _exactly(what: str, fields: Mapping[str, Json], *names: str) -> None:
    if set(fields) != set(names):
        raise BrokenEnvelope(f"{what} must have exactly the fields {', '.join(names)}")


def _text(name: str, value: Json) -> str:
    if not isinstance(value, str):
        raise BrokenEnvelope(f"{name} must be a text")
    return value


def _base64(name: str, value: Json) -> bytes:
    """Standard alphabet, padded, no stray bits: otherwise one signed payload would have many spellings."""
    text = _text(name, value)
    try:
        decoded = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as broken:
        raise BrokenEnvelope(f"{name} is not base64") from broken
    if base64.b64encode(decoded).decode("ascii") != text:
        raise BrokenEnvelope(f"{name} is not base64 in its canonical spelling")
    return decoded
