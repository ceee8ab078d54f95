"""Exact, vectorised sampling of P[Y = y] proportional to exp(-phi(|y|)) on the whole numbers.

Plain rejection sampling. The half line is cut into blocks of 2^b whole numbers, a block is proposed with a
whole number of 65,536 slots, a position within the block uniformly, and the proposal is accepted with
probability exp(-phi(y)) / height(block). One 64-bit word gives slot, sign and position, a second one gives U.
Three tests decide acceptance, each exact:

1. U below a precomputed bound valid for the whole block: accept, no exponential needed (about 9 in 10);
2. otherwise exp in double precision, believed outside a band around equality that is wider than its error;
3. inside the band (less than once in 10^10) rational arithmetic: `lazy_comparison`.

The words are an AES-256-CTR stream (`SecureStream`). docs/theorems/discrete-noise.md has the proof. Timing depends on
the noise drawn and is not protected.
"""

from __future__ import annotations

import decimal
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from math import prod
from numbers import Rational, Real
from typing import Protocol, final
from weakref import WeakSet

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import ArrayLike, NDArray

from calibrate.arrays import Floats, Integers
from calibrate.errors import InvalidInput, count, positive

try:
    from privfair.noise import passes as passes
except ImportError:  # it was installed without a compiler
    passes = None  # type: ignore[assignment]

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
    """Uniform words for noise that protects people: an AES-256-CTR stream keyed by the operating system.

    Safe to share between threads and across forks. Fast key erasure: the first 32 bytes of every keystream replace the
    key before anything is handed out, so a later look at memory does not give back noise that was already drawn. Every
    request also mixes 32 fresh bytes of the operating system into the key, so that two copies of one state (a fork that
    bypasses Python, a cloned or restored virtual machine) part ways at their next request.
    """

    def __init__(self, entropy: Callable[[int], bytes] | None = None) -> None:
        """`entropy` gives bytes in the place of the operating system: for rehearsals, whose auditor knows them."""
        self._entropy = entropy
        self._key = bytearray(self._fresh_key())
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
        fresh = int.from_bytes(self._fresh_key(), "little")
        self._key[:] = (int.from_bytes(self._key, "little") ^ fresh).to_bytes(_KEY_BYTES, "little")
        keystream = Cipher(algorithms.AES(self._key), modes.CTR(bytes(16))).encryptor()
        keystream.update_into(_ZEROS[:_KEY_BYTES], self._key)
        keystream.update_into(_ZEROS[: len(target)], target)

    def _restart_in_child(self) -> None:
        # Another thread of the parent may have held the lock at the moment of the fork and would never free it.
        self._lock = threading.Lock()
        self._key = bytearray(self._fresh_key())

    def _fresh_key(self) -> bytes:
        return _system_entropy() if self._entropy is None else self._entropy(_KEY_BYTES)

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


# What callers may hand to the noise: exact positive numbers, shapes, real arrays, categories. All else is refused.


def exact_positive(argument: str, value: float | Fraction) -> Fraction:
    """A positive number as the rational it is; a double is taken at its exact value."""
    if isinstance(value, bool):
        raise InvalidInput(argument, value, "must be a number", "give a float, an int or a Fraction")
    if isinstance(value, Rational):
        if value <= 0:
            raise InvalidInput(argument, value, "must be greater than 0", "give a positive number")
        return Fraction(int(value.numerator), int(value.denominator))  # numpy integers would overflow later
    if isinstance(value, Real):
        return Fraction(positive(argument, float(value)))
    raise InvalidInput(argument, value, "must be a positive number", "give a float, an int or a Fraction")


def whole_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """The shape as a tuple of whole numbers; refused otherwise."""
    dimensions = shape if isinstance(shape, tuple) else (shape,)
    return tuple(count("shape", dimension, least=0) for dimension in dimensions)


def real_array(values: ArrayLike) -> NDArray[np.float64]:
    """A finite array in double precision, with nothing lost on the way."""
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        raise InvalidInput("values", str(array.dtype), "must be real numbers of at most 64 bits", "convert them")
    doubles = array.astype(np.float64)
    if array.dtype.kind in "iu" and array.size and max(int(array.max()), -int(array.min())) > 1 << 53:
        raise InvalidInput("values", "integers beyond 2^53", "must be exact in double precision", "scale them down")
    if not np.isfinite(doubles).all():
        raise InvalidInput("values", "NaN or infinity", "must be finite", "clip or drop them before publishing")
    return doubles


