"""The file format: a magic word, then frames, each closed by a digest of everything up to it.

::

    "PFTRANS2"
    frame*          kind (1 byte), payload length (4 bytes, little-endian), payload, SHA-256 (32 bytes)
    kinds           1 header (canonical JSON), 2 value (round u64, party u16, name u16, numbers packed by `numbers`),
                    3 end (number of values u64), 4 digest (round u64, party u16, name u16, release digest): a value
                    whose numbers are beside the transcript or not kept, 5 state (round u64, step u64, digest): what
                    the values of this round were computed from

A frame's digest covers the digest before it, so the last one stands for the whole file. A process that
is killed leaves at most one unfinished frame at the end, which a reader leaves out.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from privfair.durable import OTHER_VERSION
from privfair.transcript.header import TranscriptRefused

MAGIC = b"PFTRANS2"
SEED = hashlib.sha256(MAGIC).digest()
_FRONT = struct.Struct("<BI")
_VALUE = struct.Struct("<QHH")
_END = struct.Struct("<Q")
_STATE = struct.Struct("<QQ32s")
DIGEST_SIZE = 32


class FrameKind(Enum):
    HEADER = 1
    VALUE = 2
    END = 3
    DIGEST = 4
    STATE = 5


@dataclass(frozen=True)
class Frame:
    """One whole frame; `start` and `end` delimit its payload in the file."""

    kind: FrameKind
    start: int
    end: int
    digest: bytes

    @property
    def next(self) -> int:
        return self.end + DIGEST_SIZE


@dataclass(frozen=True)
class NotedState:
    """Before a round's first value: which step it is for, and the digest of the state it was asked with."""

    round: int
    step: int
    digest: str


@dataclass(frozen=True)
class ValueKey:
    """Which value a frame holds, parties and names by their number in the header."""

    round: int
    party: int
    name: int


def encode_frame(kind: FrameKind, payload: bytes, before: bytes) -> tuple[bytes, bytes]:
    """The bytes of a frame that follows one with digest `before`, and its own digest."""
    front = _FRONT.pack(kind.value, len(payload))
    digest = hashlib.sha256(before + front + payload).digest()
    return front + payload + digest, digest


def value_payload(key: ValueKey, content: bytes) -> bytes:
    """The bytes of a frame that holds one published value."""
    return _VALUE.pack(key.round, key.party, key.name) + content


def read_value_key(payload: memoryview) -> tuple[ValueKey, int]:
    """The key at the front of a value's payload, and where the numbers begin."""
    if len(payload) < _VALUE.size:
        raise _damaged("a value is shorter than its own front")
    return ValueKey(*_VALUE.unpack_from(payload)), _VALUE.size


def largest_payload(sizes: Iterable[int]) -> int:
    """The longest payload a transcript can hold after its header, given the sizes of its values."""
    return max(_STATE.size, *(_VALUE.size + size for size in sizes))


def state_payload(state: NotedState) -> bytes:
    """The bytes of a frame that notes the digest of a state."""
    return _STATE.pack(state.round, state.step, bytes.fromhex(state.digest))


def read_state(payload: memoryview) -> NotedState:
    """The inverse of `state_payload`; a frame of another length is damage."""
    if len(payload) != _STATE.size:
        raise _damaged("a state has the wrong length")
    round_number, step, digest = _STATE.unpack(payload)
    return NotedState(round_number, step, digest.hex())


def end_payload(values: int) -> bytes:
    """The bytes of the last frame, which counts the values."""
    return _END.pack(values)


def read_end(payload: memoryview) -> int:
    """The inverse of `end_payload`; a frame of another length is damage."""
    if len(payload) != _END.size:
        raise _damaged("its end has the wrong length")
    count: int = _END.unpack(payload)[0]
    return count


def first_frame(content: memoryview) -> Frame | None:
    """The frame after the magic word, or None where it is unfinished."""
    begin = bytes(content[: len(MAGIC)])
    if begin != MAGIC and begin[:-1] == MAGIC[:-1]:
        raise TranscriptRefused("the transcript", "its format is of another version", OTHER_VERSION)
    if begin != MAGIC:
        raise _damaged("it does not begin like a transcript of this version")
    return _frame_at(content, len(MAGIC), SEED, largest=len(content))


def following_frames(content: memoryview, after: Frame, largest: int) -> Iterator[Frame]:
    """The whole frames after one, in order, up to a tail that a crash left unfinished.

    The tail may be an unfinished frame, a last frame of which not all blocks reached the disk, or zeros
    that a file system put there. A frame that fails its digest with other data after it, or is longer
    than the `largest` payload there can be, was changed by somebody, and is refused.
    """
    last = after
    while last.next < len(content):
        frame = _frame_at(content, last.next, last.digest, largest)
        if frame is None:
            return
        yield frame
        last = frame


def _frame_at(content: memoryview, place: int, before: bytes, largest: int) -> Frame | None:
    if place + _FRONT.size > len(content):
        return None
    kind, length = _FRONT.unpack_from(content, place)
    start = place + _FRONT.size
    end = start + length
    if length > largest:
        raise _damaged(f"the frame at byte {place} is longer than any this transcript declares")
    if end + DIGEST_SIZE > len(content):
        return None
    hasher = hashlib.sha256(before)
    hasher.update(content[place:end])
    if hasher.digest() == content[end : end + DIGEST_SIZE]:
        try:
            return Frame(FrameKind(kind), start, end, hasher.digest())
        except ValueError as error:
            raise _damaged(f"the frame at byte {place} is of unknown kind {kind}") from error
    if end + DIGEST_SIZE == len(content) or not any(content[place:]):
        return None
    raise _damaged(f"the frame at byte {place} was changed after it was written")


def _damaged(rule: str) -> TranscriptRefused:
    return TranscriptRefused("the file", rule, "put an untouched copy of the transcript back")
