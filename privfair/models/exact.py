"""Arithmetic in which every result is a function of its own row: products that never round, IEEE operations elsewhere.

A row lies *on a grid* of p bits if it is a row of whole numbers, at most 2^p in size, times its own power of two.
A product of two such factors over K terms has terms and partial sums that are whole numbers of at most 2p + log2 K
bits: with 2p + ceil(log2 K) <= 53 no addition rounds, in whatever order, block, thread or fused operation. Everything
else is one IEEE operation per number (+ - * / max, comparisons, bits), which rounds the same wherever the number is
stored. Sums over a row go through a grid, exponentials and logarithms through fixed polynomials, square roots through
numpy, because torch's are not correctly rounded. Theorem and proof: docs/theorems/exact-contributions.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, UnsupportedCombination

DOUBLE, SINGLE = torch.float64, torch.float32
LARGEST_WEIGHT, LARGEST_FEATURE = 2.0**10, 2.0**20
"""Parameters and features are clamped to these; parameters that are not numbers count as zero."""
LARGEST_ACTIVATION = 2.0**60
"""Activations and propagated gradients are clamped to this, so that nothing overflows, however deep the net."""
SMALLEST_TOP = _SMALLEST_SCALE = 2.0**-100
"""Rows below this count as zero; a whole number times a scale above it is exact, in float32 too."""
_MANTISSA = 53
_MAGIC = {SINGLE: 1.5 * 2.0**23, DOUBLE: 1.5 * 2.0**52}
"""Adding and subtracting it rounds to a whole number."""
_HALF = torch.tensor(0.5, dtype=DOUBLE)


class Bits(Enum):
    """How many bits of each factor a product keeps, counted from the power of two above its row's largest entry."""

    SEVEN = 7
    """One product of 8-bit integers, or of float32 numbers: the fastest."""
    THIRTEEN = 13
    """The default of networks."""
    LARGEST = "largest"
    """As many as the widest product allows, 20 to 26: the default of linear models."""

    def number(self, width: int) -> int:
        """The number of bits, p, for products over at most `width` terms."""
        most = (_MANTISSA - math.ceil(math.log2(max(2, width)))) // 2
        if self is Bits.LARGEST:
            return most
        if self.value > most:
            raise UnsupportedCombination(
                f"a product over {width:,} terms with {self.value} bits",
                f"could round: float64 holds {most} bits of each factor",
                'write bits = "largest", or make the layer narrower',
            )
        return int(self.value)


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Records on their grids: `whole` numbers (records, ...) times each record's `unit`, a power of two in float64."""

    whole: Tensor
    unit: Tensor
    squares: Tensor | None = None
    """Of features: each record's squared norm, as sums over records use it."""

    def __len__(self) -> int:
        return len(self.unit)

    def __getitem__(self, rows: Tensor | slice) -> Rows:
        lengths = None if self.squares is None else pick(self.squares, rows)
        return Rows(pick(self.whole, rows), pick(self.unit, rows), lengths)

    def values(self, dtype: torch.dtype = DOUBLE) -> Tensor:
        """The numbers themselves."""
        return self.whole.to(dtype) * each(self.unit.to(dtype), self.whole)

    def shaped(self, *shape: int) -> Rows:
        """The same numbers, each record in another shape."""
        return Rows(self.whole.reshape(len(self), *shape), self.unit, self.squares)


def pick(values: Tensor, rows: Tensor | slice) -> Tensor:
    """Some rows."""
    return values[rows] if isinstance(rows, slice) else torch.from_numpy(values.numpy().take(rows.numpy(), axis=0))


def each(numbers: Tensor, like: Tensor) -> Tensor:
    """One number per record, in a shape that meets every entry of its record in `like`."""
    return numbers.view(-1, *([1] * (like.ndim - 1)))


# Exact products of whole numbers. Which routine forms them decides their time, and never a bit.

TERMS_IN_SINGLE = 2**10
"""Sums of this number of products of 7-bit numbers stay below 2^24, where float32 does not round."""
_TERMS_IN_INT32 = 2**17 - 1
"""Sums of this number of products of 8-bit numbers stay below 2^31."""
_PARTS_IN_INT32 = 2**16


