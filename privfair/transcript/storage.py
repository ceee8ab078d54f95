"""How a transcript is stored: a header, frames in one file, the numbers in a frame, and the folder next to the file.

::

    "PFTRANS2"
    frame*          kind (1 byte), payload length (4 bytes, little-endian), payload, SHA-256 (32 bytes)
    kinds           1 header (canonical JSON), 2 value (round u64, party u16, name u16, numbers as `pack` stores them),
                    3 end (number of values u64), 4 digest (round u64, party u16, name u16, release digest): a value
                    whose numbers are in the folder or not kept, 5 state (round u64, step u64, digest): what
                    the values of this round were computed from
    numbers         0 as they are, 1 deflated, 2 steps of the grid: the lower 32 bits of each as they are, since noise
                    fills them; after them what is above, deflated, as whole numbers of `width` bytes (the byte before)

    transcript.kept/ROUND.state.npz    the state that a kept step started from; public, like every state
    transcript.kept/ROUND.recent       values of one round that is kept by its digests; forgotten after a checkpoint

A frame's digest covers the digest before it, so the last one stands for the whole file. A process that
is killed leaves at most one unfinished frame at the end, which a reader leaves out.

Noise of 2^30 steps or more per scale has about 32 bits of entropy per number, so a half of a double is all that can be
saved. Packing is lossless to the bit, negative zeros included, or the numbers are stored as they are.

Nothing in the folder is believed: each value and each state must have the digest that is in the transcript.
A value is there, durably, before its digest is written; so a run that was killed can resume from its checkpoint.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod
from pathlib import Path
from typing import Annotated, Any, final

import numpy as np
import rfc8785
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter

from calibrate.errors import InvalidInput, Refused, count
from privfair.durable import OTHER_VERSION, opened, replace_file, require_bounded_archive, sync_folder, write_all
from privfair.ledger import Claim
from privfair.ledger.entries import digest_text, label

# The one way in which a transcript says no.


class TranscriptRefused(Refused):
    """The transcript is damaged, does not fit its ledger, or may not be written so."""

    def __init__(self, subject: str, rule: str, remedy: str) -> None:
        self.subject = subject
        self.rule = rule
        self.remedy = remedy
        super().__init__(f"transcript refused {subject}: {rule}; {remedy}")


def refused(
    subject: str | Path, rule: str, remedy: str = "put an untouched copy of the transcript back"
) -> TranscriptRefused:
    """The refusal of a transcript; the remedy is an untouched copy unless another one is given."""
    return TranscriptRefused(str(subject), rule, remedy)


_MOST_GRID = 900
_STRICT = ConfigDict(strict=True, extra="forbid")
"""Of the JSON in which a header is stored."""


class FloatFormat(Enum):
    """How numbers are stored: little-endian IEEE 754."""

    FLOAT64 = "<f8"
    FLOAT32 = "<f4"

    @property
    def size(self) -> int:
        return int(self.value[-1])


@dataclass(frozen=True)
class ValueSpec:
    """One value that each party publishes in a round: its name, its shape, its numbers."""

    __pydantic_config__ = _STRICT
    name: str
    shape: tuple[int, ...]
    format: FloatFormat = FloatFormat.FLOAT64
    grid: int | None = None
    """Its numbers are whole multiples of 2^-grid; None where they are any numbers."""

    def __post_init__(self) -> None:
        label("name", self.name)
        for side in self.shape:
            count("shape", side)
        if self.grid is not None and (self.format is not FloatFormat.FLOAT64 or abs(self.grid) > _MOST_GRID):
            raise InvalidInput("grid", self.grid, "must be of doubles, at most 2^900 either way", "leave it out")

    @property
    def size(self) -> int:
        """Bytes of one value."""
        return prod(self.shape) * self.format.size


VERSION = 3
"""Of a transcript: until 2, what a record contributed could depend on its place in the batch, by rounding."""


@dataclass(frozen=True)
class TranscriptHeader:
    """Bound to the manifest by its digest, and to the ledger by its identity and the claim's entry."""

    __pydantic_config__ = _STRICT
    manifest_digest: Annotated[str, Field(alias="manifest")]
    ledger: str
    claim_hash: Annotated[str, Field(alias="claim")]
    noise_source: str
    parties: tuple[str, ...]
    values: tuple[ValueSpec, ...]
    retention: int | None = None
    """Steps between values that are kept in full [default: None, all]; of the others only digests are kept."""
    version: Annotated[int, Field(ge=2, le=VERSION)] = VERSION

    def __post_init__(self) -> None:
        if self.retention is not None:
            count("retention", self.retention)
        digest_text("manifest_digest", self.manifest_digest)
        digest_text("ledger", self.ledger)
        digest_text("claim_hash", self.claim_hash)
        label("noise_source", self.noise_source)
        for party in self.parties:
            label("party", party)
        _distinct("parties", self.parties)
        _distinct("values", tuple(value.name for value in self.values))

    @classmethod
    def of(
        cls,
        claim: Claim,
        noise_source: str,
        parties: tuple[str, ...],
        values: tuple[ValueSpec, ...],
        retention: int | None = None,
    ) -> TranscriptHeader:
        """The header of a run under `claim`."""
        return cls(claim.manifest, claim.ledger, claim.head.hash, noise_source, parties, values, retention)


