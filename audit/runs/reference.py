"""Noise and batches computed again from a rehearsal's key, by code that shares nothing with `privfair.noise`.

The sampler (docs/theorems/discrete-noise.md) takes a block of the half line by 16 bits of a word, sign and position by
its other bits, and accepts by a second word. The production code decides most acceptances by precomputed bounds
and the closest ones exactly; here every one is decided by one exponential in double precision, which is on the same
side but for a chance below 1e-10 per value.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from hashlib import shake_256
from itertools import count

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from calibrate.arrays import Floats, Integers
from calibrate.discrete_noise import STEPS_PER_SCALE
from calibrate.manifest.mechanism import GaussianNoise, LaplaceNoise, RandomizedCategory
from calibrate.sampling import (
    Cyclic,
    FixedSize,
    Poisson,
    RandomAllocation,
    Sampling,
    ShuffledEpochs,
    TruncatedPoisson,
    WithReplacement,
)

Words = NDArray[np.uint64]
_KEY, _AT_ONCE, _VALUES, _PROPOSALS, _SLOTS = 32, 1 << 20, 30_000, 1 << 15, 1 << 16
"""Bytes of a key, bytes per key, values and proposals at a time, and slots, as the engine has them: a test compares."""
_BAND = 2.0**-40
_MOST_STEPS = float(1 << 53)


def known_bytes(secret: bytes, purpose: str) -> Callable[[int], bytes]:
    """The bytes of `RehearsalKey.source`, in order."""
    numbers = count()
    return lambda size: shake_256(secret + f" {purpose} {next(numbers)}".encode()).digest(size)


class KnownStream:
    """The words of a noise source whose entropy is known: AES-256 in counter mode, with a new key for each request."""

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy = entropy
        self._key = entropy(_KEY)

    def words(self, number: int) -> Words:
        parts = [self._bytes(min(_AT_ONCE, 8 * number - start)) for start in range(0, 8 * number, _AT_ONCE)]
        return np.frombuffer(b"".join(parts), dtype=np.uint64)

    def _bytes(self, size: int) -> bytes:
        key = bytes(a ^ b for a, b in zip(self._key, self._entropy(_KEY), strict=True))
        stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(_KEY + size))
        self._key = stream[:_KEY]
        return stream[_KEY:]


def noisy(declared: GaussianNoise | LaplaceNoise, values: Floats, stream: KnownStream) -> Floats:
    """The values, rounded toward zero onto the signed grid, with the noise that the stream gives."""
    gaussian, size = isinstance(declared, GaussianNoise), values.size
    step, scale = _grid(declared, size)
    steps = (np.asarray(values, dtype=np.float64) / float(step)).astype(np.int64)
    parts = [min(_VALUES, size - start) for start in range(0, size, _VALUES)]
    drawn = [_drawn(scale, part, stream, gaussian=gaussian) for part in parts]
    noise = np.concatenate(drawn).reshape(values.shape) if drawn else np.zeros_like(steps)
    return np.asarray(np.clip(steps + noise, -_MOST_STEPS, _MOST_STEPS) * float(step))


@lru_cache(maxsize=256)
def _grid(declared: GaussianNoise | LaplaceNoise, size: int) -> tuple[Fraction, int]:
    """The grid's step, and the scale in steps that keeps the signed multiplier after rounding to the grid."""
    if isinstance(declared, GaussianNoise):
        scale, growth = declared.sigma, Fraction(math.isqrt((size * declared.bands) << 40) + 1, 1 << 20)
    else:
        scale, growth = declared.scale, Fraction(size)
    rounded = Fraction(declared.sensitivity * (1 + 1e-9)) + _step(2 * scale) * growth
    used = float(np.nextafter(scale * float(rounded) / declared.sensitivity, np.inf))
    return _step(used), math.ceil(Fraction(used) / _step(used))


def _step(scale: float) -> Fraction:
    """The largest power of two that is in the scale often enough."""
    return Fraction(2) ** (math.frexp(scale / STEPS_PER_SCALE)[1] - 1)


