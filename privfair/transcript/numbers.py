"""How the numbers of one value are stored: as whole steps of the signed grid, in as few bytes as noise allows.

::

    0   the numbers as they are
    1   deflated
    2   steps of the grid: the lower 32 bits of each as they are, since noise fills them; after them what is above,
        deflated, as whole numbers of `width` bytes (the byte before)

Noise of 2^30 steps or more per scale has about 32 bits of entropy per number, so a half of a double is all that can be
saved. Packing is lossless to the bit, negative zeros included, or the numbers are stored as they are.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfair.transcript.header import TranscriptRefused, ValueSpec

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
        raise TranscriptRefused(
            "the file", f"a value of {spec.name!r} is not stored as one", "put an untouched copy of the transcript back"
        )
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
