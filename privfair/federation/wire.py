"""What crosses between a coordinator and a guard: numbers, short texts and whole numbers; nothing is ever executed.

::

    frame    length of the message (4 bytes, little-endian), message
    message  "PFG" and the version (1 byte), length of the head (4 bytes), head (JSON, padded to 8 bytes), numbers
    head     {"kind": ..., "fields": {...}, "arrays": [[name, [side, ...]], ...]}
    numbers  the arrays one after the other, little-endian doubles

It says what an npz without pickle says, in a tenth of its time: no archive, no checksum of a checksum, one copy. A
transport is one callable that takes a message for each party and brings back an answer of each; it needs to understand
none of them, may deliver one twice, and finds the same answer again.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from calibrate.arrays import Floats
from calibrate.errors import Refused
from calibrate.manifest.strict_json import Json
from privfair.algorithms.algorithm import Received
from privfair.contribution import Published
from privfair.federation.coordinator import Greeting, PublicState, Receipt

Transport = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
"""Carries one message to each named party and brings each one's answer back."""

VERSION = 1
_MAGIC = b"PFG"
_FRONT = struct.Struct("<3sBI")
MOST_BYTES = 1 << 28
"""Of one message: a model of 33 million numbers. Longer ones are refused by their length alone, unread."""
MOST_STEPS = 1024
"""In one question."""
_MOST_HEAD = 1 << 22
_MOST_ARRAYS = 4096
_MOST_SIDES = 8
_LONGEST_NAME = 200


class MessageKind(Enum):
    """What a message is: four questions and their answers."""

    HELLO = "hello"
    CONTRIBUTE = "contribute"
    REPLY = "reply"
    FINISH = "finish"
    GREETING = "greeting"
    PUBLISHED = "published"
    RECEIPT = "receipt"
    REFUSED = "refused"


class Code(Enum):
    """Why a guard said no, in the form that the other side sees; the sentence stays in the silo's own log."""

    MALFORMED = "malformed"
    VERSION = "version"
    TOO_LONG = "too-long"
    OTHER_RUN = "other-run"
    STEP = "step"
    STATE = "state"
    BATCH = "batch"
    SPENT = "spent"
    POLICY = "policy"
    REFUSED = "refused"
    HALTED = "halted"
    CALLER = "caller"
    FAULT = "fault"


class WireRefused(Refused):
    """A message that is not one, is of another version, or is too long."""

    def __init__(self, code: Code, why: str) -> None:
        self.code = code
        super().__init__(f"a message was refused ({code.value}): {why}; send what privfair of this version writes")


@dataclass(frozen=True, eq=False)
class WireMessage:
    """One message, taken apart."""

    kind: MessageKind
    fields: Mapping[str, Json] = field(default_factory=dict)
    arrays: Mapping[str, Floats] = field(default_factory=dict)

    def whole(self, name: str) -> int:
        """A field that is a whole number of at least 0."""
        value = self.fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise WireRefused(Code.MALFORMED, f"{name} is not a whole number")
        return value

    def text(self, name: str) -> str:
        """A field that is a text."""
        value = self.fields.get(name)
        if not isinstance(value, str):
            raise WireRefused(Code.MALFORMED, f"{name} is not a text")
        return value


def encode(message: WireMessage) -> bytes:
    """The bytes of a message."""
    head = {
        "kind": message.kind.value,
        "fields": message.fields,
        "arrays": [[name, array.shape] for name, array in message.arrays.items()],
    }
    written = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
    written += b" " * (-len(written) % 8)
    numbers = (np.ascontiguousarray(array, dtype="<f8").tobytes() for array in message.arrays.values())
    return b"".join((_FRONT.pack(_MAGIC, VERSION, len(written)), written, *numbers))