_ADAPTER = TypeAdapter(TranscriptHeader)


def encode_header(header: TranscriptHeader) -> bytes:
    """Canonical JSON, so that one header has one spelling."""
    return rfc8785.dumps(_ADAPTER.dump_python(header, mode="json", by_alias=True))


def decode_header(payload: bytes) -> TranscriptHeader:
    """The header of exactly these bytes; anything else is refused."""
    try:
        header = _ADAPTER.validate_json(payload)
        if encode_header(header) != payload:
            raise ValueError("another spelling of the same header")
    except ValueError as error:  # of pydantic and rfc8785, and InvalidInput is one
        raise refused("the header", "it is not a header of this version") from error
    return header


def _distinct(argument: str, names: tuple[str, ...]) -> None:
    if not names or len(set(names)) != len(names) or len(names) > 65535:
        raise InvalidInput(argument, names, "must be 1 to 65535 distinct names", "name each one once")


# The digest by which ledger, transcript and wire speak of one published value.

_DOMAIN = "privfair release 1"


def published_bytes(spec: ValueSpec, values: NDArray[np.floating]) -> bytes:
    """The exact bytes of a published array; another shape or type, or a number that is none, is refused."""
    array = np.asarray(values)
    if array.dtype != np.dtype(spec.format.value):
        raise InvalidInput(
            spec.name, array.dtype.str, f"must be {spec.format.value}", "convert it before it is published"
        )
    if array.shape != spec.shape:
        raise InvalidInput(spec.name, array.shape, f"must have shape {spec.shape}", "publish what was declared")
    if not np.isfinite(array).all():
        raise InvalidInput(spec.name, "(not finite)", "must be finite", "fix the contribution before the gate")
    return array.astype(spec.format.value, copy=False).tobytes()


def release_digest(manifest: str, round_number: int, party: str, spec: ValueSpec, content: bytes) -> str:
    """SHA-256 over a fixed word, manifest, round, party, name, format, shape and bytes, each with its length in front.

    The lengths make it injective: no two different releases share the text that is hashed.
    """
    hasher = hashlib.sha256()
    shape = ",".join(str(side) for side in spec.shape)
    for part in (_DOMAIN, manifest, str(round_number), party, spec.name, spec.format.value, shape):
        raw = part.encode("utf-8")
        hasher.update(struct.pack("<Q", len(raw)) + raw)
    hasher.update(struct.pack("<Q", len(content)))
    hasher.update(content)
    return hasher.hexdigest()


# Frames.

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
        raise refused("the file", "a value is shorter than its own front")
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
        raise refused("the file", "a state has the wrong length")
    round_number, step, digest = _STATE.unpack(payload)
    return NotedState(round_number, step, digest.hex())


def end_payload(values: int) -> bytes:
    """The bytes of the last frame, which counts the values."""
    return _END.pack(values)


