"""All routines for exact products give the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from privfair.models.exact import LARGEST_CUT, Arithmetic, Bits, Products, multiply_int8, routines
from privfair.models.layers import Conv2d, Linear, MaxPool2d, Relu, Reshape
from privfair.models.model import ParameterLayout, clipped_to, mean_over
from privfair.models.network import Network, chain


def multiplied(products: Products, left: Tensor, right: Tensor) -> Tensor:
    return products.product(products.split(left), products.split(right))


def _perceptron(bits: Bits) -> Network:
    layers = (Reshape((24,)), Linear(24, 7, "a", "b"), Relu(), Linear(7, 5, "c", "d"), Relu(), Linear(5, 3, "e", "f"))
    shapes = ((7, 24), (7,), (5, 7), (5,), (3, 5), (3,))
    return Network(chain(*layers), ParameterLayout(tuple("abcdef"), shapes), 3, bits)


def _convolutional(bits: Bits) -> Network:
    first = Conv2d((1, 6, 4), 3, (3, 3), (1, 1), (1, 1), (1, 1), "a", "b")
    second = Conv2d((3, 3, 2), 2, (2, 1), (1, 1), (0, 0), (1, 1), "c", "d")
    pool = MaxPool2d((2, 2), (2, 2), (0, 0), (1, 1), False)
    layers = (first, Relu(), pool, second, Relu(), Reshape((8,)), Linear(8, 3, "e", "f"))
    shapes = ((3, 1, 3, 3), (3,), (2, 3, 2, 1), (2,), (3, 8), (3,))
    return Network(chain(*layers), ParameterLayout(tuple("abcdef"), shapes), 3, bits)


@pytest.mark.parametrize("build", [_perceptron, _convolutional])
@pytest.mark.parametrize("bits", [Bits.SEVEN, Bits.THIRTEEN])
def test_routines_give_the_same_bits(
    build: Callable[[Bits], Network], bits: Bits, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, generator = build(bits), torch.Generator().manual_seed(2)
    theta = torch.randn(network.layout.size, generator=generator, dtype=torch.float64)
    x = torch.randn(33, 1, 6, 4, generator=generator, dtype=torch.float64)
    x[1], x[2], x[3, 0, 0, 0] = 0.0, 1e308, float("nan")
    y, scores = torch.randint(3, (33,), generator=generator), torch.randn(33, 3, generator=generator)
    found = []
    for routine in routines(bits.number(24)):
        monkeypatch.setattr(network, "arithmetic", Arithmetic(bits.number(24), routine))
        clipped, mean = (network.weighted_gradient(theta, x, y, weigh) for weigh in (clipped_to(0.5), mean_over(33)))
        own = network.score_gradients(theta, x, scores)
        found.append((clipped.total, clipped.norms, clipped.losses, clipped.coefficients, mean.norms, own))
    assert len(found) > 1
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


@pytest.mark.parametrize("shape", [(1, 5, 4), (3, 1, 4), (3, 5, 1), (1, 1, 4), (1, 5, 1), (3, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize("apart", [1, 2, 7])
def test_int8_product_with_dimensions_of_size_one_and_odd_strides(shape: tuple[int, int, int], apart: int) -> None:
    rows, terms, columns = shape
    stored = torch.arange(1000).remainder(255).sub(127).to(torch.int8)
    for left_strides in ((terms * apart, apart), (apart, rows * apart), (1, 1)):
        for right_strides in ((columns * apart, apart), (apart, terms * apart), (1, 1)):
            left = stored.as_strided((rows, terms), left_strides)
            right = stored.as_strided((terms, columns), right_strides, 11)
            assert torch.equal(multiply_int8(left, right), left.int() @ right.int())


@pytest.mark.parametrize("routine", [*routines(7), *routines(13)], ids=lambda one: f"{type(one).__name__}")
@pytest.mark.parametrize("terms", [3999, 4000, 4001, 4200])
def test_wide_products_of_the_largest_numbers(routine: Products, terms: int) -> None:
    most = 2**13 if routine in routines(13) and routine not in routines(7) else 127
    for number in (most, -most, most - 63, 64 - most):  # halves and their sums are extreme as well
        found = multiplied(routine, torch.full((3, terms), float(number)), torch.full((terms, 2), float(most)))
        assert found.to(torch.int64).unique().tolist() == [number * most * terms]


@pytest.mark.parametrize("routine", [*routines(7), *routines(13)], ids=lambda one: f"{type(one).__name__}")
@pytest.mark.parametrize("records", [1, 2, 511, 512, 513, 2**16 + 1])
def test_sums_of_the_largest_parts(routine: Products, records: int) -> None:
    """Fractions are cut toward zero, blocks of the sum are where they belong, and what was there stays."""
    outputs, width = (40, 9000) if records < 3 else (3, 2)
    for sign in (-1.0, 1.0):
        cut = torch.full((records, outputs), sign * (LARGEST_CUT - 0.25), dtype=torch.float64)
        cut[:, 1] = torch.arange(records) % 7
        high = torch.full((records, width), 127.0, dtype=torch.float64)
        high[:, 1] = -1.0
        place = torch.full((outputs, width), 3.0, dtype=torch.float64)
        routine.add_outer(place, cut.clone(), high, 0.5)
        assert torch.equal(place, 3.0 + 0.5 * (cut.long().T @ high.long()).double())
