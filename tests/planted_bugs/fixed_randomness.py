"""Production noise and batches from a fixed key, so that what a test finds it finds every time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from unittest.mock import patch

import numpy as np

from privfair.batches.randomness import Words


class FixedWords:
    """What `SystemWords` is, from a seed."""

    label = "operating system"

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def words(self, number: int) -> Words:
        return self._generator.integers(0, 2**64, size=number, dtype=np.uint64)


def _fixed_words(seed: int, sources: Iterator[int]) -> FixedWords:
    return FixedWords(seed * 10_007 + next(sources))


@contextmanager
def fixed_randomness(seed: int) -> Iterator[None]:
    """The operating system's entropy is replaced by a counter's digests; everything built on it stays as it is."""
    number, sources = count(), count()

    def entropy() -> bytes:
        return hashlib.sha256(f"{seed} {next(number)}".encode()).digest()

    with ExitStack() as stack:
        stack.enter_context(patch("privfair.noise.lattice_sampler._system_entropy", entropy))
        words = partial(_fixed_words, seed, sources)
        stack.enter_context(patch("privfair.batches.participation.SystemWords", words))
        yield
