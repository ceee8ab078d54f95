"""Reproducible randomness for splits and partitions; never for noise.

Every purpose has its own stream, so that the same seed does not correlate a split with a partition.
"""

from __future__ import annotations

import numpy as np

from calibrate.arrays import Integers
from calibrate.validation import count


def stream(seed: int, purpose: str) -> np.random.Generator:
    """A generator that depends on seed and purpose alone."""
    sequence = np.random.SeedSequence(count("seed", seed, least=0), spawn_key=tuple(purpose.encode()))
    return np.random.Generator(np.random.PCG64(sequence))


def permutation(generator: np.random.Generator, size: int) -> Integers:
    """A uniform permutation: sort by raw 64-bit draws, whose stream numpy keeps fixed between versions."""
    return np.argsort(generator.bit_generator.random_raw(size), kind="stable").astype(np.int64)
