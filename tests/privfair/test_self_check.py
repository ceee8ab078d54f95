"""A machine whose products round, or that drops tiny numbers, is refused before it sees a record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from calibrate.errors import CheckFailed
from privfair.models import exact, network
from privfair.models.exact import DOUBLE, Bits, Factor, InDouble, InIntegers, InSingle, Products, routines
from privfair.models.network import choose_products, first_fault, require_subnormals
from tests.privfair.test_exact_routines import multiplied


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Choices are kept for the process: forget them before and after."""
    choose_products.cache_clear()
    yield
    choose_products.cache_clear()


@dataclass(frozen=True)
class Planted:
    """A routine with a given product."""

    multiply: Callable[[Tensor, Tensor], Tensor]
    sums: Callable[[Tensor, Tensor], Tensor] = field(default=lambda cut, high: cut.T @ high)

    def split(self, whole: Tensor) -> Factor:
        return (whole,)

    def product(self, left: Factor, right: Factor) -> Tensor:
        return self.multiply(left[0], right[0])

    def add_outer(self, place: Tensor, cut: Tensor, high: Tensor, step: float) -> None:
        place.add_(self.sums(cut, high), alpha=step)


def rounded_to(dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda left, right: (left.to(dtype) @ right.to(dtype)).to(DOUBLE)


def strassen(left: Tensor, right: Tensor, dtype: torch.dtype = DOUBLE, levels: int = 2) -> Tensor:
    """Seven products of halves in the place of eight: sums of entries are multiplied, which need more bits."""
    rows, terms, columns = left.shape[0], left.shape[1], right.shape[1]
    if levels == 0 or min(rows, terms, columns) < 2:
        return left.to(dtype) @ right.to(dtype)
    half = [math.ceil(size / 2) for size in (rows, terms, columns)]
    a = torch.zeros(2 * half[0], 2 * half[1], dtype=dtype)
    b = torch.zeros(2 * half[1], 2 * half[2], dtype=dtype)
    a[:rows, :terms], b[:terms, :columns] = left, right
    (a11, a12), (a21, a22) = (row.split(half[1], 1) for row in a.split(half[0]))
    (b11, b12), (b21, b22) = (row.split(half[2], 1) for row in b.split(half[1]))

    def times(one: Tensor, other: Tensor) -> Tensor:
        return strassen(one, other, dtype, levels - 1)

    m1, m2, m3 = times(a11 + a22, b11 + b22), times(a21 + a22, b11), times(a11, b12 - b22)
    m4, m5 = times(a22, b21 - b11), times(a11 + a12, b22)
    m6, m7 = times(a21 - a11, b11 + b12), times(a12 - a22, b21 + b22)
    upper, lower = torch.cat((m1 + m4 - m5 + m7, m3 + m5), 1), torch.cat((m2 + m4, m1 - m2 + m3 + m6), 1)
    return torch.cat((upper, lower))[:rows, :columns].to(DOUBLE)


def unwritten_for_size_one(left: Tensor, right: Tensor) -> Tensor:
    """Leaves memory as it finds it where a dimension has size one."""
    found = left @ right
    return torch.full_like(found, 12345.0) if 1 in (*left.shape, *right.shape) else found


def transposed_memory(left: Tensor, right: Tensor) -> Tensor:
    """Reads memory in its order, whatever the strides are."""
    if right.is_contiguous():
        return left @ right
    return left @ torch.as_strided(right, right.shape, (right.shape[1], 1))


def saturating(left: Tensor, right: Tensor) -> Tensor:
    """8-bit products as on processors without VNNI: pairs are added in 16 bits, and stay at the largest."""
    terms = left.shape[1] + left.shape[1] % 2
    a, b = torch.zeros(left.shape[0], terms, dtype=torch.int64), torch.zeros(terms, right.shape[1], dtype=torch.int64)
    a[:, : left.shape[1]], b[: right.shape[0]] = left.long() + 128, right.long()  # unsigned by signed
    pairs = a.view(len(a), -1, 2, 1) * b.view(1, -1, 2, right.shape[1])
    shifted = pairs.sum(dim=2).clamp(-(2**15), 2**15 - 1).sum(dim=1)
    return (shifted - 128 * right.long().sum(dim=0)).to(torch.int32)


@pytest.mark.parametrize("bits", list(Bits))
def test_the_reference_passes_for_all_widths(bits: Bits) -> None:
    for width in (1, 2, 3, 4, 5, 7, 8, 31, 64, 65, 257, 784, 1024, 1025, 3136, 5000):
        number = bits.number(width)
        for routine in routines(number)[-1:]:
            assert first_fault(routine, number, (width,)) is None


@pytest.mark.parametrize("bits", [7, 13])
def test_faster_routines_pass_here_or_are_not_chosen(bits: int) -> None:
    for widths in ((1, 2), (13, 4)):
        chosen = choose_products(bits, widths)
        assert first_fault(chosen, bits, widths) is None
        assert type(chosen) in {type(one) for one in routines(bits)}


@pytest.mark.parametrize("bits", [7, 13])
def test_products_wider_than_32_bits_hold_are_formed_in_pieces(bits: int) -> None:
    width, most = 2**17 + 3, 2**bits - (bits == 7)
    found = multiplied(InIntegers(bits), torch.full((2, width), float(most)), torch.full((width, 2), float(most)))
    assert found.to(torch.int64).unique().tolist() == [width * most * most]


@pytest.mark.parametrize(
    ("multiply", "bits"),
    [
        (rounded_to(torch.bfloat16), 7),
        (rounded_to(torch.float16), 7),
        (rounded_to(torch.bfloat16), 13),
        (rounded_to(torch.float16), 13),
        (rounded_to(torch.float32), 13),
        (rounded_to(torch.float32), Bits.LARGEST.number(64)),
        (lambda left, right: strassen(left, right, torch.float32), 13),
        (lambda left, right: strassen(left, right, torch.float32), 7),
        (strassen, Bits.LARGEST.number(64)),
        (unwritten_for_size_one, 7),
        (unwritten_for_size_one, 13),
        (transposed_memory, 13),
    ],
    ids=[
        "bfloat16, 7",
        "float16, 7",
        "bfloat16, 13",
        "float16, 13",
        "float32, 13",
        "float32, largest",
        "Strassen in float32, 13",
        "Strassen in float32, 7",
        "Strassen in float64, largest",
        "unwritten memory, 7",
        "unwritten memory, 13",
        "strides not looked at",
    ],
)
def test_products_that_round_are_found(multiply: Callable[[Tensor, Tensor], Tensor], bits: int) -> None:
    widths = (64, 1024 if bits == 7 else 64)
    assert first_fault(Planted(multiply), bits, widths) is not None


def test_a_sum_over_records_that_rounds_is_found() -> None:
    def in_single(cut: Tensor, high: Tensor) -> Tensor:
        return (cut.float().T @ high.float()).to(DOUBLE)

    assert first_fault(Planted(torch.mm, in_single), 13, (64,)) is not None


@pytest.mark.parametrize("bits", [7, 13])
@pytest.mark.parametrize("widths", [(1, 2), (13, 4, 2), (784, 72)])
def test_integers_that_saturate_are_found(monkeypatch: pytest.MonkeyPatch, widths: tuple[int, ...], bits: int) -> None:
    monkeypatch.setattr(exact, "multiply_int8", saturating)
    assert first_fault(InIntegers(bits), bits, widths) is not None


def test_a_routine_with_a_fault_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    planted: Products = Planted(rounded_to(torch.float16))
    monkeypatch.setattr(network, "routines", lambda bits: (planted, InSingle(), InDouble()))
    monkeypatch.setattr(network, "_seconds", lambda products, bits, width: 0.0 if products is planted else 1.0)
    assert isinstance(choose_products(7, (64,)), InSingle)


@pytest.mark.parametrize("multiply", [rounded_to(torch.float32), strassen, unwritten_for_size_one])
def test_a_machine_without_an_exact_reference_is_refused(
    monkeypatch: pytest.MonkeyPatch, multiply: Callable[[Tensor, Tensor], Tensor]
) -> None:
    bits = Bits.LARGEST.number(64)
    monkeypatch.setattr(network, "routines", lambda bits: (Planted(multiply),))
    with pytest.raises(CheckFailed, match="round where they must not"):
        choose_products(bits, (64,))


def test_flushing_of_subnormal_numbers_is_refused() -> None:
    require_subnormals()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush subnormal numbers to zero")
    try:
        with pytest.raises(CheckFailed, match=r"set_flush_denormal\(False\)"):
            choose_products(13, (5,))
    finally:
        torch.set_flush_denormal(False)
    require_subnormals()


@pytest.mark.parametrize("bits", [7, 13])
def test_the_check_of_a_large_net_takes_little_time(bits: int, record_property: Callable[[str, object], None]) -> None:
    """Reported, not asserted: other work on the machine changes it."""
    began = time.process_time()
    choose_products(bits, (10, 480, 784, 800))
    took = time.process_time() - began
    record_property("processor seconds", took)
    print(f"{bits} bits: {took:.3f} s of processor time")


@pytest.mark.parametrize("bits", [7, 13])
def test_the_check_of_a_very_wide_layer_works_on_few_numbers(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """About a second of processor time; three times this number of numbers took ten."""
    made, pattern = [], network._pattern

    def counted(shape: tuple[int, int], most: int, seed: int) -> Tensor:
        made.append(math.prod(shape))
        return pattern(shape, most, seed)

    monkeypatch.setattr(network, "_pattern", counted)
    choose_products(bits, (2, 16, 200_000))
    assert sum(made) <= 2**26


def test_a_library_that_changes_its_way_for_large_products_is_found() -> None:
    def from_a_size_on(left: Tensor, right: Tensor) -> Tensor:
        large = min(left.shape[0], right.shape[1]) >= 128
        return strassen(left, right) if large else left @ right

    assert first_fault(Planted(from_a_size_on), Bits.LARGEST.number(64), (64,)) is not None


@pytest.mark.parametrize("bits", [7, 13, Bits.LARGEST.number(64)])
def test_one_product_for_each_record_is_tried_as_well(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    def in_half(self: exact.Arithmetic, left: Tensor, right: Tensor) -> Tensor:
        return (left.to(torch.bfloat16) @ right.to(torch.bfloat16)).to(DOUBLE)

    monkeypatch.setattr(exact.Arithmetic, "batched", in_half)
    with pytest.raises(CheckFailed, match="one product for each record"):
        choose_products(bits, (64,))