def read_end(payload: memoryview) -> int:
    """The inverse of `end_payload`; a frame of another length is damage."""
    if len(payload) != _END.size:
        raise refused("the file", "its end has the wrong length")
    count: int = _END.unpack(payload)[0]
    return count


def first_frame(content: memoryview) -> Frame | None:
    """The frame after the magic word, or None where it is unfinished."""
    begin = bytes(content[: len(MAGIC)])
    if begin != MAGIC and begin[:-1] == MAGIC[:-1]:
        raise refused("the transcript", "its format is of another version", OTHER_VERSION)
    if begin != MAGIC:
        raise refused("the file", "it does not begin like a transcript of this version")
    return _frame_at(content, len(MAGIC), SEED, largest=len(content))


def following_frames(content: memoryview, after: Frame, largest: int) -> Iterator[Frame]:
    """The whole frames after one, in order, up to a tail that a crash left unfinished.

    The tail may be an unfinished frame, a last frame of which not all blocks reached the disk, or zeros
    that a file system put there. A frame that fails its digest with other data after it, or is longer
    than the `largest` payload there can be, was changed, and is refused.
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
        raise refused("the file", f"the frame at byte {place} is longer than any this transcript declares")
    if end + DIGEST_SIZE > len(content):
        return None
    hasher = hashlib.sha256(before)
    hasher.update(content[place:end])
    if hasher.digest() == content[end : end + DIGEST_SIZE]:
        try:
            return Frame(FrameKind(kind), start, end, hasher.digest())
        except ValueError as error:
            raise refused("the file", f"the frame at byte {place} is of unknown kind {kind}") from error
    if end + DIGEST_SIZE == len(content) or not any(content[place:]):
        return None
    raise refused("the file", f"the frame at byte {place} was changed after it was written")


# The numbers of one value: as whole steps of the signed grid, in as few bytes as noise allows.

_PLAIN, _DEFLATED, _STEPS = 0, 1, 2
_LOW = 32
_SMALL, _TRIED = 256, 4096
"""Bytes that are not worth deflating, and how many are tried first."""
_SMALLER = 0.75


@dataclass(frozen=True)
class Packed:
    """The bytes to be stored, and whether each number is a whole number of steps; None where there is no grid."""

    content: bytes
    on_grid: bool | None


def pack(spec: ValueSpec, raw: bytes) -> Packed:
    """The stored form of a value's exact bytes."""
    steps = None if spec.grid is None else _steps(raw, spec.grid)
    on_grid = None if spec.grid is None else steps is not None
    packed = _deflated(raw) if steps is None else _packed_steps(steps)
    plain = packed is None or len(packed) > len(raw)
    return Packed(bytes((_PLAIN,)) + raw if plain or packed is None else packed, on_grid)


def most_bytes(spec: ValueSpec) -> int:
    """The longest stored form of a value."""
    return 1 + spec.size