def category_array(categories: ArrayLike, alternatives: int) -> NDArray[np.int64]:
    """Categories numbered 0, 1, ..., alternatives - 1."""
    array = np.asarray(categories)
    if array.dtype.kind not in "iu":
        raise InvalidInput("categories", str(array.dtype), "must be whole numbers", "number the categories from 0")
    if array.size and not (int(array.min()) >= 0 and int(array.max()) < alternatives):
        raise InvalidInput(
            "categories",
            (int(array.min()), int(array.max())),
            f"must be in 0 .. {alternatives - 1}",
            "number the categories from 0, or raise k",
        )
    return array.astype(np.int64)


# Decide `U * height < exp(-exponent)` for a uniform real U without rounding anything.
#
# U is known to 53 bits when it arrives. Nearly always that settles the question; the caller's floating-point
# test decides all but a thin band around equality. What falls into the band comes here: exp is enclosed by
# rationals, U gets further bits, both ever finer, until the two intervals are disjoint.

UNIFORM_BITS = 53
"""How many bits of U the fast test uses."""

BAND = 2.0**-40
"""Half width of the band in which the floating-point test is not believed; docs/theorems/discrete-noise.md
shows that its error is below 2^-41."""

_FIRST_DIGITS = 40
_MORE_DIGITS = 25
_MORE_BITS = 64
_EXPONENT_PER_DIGIT = 8


def uniform_is_below_exponential(first_bits: int, height: Fraction, exponent: Fraction, stream: WordStream) -> bool:
    """Whether U * height < exp(-exponent), where U is in [first_bits, first_bits + 1) * 2^-53.

    Guarantee: given a uniform U, the answer is true with probability exactly exp(-exponent) / height (or 1
    if that is larger): no comparison is ever decided on a rounded number.
    """
    low, bits, digits = first_bits, UNIFORM_BITS, _FIRST_DIGITS
    while True:
        at_least, at_most = exponential_enclosure(exponent, digits)
        if Fraction(low + 1, 1 << bits) * height <= at_least:
            return True
        if Fraction(low, 1 << bits) * height >= at_most:
            return False
        low = (low << _MORE_BITS) | int(stream.words(1)[0])
        bits += _MORE_BITS
        digits += _MORE_DIGITS