class Products(Protocol):
    """Forms products of whole numbers of at most p bits without rounding; the numbers may be of any type."""

    @property
    def factors(self) -> torch.dtype:
        """The type that factors are converted to, unless they have it."""
        ...

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """left (n, K) times right (K, m)."""
        ...

    def sum_of_outer(self, cut: Tensor, high: Tensor) -> Tensor:
        """The sum over records of cut_i high_i^T, of 16-bit and 8-bit numbers; float64."""
        ...


def _multiply(left: Tensor, right: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """A matrix product in this type; numpy's takes less time than torch's on most shapes."""
    left, right = (one if one.dtype is dtype else one.to(dtype) for one in (left, right))
    if out is None:
        return torch.from_numpy(left.numpy() @ right.numpy())
    np.matmul(left.numpy(), right.numpy(), out=out.numpy())
    return out


def _in_pieces(products: Products, left: Tensor, right: Tensor, terms: int) -> Tensor:
    """A product over more terms than its type holds, in float64."""
    total = torch.zeros(left.shape[0], right.shape[1], dtype=DOUBLE)
    for some, others in zip(torch.split(left, terms, 1), torch.split(right, terms), strict=True):
        total += products.product(some, others)
    return total


@final
class InDouble:
    """float64 matrix products: the reference, for any number of bits."""

    factors = DOUBLE

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        return _multiply(left, right, DOUBLE)

    def sum_of_outer(self, cut: Tensor, high: Tensor) -> Tensor:
        return _multiply(cut.T, high, DOUBLE)  # below 2^53 up to 2^31 records


@final
class InSingle:
    """float32 matrix products of 7-bit numbers, a thousand terms at a time."""

    factors = SINGLE

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        if left.shape[1] > TERMS_IN_SINGLE:
            return _in_pieces(self, left, right, TERMS_IN_SINGLE)
        return _multiply(left, right, SINGLE)

    def sum_of_outer(self, cut: Tensor, high: Tensor) -> Tensor:
        return _multiply(cut.T, high, DOUBLE)


def multiply_int8(left: Tensor, right: Tensor) -> Tensor:
    """Int8 times int8 in int32.

    `torch._int_mm` returns unwritten memory where a dimension of size one has a short stride (pytorch issue 195066):
    such matrices are given their usual strides.
    """
    left, right = (m.reshape(-1).view(m.shape) if 1 in m.shape else m for m in (left, right))
    return torch._int_mm(left, right)


@final
@dataclass(frozen=True)
class InIntegers:
    """Products of 8-bit integers: one for 7 bits, three for 13 (Karatsuba)."""

    bits: int

    @property
    def factors(self) -> torch.dtype:
        return torch.int8 if self.bits == Bits.SEVEN.value else torch.int16

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        if left.shape[1] > _TERMS_IN_INT32:
            return _in_pieces(self, left, right, _TERMS_IN_INT32)
        if self.bits == Bits.SEVEN.value:
            return multiply_int8(left.to(torch.int8), right.to(torch.int8))
        # k = 2^7 h + l: k k' = 2^14 h h' + 2^7 ((h + l)(h' + l') - h h' - l l') + l l'.
        halves = zip(_halves(left), _halves(right), strict=True)
        high, low, both = (multiply_int8(one, other).to(DOUBLE) for one, other in halves)
        return both.sub_(high).sub_(low).mul_(2.0**7).add_(high.mul_(2.0**14)).add_(low)

    def sum_of_outer(self, cut: Tensor, high: Tensor) -> Tensor:
        total = torch.zeros(cut.shape[1], high.shape[1], dtype=DOUBLE)
        for parts, others in zip(torch.split(cut, _PARTS_IN_INT32), torch.split(high, _PARTS_IN_INT32), strict=True):
            upper, lower = _bytes(parts.to(torch.int16))
            narrow = others.to(torch.int8)
            total += multiply_int8(upper.T, narrow).to(DOUBLE).mul_(2.0**8)
            total += multiply_int8(lower.T, narrow)
        return total


def _halves(whole: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h, l and h + l of k = 2^7 h + l with l in [-64, 63]; all of them fit 8 bits for |k| <= 2^13."""
    k = whole.to(torch.int16)
    high = (k + 64) >> 7
    low = k - (high << 7)
    return high.to(torch.int8), low.to(torch.int8), (high + low).to(torch.int8)


def _bytes(cut: Tensor) -> tuple[Tensor, Tensor]:
    """h and l of r = 2^8 h + l with l in [-128, 127]; |r| <= 32,600."""
    high = (cut + 128) >> 8
    return high.to(torch.int8), (cut - (high << 8)).to(torch.int8)


def routines(bits: int) -> tuple[Products, ...]:
    """The routines for this number of bits; the last one is the reference."""
    if bits == Bits.SEVEN.value:
        return InIntegers(bits), InSingle(), InDouble()
    return (InIntegers(bits), InDouble()) if bits == Bits.THIRTEEN.value else (InDouble(),)


LARGEST_CUT = 32_600
"""Of a part's 16-bit factor: 128 more still fit 16 bits."""


@final
@dataclass(frozen=True, eq=False)
class Arithmetic:
    """p bits and the routine that multiplies; numbers between two products are float32 at 7 bits, float64 else."""

    bits: int
    products: Products

    @cached_property
    def sums_exactly(self) -> bool:
        """Whether clipped parts are cut to a public grid and added up without rounding."""
        return self.bits in (Bits.SEVEN.value, Bits.THIRTEEN.value)

    @cached_property
    def dtype(self) -> torch.dtype:
        return SINGLE if self.bits == Bits.SEVEN.value else DOUBLE

    @cached_property
    def compact(self) -> torch.dtype:
        """The type in which whole numbers are kept."""
        return {7: torch.int8, 13: torch.int16}.get(self.bits, DOUBLE)

    def grid(self, values: Tensor) -> Rows:
        """Each record rounded to p bits below the power of two above its largest entry."""
        ordered = _in_memory_order(values)
        flat = ordered if ordered.ndim == 2 else ordered.reshape(len(values), -1)
        flat = flat if flat.dtype is self.dtype else flat.to(self.dtype)
        if not flat.numel():
            return Rows(values.to(self.dtype), torch.ones(len(values), dtype=DOUBLE))
        top = torch.maximum(flat.amax(dim=1), flat.amin(dim=1).neg_()).numpy()
        if top.max() > LARGEST_ACTIVATION:
            flat, top = flat.clamp(-LARGEST_ACTIVATION, LARGEST_ACTIVATION), top.clip(max=LARGEST_ACTIVATION)
        inverse, unit = self._units(top)
        whole = torch.addcmul(_magic_row(flat.shape[1], self.dtype), flat, torch.from_numpy(inverse[:, None]))
        whole.sub_(_MAGIC[self.dtype])
        if ordered.ndim > 2:
            whole = whole.view(ordered.shape)
        return Rows(whole if ordered is values else whole.permute(0, 3, 1, 2), torch.from_numpy(unit))

    def _units(self, top: NDArray[Any]) -> tuple[NDArray[Any], Floats]:
        """For rows with these largest entries: what to multiply them by, and the units that follow; powers of two."""
        if self.dtype is SINGLE:
            top = top * np.float32(1.004)  # room, so that no whole number passes 127
        power = _power_below(top)
        return top.dtype.type(2.0 ** (self.bits - 1)) / power, power.astype(np.float64) * 2.0 ** (1 - self.bits)

    def load(self, values: Tensor) -> Rows:
        """Features, float64; a largest entry that is a power of two does not cost the others a bit."""
        flat = values.numpy().reshape(len(values), -1)
        power = _power_below(np.maximum(flat.max(axis=1), -flat.min(axis=1)) * (1.0 - 2.0**-53))
        most = 2.0**self.bits - (self.bits == Bits.SEVEN.value)
        whole = np.rint(flat * (2.0 ** (self.bits - 1) / power)[:, None]).clip(-most, most)
        return Rows(torch.from_numpy(whole).view(values.shape), torch.from_numpy(power * 2.0 ** (1 - self.bits)))

    def public(self, weights: Tensor) -> tuple[Tensor, float]:
        """Clamped parameters on one grid: whole numbers and their unit."""
        values = weights.to(self.dtype)
        inverse, unit = self._units(largest_size(values).numpy())
        magic = _magic_row(1, self.dtype)[0]
        return torch.add(magic, values, alpha=float(inverse)).sub_(magic), float(unit)

    def scale(self, unit: Tensor, other: float) -> Tensor:
        """The unit of a product, per record, in the working type."""
        found = np.maximum(unit.numpy() * other, _SMALLEST_SCALE)
        return torch.from_numpy(found if self.dtype is DOUBLE else found.astype(np.float32))

    def exact_type(self, terms: int) -> torch.dtype:
        """The narrowest type that holds every sum of this number of products."""
        return SINGLE if self.dtype is SINGLE and terms <= TERMS_IN_SINGLE else DOUBLE

    def batched(self, left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
        """One product per record: left (n, o, K) times right (n, K, i), whole numbers."""
        return _multiply(left, right, self.exact_type(left.shape[2]), out)

    def high(self, rows: Rows) -> Rows:
        """The upper 7 bits, which enter the exact sums."""
        if self.compact is not torch.int16:
            return rows
        whole = rows.whole
        if whole.dtype.is_floating_point:
            narrow = torch.add(_HALF, whole, alpha=2.0**-7).floor_()
        else:
            narrow = (whole + 64) >> 7
        return Rows(narrow, rows.unit * 2.0**7)


def clamped(theta: Tensor) -> Tensor:
    """Parameters as they are used: numbers that are none count as zero, large ones are clamped; float64."""
    values = theta.detach().to(DOUBLE)
    if bool(largest_size(values) <= LARGEST_WEIGHT):  # not so if one is not a number
        return values
    return torch.nan_to_num(values, 0.0, LARGEST_WEIGHT, -LARGEST_WEIGHT).clamp_(-LARGEST_WEIGHT, LARGEST_WEIGHT)


def largest_size(values: Tensor) -> Tensor:
    """The largest absolute value; 0 of no numbers."""
    return torch.maximum(values.max(), values.min().neg()) if values.numel() else values.new_zeros(())


def _in_memory_order(values: Tensor) -> Tensor:
    """Images in the order in which they are stored: reading them along costs less than a copy."""
    last = values.ndim == 4 and values.is_contiguous(memory_format=torch.channels_last) and not values.is_contiguous()
    return values.permute(0, 2, 3, 1) if last else values


@lru_cache(maxsize=64)
def _magic_row(width: int, dtype: torch.dtype) -> Tensor:
    return torch.full((width,), _MAGIC[dtype], dtype=dtype)


def _power_below(top: NDArray[Any]) -> NDArray[Any]:
    """2^floor(log2 top), from its bits."""
    top = np.maximum(top, top.dtype.type(SMALLEST_TOP))
    if top.dtype == np.float32:
        return (top.view(np.int32) & 0x7F800000).view(np.float32)
    return (top.view(np.int64) & 0x7FF0000000000000).view(np.float64)


# Squares, roots and sums over the entries of a record.


def squares(rows: Rows) -> Tensor:
    """Each record's squared norm: of whole numbers, so exact."""
    flat = rows.whole.numpy().reshape(len(rows), -1)
    if flat.dtype != np.float32 or flat.shape[1] > TERMS_IN_SINGLE:
        flat = flat.astype(np.float64, copy=False)
    return torch.from_numpy(np.vecdot(flat, flat) * np.square(rows.unit.numpy()))


def folded_squares(values: Tensor) -> Tensor:
    """Each record's sum of squares, of any numbers: added by halves, in the same order for every record."""
    x = values.flatten(1).to(DOUBLE).square().numpy()
    left = x.shape[1]
    while left > 1:
        if left % 2:
            x[:, 0] += x[:, left - 1]
        left //= 2
        x[:, :left] += x[:, left : 2 * left]
    return torch.from_numpy(x[:, 0].copy() if left else x.sum(axis=1))


def root(values: Tensor) -> Tensor:
    """Square roots, correctly rounded."""
    return torch.from_numpy(np.sqrt(values.numpy()))


def summable(values: Floats, terms: int) -> Floats:
    """Each row (last dimension) rounded to a grid on which sums of `terms` of its numbers are exact."""
    bits = _MANTISSA - 2 - math.ceil(math.log2(max(2, terms)))
    power = _power_below(np.maximum(values.max(axis=-1, keepdims=True), -values.min(axis=-1, keepdims=True)))
    magic = power * (1.5 * 2.0 ** (_MANTISSA - bits))
    rounded: Floats = (values + magic) - magic
    return rounded


def row_sum(values: Floats) -> Floats:
    """The sum over the last dimension, kept; each row is first rounded to a grid on which its sum is exact."""
    total: Floats = summable(values, values.shape[-1]).sum(axis=-1, keepdims=True)
    return total


def weighted_rows(rows: Tensor, weights: Tensor) -> Tensor:
    """<rows_i, weights> for each record, float64."""
    return torch.from_numpy(row_sum(rows.numpy() * weights.numpy())[..., 0])


# Exponentials, logarithms and what follows from them, by tables and IEEE operations: a library's may differ between
# the body of a vector and its last entries.

_PER_OCTAVE = 32
_PIECE = math.log(2) / _PER_OCTAVE
_POWERS = np.array([math.exp(-_PIECE * k) for k in range(_PER_OCTAVE * 1010)])
_INVERSES = np.array([1 / (1 + (k + 0.5) / 128) for k in range(128)])
_LOGARITHMS = np.array([-math.log(inverse) for inverse in _INVERSES])


def exp_of_negative(size: Floats) -> Floats:
    """exp(-size) for size >= 0, within 2^-47 of it; beyond 690 as at 690."""
    size = np.minimum(size, 690.0)
    k = np.rint(size * (1 / _PIECE))
    r = k * _PIECE
    r -= size
    e = r * (1 / 120)
    for factor in (1 / 24, 1 / 6, 0.5, 1.0):
        e += factor
        e *= r
    e += 1.0
    e *= _POWERS.take(k.astype(np.int64))
    return e


def log_of(s: Floats) -> Floats:
    """log(s) for s >= 1, within 2^-49 (1 + log s)."""
    pattern = s.view(np.int64) - 0x3FF0000000000000
    mantissa = ((pattern & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).view(np.float64)
    place = (pattern >> 45) & 127
    t = mantissa * _INVERSES.take(place)
    t -= 1.0
    y: Floats = t * (-1 / 6)
    for factor in (1 / 5, -1 / 4, 1 / 3, -1 / 2, 1.0):
        y += factor
        y *= t
    y += _LOGARITHMS.take(place)
    y += (pattern >> 52) * math.log(2)
    return y


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), in the type of x."""
    wide = x.numpy().astype(np.float64, copy=False)
    e = exp_of_negative(np.abs(wide))
    return torch.from_numpy(np.where(wide > 0, 1.0, e) / (e + 1.0)).to(x.dtype)


def tanh(x: Tensor) -> Tensor:
    """(1 - exp(-2 |x|)) / (1 + exp(-2 |x|)) with the sign of x, in its type."""
    wide = x.numpy().astype(np.float64, copy=False)
    e = exp_of_negative(np.abs(wide) * 2.0)
    return torch.from_numpy(np.copysign((1.0 - e) / (e + 1.0), wide)).to(x.dtype)


def softmax(scores: Floats, axis: int) -> tuple[Floats, Floats, Floats]:
    """Exponentials of the scores less the largest, their sum, and the largest less the scores.

    Exponentials lie on a grid, so their sum does not round.
    """
    below = scores.max(axis=axis, keepdims=True) - scores
    e, grid = exp_of_negative(below), 1.5 * 2.0 ** (2 + math.ceil(math.log2(scores.shape[axis])))
    e += grid
    e -= grid
    return e, e.sum(axis=axis, keepdims=True), below


def cross_entropy(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Each record's loss, and its gradient in the scores: softmax minus the true class's indicator; float64."""
    by_class = np.ascontiguousarray(logits.numpy().T, dtype=np.float64)  # long rows take less time
    labels = y.numpy()
    if len(labels) and not (labels.min() >= 0 and labels.max() < len(by_class)):
        worst = labels.min() if labels.min() < 0 else labels.max()
        raise InvalidInput("y", int(worst), f"must be a class from 0 to {len(by_class) - 1}", "number them from 0")
    e, total, below = softmax(by_class, 0)
    place = (labels, np.arange(len(labels)))
    losses = log_of(total[0]) + below[place]
    e[place] -= total[0]
    e /= total
    return torch.from_numpy(losses), torch.from_numpy(e.T)


def probabilities_of(logits: Tensor) -> Tensor:
    """Softmax of each record's scores; float64."""
    if logits.requires_grad:
        return torch.softmax(logits, dim=-1)
    e, total, _ = softmax(logits.numpy().astype(np.float64, copy=False), -1)
    return torch.from_numpy(e / total)


def through_softmax(probabilities: Tensor, coefficients: Tensor) -> Tensor:
    """The gradient of <coefficients_i, softmax(scores_i)> in the scores, for each record; broadcasts on the left."""
    p, c = probabilities.numpy(), coefficients.numpy()
    return torch.from_numpy(p * (c - row_sum(p * c)))
