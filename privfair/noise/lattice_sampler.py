"""Exact, vectorised sampling of P[Y = y] proportional to exp(-phi(|y|)) on the whole numbers.

Plain rejection sampling. The half line is cut into blocks of 2^b whole numbers, a block is proposed with a
whole number of 65,536 slots, a position within the block uniformly, and the proposal is accepted with
probability exp(-phi(y)) / height(block). One 64-bit word gives slot, sign and position, a second one gives U.
Three tests decide acceptance, each exact:

1. U below a precomputed bound valid for the whole block: accept, no exponential needed (about 9 in 10);
2. otherwise exp in double precision, believed outside a band around equality that is wider than its error;
3. inside the band (less than once in 10^10) rational arithmetic: `lazy_comparison`.

docs/theorems/discrete-noise.md has the proof. Timing depends on the noise drawn and is not protected.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import Floats, Integers
from calibrate.errors import InvalidInput
from privfair.noise.lazy_comparison import BAND, UNIFORM_BITS, uniform_is_below_exponential
from privfair.noise.random_stream import Words, WordStream

LARGEST_SCALE = 1 << 40
SMALLEST_SCALE = Fraction(1, 1 << 20)

_SLOT_BITS = 16
_SLOTS = 1 << _SLOT_BITS
_SIGN_BIT = np.uint64(1 << _SLOT_BITS)
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
            "scale in steps", float(exponent.scale), "must lie in [2^-20, 2^40]", "choose another grid step"
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
    place, uniform = words[:proposals], (words[proposals:] >> np.uint64(64 - UNIFORM_BITS)).view(np.int64)
    block = table.block_of_slot.take((place & np.uint64(_SLOTS - 1)).view(np.int64))
    positions = (place >> _POSITION_SHIFT) & table.position_mask
    values = table.first.take(block)
    values += positions.view(np.int64)
    accepted = uniform < table.certain.take(block)
    open_cases = np.flatnonzero(~accepted & (block != table.unused))
    _decide(table, open_cases, block, values, uniform, place, accepted, stream)
    minus = (place & _SIGN_BIT) != 0
    accepted &= ~(minus & (values == 0))  # zero has one sign only, or it would be proposed twice
    np.negative(values, out=values, where=minus)
    return values[accepted]


def _decide(
    table: BlockTable,
    cases: Integers,
    block: NDArray[np.uint8],
    values: Integers,
    uniform: Integers,
    place: Words,
    accepted: NDArray[np.bool_],
    stream: WordStream,
) -> None:
    """Settle the proposals that need an exponential; the tail gets its values here, too."""
    halvings = np.zeros(cases.size, dtype=np.int64)
    in_tail = np.flatnonzero(block[cases] == table.tail)
    if in_tail.size:
        halvings[in_tail] = _fair_coin_runs(in_tail.size, stream)
        tail = cases[in_tail]
        mask = np.uint64((1 << table.tail_width_bits) - 1)
        positions = ((place[tail] >> _POSITION_SHIFT) & mask).view(np.int64)
        values[tail] = table.first[table.tail] + (halvings[in_tail] << table.tail_width_bits) + positions
    heights = np.ldexp(table.approximate_heights[block[cases]], -halvings)
    target = np.exp(-table.exponent.approximate(values[cases].astype(np.float64)))
    gap = target - uniform[cases] * 2.0**-UNIFORM_BITS * heights
    accepted[cases] = gap > 0
    for index in np.flatnonzero(np.abs(gap) <= table.band):
        case = cases[index]
        accepted[case] = uniform_is_below_exponential(
            int(uniform[case]),
            table.heights[block[case]] / (1 << int(halvings[index])),
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