def exponential_enclosure(exponent: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Rationals on both sides of exp(-exponent), for exponent >= 0, about 10^-digits (relatively) apart.

    An exponent beyond 8 * digits gets 0 as its lower end: a rational near exp(-10^9) would fill the memory,
    and a caller that needs more asks again with more digits.
    The quotient is correctly rounded, relatively within 5 * 10^-digits, which moves exp relatively by
    5 * exponent * 10^-digits (to first order); exp is correctly rounded, too. The margin is twice the sum.
    """
    largest = _EXPONENT_PER_DIGIT * digits
    if exponent > largest:
        return Fraction(0), exponential_enclosure(Fraction(largest), digits)[1]
    context = decimal.Context(prec=digits, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[])
    quotient = context.divide(Decimal(exponent.numerator), Decimal(exponent.denominator))
    middle = Fraction(context.exp(context.minus(quotient)))
    margin = middle * 10 * (exponent + 1) / 10**digits
    return middle - margin, middle + margin


LARGEST_SCALE = 1 << 40
SMALLEST_SCALE = Fraction(1, 1 << 20)

_SLOT_BITS = 16
_SLOTS = 1 << _SLOT_BITS
_SLOT_MASK, _SIGN_BIT = np.uint64(_SLOTS - 1), np.uint64(1 << _SLOT_BITS)
_POSITION_SHIFT = np.uint64(_SLOT_BITS + 1)
_POSITION_BITS = 64 - _SLOT_BITS - 1
_BLOCKS_PER_SCALE = 8
_TAIL_STARTS_AT = 10
_MORE_THAN_LOG_TWO = Fraction(6_932, 10_000)
_LARGEST_BATCH = 1 << 15
"""Proposals at a time: what a batch touches then stays in the processor's cache."""


class Exponent(Protocol):
    """phi: convex, increasing, 0 at 0, rational at whole numbers. Hashable, so that its table is kept."""

    @property
    def scale(self) -> Fraction:
        """Roughly how many whole numbers it takes phi to grow by one half to one."""
        ...

    def exact(self, size: int) -> Fraction: ...

    def approximate(self, size: Floats) -> Floats:
        """phi within a factor 1 +- 2^-50."""
        ...


@dataclass(frozen=True, eq=False)
class BlockTable:
    """The proposal of one rejection sampler. The last two blocks are the tail and the unused slots."""

    exponent: Exponent
    band: float
    block_of_slot: NDArray[np.uint8]
    first: Integers
    certain: Integers
    heights: tuple[Fraction, ...]
    approximate_heights: Floats
    position_mask: np.uint64
    tail_width_bits: int
    proposals_per_value: float

    @property
    def tail(self) -> int:
        return len(self.heights) - 1

    @property
    def unused(self) -> int:
        return len(self.heights)


@lru_cache(maxsize=128)
def block_table(exponent: Exponent, band: float = BAND) -> BlockTable:
    """Cut the half line into blocks whose heights are proved to lie above the target."""
    if not SMALLEST_SCALE <= exponent.scale <= LARGEST_SCALE:
        raise InvalidInput(
            "scale in steps", float(exponent.scale), "must be in [2^-20, 2^40]", "choose another grid step"
        )
    width_bits = max(int(exponent.scale) // _BLOCKS_PER_SCALE, 1).bit_length() - 1
    blocks = next(j for j in range(1, 255) if exponent.exact(j << width_bits) >= _TAIL_STARTS_AT)
    first = np.arange(blocks + 1, dtype=np.int64) << width_bits
    wider = _tail_widening(exponent, blocks, width_bits)

    # Heights are in units of one slot per `per_unit`, a little above the block's largest value: its first.
    top = np.exp(-exponent.approximate(first.astype(np.float64))) + 2 * BAND
    needed = top.copy()
    needed[-1] *= 2 << wider  # the tail's slots are shared by blocks 2^wider as wide, halving in height
    per_unit = int((_SLOTS - len(first)) / needed.sum()) - 1
    slots = np.ceil(per_unit * needed).astype(np.int64)
    heights = [Fraction(int(n), per_unit) for n in slots]
    heights[-1] /= 2 << wider

    bottom = np.exp(-exponent.approximate((first + (1 << width_bits) - 1).astype(np.float64)))
    approximate_heights = np.array([float(h) for h in heights])
    sure = np.maximum(0.0, (bottom - 2 * band) / approximate_heights * (1 - 2.0**-40))
    certain = np.append(np.floor(sure * 2.0**UNIFORM_BITS).astype(np.int64), 0)
    certain[blocks] = 0
    return BlockTable(
        exponent=exponent,
        band=band,
        block_of_slot=_assign_slots(slots),
        first=np.append(first, 0),
        certain=certain,
        heights=tuple(heights),
        approximate_heights=approximate_heights,
        position_mask=np.uint64((1 << width_bits) - 1),
        tail_width_bits=width_bits + wider,
        proposals_per_value=_expected_proposals(top, bottom, per_unit),
    )


def _tail_widening(exponent: Exponent, blocks: int, width_bits: int) -> int:
    """How often to double the width so that the target at least halves from one tail block to the next.

    phi is convex, so what holds for the first tail block holds for all later ones.
    """
    start = exponent.exact(blocks << width_bits)
    for wider in range(_POSITION_BITS - width_bits + 1):
        if exponent.exact((blocks << width_bits) + (1 << (width_bits + wider))) - start >= _MORE_THAN_LOG_TWO:
            return wider
    raise InvalidInput("scale in steps", float(exponent.scale), "is too large", "choose a coarser grid")


def _assign_slots(slots: Integers) -> NDArray[np.uint8]:
    block_of_slot = np.full(_SLOTS, len(slots), dtype=np.uint8)
    taken = np.repeat(np.arange(len(slots), dtype=np.uint8), slots)
    block_of_slot[: taken.size] = taken
    return block_of_slot


def _expected_proposals(top: Floats, bottom: Floats, per_unit: int) -> float:
    """How many proposals to draw for one value; only speed depends on it."""
    accepted = per_unit * float((top + bottom)[:-1].sum()) / 2
    zero_with_a_minus = per_unit * 0.5 if len(top) < 30 else 0.0
    return _SLOTS / max(accepted - zero_with_a_minus, _SLOTS / 4) * 1.01


def sample(table: BlockTable, number: int, stream: WordStream) -> Integers:
    """`number` independent values with P[Y = y] exactly proportional to exp(-phi(|y|))."""
    out = np.empty(number, dtype=np.int64)
    filled = 0
    while filled < number:
        wanted = int((number - filled) * table.proposals_per_value) + 16
        values = _accepted_values(table, min(wanted, _LARGEST_BATCH), stream)[: number - filled]
        out[filled : filled + values.size] = values
        filled += values.size
    return out


def _accepted_values(table: BlockTable, proposals: int, stream: WordStream) -> Integers:
    words = stream.words(2 * proposals)
    place, uniform = words[:proposals], words[proposals:]
    values, accepted, cases = (_propose if passes is None else _propose_compiled)(table, place, uniform)
    _decide(table, cases, place.take(cases), uniform.take(cases), values=values, accepted=accepted, stream=stream)
    if passes is not None:
        out = np.empty(proposals, dtype=np.int64)
        return out[: passes.settle(place, values, accepted, out)]
    minus = (place & _SIGN_BIT) != 0
    accepted &= (values != 0) >= minus  # zero has one sign only, or it would be proposed twice
    np.negative(values, out=values, where=minus)
    return values[accepted]


_Proposed = tuple[Integers, NDArray[np.bool_], Integers]
"""Sizes, whether they are accepted for certain, and the numbers of the proposals that are open."""


def _propose(table: BlockTable, place: Words, uniform: Words) -> _Proposed:
    block = table.block_of_slot.take((place & _SLOT_MASK).view(np.int64))
    values = table.first.take(block)
    values += ((place >> _POSITION_SHIFT) & table.position_mask).view(np.int64)
    accepted = _first_bits(uniform) < table.certain.take(block)
    (cases,) = ((block != table.unused) > accepted).nonzero()
    return values, accepted, cases


def _propose_compiled(table: BlockTable, place: Words, uniform: Words) -> _Proposed:
    """The same, to the bit, in one loop of `passes.c`."""
    values, cases = np.empty((2, place.size), dtype=np.int64)
    accepted, width_bits = np.empty(place.size, dtype=np.bool_), int(table.position_mask).bit_length()
    columns, found = (table.block_of_slot, table.first, table.certain), (values, accepted, cases)
    return values, accepted, cases[: passes.propose(place, uniform, *columns, *found, table.unused, width_bits)]


def _first_bits(uniform: Words) -> Integers:
    return (uniform >> np.uint64(64 - UNIFORM_BITS)).view(np.int64)


def _decide(
    table: BlockTable,
    cases: Integers,
    place: Words,
    uniform: Words,
    values: Integers,
    accepted: NDArray[np.bool_],
    stream: WordStream,
) -> None:
    """Settle the proposals that need an exponential, given their own words; the tail gets its values here, too."""
    of_case, first_bits = table.block_of_slot.take((place & _SLOT_MASK).view(np.int64)), _first_bits(uniform)
    heights = table.approximate_heights.take(of_case)
    halvings = np.zeros(cases.size, dtype=np.int64)
    (in_tail,) = (of_case == table.tail).nonzero()
    if in_tail.size:
        halvings[in_tail] = _fair_coin_runs(in_tail.size, stream)
        mask = np.uint64((1 << table.tail_width_bits) - 1)
        positions = ((place[in_tail] >> _POSITION_SHIFT) & mask).view(np.int64)
        values[cases[in_tail]] = table.first[table.tail] + (halvings[in_tail] << table.tail_width_bits) + positions
        heights[in_tail] = np.ldexp(heights[in_tail], -halvings[in_tail])
    target = np.exp(-table.exponent.approximate(values.take(cases).astype(np.float64)))
    gap = target - first_bits * 2.0**-UNIFORM_BITS * heights
    accepted[cases] = gap > 0
    for index in (np.abs(gap) <= table.band).nonzero()[0]:
        case = cases[index]
        accepted[case] = uniform_is_below_exponential(
            int(first_bits[index]),
            table.heights[of_case[index]] / (1 << int(halvings[index])),
            table.exponent.exact(int(values[case])),
            stream,
        )


def _fair_coin_runs(number: int, stream: WordStream) -> Integers:
    """How many fair coins show tails before the first head: P[run = i] = 2^-(i+1)."""
    runs = np.zeros(number, dtype=np.int64)
    going = np.arange(number)
    while going.size:
        words = stream.words(going.size)
        lowest = words & (~words + np.uint64(1))
        stopped = words != 0
        runs[going[stopped]] += np.frexp(lowest[stopped].astype(np.float64))[1] - 1
        going = going[~stopped]
        runs[going] += 64
    return runs


# The discrete Gaussian of Canonne, Kamath and Steinke: P[Y = y] proportional to exp(-y^2 / (2 sigma^2)).


@dataclass(frozen=True)
class GaussianExponent:
    """phi(y) = y^2 / (2 sigma^2), with sigma an exact rational."""

    sigma: Fraction

    @property
    def scale(self) -> Fraction:
        return self.sigma

    @cached_property
    def _per_square(self) -> Fraction:
        return 1 / (2 * self.sigma**2)

    @cached_property
    def _approximate_per_square(self) -> float:
        return float(self._per_square)

    def exact(self, size: int) -> Fraction:
        return self._per_square * size**2

    def approximate(self, size: Floats) -> Floats:
        return size * size * self._approximate_per_square


def discrete_gaussian(shape: int | tuple[int, ...], sigma_in_steps: Fraction | int, stream: WordStream) -> Integers:
    """Independent whole numbers with P[Y = y] exactly proportional to exp(-y^2 / (2 sigma^2)).

    Guarantee: the distribution is exact (given uniform words and the accuracy of exp stated in
    docs/theorems/discrete-noise.md, section "The sampler is exact"). Added to a whole vector of L2
    sensitivity D it is (D^2 / (2 sigma^2))-zCDP (Canonne, Kamath and Steinke 2020, Theorem 4, and additivity
    over coordinates); the unit of D is one step.
    """
    dimensions = whole_shape(shape)
    return sample(_gaussian_table(sigma_in_steps), prod(dimensions), stream).reshape(dimensions)


@lru_cache(maxsize=128, typed=True)
def _gaussian_table(sigma_in_steps: Fraction | int) -> BlockTable:
    """Remembered by the number as it is given: a run asks for the same few in every round."""
    return block_table(GaussianExponent(exact_positive("sigma_in_steps", sigma_in_steps)))


# The discrete Laplace (two-sided geometric) law: P[Y = y] proportional to exp(-|y| / scale).


@dataclass(frozen=True)
class LaplaceExponent:
    """phi(y) = y / scale, with an exact rational scale."""

    scale: Fraction

    @cached_property
    def _approximate_rate(self) -> float:
        return float(1 / self.scale)

    def exact(self, size: int) -> Fraction:
        return size / self.scale

    def approximate(self, size: Floats) -> Floats:
        return size * self._approximate_rate


def discrete_laplace(shape: int | tuple[int, ...], scale_in_steps: Fraction | int, stream: WordStream) -> Integers:
    """Independent whole numbers with P[Y = y] exactly proportional to exp(-|y| / scale).

    Guarantee: added to a whole vector of L1 sensitivity D it is purely (D / scale)-DP: shifting y by v
    changes the probability by a factor of at most exp(|v| / scale), coordinate by coordinate. The unit of D
    is one step; exactness is argued in docs/theorems/discrete-noise.md.
    """
    dimensions = whole_shape(shape)
    table = block_table(LaplaceExponent(exact_positive("scale_in_steps", scale_in_steps)))
    return sample(table, prod(dimensions), stream).reshape(dimensions)
