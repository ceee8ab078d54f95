"""Arithmetic in which every result is a function of one row: products that never round, IEEE operations elsewhere.

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
"""Parameters and features are clamped to these; parameters that are not numbers are taken as zero."""
LARGEST_ACTIVATION = 2.0**60
"""Activations and propagated gradients are clamped to this, so that nothing overflows, however deep the net."""
SMALLEST_TOP = _SMALLEST_SCALE = 2.0**-100
"""Rows below this are taken as zero; a whole number times a scale above it is exact, in float32 too."""
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

    @cached_property
    def arrays(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Of features: whole numbers as a matrix, units, and squared norms and norms of the features with a one."""
        extended = np.zeros(0) if self.squares is None else self.squares.numpy() + 1.0
        return self.whole.flatten(1).numpy(), self.unit.numpy(), extended, np.sqrt(extended)

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
_TERMS_SHIFTED, _PARTS_SHIFTED = 4000, 2**9
"""With this number, 2^7 and 2^8 times the upper sum, and the lower one, stay below 2^31 as well."""
_PARTS_IN_INT32 = 2**16
_SUMS_AT_ONCE, _WEIGHTS_AT_ONCE = 2**17, 2**17
"""Numbers that are worked on at once, so that they stay in the processor's cache."""


Factor = tuple[Tensor, ...]
"""Whole numbers as a routine multiplies them: the numbers themselves, or integers that they consist of."""


class Products(Protocol):
    """Forms products of whole numbers of at most p bits without rounding."""

    def split(self, whole: Tensor) -> Factor:
        """A factor of `product`, from whole numbers of any type."""
        ...

    def product(self, left: Factor, right: Factor) -> Tensor:
        """left (n, K) times right (K, m)."""
        ...

    def add_outer(self, place: Tensor, cut: Tensor, high: Tensor, step: float) -> None:
        """Add the sum over records of cut_i high_i^T, in steps; cut is cut toward zero to 16 bits, high has 8."""
        ...


