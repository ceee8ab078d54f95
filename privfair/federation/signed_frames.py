"""Who asks and who answers: signed frames around the messages of a run, by keys of the trust file.

::

    question  "PFQ", version, key id (32), nonce (32), length of the signature (2), signature, message
    answer    "PFA", version, key id (32), what it answers (32), length of the signature (2), signature, message

A signature is over kind, version, the 32 bytes and the SHA-256 of the message. A question's message holds run, step and
state; an answer holds the digest of what its question signed. So an answer belongs to one question, in which no byte
was changed, and no earlier answer passes for it. A replayed question gets what it got before: nothing new is published.
No frame holds a time: each side decides by its own clock whether a key is valid now.

Frames are signed where the trust file lists keys of coordinators or guards; then unsigned frames are refused. Where it
lists none, a guard's socket is open to its own user alone.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, final

from calibrate.errors import Refused, TrustRefused
from calibrate.manifest.keys import BadSignature, Role, SigningKey, check_bytes, sign_bytes
from calibrate.manifest.trust import TrustedKey, TrustFile
from privfair.federation.wire import MOST_BYTES, Code, MessageKind, Transport, WireRefused, decode

VERSION = 1
_FRONT = struct.Struct("<3sB32s32sH")
_QUESTION, _ANSWER = b"PFQ", b"PFA"
_LONGEST_SIGNATURE = 1024


class CallerRefused(WireRefused):
    """A frame that no key in force signed for this purpose."""

    def __init__(self, why: str) -> None:
        self.code = Code.CALLER
        Refused.__init__(self, f"{why}; check the keys in the trust file, then continue with --resume")


class CurrentTrust(Protocol):
    """The trust file in force."""

    def current(self) -> TrustFile:
        """The file as it is now."""
        ...


@dataclass(frozen=True)
class _SignedFrame:
    """A frame taken apart; nothing in it is believed before `require`."""

    kind: bytes
    key_id: str
    bound: bytes
    signature: bytes
    message: bytes

    @classmethod
    def read(cls, kind: bytes, frame: bytes) -> _SignedFrame:
        if len(frame) > MOST_BYTES + _FRONT.size + _LONGEST_SIGNATURE or len(frame) < _FRONT.size:
            raise CallerRefused("it is not a signed frame")
        found, version, key_id, bound, length = _FRONT.unpack_from(frame)
        if (found, version) != (kind, VERSION) or length > _LONGEST_SIGNATURE:
            raise CallerRefused("it is not a signed frame of this version")
        start = _FRONT.size + length
        return cls(kind, key_id.hex(), bound, frame[_FRONT.size : start], frame[start:])

    @property
    def statement(self) -> bytes:
        """What is signed."""
        return _statement(self.kind, self.bound, self.message)

    def require(self, keys: tuple[TrustedKey, ...]) -> None:
        """Refuse a frame that none of these keys signed, or one that is not valid now."""
        for key in keys:
            if key.key_id == self.key_id:
                objection = key.objection(datetime.now(UTC))
                if objection is not None:
                    raise CallerRefused(objection)
                try:
                    check_bytes(self.statement, self.signature, key.key())
                except BadSignature as broken:
                    raise CallerRefused(str(broken)) from broken
                return
        raise CallerRefused(f"no key of this role has the id {self.key_id[:16]}")


def _statement(kind: bytes, bound: bytes, message: bytes) -> bytes:
    return b"privfair frame " + kind + bytes([VERSION]) + bound + hashlib.sha256(message).digest()


def _write(kind: bytes, key: SigningKey, bound: bytes, message: bytes) -> bytes:
    signature = sign_bytes(_statement(kind, bound, message), key)
    return _FRONT.pack(kind, VERSION, bytes.fromhex(key.key_id), bound, len(signature)) + signature + message


def _require_own_key(keys: tuple[TrustedKey, ...], key: SigningKey | None, who: str, remedy: str) -> SigningKey:
    if key is None or key.key_id not in {one.key_id for one in keys}:
        raise TrustRefused(
            f"the trust file lists keys of coordinators or guards, so frames are signed, and {who} has none of its "
            f"keys; {remedy}"
        )
    return key


@final
class GuardSeal:
    """A guard's side: opens questions of known coordinators, and signs what answers them."""

    def __init__(self, party: str, trust: CurrentTrust | None, key: SigningKey | None) -> None:
        self._party = party
        self._trust = trust
        self._key = key
        self.signs = trust is not None and trust.current().knows_services
        if self.signs:
            self._own_key()

    def open(self, frame: bytes) -> tuple[bytes, bytes | None]:
        """The message of a question, and what its answer is bound to; None where frames are not signed."""
        trust = None if self._trust is None else self._trust.current()
        if trust is None or not (self.signs or trust.knows_services):
            return frame, None
        found = _SignedFrame.read(_QUESTION, frame)
        found.require(trust.keys_of(Role.COORDINATOR))
        return found.message, hashlib.sha256(found.statement).digest()

    def close(self, bound: bytes | None, message: bytes) -> bytes:
        """The frame of an answer."""
        return message if bound is None else _write(_ANSWER, self._own_key(), bound, message)

    def _own_key(self) -> SigningKey:
        assert self._trust is not None
        return _require_own_key(
            self._trust.current().guards(self._party),
            self._key,
            f"the guard of {self._party!r}",
            f"set `key` in site.toml and trust it with `privfair keys trust --role guard:{self._party}`",
        )


