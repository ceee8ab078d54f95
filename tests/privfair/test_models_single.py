"""What float32 may do to sums and norms over records, and that the bound pays for it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from privfair.models.layers import SINGLE_SLACK, OuterProducts, _patches, records_in_single, squares_of_rows
from privfair.models.model import ClippedTo, clipped_to, mean_over
from privfair.models.perceptron import Perceptron

NET = Perceptron(784, (64,), 10)


def _batch(records: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, 784, generator=generator)
    return x, torch.randint(0, 10, (records,), generator=generator)


def test_as_many_are_summed_in_single_precision_as_the_enlarged_norms_pay_for() -> None:
    for records in range(1, 5000):
        at_once = records_in_single(records)
        assert at_once <= records
        assert 2 * records * (at_once + 2) * 2.0**-24 <= SINGLE_SLACK or at_once == 0
    assert records_in_single(256) >= 128
    assert records_in_single(2000) == 0


@pytest.mark.parametrize("at_once", [1, 7, 64])
def test_a_sum_in_single_precision_is_as_far_off_as_proved(at_once: int) -> None:
    generator = torch.Generator().manual_seed(at_once)
    left, right = torch.randn(64, 50, generator=generator), torch.randn(64, 20, generator=generator) * 1e-3
    weights = torch.rand(64, generator=generator, dtype=torch.float64)
    parts = OuterProducts(left, right)
    exact, bias = parts.weighted(weights, len(weights))
    found, same = torch.empty_like(exact), torch.empty_like(bias)
    parts.write_weighted(weights, (found, same), at_once)
    sizes = float((weights * parts.squared_norms().sqrt()).sum())
    assert torch.equal(bias, same)
    assert 0 < float((found - exact).norm()) <= (at_once + 2) * 2.0**-24 * sizes


def test_inputs_too_large_for_it_are_summed_exactly() -> None:
    left, right = torch.full((4, 3), 1e30), torch.full((4, 2), 1e-38)
    parts, weights = OuterProducts(left, right), torch.full((4,), 1e-5, dtype=torch.float64)
    exact, bias = parts.weighted(weights, len(weights))
    found, same = torch.empty_like(exact), torch.empty_like(bias)
    parts.write_weighted(weights, (found, same), 4)
    assert torch.equal(found, exact)


@pytest.mark.parametrize("records", [200, 256, 1100])
def test_a_record_moves_the_sum_by_no_more_than_the_bound(records: int) -> None:
    """Each record's gradient is far longer than the clip, so every part is as long as it may be."""
    x, y = _batch(records)
    theta = NET.initial(0)
    whole = NET.weighted_gradient(theta, x, y, clipped_to(1e-3))
    longest = 1e-3 / (1 + SINGLE_SLACK)
    assert float((whole.coefficients * whole.norms / (1 + SINGLE_SLACK)).max()) <= longest
    for left_out in (0, records // 2, records - 1):
        rest = torch.arange(records) != left_out
        without = NET.weighted_gradient(theta, x[rest], y[rest], clipped_to(1e-3))
        assert float((whole.total - without.total).norm()) <= 1e-3


def test_a_plain_mean_is_not_shortened() -> None:
    x, y = _batch(256)
    theta = NET.initial(1)
    single = NET.weighted_gradient(theta, x, y, mean_over(256)).total
    double = NET.weighted_gradient(theta, x.double(), y, mean_over(256)).total
    assert float((single - double).norm()) <= 1e-5 * float(double.norm())


def test_small_nets_and_double_precision_keep_their_norms() -> None:
    x, y = _batch(64)
    small = Perceptron(20, (8,), 10)
    found = small.weighted_gradient(small.initial(0), x[:, :20], y, clipped_to(1.0))
    again = small.weighted_gradient(small.initial(0), x[:, :20].double(), y, clipped_to(1.0))
    torch.testing.assert_close(found.norms, again.norms, rtol=1e-5, atol=0)
    assert isinstance(clipped_to(1.0), ClippedTo)


@pytest.mark.parametrize("size", [1.0, 1e-18, 1e-22, 1e-30, 1e25])
def test_squares_of_rows_are_never_below_the_true_ones(size: float) -> None:
    rows = torch.randn(5, 1000, generator=torch.Generator().manual_seed(1)) * size
    exact = rows.double().square().sum(dim=1)
    found = squares_of_rows(rows)
    assert bool((found >= exact * (1 - 1e-12)).all())
    assert bool((found <= exact * (1 + 2.0**-15) + 1000 * 2.0**-125).all())


def test_squares_of_double_rows_are_as_before() -> None:
    rows = torch.randn(5, 1000, dtype=torch.float64)
    assert torch.equal(squares_of_rows(rows), torch.linalg.vector_norm(rows, dim=1).square_())


@pytest.mark.parametrize("padding", [0, 2, (1, 3)])
@pytest.mark.parametrize("stride", [1, (2, 3)])
@pytest.mark.parametrize("dilation", [1, 2])
def test_gathered_patches_are_the_unfolded_ones(padding: int, stride: int, dilation: int) -> None:
    layer = nn.Conv2d(3, 4, (3, 2), stride=stride, padding=padding, dilation=dilation)
    images = torch.randn(2, 3, 11, 12)
    expected = functional.unfold(images, (3, 2), dilation, padding, stride).transpose(1, 2)
    assert torch.equal(_patches(layer, images), expected)
    assert math.prod(expected.shape[1:]) > 0