def decode(content: bytes) -> WireMessage:
    """The message of exactly these bytes; everything else is refused."""
    if len(content) > MOST_BYTES:
        raise WireRefused(Code.TOO_LONG, f"{len(content)} bytes")
    if len(content) < _FRONT.size:
        raise WireRefused(Code.MALFORMED, "it is shorter than its own front")
    magic, version, length = _FRONT.unpack_from(content)
    if magic != _MAGIC:
        raise WireRefused(Code.MALFORMED, "it does not begin like a message")
    if version != VERSION:
        raise WireRefused(Code.VERSION, f"its version is {version}, and this is {VERSION}")
    if length > min(_MOST_HEAD, len(content) - _FRONT.size):
        raise WireRefused(Code.MALFORMED, "its head is longer than it may be")
    start = _FRONT.size + length
    head = _head(content[_FRONT.size : start])
    shapes = _shapes(head["arrays"])
    if sum(prod(shape) for shape in shapes.values()) * 8 != len(content) - start:
        raise WireRefused(Code.MALFORMED, "its numbers are not as many as it says")
    arrays: dict[str, Floats] = {}
    for name, shape in shapes.items():
        count = prod(shape)
        arrays[name] = np.frombuffer(content, dtype="<f8", count=count, offset=start).reshape(shape)
        start += 8 * count
    return WireMessage(MessageKind(head["kind"]), head["fields"], arrays)


def _head(written: bytes) -> dict[str, Any]:
    try:
        head = json.loads(written, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise WireRefused(Code.MALFORMED, "its head is not JSON") from None
    if not isinstance(head, dict) or set(head) != {"kind", "fields", "arrays"}:
        raise WireRefused(Code.MALFORMED, "its head has other fields than a head has")
    if not isinstance(head["fields"], dict) or not isinstance(head["arrays"], list):
        raise WireRefused(Code.MALFORMED, "its head is not made like a head")
    if head["kind"] not in {kind.value for kind in MessageKind}:
        raise WireRefused(Code.MALFORMED, "its kind is not known")
    return head


def _shapes(listed: list[Any]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    if len(listed) > _MOST_ARRAYS:
        raise WireRefused(Code.MALFORMED, "it has too many arrays")
    for one in listed:
        if not (isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], list)):
            raise WireRefused(Code.MALFORMED, "an array is not described by name and shape")
        name, sides = one
        bad = any(type(side) is not int or not 0 <= side <= MOST_BYTES for side in sides)
        if bad or len(sides) > _MOST_SIDES or len(name) > _LONGEST_NAME or name in shapes:
            raise WireRefused(Code.MALFORMED, "an array has a name or a shape that it may not have")
        shapes[name] = tuple(sides)
    return shapes


def _no_constant(text: str) -> None:
    raise ValueError(text)


# The four questions and the answers, as messages.


def ask_hello(run: str) -> bytes:
    """Who are you, and how far? `run` is the manifest's digest, here and below."""
    return encode(WireMessage(MessageKind.HELLO, {"run": run}))


def ask_contribution(
    run: str, step: int, state: PublicState, steps: int = 1, batches: Mapping[str, str] | None = None
) -> bytes:
    """What do you contribute to this step, or to `steps` from it on? Several only where there is one party.

    `batches` are what the holders of records sealed for a registry.
    """
    more: dict[str, Json] = {} if steps == 1 else {"steps": steps}
    if batches is not None:
        more["batches"] = dict(batches)
    return encode(WireMessage(MessageKind.CONTRIBUTE, {"run": run, "step": step, **more}, state))


def read_batches(message: WireMessage) -> dict[str, str]:
    """What holders sealed, by holder; none where the question has none."""
    given = message.fields.get("batches", {})
    if not isinstance(given, dict) or not all(isinstance(sealed, str) for sealed in given.values()):
        raise WireRefused(Code.MALFORMED, "its batches are not texts by holder")
    return {name: str(sealed) for name, sealed in given.items()}


def ask_reply(run: str, step: int, received: Received) -> bytes:
    """What follows from what all parties published in this step?"""
    values = (value for of_party in received.values() for value in of_party.values())
    fields, arrays = _listed(values)
    return encode(WireMessage(MessageKind.REPLY, {"run": run, "step": step, **fields}, arrays))


def ask_finish(run: str) -> bytes:
    """The message that asks a party to finish a run and to hand over its receipt."""
    return encode(WireMessage(MessageKind.FINISH, {"run": run}))


def published(values: Mapping[str, Published], batch: str | None = None) -> bytes:
    """The answer to a contribution or a reply; the same bytes for the same values, in whatever order they come.

    `batch` is what a holder of records seals for the registries.
    """
    fields, arrays = _listed(values[name] for name in sorted(values))
    return encode(WireMessage(MessageKind.PUBLISHED, fields if batch is None else {**fields, "batch": batch}, arrays))


