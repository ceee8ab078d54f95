"""A witness that prevents a second use: it countersigns each block of charges before its noise is drawn.

It remembers for each budget and party where the last block of charges ended and the hash of its entry. A question lists
the newest blocks of a ledger. The witness takes them if what it remembers is among them, or if it remembers nothing;
then it remembers the last one, on disk, and signs its answer. An old copy of a ledger, or a new one, does not list what
the witness remembers: it is refused before noise is drawn, also when anchor and run folder are old copies too. The
same question again gets the same answer.

::

    question  {"charges": [[32, "<hash of the entry>"], ...], "manifest": "<digest>", "party": "north"}
    answer    {"accepted": true, "key": "<PEM>", "signature": "<hex>"}, over "accepted" and the SHA-256 of the question
"""

from __future__ import annotations

import hashlib
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from calibrate.errors import LedgerRefused, TrustRefused
from calibrate.manifest.keys import BadSignature, SigningKey, check_bytes, public_key_from_pem, sign_bytes
from calibrate.manifest.strict_json import canonical
from privfair.durable import locked, replace_file
from privfair.federation.sockets import GuardUnreachable, SocketServer, SocketTransport
from privfair.ledger.claim import Charges
from privfair.ledger.entries import Digest, Unavailable

_MOST_BYTES = 1 << 20
_DEADLINE = 60.0
_LOG = logging.getLogger("privfair.witness")
_Block = tuple[Annotated[int, Field(ge=1)], Digest]


class _Question(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    manifest: Digest
    party: Annotated[str, Field(max_length=200)]
    charges: tuple[_Block, ...]


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    accepted: bool
    key: Annotated[str, Field(max_length=2000)]
    signature: Annotated[str, Field(pattern="^([0-9a-f]{2})+$", max_length=2048)]


class SecondUse(LedgerRefused):
    """The witness has seen charges of this budget that the ledger does not hold."""


def _signed(question: bytes, accepted: bool) -> bytes:
    return b"privfair witness 1 " + (b"yes " if accepted else b"no ") + hashlib.sha256(question).digest()


@final
class WitnessBook:
    """What a witness remembers: one file per budget and party in its folder."""

    def __init__(self, folder: Path, key: SigningKey) -> None:
        self._folder = folder
        self._key = key

    def answer(self, content: bytes) -> bytes:
        """The signed answer to a question; an empty one to anything else, and where nothing could be written."""
        try:
            if len(content) > _MOST_BYTES:
                raise ValueError("it is too long")
            accepted = self._takes(_Question.model_validate_json(content))
        except (ValueError, OSError) as refused:
            _LOG.warning("a question was not answered: %s", type(refused).__name__)
            return b""
        signature = sign_bytes(_signed(content, accepted), self._key).hex()
        return canonical({"accepted": accepted, "key": self._key.public.pem, "signature": signature})

    def _takes(self, asked: _Question) -> bool:
        name = hashlib.sha256(f"{asked.manifest} {asked.party}".encode()).hexdigest()
        path = self._folder / f"{name}.json"
        seen = _Question.model_validate_json(path.read_bytes()).charges if path.exists() else ()
        if seen and seen[-1] not in asked.charges:
            _LOG.warning("refused: budget %s of %r has another history", asked.manifest[:16], asked.party)
            return False
        if asked.charges and asked.charges[-1:] != seen:
            newest = asked.model_copy(update={"charges": asked.charges[-1:]})
            replace_file(path, newest.model_dump_json().encode())
        return True


@final
class SocketWitness:
    """The witness behind a unix socket, as a ledger asks it."""

    def __init__(self, path: Path, deadline: float = _DEADLINE) -> None:
        self._path = path
        self._deadline = deadline

    def countersign(self, key_id: str, manifest: str, party: str, charges: Charges) -> None:
        """See `privfair.ledger.claim.Witness`."""
        question = canonical({"manifest": manifest, "party": party, "charges": [list(one) for one in charges]})
        transport = SocketTransport({"witness": self._path}, self._deadline)
        try:
            content = transport({"witness": question})["witness"]
        except GuardUnreachable as away:
            raise self._unavailable(f"no answer within {self._deadline:g} seconds") from away
        finally:
            transport.close()
        if not self._accepted(content, question, key_id):
            raise SecondUse(
                f"the witness {key_id[:16]} has seen charges of this budget that this ledger does not hold: ledger, "
                "anchor or run folder is an old copy, or the budget was used before. Put the newest copies back, or "
                "ask for a new budget"
            )

    def _accepted(self, content: bytes, question: bytes, key_id: str) -> bool:
        try:
            answer = _Answer.model_validate_json(content)
            key = public_key_from_pem(answer.key.encode(), "the witness's answer")
            if key.key_id != key_id:
                raise BadSignature(f"key {key.key_id[:16]} answered")
            check_bytes(_signed(question, answer.accepted), bytes.fromhex(answer.signature), key)
        except (ValidationError, BadSignature, TrustRefused) as broken:
            raise self._unavailable(f"no answer signed by {key_id[:16]} came back") from broken
        return answer.accepted

    def _unavailable(self, why: str) -> Unavailable:
        return Unavailable(f"witness {self._path}", why, "start the budget's witness, then continue with --resume")


def serve_witness(folder: Path, socket: Path, key: SigningKey, ready: Callable[[], None]) -> None:
    """Answer at `socket` until SIGTERM or SIGINT; a second witness in one folder is refused."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(folder / "lock", busy=f"another witness uses {folder}; stop it first"):
        server = SocketServer(socket, WitnessBook(folder, key).answer, _LOG, shared=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())
        ready()
        server.serve()
