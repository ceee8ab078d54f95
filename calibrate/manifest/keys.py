"""Keys of the people who sign: made, kept, read, and named by what they are.

A key id is the SHA-256 of the key's SubjectPublicKeyInfo, never a name that someone chose: with chosen names
one private key under two names would count as two signers. All cryptography is pyca/cryptography's, reached
through securesystemslib where it signs.
"""

from __future__ import annotations

import base64
import binascii
import copy
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import assert_never

from cryptography.exceptions import InternalError, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import CryptoSigner, Signature, SSlibKey  # type: ignore[attr-defined]  # public, but not re-exported

from calibrate.errors import TrustRefused
from calibrate.manifest.strict_json import Json, NotStrictJson, canonical, parse_object

PASSWORD_VARIABLE = "PRIVFAIR_KEY_PASSWORD"
"""Environment variable read for the password of an encrypted key when no one can be asked."""

LARGEST_KEY_FILE = 1 << 16

Password = Callable[[], bytes]
"""Called only if the key turns out to be encrypted, so that no one is asked in vain."""


class Role(Enum):
    """In which capacity a key signs."""

    PRIVACY_OFFICER = "privacy-officer"
    DATA_OWNER = "data-owner"
    AUDITOR = "auditor"
    """Signs statements about finished runs and models, never budgets."""
    COORDINATOR = "coordinator"
    """Signs questions to guards."""
    GUARD = "guard"
    """Signs the answers of one party, which its entry in the trust file names."""

    @property
    def signs_budgets(self) -> bool:
        """Whether a budget needs a signature of this role where the trust file lists it."""
        return self in (Role.PRIVACY_OFFICER, Role.DATA_OWNER)


ROOT = "root"
"""What is written in place of a role above a key that signs trust files; it holds no role."""


class KeyAlgorithm(Enum):
    ED25519 = "ed25519"
    """The default: short, fast, and without a random number that could go wrong while signing."""
    ECDSA_P256 = "ecdsa-p256"
    """For key stores and smart cards that have no Ed25519."""


@dataclass(frozen=True)
class PublicKey:
    """A public key under the id derived from it; two equal keys always have the same id."""

    key_id: str
    pem: str
    verifier: SSlibKey = field(repr=False, compare=False)

    @property
    def algorithm(self) -> KeyAlgorithm:
        return KeyAlgorithm.ED25519 if self.verifier.keytype == "ed25519" else KeyAlgorithm.ECDSA_P256


@dataclass(frozen=True)
class SigningKey:
    """A private key ready to sign. It has no text form on purpose: it must not end up in a log."""

    public: PublicKey
    signer: CryptoSigner = field(repr=False, compare=False)

    @property
    def key_id(self) -> str:
        return self.public.key_id


def generate(algorithm: KeyAlgorithm = KeyAlgorithm.ED25519) -> SigningKey:
    """A fresh key, in memory only; `save` writes it.

    algorithm: Of its signatures.

    >>> import privfair as pf
    >>> len(pf.generate_key().key_id)
    64
    """
    match algorithm:
        case KeyAlgorithm.ED25519:
            fresh = CryptoSigner.generate_ed25519()
        case KeyAlgorithm.ECDSA_P256:
            fresh = CryptoSigner.generate_ecdsa()
        case _:
            assert_never(algorithm)
    return _signing_key(serialization.load_pem_private_key(fresh.private_bytes, None), "the fresh key")


def save(key: SigningKey, role: Role | None, path: Path, password: bytes | None = None) -> Path:
    """Writes the private key (readable by its owner alone) and, next to it, `.pub` with the public one.

    The role is noted above the key for people to read (None: a root key); what counts is the trust file. An
    existing file is never overwritten: a lost key cannot be made again.
    """
    public_path = path.with_name(path.name + ".pub")
    for target in (path, public_path):
        if target.exists():
            raise TrustRefused(f"{target} exists and is not overwritten; choose another name or remove it yourself")
    if password is not None and not password:
        raise TrustRefused("an empty password protects nothing; give one, or ask for an unencrypted key")
    locked = serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    loaded = serialization.load_pem_private_key(key.signer.private_bytes, None)
    private = loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    heading = f"privfair key {key.key_id}\nrole: {ROOT if role is None else role.value}\n\n".encode()
    _write_new(path, heading + private, 0o600)
    _write_new(public_path, heading + key.public.pem.encode(), 0o644)
    return public_path