class _Blocks:
    """The blocks of the half line with their slots of 65,536, for one law and one scale in steps."""

    def __init__(self, scale: int, *, gaussian: bool) -> None:
        self._rate = float(1 / (2 * Fraction(scale) ** 2)) if gaussian else float(Fraction(1, scale))
        self._gaussian = gaussian

        def exact(size: int) -> Fraction:
            return Fraction(size**2, 2 * scale**2) if gaussian else Fraction(size, scale)

        self.width = max(scale // 8, 1).bit_length() - 1
        number = next(j for j in range(1, 255) if exact(j << self.width) >= 10)
        start = exact(number << self.width)
        wider = next(
            n
            for n in range(48 - self.width)
            if exact((number << self.width) + (1 << (self.width + n))) - start >= Fraction(6932, 10000)
        )
        self.first = np.arange(number + 1, dtype=np.int64) << self.width
        self.tail, self.tail_width = number, self.width + wider
        top = self.target(self.first) + 2 * _BAND
        needed = top.copy()
        needed[-1] *= 2 << wider
        unit = int((_SLOTS - len(self.first)) / needed.sum()) - 1
        slots = np.ceil(unit * needed).astype(np.int64)
        self.heights = slots / unit
        self.heights[-1] /= 2 << wider
        self.block = np.full(_SLOTS, number + 1, dtype=np.int64)
        taken = np.repeat(np.arange(number + 1), slots)
        self.block[: taken.size] = taken
        bottom = self.target(self.first + (1 << self.width) - 1)
        accepted = unit * float((top + bottom)[:-1].sum()) / 2 - (unit * 0.5 if number + 1 < 30 else 0.0)
        self.proposals = _SLOTS / max(accepted, _SLOTS / 4) * 1.01

    def target(self, size: Integers) -> Floats:
        values = size.astype(np.float64)
        return np.asarray(np.exp(-(values * values * self._rate if self._gaussian else values * self._rate)))


_blocks = lru_cache(maxsize=64)(_Blocks)


def _drawn(scale: int, number: int, stream: KnownStream, *, gaussian: bool) -> Integers:
    """Whole numbers with P[y] proportional to exp(-y^2 / (2 scale^2)), or to exp(-|y| / scale)."""
    blocks, found, missing = _blocks(scale, gaussian=gaussian), list[Integers](), number
    while missing:
        proposals = min(int(missing * blocks.proposals) + 16, _PROPOSALS)
        found.append(_accepted(blocks, proposals, stream)[:missing])
        missing -= found[-1].size
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def _accepted(blocks: _Blocks, proposals: int, stream: KnownStream) -> Integers:
    words = stream.words(2 * proposals)
    place, uniform = words[:proposals], (words[proposals:] >> np.uint64(11)).astype(np.float64) * 2.0**-53
    block, position = blocks.block[(place & np.uint64(_SLOTS - 1)).astype(np.int64)], place >> np.uint64(17)
    used = block <= blocks.tail
    block = np.where(used, block, 0)
    values = blocks.first[block] + (position & np.uint64((1 << blocks.width) - 1)).astype(np.int64)
    heights, tail = blocks.heights[block], np.flatnonzero(used & (block == blocks.tail))
    halvings = _tails_before_a_head(tail.size, stream)
    far = (position[tail] & np.uint64((1 << blocks.tail_width) - 1)).astype(np.int64)
    values[tail] = blocks.first[-1] + (halvings << blocks.tail_width) + far
    heights[tail] = np.ldexp(heights[tail], -halvings)
    minus = (place >> np.uint64(16)) & np.uint64(1) == 1
    taken = used & (uniform * heights < blocks.target(values)) & ~(minus & (values == 0))
    return np.asarray(np.where(minus, -values, values)[taken])


def _tails_before_a_head(number: int, stream: KnownStream) -> Integers:
    """Trailing zeros of words; of a word of zeros its 64, and those of another."""
    runs, going = np.zeros(number, dtype=np.int64), np.arange(number)
    while going.size:
        words = stream.words(going.size)
        zeros = [(int(word) & -int(word)).bit_length() - 1 if word else 64 for word in words]
        runs[going] += np.array(zeros, dtype=np.int64)
        going = going[words == 0]
    return runs


def answered(declared: RandomizedCategory, truth: Integers, stream: KnownStream) -> Floats:
    """The answers of randomised response: the truth with the signed probability, else one of the others."""
    kept = (stream.words(truth.size) >> np.uint64(2)).astype(np.int64) < _keep(declared.categories, declared.epsilon)
    other = (truth.ravel() + 1 + _below(declared.categories - 1, truth.size, stream.words)) % declared.categories
    return np.where(kept, truth.ravel(), other).reshape(truth.shape).astype(np.float64)


@lru_cache(maxsize=64)
def _keep(categories: int, epsilon: float) -> int:
    """The probability of the truth in steps of 2^-62, rounded down."""
    context = decimal.Context(prec=100)
    lie = Fraction(context.exp(-Decimal(epsilon)))
    return min(math.floor((1 << 62) / (1 + (categories - 1) * lie)), (1 << 62) - 1)


def _below(bound: int, number: int, words: Callable[[int], Words]) -> Integers:
    """Uniform whole numbers below the bound: the low bits of words, and of others while they are too large."""
    mask, found, missing = np.uint64((1 << (bound - 1).bit_length()) - 1), np.empty(number, np.int64), np.arange(number)
    while missing.size:
        candidates = (words(missing.size) & mask).astype(np.int64)
        found[missing[candidates < bound]] = candidates[candidates < bound]
        missing = missing[candidates >= bound]
    return found


class KnownBatches:
    """The batches of one party whose words are known: one session, with the epochs that an earlier one recorded."""

    def __init__(
        self,
        sampling: Sampling | None,
        units: int,
        entropy: Callable[[int], bytes],
        groups: Integers | None = None,
        epochs: dict[int, Integers] | None = None,
    ) -> None:
        self._sampling, self._units, self._entropy, self._groups = sampling, units, entropy, groups
        self.epochs = {} if epochs is None else epochs
        """By number: the order of a shuffled epoch, or each unit's place in an allocated one."""

    def batch(self, round_number: int) -> Integers:
        """Who takes part in this round; rounds are asked for in order."""
        everybody = np.arange(self._units)
        match self._sampling:
            case None:
                return everybody
            case ShuffledEpochs(size=size):
                epoch, place = divmod(round_number, -(-self._units // size))
                order = self._epoch(epoch, lambda: np.argsort(self._keys(self._units)))
                return order[place * size : (place + 1) * size]
            case RandomAllocation(batches=batches):
                epoch, place = divmod(round_number, batches)
                places = self._epoch(epoch, lambda: _below(batches, self._units, self._words))
                return np.flatnonzero(places == place)
            case Cyclic(groups=groups, rate=rate):
                turn = np.flatnonzero(self._groups == round_number % groups)
                return turn if rate == 1 else turn[self._joining(len(turn), rate)]
            case TruncatedPoisson(rate=rate, limit=limit):
                joined = self._joining(self._units, rate)
                return joined if len(joined) <= limit else joined[self._some(len(joined), limit)]
            case Poisson(rate=rate):
                return self._joining(self._units, rate)
            case FixedSize(size=size):
                return self._some(self._units, size)
            case WithReplacement(draws=draws):
                return _below(self._units, draws, self._words)

    def _words(self, number: int) -> Words:
        return np.frombuffer(self._entropy(8 * number), dtype=np.uint64)

    def _epoch(self, number: int, draw: Callable[[], Integers]) -> Integers:
        if number not in self.epochs:
            self.epochs[number] = draw()
        return self.epochs[number]

    def _joining(self, number: int, rate: float) -> Integers:
        """Those whose word, as a fraction of 2^64, is below the rate."""
        return np.arange(number) if rate >= 1 else np.flatnonzero(self._words(number) < np.uint64(int(rate * 2.0**64)))

    def _some(self, number: int, size: int) -> Integers:
        """Those with the smallest words."""
        return np.arange(number) if size == number else np.sort(np.argsort(self._keys(number))[:size])

    def _keys(self, number: int) -> Words:
        keys = self._words(number)
        return keys if np.unique(keys).size == number else self._keys(number)
