"""One record more moves the computed sum by the clip at most, on data that were built against rounding.

These tests use only what every version of a model has, so that they can be run on older code: they fail there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from privfair.models.linear import LogisticRegression
from privfair.models.model import Model, clipped_to
from privfair.models.perceptron import Perceptron

CLIP = 0.1
MANY = 600
PLACES = {"front": 0, "middle": MANY // 2 + 1, "end": MANY}


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def distance(one: Tensor, other: Tensor) -> float:
    """The norm of the difference: one rounding per entry, then as exact as float64 can be."""
    return math.sqrt(math.fsum(float(d) * float(d) for d in (one - other).tolist()))


def inserted(rows: Tensor, place: int, more: Tensor) -> Tensor:
    return torch.cat((rows[:place], more, rows[place:]))


def at_a_kink(model: Perceptron, theta: Tensor, dtype: torch.dtype) -> Tensor:
    """A record with a hidden unit that a matrix product puts on either side of zero, depending on the row it is in.

    Of those found, the one whose two gradients are the farthest apart; without any, one as close as floats are.
    """
    weight, bias = (piece.to(dtype) for piece in list(model.named_parameters(theta).values())[:2])
    last = list(model.named_parameters(theta).values())[2]
    generator, best, nearest = torch.Generator().manual_seed(5), (0.0, None), None
    for _ in range(1500):
        x = torch.rand(model.features, generator=generator, dtype=torch.float64)
        unit = int(torch.randint(len(weight), (1,), generator=generator))
        of_unit, k = weight[unit].double(), int(weight[unit].abs().argmax())
        x[k] = -(x @ of_unit - x[k] * of_unit[k] + bias[unit].double()) / of_unit[k]
        if not 0 < x[k] < 1:
            continue
        rows = x.to(dtype).expand(4, -1).contiguous()
        nearest = rows[0]
        out = torch.addmm(bias, rows, weight.T)[:, unit]
        if bool((out[0] > 0) != (out[1] > 0)):
            size = float((last[0, unit] - last[1, unit]).abs() * x.norm())
            best = max(best, (size, rows[0]), key=lambda found: found[0])
    found = nearest if best[1] is None else best[1]
    assert found is not None
    return found


@lru_cache
def at_kinks(model: Perceptron, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Parameters, records of which every other one is at the kink, and one record to insert."""
    theta = model.initial(0)
    x = at_a_kink(model, theta, dtype)
    rows = torch.stack((x, torch.zeros_like(x))).repeat(MANY // 2, 1)
    return theta, rows, torch.full((1, model.features), 0.5, dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "features", "hidden", "number"),
    [
        (torch.float64, 13, 4, 1),
        (torch.float64, 13, 4, 2),
        (torch.float64, 101, 16, 1),
        (torch.float32, 10, 8, 1),
        (torch.float32, 10, 8, 2),
        (torch.float32, 33, 8, 1),
    ],
    ids=str,
)
def test_an_inserted_record_does_not_push_others_over_a_kink(
    dtype: torch.dtype, features: int, hidden: int, number: int
) -> None:
    model = Perceptron(features, (hidden,), 2)
    theta, rows, more = at_kinks(model, dtype)
    with threads(number):
        _moves_by_the_clip(model, theta, rows, more)


def _moves_by_the_clip(model: Model, theta: Tensor, rows: Tensor, more: Tensor) -> None:
    labels, weigh = torch.zeros(len(rows) + 1, dtype=torch.int64), clipped_to(CLIP)
    before = model.weighted_gradient(theta, rows, labels[:-1], weigh)
    for name, place in PLACES.items():
        after = model.weighted_gradient(theta, inserted(rows, place, more), labels, weigh)
        assert distance(after.total, before.total) <= CLIP, name
        old = torch.arange(len(labels)) != place
        for one, other in zip(_of_each(after), _of_each(before), strict=True):
            assert torch.equal(one[old], other), name


def _of_each(found: object) -> tuple[Tensor, ...]:
    return tuple(getattr(found, name) for name in ("norms", "losses", "coefficients"))


@pytest.mark.parametrize("size", [20_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_softmax_regression_on_many_float32_records_keeps_the_others_as_they_are(size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    model = LogisticRegression(102, 10)
    theta = torch.randn(model.size, generator=generator, dtype=torch.float64)
    rows = torch.rand(size + 1, 102, generator=generator)
    labels = torch.randint(10, (size + 1,), generator=generator)
    weigh = clipped_to(CLIP)
    after = model.weighted_gradient(theta, rows, labels, weigh)
    before = model.weighted_gradient(theta, rows[1:].clone(), labels[1:], weigh)  # stored elsewhere: another alignment
    for one, other in zip(_of_each(after), _of_each(before), strict=True):
        assert torch.equal(one[1:], other)
    assert distance(after.total, before.total) <= CLIP
