"""The random words behind batches: from the operating system, or reproducible where no one is protected.

Apart from the noise on purpose: batches are drawn by the engine, noise by the gate alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from calibrate.errors import InvalidInput, count

Words = NDArray[np.uint64]
Indexes = NDArray[np.int64]


def stream(seed: int, purpose: str) -> np.random.Generator:
    """A generator that depends on seed and purpose alone."""
    sequence = np.random.SeedSequence(count("seed", seed, least=0), spawn_key=tuple(purpose.encode()))
    return np.random.Generator(np.random.PCG64(sequence))


class WordSource(Protocol):
    """Independent uniform 64-bit words; `label` goes into the run's record."""

    @property
    def label(self) -> str: ...

    def words(self, number: int) -> Words: ...


@final
class SystemWords:
    """Every word straight from the operating system's generator: nothing to keep secret, nothing to repeat.

    `entropy` takes its place in a rehearsal, whose auditor knows it.
    """

    label = "operating system"

    def __init__(self, entropy: Callable[[int], bytes] | None = None) -> None:
        self._entropy = entropy

    def words(self, number: int) -> Words:
        size = 8 * count("number of words", number, least=0)
        return np.frombuffer(os.urandom(size) if self._entropy is None else self._entropy(size), dtype=np.uint64)


@final
class SeededWords:
    """The same words for the same seed and purpose; for runs that promise nothing."""

    def __init__(self, seed: int, purpose: str) -> None:
        self.label = f"seeded with {seed}"
        self._generator = stream(seed, purpose)

    def words(self, number: int) -> Words:
        drawn = self._generator.bit_generator.random_raw(count("number of words", number, least=0))
        return np.asarray(drawn, dtype=np.uint64)


def bernoulli(source: WordSource, size: int, probability: float) -> Indexes:
    """Which of `size` independent coins show heads, exactly with `probability` rounded down to 64 bits."""
    if probability >= 1.0:
        return np.arange(size, dtype=np.int64)
    # Scaling by a power of two is exact, and so is the floor: a unit never joins more often than signed.
    threshold = np.uint64(int(probability * 2.0**64))
    return np.flatnonzero(source.words(size) < threshold).astype(np.int64)


def permutation(source: WordSource, size: int) -> Indexes:
    """A uniformly random order: that of distinct random keys (drawn again if two are the same)."""
    return np.argsort(_distinct_keys(source, size)).astype(np.int64)


def subset(source: WordSource, population: int, size: int) -> Indexes:
    """A uniformly random subset of exactly `size`: those with the smallest keys, in rising order."""
    if size == population:
        return np.arange(size, dtype=np.int64)
    keys = _distinct_keys(source, population)
    return np.sort(np.argpartition(keys, size - 1)[:size]).astype(np.int64)


def uniform_below(source: WordSource, bound: int, number: int) -> Indexes:
    """`number` independent whole numbers, exactly uniform on 0 .. bound - 1, by rejection."""
    if not 1 <= bound <= 1 << 62:
        raise InvalidInput("bound", bound, "must be in [1, 2^62]", "give fewer alternatives")
    mask = np.uint64((1 << (bound - 1).bit_length()) - 1)
    out = np.empty(number, dtype=np.int64)
    missing = np.arange(number)
    while missing.size:
        candidates = (source.words(missing.size) & mask).astype(np.int64)
        fits = candidates < bound
        out[missing[fits]] = candidates[fits]
        missing = missing[~fits]
    return out


def _distinct_keys(source: WordSource, number: int) -> Words:
    while True:
        keys = source.words(number)
        if np.unique(keys).size == number:
            return keys