def published_steps(steps: Sequence[tuple[str, Mapping[str, Published]]]) -> bytes:
    """The answer to a question for several steps: each one's values, and the digest of the state they are for."""
    fields, arrays = _listed(values[name] for _, values in steps for name in sorted(values))
    lengths: list[Json] = [len(values) for _, values in steps]
    return encode(
        WireMessage(MessageKind.PUBLISHED, {**fields, "lengths": lengths, "states": [one for one, _ in steps]}, arrays)
    )


def read_steps(message: WireMessage) -> list[tuple[str, Received]]:
    """What `published_steps` wrote: for each step the digest of its state, and its values by party and name."""
    lengths, states, of = (message.fields.get(name) for name in ("lengths", "states", "of"))
    if not (isinstance(lengths, list) and isinstance(states, list) and isinstance(of, list)):
        raise WireRefused(Code.MALFORMED, "it does not say which values belong to which step")
    whole = [one for one in lengths if type(one) is int and one > 0]
    if not whole or len(whole) != len(lengths) or len(states) != len(lengths) or sum(whole) != len(of):
        raise WireRefused(Code.MALFORMED, "its steps are not as long as it says")
    found, start = [], 0
    for length, state in zip(whole, states, strict=True):
        places = range(start, start + length)
        arrays = {str(n): message.arrays[str(place)] for n, place in enumerate(places) if str(place) in message.arrays}
        part = WireMessage(message.kind, {"of": of[start : start + length]}, arrays)
        found.append((str(state), read_values(part)))
        start += length
    return found


def refusal(error: str, code: Code) -> bytes:
    """A class name and a code; never a text, which could quote a record or a measured norm."""
    return encode(WireMessage(MessageKind.REFUSED, {"error": error, "code": code.value}))


def _listed(values: Iterable[Published]) -> tuple[dict[str, Json], dict[str, Floats]]:
    listed = list(values)
    of: list[Json] = [[value.party, value.name, value.round] for value in listed]
    return {"of": of}, {str(place): value.values for place, value in enumerate(listed)}


def read_values(message: WireMessage) -> Received:
    """The published values in a message, by party and name; a value without numbers, or twice, is refused."""
    of = message.fields.get("of")
    if not isinstance(of, list) or len(of) != len(message.arrays):
        raise WireRefused(Code.MALFORMED, "it does not say whose its values are")
    found: dict[str, dict[str, Published]] = {}
    for place, one in enumerate(of):
        numbers = message.arrays.get(str(place))
        if not (isinstance(one, list) and [type(part) for part in one] == [str, str, int]) or numbers is None:
            raise WireRefused(Code.MALFORMED, "a value has no party, name and round")
        party, name, round_number = one
        if name in found.get(party, {}) or not np.isfinite(numbers).all():
            raise WireRefused(Code.MALFORMED, "a value stands twice, or is not finite")
        found.setdefault(party, {})[name] = Published(round_number, party, name, numbers)
    return found


def greeting_message(greeting: Greeting) -> bytes:
    """The answer to hello."""
    return encode(WireMessage(MessageKind.GREETING, _GREETING.dump_python(greeting, mode="json")))


def receipt_message(receipt: Receipt) -> bytes:
    """The answer to finish."""
    return encode(WireMessage(MessageKind.RECEIPT, _RECEIPT.dump_python(receipt, mode="json")))


def read_greeting(message: WireMessage) -> Greeting:
    """The greeting in a message; anything else is refused."""
    return _read(_GREETING, message)


def read_receipt(message: WireMessage) -> Receipt:
    """The receipt in a message; anything else is refused."""
    return _read(_RECEIPT, message)


_GREETING, _RECEIPT = TypeAdapter(Greeting), TypeAdapter(Receipt)
Answer = TypeVar("Answer", Greeting, Receipt)


def _read(kind: TypeAdapter[Answer], message: WireMessage) -> Answer:
    try:
        return kind.validate_json(json.dumps(message.fields), strict=True)
    except (ValidationError, ValueError):
        raise WireRefused(Code.MALFORMED, f"it is not a {message.kind.value}") from None