def load_private(path: Path, password: Password | None = None) -> SigningKey:
    """The private key in a PEM file; an encrypted one is opened with `password()`, else with the
    environment variable PRIVFAIR_KEY_PASSWORD."""
    content = _read(path)
    secret = _secret(path, password) if b"ENCRYPTED" in content else None
    try:
        loaded = serialization.load_pem_private_key(content, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm, InternalError) as broken:
        why = "cannot be opened with this password" if secret is not None else "is not a private key in PEM form"
        raise TrustRefused(f"{path} {why}; check the file{' and the password' if secret else ''}") from broken
    return _signing_key(loaded, str(path))


def load_public(path: Path, password: Password | None = None) -> PublicKey:
    """The public key in a PEM file, or of the private key in it."""
    content = _read(path)
    if b"PRIVATE KEY" in content:
        return load_private(path, password).public
    return public_key_from_pem(content, str(path))


def public_key_from_pem(pem: bytes, where: str) -> PublicKey:
    """A public key from its PEM text, `where` being named in the refusal if it is not one we support."""
    try:
        loaded = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm, InternalError) as broken:
        raise TrustRefused(f"{where} is not a public key in PEM form; export it again") from broken
    if not isinstance(loaded, Ed25519PublicKey | EllipticCurvePublicKey):
        raise _unsupported_key(where)
    return _public_key(loaded, where)


def _secret(path: Path, password: Password | None) -> bytes:
    if password is not None:
        return password()
    from_environment = os.environ.get(PASSWORD_VARIABLE)
    if not from_environment:
        raise TrustRefused(f"{path} is encrypted; give its password, for example in {PASSWORD_VARIABLE}")
    return from_environment.encode()


def _signing_key(loaded: object, where: str) -> SigningKey:
    if not isinstance(loaded, Ed25519PrivateKey | EllipticCurvePrivateKey):
        raise _unsupported_key(where)
    public = _public_key(loaded.public_key(), where)
    return SigningKey(public, CryptoSigner(loaded, public.verifier))


def _public_key(loaded: Ed25519PublicKey | EllipticCurvePublicKey, where: str) -> PublicKey:
    """Encoded again before hashing: one elliptic-curve point has a compressed and an uncompressed spelling."""
    if isinstance(loaded, EllipticCurvePublicKey) and not isinstance(loaded.curve, SECP256R1):
        raise _unsupported_key(where)
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    key_id = hashlib.sha256(loaded.public_bytes(serialization.Encoding.DER, info)).hexdigest()
    pem = loaded.public_bytes(serialization.Encoding.PEM, info).decode("ascii")
    return PublicKey(key_id, pem, SSlibKey.from_crypto(loaded, keyid=key_id))


def _unsupported_key(where: str) -> TrustRefused:
    return TrustRefused(f"{where} holds a key of another kind; use Ed25519 or ECDSA on P-256")


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_KEY_FILE + 1)
    except OSError as broken:
        raise TrustRefused(f"{path} cannot be read ({broken.strerror}); check the path and its permissions") from broken
    if len(content) > LARGEST_KEY_FILE:
        raise TrustRefused(f"{path} is too large for a key; check the path")
    return content


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Creates the file with its final permissions, so that it is never readable by others, not even briefly."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    except OSError as broken:
        raise TrustRefused(f"{path} cannot be created ({broken.strerror}); choose another place") from broken
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sign_bytes(content: bytes, key: SigningKey) -> bytes:
    """The signature over bytes that no envelope holds: those of a frame."""
    return bytes.fromhex(key.signer.sign(content).signature)


def check_bytes(content: bytes, signature: bytes, key: PublicKey) -> None:
    """Returns if `signature` over these bytes is by this key; raises `BadSignature` otherwise."""
    try:
        key.verifier.verify_signature(Signature(key.key_id, signature.hex()), content)
    except UnverifiedSignatureError as broken:
        raise BadSignature(f"the signature by {key.key_id[:16]} does not verify") from broken


# DSSE envelopes: signed, opened, and checked against one key at a time.
#
# securesystemslib does the signing and the verifying. Around it stand the checks it leaves out: it accepts
# several spellings of base64, keeps unknown fields, stops at the first sufficient signature, raises KeyError
# for an envelope without key ids, and empties the dictionary it is given.

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
    return _write(envelope)


def add_signature(opened: SignedPayload, key: SigningKey) -> bytes:
    """The same envelope with one more signature; a key that signed already is refused, not counted twice."""
    if key.key_id in opened.key_ids:
        raise BrokenEnvelope(f"key {key.key_id} has signed already")
    if len(opened.key_ids) >= MOST_SIGNATURES:
        raise BrokenEnvelope(f"the envelope holds {MOST_SIGNATURES} signatures, the most allowed")
    envelope = opened.envelope()
    envelope.sign(key.signer)
    return _write(envelope)


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


def _write(envelope: Envelope) -> bytes:
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
