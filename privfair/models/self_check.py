"""Before a run reads anything: do this machine's matrix products round? And which exact routine is the fastest?

Worst cases on public numbers, in the widths of the model: all extremes, alternating signs, numbers just below the
largest, dimensions of size one, both memory orders, one large product, against integers. Strassen, Winograd and
reduced-precision products fail it; so does a processor that flushes subnormal numbers to zero.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from calibrate.errors import CheckFailed
from privfair.models.exact import DOUBLE, LARGEST_CUT, Arithmetic, Bits, InDouble, Products, Rows, routines, squares

_ROWS, _SHORT, _LARGE, _TRIALS = 64, 5, 256, 3
_NUMBERS = 2**16
"""In a factor: wider products are tried with fewer rows."""


@lru_cache(maxsize=64)
def choose_products(bits: int, widths: tuple[int, ...]) -> Products:
    """The fastest routine that forms exact products of these widths here; the result is kept for the process."""
    require_subnormals()
    torch.empty(31 * 2**20, dtype=torch.int8)  # glibc keeps freed memory for reuse up to twice the largest such block
    found: list[tuple[float, int, Products]] = []
    for place, routine in enumerate(routines(bits)):
        fault = first_fault(routine, bits, widths)
        if fault is None:
            found.append((_seconds(routine, bits, max(widths, default=2)), place, routine))
    if fault := fault or _other_fault(bits, widths):  # the last routine is the reference
        raise _refusal(fault)
    return min(found, key=lambda one: one[:2])[2]


def _refusal(fault: str) -> CheckFailed:
    return CheckFailed(
        f"matrix products on this machine round where they must not ({fault}); what a record contributes "
        "would depend on other records: use another build of torch, without reduced-precision products"
    )


def first_fault(products: Products, bits: int, widths: tuple[int, ...]) -> str | None:
    """The first product that is not exact; None if all are."""
    most = 2**bits - (bits == Bits.SEVEN.value)
    for width in widths:
        for left, right, true in _factors(width, most):
            for one, other, expected in ((left, right, true), (right.T, left.T, true.T)):
                if not torch.equal(_product(products, one, other), expected):
                    return f"{type(products).__name__}, {tuple(one.shape)} by {tuple(other.shape)}, {bits} bits"
        if width == max(widths) and not _exact_when_large(products, width, most):
            return f"{type(products).__name__}, a large product over {width} terms, {bits} bits"
        for of_cut, of_high in ((1, 2), (3, 3)):
            cut = _pattern((_ROWS, _SHORT), LARGEST_CUT, of_cut)
            high = _pattern((_ROWS, min(width, _ROWS)), 127, of_high)
            summed = torch.zeros(_SHORT, high.shape[1], dtype=DOUBLE)
            products.add_outer(summed, cut, high, 1.0)
            if bits <= Bits.THIRTEEN.value and not torch.equal(summed.to(torch.int64), _exact(cut.T, high)):
                return f"{type(products).__name__}, the sum over records"
    return None


def require_subnormals() -> None:
    """Refuse a processor state in which tiny numbers count as zero: it is changed by other code in the process."""
    tiny = torch.full((9,), 2.0**-1060, dtype=DOUBLE)
    if not bool((tiny * 1.0 != 0).all()):
        raise CheckFailed(
            "subnormal numbers are flushed to zero in this process; call torch.set_flush_denormal(False) first"
        )


def _factors(width: int, most: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(rows, width), (width, columns), their product: extremes of one sign, of both, mixed, close to the largest."""
    tall = min(_ROWS, max(_SHORT, _NUMBERS // width))
    for seed in range(4):
        left, right = _pattern((tall, width), most, seed), _pattern((width, _SHORT), most, seed)
        true = _exact(left, right)
        for rows, columns in ((tall, _SHORT), (1, _SHORT), (tall, 1), (1, 1)):
            one, other, expected = left[:rows], right[:, :columns].contiguous(), true[:rows, :columns]
            yield one, other, expected
            yield one.T.contiguous().T, other.T.contiguous().T, expected  # the other memory order


def _pattern(shape: tuple[int, int], most: int, seed: int) -> Tensor:
    """All extremes, alternating extremes, fixed numbers in between, or fixed numbers just below the largest.

    The last ones have large sums that need their last bit, and halves that are themselves extremes.
    """
    numbers = torch.arange(shape[0] * shape[1], dtype=DOUBLE).view(shape)
    if seed == 0:
        return torch.full(shape, float(most), dtype=DOUBLE)
    if seed == 1:
        return most - 2.0 * most * (numbers % 2)
    if seed == 2:
        return (numbers * 7919.0) % (2 * most + 1) - most
    return most - (numbers * 7919.0) % min(131, most // 16)


def _exact_when_large(products: Products, width: int, most: int) -> bool:
    """One product as large as a batch's: equal columns make its true value cheap."""
    size = _rows_of_batch(width)
    left, right = _pattern((size, 1), most, 3), _pattern((width, size), most, 3)
    true = left.to(torch.int64) * right.to(torch.int64).sum(dim=0)
    return torch.equal(_product(products, left.expand(-1, width).contiguous(), right), true)


def _rows_of_batch(width: int) -> int:
    return min(_LARGE, max(_SHORT, 8 * _NUMBERS // width))


def _product(products: Products, left: Tensor, right: Tensor) -> Tensor:
    return products.product(products.split(left), products.split(right)).to(torch.int64)


def _other_fault(bits: int, widths: tuple[int, ...]) -> str | None:
    """The same of products that have one routine: one for each record, a matrix by a vector, squared norms."""
    most, arithmetic = 2**bits - (bits == Bits.SEVEN.value), Arithmetic(bits, InDouble())
    for width in widths:
        for seed in range(4):
            left, right = _pattern((_SHORT, width), most, seed), _pattern((width, _SHORT), most, seed)
            true = _exact(left, right)
            each_record = arithmetic.batched(left.expand(3, -1, -1), right.expand(3, -1, -1)).to(torch.int64)
            if not all(torch.equal(one, true) for one in each_record):
                return f"one product for each record, {tuple(left.shape)} by {tuple(right.shape)}, {bits} bits"
            by_vector = torch.from_numpy(left.numpy() @ right[:, 0].contiguous().numpy())
            if not torch.equal(by_vector.to(torch.int64), true[:, 0]):
                return f"{tuple(left.shape)} by a vector, {bits} bits"
            lengths = squares(Rows(left, torch.ones(_SHORT, dtype=DOUBLE)))
            if not torch.equal(lengths.to(torch.int64), left.to(torch.int64).square().sum(dim=1)):
                return f"squared norms of {width} numbers, {bits} bits"
    return None


def _exact(left: Tensor, right: Tensor) -> Tensor:
    """The product in 64-bit integers."""
    return left.to(torch.int64) @ right.to(torch.int64)


def _seconds(products: Products, bits: int, width: int) -> float:
    """Processor time of one product of this width."""
    dtype = Arithmetic(bits, products).dtype  # as numbers are between two products
    size = _rows_of_batch(width)
    left, right = (_pattern(shape, 2**bits - 1, 2).to(dtype) for shape in ((size, width), (width, size)))
    factor, times = products.split(right), []
    for _ in range(_TRIALS):
        began = time.process_time()
        products.product(products.split(left), factor)
        times.append(time.process_time() - began)
    return min(times)