def unpack(spec: ValueSpec, content: memoryview) -> bytes:
    """The exact bytes of a value; whatever is not a stored form of it is refused."""
    kind, rest = (content[0] if content else -1), content[1:]
    if kind == _DEFLATED:
        raw = _inflated(rest, spec.size)
    elif kind == _STEPS and spec.grid is not None:
        raw = _unpacked_steps(rest, spec.size // spec.format.size, spec.grid)
    else:
        raw = bytes(rest) if kind == _PLAIN else b""
    if len(raw) != spec.size or kind not in (_PLAIN, _DEFLATED, _STEPS):
        raise refused("the file", f"a value of {spec.name!r} is not stored as one")
    return raw


def _steps(raw: bytes, grid: int) -> NDArray[np.int64] | None:
    """Whole numbers of 2^-grid; None unless they give the very same bytes back."""
    with np.errstate(invalid="ignore", over="ignore"):
        steps = (np.frombuffer(raw, "<f8") * 2.0**grid).astype(np.int64)
    same = np.array_equal(_floats(steps, grid).view(np.int64), np.frombuffer(raw, np.int64))  # bits, not values
    return steps if same else None


def _floats(steps: NDArray[np.int64], grid: int) -> NDArray[np.float64]:
    return np.asarray((steps * 2.0**-grid).astype("<f8", copy=False))


def _packed_steps(steps: NDArray[np.int64]) -> bytes:
    above = steps >> _LOW
    largest = max(int(above.max()), -1 - int(above.min())) if above.size else 0
    width = next(width for width in (1, 2, 4) if largest < 1 << (8 * width - 1))
    deflate = zlib.compressobj(1, strategy=zlib.Z_HUFFMAN_ONLY)
    high = deflate.compress(above.astype(f"<i{width}").tobytes()) + deflate.flush()
    return b"".join((bytes((_STEPS, width)), steps.astype("<u4").data, high))


def _unpacked_steps(content: memoryview, count: int, grid: int) -> bytes:
    width, low, high = (content[0] if content else 0), content[1 : 1 + 4 * count], content[1 + 4 * count :]
    if width not in (1, 2, 4) or len(low) != 4 * count:
        return b""
    above = _inflated(high, count * width)
    if len(above) != count * width:
        return b""
    steps = np.frombuffer(above, f"<i{width}").astype(np.int64) << _LOW
    return _floats(steps | np.frombuffer(low, "<u4"), grid).tobytes()


def _deflated(raw: bytes) -> bytes | None:
    """None where it would not pay."""
    if len(raw) < _SMALL or len(zlib.compress(raw[:_TRIED], 1)) > _SMALLER * min(len(raw), _TRIED):
        return None
    return bytes((_DEFLATED,)) + zlib.compress(raw, 1)


def _inflated(content: memoryview, size: int) -> bytes:
    """At most one byte more than `size`, whatever the content would swell to; nothing where it is damaged."""
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(content, size + 1)
    except zlib.error:
        return b""
    return raw if inflate.eof and not inflate.unused_data else b""


# The folder next to a transcript that keeps digests.

_ENTRY = struct.Struct("<HHQ")


@final
class BesideTranscript:
    """The folder next to the transcript at `path`."""

    def __init__(self, path: Path) -> None:
        self.folder = path.with_name(f"{path.stem}.kept")

    def create(self) -> None:
        self.folder.mkdir(exist_ok=True)
        sync_folder(self.folder.parent)

    def write(self, key: ValueKey, content: bytes) -> None:
        """Add one value, durably."""
        path = self._recent(key.round)
        new = not path.exists()
        with opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
            write_all(descriptor, _ENTRY.pack(key.party, key.name, len(content)))
            write_all(descriptor, content)
            os.fsync(descriptor)
        if new:
            sync_folder(self.folder)

    def content(self, key: ValueKey) -> bytes | None:
        """A value as it was written; None where it was forgotten."""
        try:
            with self._recent(key.round).open("rb") as file:
                while len(front := file.read(_ENTRY.size)) == _ENTRY.size:
                    party, name, size = _ENTRY.unpack(front)
                    if (party, name) == (key.party, key.name):
                        return file.read(min(size, os.fstat(file.fileno()).st_size))
                    file.seek(size, os.SEEK_CUR)
        except FileNotFoundError:
            return None
        return None

    def forget(self, until: int) -> None:
        """Remove the values of all rounds up to this one, whose effect is in a durable checkpoint."""
        for path in self.folder.glob("*.recent"):
            if int(path.stem) <= until:
                path.unlink()

    def write_state(self, round_number: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        content = io.BytesIO()
        np.savez(content, **arrays)  # type: ignore[arg-type]
        replace_file(self._state(round_number), content.getvalue())

    def state(self, round_number: int) -> dict[str, NDArray[Any]] | None:
        """The arrays of a state; None where it was not kept."""
        path = self._state(round_number)
        try:
            require_bounded_archive(path, "state")
            with np.load(path, allow_pickle=False) as found:
                return {name: found[name] for name in found.files}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as broken:
            rule = f"is not a state ({type(broken).__name__})"
            raise refused(str(path), rule, "put an untouched copy of it back") from broken

    def _recent(self, round_number: int) -> Path:
        return self.folder / f"{round_number:012d}.recent"

    def _state(self, round_number: int) -> Path:
        return self.folder / f"{round_number:012d}.state.npz"
