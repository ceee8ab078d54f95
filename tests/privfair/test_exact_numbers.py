"""The numbers under exact contributions: the budget of bits, whole numbers in halves, grids, exponentials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from calibrate.errors import UnsupportedCombination
from privfair.models import exact, layers
from privfair.models.exact import DOUBLE, Arithmetic, Bits, InDouble, InSingle
from tests.privfair.test_exact_contributions import labels_of, numbered
from tests.privfair.test_exact_routines import multiplied

ALL_BITS = (Bits.SEVEN, Bits.THIRTEEN, Bits.LARGEST)
SUMMED_EXACTLY = (Bits.SEVEN, Bits.THIRTEEN)


# The budget of bits.


@pytest.mark.parametrize("width", [2, 3, 8, 2**5, 2**9 + 1, 2**13])
def test_the_largest_bits_are_exact_and_one_more_is_not(width: int) -> None:
    bits = Bits.LARGEST.number(width)
    assert 2 * bits + math.ceil(math.log2(width)) <= 53 < 2 * (bits + 1) + math.ceil(math.log2(width))

    def computed_and_true(p: int, last: int) -> tuple[int, int]:
        """2^p times 2^p, width - 1 times, and once (2^p - 1) times `last`, an odd number."""
        left = [2**p] * (width - 1) + [2**p - 1]
        right = [2**p] * (width - 1) + [last]
        product = multiplied(InDouble(), torch.tensor([left], dtype=DOUBLE), torch.tensor([right], dtype=DOUBLE).T)
        return int(product[0, 0]), sum(a * b for a, b in zip(left, right, strict=True))

    for last in (2**bits, 2**bits - 1, 2**bits - 3, 1):
        computed, true = computed_and_true(bits, last)
        assert computed == true
    too_many = bits + 1 + (2 * (bits + 1) + math.floor(math.log2(width)) <= 53)  # where the width is no power of two
    computed, true = computed_and_true(too_many, 2**too_many - 1)
    assert computed != true


def test_bits_that_do_not_fit_are_refused() -> None:
    assert Bits.THIRTEEN.number(2**27) == 13
    with pytest.raises(UnsupportedCombination, match="could round"):
        Bits.THIRTEEN.number(2**27 + 1)


@pytest.mark.parametrize("terms", [1, 7, 1023, 1024, 1025, 3000])
def test_float32_products_of_seven_bits_are_exact(terms: int) -> None:
    left, right = torch.full((3, terms), 127.0), torch.full((terms, 2), -127.0)
    right[-1] = 126.0
    wanted = -(127 * 127 * (terms - 1)) + 127 * 126
    assert multiplied(InSingle(), left, right).to(torch.int64).unique().tolist() == [wanted]
    assert 127 * 127 * exact.TERMS_IN_SINGLE < 2**24 < 127 * 127 * (exact.TERMS_IN_SINGLE + 20)


@pytest.mark.parametrize("routine", exact.routines(13), ids=lambda one: type(one).__name__)
def test_halves_and_karatsuba_at_all_whole_numbers(routine: exact.Products) -> None:
    whole = torch.arange(-(2**13), 2**13 + 1)
    others = torch.tensor([-8192, -8191, -8128, -8127, -65, -64, 63, 64, 8127, 8128, 8191, 8192])
    found = multiplied(routine, whole[:, None].to(DOUBLE), others[None].to(DOUBLE))
    assert torch.equal(found.to(torch.int64), whole[:, None] * others)
    for one in exact._halves(whole):
        assert one.dtype is torch.int8
    high, low, both = (one.long() for one in exact._halves(whole))
    assert torch.equal(high * 128 + low, whole)
    assert torch.equal(both, high + low)


def test_cut_parts_are_split_into_bytes_without_loss() -> None:
    cut = torch.arange(-exact.LARGEST_CUT, exact.LARGEST_CUT + 1, dtype=torch.int16)
    low, high = exact._bytes(cut).view(-1, 2).long().T
    assert torch.equal(high * 256 + low, cut.long())


@pytest.mark.parametrize("bits", ALL_BITS)
@settings(max_examples=60)
@given(st.integers(-400, 400), st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=9))
def test_rows_on_a_grid_keep_their_bits(bits: Bits, exponent: int, values: list[float]) -> None:
    arithmetic = Arithmetic(bits.number(9), InDouble())
    most = 2**arithmetic.bits - (bits is Bits.SEVEN)
    row = torch.tensor([values], dtype=DOUBLE) * 2.0**exponent
    for rows in (arithmetic.grid(row), arithmetic.load(row.clamp(-(2.0**20), 2.0**20))):
        whole = rows.whole.to(DOUBLE)
        assert torch.equal(whole, whole.round())
        assert float(whole.abs().max()) <= most
        assert math.frexp(float(rows.unit[0]))[0] == 0.5
    within = row.clamp(-exact.LARGEST_ACTIVATION, exact.LARGEST_ACTIVATION)
    rows = arithmetic.grid(row)
    assert float((rows.values() - within).abs().max()) <= float(rows.unit[0]) * (0.5 + 1e-6)


@pytest.mark.parametrize("bits", SUMMED_EXACTLY)
@settings(max_examples=60)
@given(st.floats(2.0**-100, 2.0**20), st.booleans())
def test_the_largest_of_a_row_leaves_the_stated_room(bits: Bits, top: float, negative: bool) -> None:
    arithmetic = Arithmetic(bits.number(9), InDouble())
    row = torch.tensor([[top if not negative else -top, 0.0]], dtype=DOUBLE)
    for rows in (arithmetic.grid(row), arithmetic.load(row)):
        for routine in exact.routines(arithmetic.bits):
            upper = arithmetic.high(rows, routine.split(rows.whole)).whole.to(DOUBLE).abs().max()
            assert layers._OUTER_ROOM[arithmetic.bits] <= float(upper) <= 127


# Exponentials and what follows from them.


def _positions(function: Callable[[Any], Any], values: Sequence[float]) -> None:
    """Each entry of vectors of 1 to 67 entries equals that of a vector of one."""
    alone = np.array([np.asarray(function(np.array([value])))[0] for value in values])
    for size in range(1, 68):
        for start in range(0, len(values) - size, 67):
            found = np.asarray(function(np.array(values[start : start + size])))
            assert np.array_equal(found, alone[start : start + size])


def _tensor(function: Callable[[Tensor], Tensor], dtype: torch.dtype = DOUBLE) -> Callable[[Any], Any]:
    return lambda values: function(torch.from_numpy(values).to(dtype)).numpy()


def test_exponentials_are_as_exact_as_stated() -> None:
    values = [0.0, 5e-324, 1e-300, 1e-17, math.log(2) / 64, *(k * 0.0173 for k in range(1, 1500)), 689.9, 690.0]
    found = exact.exp_of_negative(np.array(values))
    for value, one in zip(values, found.tolist(), strict=True):
        true = mpmath.exp(-mpmath.mpf(value))
        assert abs(one - true) <= true * mpmath.mpf(2) ** -47
    assert exact.exp_of_negative(np.array([690.0, 691.0, 1e300]))[1:].tolist() == [found[-1]] * 2
    _positions(exact.exp_of_negative, values)


def test_logarithms_are_as_exact_as_stated() -> None:
    values = [1.0, 1 + 2**-52, 1 + 1 / 256, 2.0 - 2**-52, 2.0, 1e300, *(1.0 + k * 0.00731 for k in range(1500))]
    for value, one in zip(values, exact.log_of(np.array(values)).tolist(), strict=True):
        true = mpmath.log(mpmath.mpf(value))
        assert abs(one - true) <= (1 + true) * mpmath.mpf(2) ** -49
    _positions(exact.log_of, values)


def test_sigmoid_and_tanh_saturate_and_rise() -> None:
    values = torch.cat(
        (torch.linspace(-40, 40, 1601, dtype=DOUBLE), torch.tensor([-1e308, -800.0, 800.0, 1e308]).double())
    )
    for function, true, least in (
        (exact.sigmoid, lambda x: 1 / (1 + mpmath.exp(-x)), 0.0),
        (exact.tanh, mpmath.tanh, -1.0),
    ):
        found = function(values)
        assert float(found[-1]) == 1.0
        assert least <= float(found[1601]) <= least + 1e-299
        assert (found[:1601].diff() >= 0).all()
        for value, one in zip(values.tolist()[:1601:7], found.tolist()[:1601:7], strict=True):
            assert abs(one - true(mpmath.mpf(value))) <= 2.0**-46
        for dtype in (DOUBLE, torch.float32):
            _positions(_tensor(function, dtype), values.tolist())


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_softmax_sums_have_no_order(classes: int) -> None:
    logits, y = numbered(50, classes, seed=3) * 30, labels_of(50, classes)
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(1))
    moved, place = logits[:, order].contiguous(), order.argsort()[y]
    assert torch.equal(exact.probabilities_of(moved), exact.probabilities_of(logits)[:, order])
    (losses, residual), (others, moved_residual) = exact.cross_entropy(logits, y), exact.cross_entropy(moved, place)
    assert torch.equal(others, losses)
    assert torch.equal(moved_residual, residual[:, order])
    assert float((exact.probabilities_of(logits) - torch.softmax(logits, 1)).abs().max()) < 1e-12


@settings(max_examples=60)
@given(st.lists(st.floats(-1e200, 1e200), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_row_sums_have_no_order(values: list[float], random: Any) -> None:
    found = exact.row_sum(np.array(values))
    for _ in range(5):
        shuffled = values.copy()
        random.shuffle(shuffled)
        assert np.array_equal(exact.row_sum(np.array(shuffled)), found)
    largest = max(abs(value) for value in values)
    assert abs(found[0] - math.fsum(values)) <= len(values) * largest * 2.0**-40 + 1e-30
