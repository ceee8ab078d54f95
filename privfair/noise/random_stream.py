"""The random bits of trusted noise: an AES-256-CTR stream keyed by the operating system.

Fast key erasure: the first 32 bytes of every keystream replace the key before anything is handed out, so a
later look at memory does not give back noise that was already drawn. Every request also mixes 32 fresh bytes
of the operating system into the key, so that two copies of one state (a fork that bypasses Python, a cloned
or restored virtual machine) part ways at their next request.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol, final
from weakref import WeakSet

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from calibrate.errors import InvalidInput, count

Words = NDArray[np.uint64]

_KEY_BYTES = 32
_BYTES_PER_KEY = 1 << 20
"""At most 2^16 blocks under one key: telling them from random bits has advantage below 2^-96 per key, unless
AES itself is broken."""
_ZEROS = memoryview(bytes(_BYTES_PER_KEY))


class WordStream(Protocol):
    """Anything that hands out independent uniform 64-bit words."""

    def words(self, number: int) -> Words: ...


@final
class SecureStream:
    """Uniform words for noise that protects people. Safe to share between threads and across forks."""

    def __init__(self) -> None:
        self._key = bytearray(_system_entropy())
        self._lock = threading.Lock()
        _LIVE_STREAMS.add(self)

    def words(self, number: int) -> Words:
        """`number` independent uniform 64-bit words; none of them is ever handed out again."""
        out = np.empty(count("number of words", number, least=0), dtype=np.uint64)
        target = out.data.cast("B") if number else memoryview(b"")
        with self._lock:
            for start in range(0, len(target), _BYTES_PER_KEY):
                self._fill(target[start : start + _BYTES_PER_KEY])
        return out

    def _fill(self, target: memoryview) -> None:
        fresh = int.from_bytes(_system_entropy(), "little")
        self._key[:] = (int.from_bytes(self._key, "little") ^ fresh).to_bytes(_KEY_BYTES, "little")
        keystream = Cipher(algorithms.AES(self._key), modes.CTR(bytes(16))).encryptor()
        keystream.update_into(_ZEROS[:_KEY_BYTES], self._key)
        keystream.update_into(_ZEROS[: len(target)], target)

    def _restart_in_child(self) -> None:
        # Another thread of the parent may have held the lock at the moment of the fork and would never free it.
        self._lock = threading.Lock()
        self._key = bytearray(_system_entropy())

    def __reduce__(self) -> tuple[object, ...]:
        raise InvalidInput(
            "stream", "SecureStream", "must never be copied or pickled", "make a new stream in the other process"
        )


def _system_entropy() -> bytes:
    return os.urandom(_KEY_BYTES)


_LIVE_STREAMS: WeakSet[SecureStream] = WeakSet()


def _restart_all_in_child() -> None:
    for stream in tuple(_LIVE_STREAMS):
        stream._restart_in_child()


os.register_at_fork(after_in_child=_restart_all_in_child)


def uniform_below(bound: int, number: int, stream: WordStream) -> NDArray[np.int64]:
    """`number` independent whole numbers, exactly uniform on 0, 1, ..., bound - 1, by rejection."""
    if not 1 <= bound <= 1 << 62:
        raise InvalidInput("bound", bound, "must be in [1, 2^62]", "give fewer alternatives")
    mask = np.uint64((1 << (bound - 1).bit_length()) - 1)
    out = np.empty(number, dtype=np.int64)
    missing = np.arange(number)
    while missing.size:
        candidates = (stream.words(missing.size) & mask).astype(np.int64)
        fits = candidates < bound
        out[missing[fits]] = candidates[fits]
        missing = missing[~fits]
    return out