@final
class CoordinatorSeal:
    """The coordinator's side: signs questions, and opens answers of the guards that the trust file lists."""

    def __init__(self, trust: TrustFile | None, key: SigningKey | None) -> None:
        self._trust = trust
        self._key: SigningKey | None = None
        if trust is not None and trust.knows_services:
            remedy = "set `key` in guards.toml and trust it with `privfair keys trust --role coordinator`"
            self._key = _require_own_key(trust.keys_of(Role.COORDINATOR), key, "this coordinator", remedy)

    def ask(self, message: bytes) -> bytes:
        """The frame of a question, under a number that no other question has."""
        return message if self._key is None else _write(_QUESTION, self._key, secrets.token_bytes(32), message)

    def open(self, party: str, question: bytes, answer: bytes) -> bytes:
        """The message of the answer of `party` to exactly this question."""
        if self._key is None or self._trust is None:
            return answer
        if answer[:3] != _ANSWER:
            raise CallerRefused(_unsigned(party, answer))
        found = _SignedFrame.read(_ANSWER, answer)
        if found.bound != hashlib.sha256(_SignedFrame.read(_QUESTION, question).statement).digest():
            raise CallerRefused(f"what came back from {party!r} answers another question")
        try:
            found.require(self._trust.guards(party))
        except CallerRefused as refused:
            raise CallerRefused(f"the answer of {party!r} is not signed by its guard: {refused}") from refused
        return found.message


def _unsigned(party: str, answer: bytes) -> str:
    """Why an answer without a signature may have come; nothing in it decides anything."""
    try:
        message = decode(answer)
    except WireRefused:
        return f"what came back from {party!r} is no signed answer"
    code = message.fields.get("code") if message.kind is MessageKind.REFUSED else None
    caller = "; it may not list this coordinator's key, or hold it for expired" if code == Code.CALLER.value else ""
    return f"the answer of {party!r} is not signed{caller}"


def sealed(transport: Transport, seal: CoordinatorSeal) -> Transport:
    """A transport that signs each question and believes signed answers only."""

    def ask(messages: Mapping[str, bytes]) -> Mapping[str, bytes]:
        frames = {message: seal.ask(message) for message in set(messages.values())}
        questions = {name: frames[message] for name, message in messages.items()}
        answers = transport(questions)
        return {name: seal.open(name, question, answers[name]) for name, question in questions.items()}

    return ask