def _multiply(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """A matrix product in this type; numpy's takes less time than torch's on most shapes."""
    left, right = (one if one.dtype is dtype else one.to(dtype) for one in (left, right))
    return torch.from_numpy(left.numpy() @ right.numpy())


def _in_pieces(products: Products, left: Factor, right: Factor, terms: int) -> Tensor:
    """A product over more terms than its type holds, in float64."""
    total = torch.zeros(left[0].shape[0], right[0].shape[1], dtype=DOUBLE)
    for at in range(0, left[0].shape[1], terms):
        some = slice(at, at + terms)
        total += products.product(tuple(one[:, some] for one in left), tuple(one[some] for one in right))
    return total


class _Floating:
    """Products of floating-point numbers; a base class."""

    dtype: torch.dtype

    def split(self, whole: Tensor) -> Factor:
        return (whole.to(self.dtype),)

    def add_outer(self, place: Tensor, cut: Tensor, high: Tensor, step: float) -> None:
        whole = torch.from_numpy(np.trunc(cut.numpy()))
        place.add_(_multiply(whole.T, high, DOUBLE), alpha=step)  # below 2^53 up to 2^31 records


@final
class InDouble(_Floating):
    """float64 matrix products: the reference, for any number of bits."""

    dtype = DOUBLE

    def product(self, left: Factor, right: Factor) -> Tensor:
        return _multiply(left[0], right[0], DOUBLE)


@final
class InSingle(_Floating):
    """float32 matrix products of 7-bit numbers, a thousand terms at a time."""

    dtype = SINGLE

    def product(self, left: Factor, right: Factor) -> Tensor:
        if left[0].shape[1] > TERMS_IN_SINGLE:
            return _in_pieces(self, left, right, TERMS_IN_SINGLE)
        return _multiply(left[0], right[0], SINGLE)


def multiply_int8(left: Tensor, right: Tensor) -> Tensor:
    """Int8 times int8 in int32.

    `torch._int_mm` returns unwritten memory where a dimension of size one has a short stride (pytorch issue 195066):
    such matrices are given their usual strides.
    """
    if 1 in left.shape or 1 in right.shape:
        left, right = left.reshape(-1).view(left.shape), right.reshape(-1).view(right.shape)
    return torch._int_mm(left, right)


@final
@dataclass(frozen=True)
class InIntegers:
    """Products of 8-bit integers: one for 7 bits, three for 13 (Karatsuba)."""

    bits: int

    def split(self, whole: Tensor) -> Factor:
        return (whole.to(torch.int8),) if self.bits == Bits.SEVEN.value else _halves(whole)

    def product(self, left: Factor, right: Factor) -> Tensor:
        terms = left[0].shape[1]
        if terms > _TERMS_IN_INT32:
            return _in_pieces(self, left, right, _TERMS_IN_INT32)
        if self.bits == Bits.SEVEN.value:
            return multiply_int8(left[0], right[0])
        # k = 2^7 h + l: k k' = 2^14 h h' + 2^7 ((h + l)(h' + l') - h h' - l l') + l l'.
        high, low, both = (multiply_int8(one, other) for one, other in zip(left, right, strict=True))
        both.sub_(high).sub_(low)
        if terms <= _TERMS_SHIFTED:
            total = both.add_(high, alpha=2**7).to(DOUBLE)
        else:
            total = both.to(DOUBLE).add_(high.to(DOUBLE), alpha=2.0**7)
        return total.mul_(2.0**7).add_(low.to(DOUBLE))

    def add_outer(self, place: Tensor, cut: Tensor, high: Tensor, step: float) -> None:
        rows = max(16, _SUMS_AT_ONCE // high.shape[1])
        narrow = high.to(torch.int8)
        for parts, others in zip(torch.split(cut, _PARTS_IN_INT32), torch.split(narrow, _PARTS_IN_INT32), strict=True):
            halves = _bytes(parts.to(torch.int16))
            for at in range(0, len(place), rows):  # a block of the sum stays in the processor's cache
                both = multiply_int8(halves[:, 2 * at : 2 * (at + rows)].T, others).view(-1, 2, high.shape[1])
                if len(parts) <= _PARTS_SHIFTED:
                    total = both[:, 0].add_(both[:, 1], alpha=2**8).to(DOUBLE)
                else:
                    total = both[:, 1].to(DOUBLE).mul_(2.0**8).add_(both[:, 0])
                place[at : at + rows].add_(total, alpha=step)


def _halves(whole: Tensor) -> Factor:
    """h, l and h + l of k = 2^7 h + l with l in [-64, 63]; all of them fit 8 bits for |k| <= 2^13."""
    low = whole.to(torch.int16)
    high = torch.add(low, 64).bitwise_right_shift_(7)
    upper, lower = high.to(torch.int8), torch.sub(low, high, alpha=2**7).to(torch.int8)
    return upper, lower, upper + lower


def _bytes(cut: Tensor) -> Tensor:
    """Columns l, h, l, h ... of r = 2^8 h + l with l in [-128, 127]; |r| <= 32,600."""
    return torch.add(cut.contiguous(), 2**7).bitwise_xor_(2**7).view(torch.int8)


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

    def public(self, weights: Tensor) -> tuple[Factor, float]:
        """Clamped parameters (rows, width) on one grid: a factor of products, and its unit."""
        inverse, unit = self._units(largest_size(weights).to(self.dtype).numpy())
        magic = _magic_row(1, self.dtype)[0]
        parts = [
            self.products.split(torch.add(magic, some.to(self.dtype), alpha=float(inverse)).sub_(magic))
            for some in torch.split(weights, max(1, _WEIGHTS_AT_ONCE // max(1, weights.shape[1])))
        ]
        return tuple(torch.cat(one) if len(one) > 1 else one[0] for one in zip(*parts, strict=True)), float(unit)

    def scale(self, unit: Tensor, other: float) -> Tensor:
        """The unit of a product, per record, in the working type."""
        found = np.maximum(unit.numpy() * other, _SMALLEST_SCALE)
        return torch.from_numpy(found if self.dtype is DOUBLE else found.astype(np.float32))

    def exact_type(self, terms: int) -> torch.dtype:
        """The narrowest type that holds every sum of this number of products, as the routine returns them."""
        if self.dtype is SINGLE and isinstance(self.products, InIntegers) and terms <= _TERMS_IN_INT32:
            return torch.int32
        return SINGLE if self.dtype is SINGLE and terms <= TERMS_IN_SINGLE else DOUBLE

    def batched(self, left: Tensor, right: Tensor) -> Tensor:
        """One product per record: left (n, o, K) times right (n, K, i), whole numbers."""
        return _multiply(left, right, SINGLE if self.dtype is SINGLE and left.shape[2] <= TERMS_IN_SINGLE else DOUBLE)

    def each_product(self, left: Factor, right: Factor) -> Tensor:
        """The same of factors, each by the chosen routine: for large products."""
        records = zip(zip(*left, strict=True), zip(*right, strict=True), strict=True)
        return torch.stack([self.products.product(one, other) for one, other in records])

    def high(self, rows: Rows, factor: Factor) -> Rows:
        """The upper 7 bits, which enter the exact sums, of numbers and what `split` makes of them."""
        if self.compact is not torch.int16:
            return Rows(factor[0], rows.unit)
        narrow = factor[0] if len(factor) > 1 else torch.add(_HALF, factor[0], alpha=2.0**-7).floor_()
        return Rows(narrow, rows.unit * 2.0**7)


def clamped(theta: Tensor) -> Tensor:
    """Parameters as they are used: what is not a number is taken as zero, large ones are clamped; float64."""
    values = theta.detach().to(DOUBLE)
    if bool(largest_size(values) <= LARGEST_WEIGHT):  # not so if one is not a number
        return values
    return torch.nan_to_num(values, 0.0, LARGEST_WEIGHT, -LARGEST_WEIGHT).clamp_(-LARGEST_WEIGHT, LARGEST_WEIGHT)


def largest_size(values: Tensor) -> Tensor:
    """The largest absolute value; 0 of no numbers."""
    least, most = values.aminmax() if values.numel() else values.new_zeros(2)
    return torch.maximum(most, least.neg())


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
    small = flat.dtype in (np.int8, np.float32) and flat.shape[1] <= TERMS_IN_SINGLE
    flat = flat.astype(np.float32 if small else np.float64, copy=False)
    return torch.from_numpy(np.vecdot(flat, flat) * np.square(rows.unit.numpy()))


def folded_squares(values: Tensor) -> Tensor:
    """Each record's sum of squares, of any numbers: added by halves, in the same order for every record."""
    x = np.square(values.flatten(1).numpy(), dtype=np.float64)
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
    return on_grid(values, _MANTISSA - 2 - math.ceil(math.log2(max(2, terms))), -1)


def on_grid(values: Floats, bits: int, axis: int) -> Floats:
    """Numbers rounded to this number of bits below the power of two above the largest along an axis."""
    magic = _power_below(np.maximum(values.max(axis=axis, keepdims=True), -values.min(axis=axis, keepdims=True)))
    magic *= 1.5 * 2.0 ** (_MANTISSA - bits)
    rounded: Floats = values + magic
    rounded -= magic
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
# Constants are arrays: an operation of a few hundred numbers with one of Python's takes twice as long.
_ONE, _LARGEST, _PIECES, _LENGTH, _LN2 = map(np.array, (1.0, 690.0, 1 / _PIECE, _PIECE, math.log(2)))
_EXP_FACTORS = tuple(map(np.array, (1 / 120, 1 / 24, 1 / 6, 0.5, 1.0)))
_LOG_FACTORS = tuple(map(np.array, (-1 / 6, 1 / 5, -1 / 4, 1 / 3, -1 / 2, 1.0)))


def exp_of_negative(size: Floats) -> Floats:
    """exp(-size) for size >= 0, within 2^-47 of it; beyond 690 as at 690."""
    size = np.minimum(size, _LARGEST)
    k = np.rint(size * _PIECES)
    r = k * _LENGTH
    r -= size
    e = _power_series(r, _EXP_FACTORS)
    e += _ONE
    e *= _POWERS.take(k.astype(np.int64))
    return e


def log_of(s: Floats) -> Floats:
    """log(s) for s >= 1, within 2^-49 (1 + log s)."""
    pattern = s.view(np.int64) - 0x3FF0000000000000
    mantissa = ((pattern & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).view(np.float64)
    place = (pattern >> 45) & 127
    t = mantissa * _INVERSES.take(place)
    t -= _ONE
    y = _power_series(t, _LOG_FACTORS)
    y += _LOGARITHMS.take(place)
    y += (pattern >> 52) * _LN2
    return y


def _power_series(x: Floats, factors: tuple[Floats, ...]) -> Floats:
    """x times the polynomial of these factors, that of the highest power first."""
    y: Floats = x * factors[0]
    for factor in factors[1:]:
        y += factor
        y *= x
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
    total, below, residual = residuals(by_class, y.numpy())
    return torch.from_numpy(log_of(total) + below), torch.from_numpy(residual.T)


def require_classes(labels: NDArray[Any], classes: int) -> None:
    """Refuse labels that are none of the classes; a negative one is a very large one without its sign."""
    if np.maximum.reduce(labels.astype(np.uint64), initial=0) >= classes:
        worst = int(labels[labels.astype(np.uint64).argmax()])
        raise InvalidInput("y", worst, f"must be a class from 0 to {classes - 1}", "number them from 0")


def residuals(by_class: Floats, labels: NDArray[Any]) -> tuple[Floats, Floats, Floats]:
    """Of scores (classes, records): the sum of their exponentials, how far the true class's score is below the
    largest, and softmax minus the true class's indicator; a loss is log(sum) + how far.
    """
    require_classes(labels, len(by_class))
    e, total, below = softmax(by_class, 0)
    place = (labels, np.arange(len(labels)))
    e[place] -= total[0]
    e /= total
    return total[0], below[place], e


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
