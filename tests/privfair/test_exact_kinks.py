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
from torch import Tensor, nn

from privfair.models.linear import LogisticRegression
from privfair.models.model import Model, clipped_to
from privfair.models.perceptron import Perceptron
from privfair.models.torch_module import TorchModule

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


# A convolution, max-pooling over all of what comes out, two fully connected layers: images of 9 x 9.


CHANNELS, HIDDEN = 9, 8


def _build_cnn() -> nn.Sequential:
    hidden = (nn.Linear(CHANNELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))
    return nn.Sequential(nn.Conv2d(1, CHANNELS, 5), nn.MaxPool2d(5), nn.Flatten(), *hidden)


def _at_a_tie(module: nn.Module) -> Tensor:
    """An image whose last patch is the largest of its window in some rows of a batch, and another one in the others.

    The last pixel is in the last patch alone. Of those found, the image whose two patches are the farthest apart;
    without any, one as close to a tie as floats are.
    """
    generator, best, found = torch.Generator().manual_seed(6), -1.0, None
    convolve, kernel = module.get_submodule("0"), module.get_parameter("0.weight")[-1, 0]
    for _ in range(1500):
        x = torch.rand(1, 9, 9, generator=generator, dtype=torch.float64)
        out = convolve(x[None])[0, -1].flatten()
        other = int(out[:-1].argmax())
        x[0, -1, -1] += (out[other] - out[-1]) / kernel[-1, -1]
        if not 0 < x[0, -1, -1] < 1:
            continue
        chosen = convolve(x.expand(4, 1, 9, 9).contiguous())[:, -1].flatten(1).argmax(dim=1)
        patches = x[0].unfold(0, 5, 1).unfold(1, 5, 1).reshape(25, 25)
        apart = float((patches[other] - patches[-1]).norm()) if bool(chosen[0] != chosen[1]) else 0.0
        if apart > best:
            best, found = apart, x
    assert found is not None
    return found


def _bias_at_a_kink(module: nn.Module, x: Tensor) -> tuple[int, Tensor, bool]:
    """A hidden unit, a bias that puts it at its kink for the image, and whether rows of a batch fall on both sides."""
    features = module[:3](x.expand(4, 1, 9, 9).contiguous())  # type: ignore[index]
    weight = module.get_parameter("3.weight")
    for unit in range(HIDDEN):
        zero = torch.zeros(HIDDEN, dtype=x.dtype)
        for row in (0, 1):
            bias = zero.clone()
            bias[unit] = -torch.addmm(zero, features, weight.T)[row, unit]
            out = torch.addmm(bias, features, weight.T)[:, unit]
            if bool((out[0] > 0) != (out[1] > 0)):
                return unit, bias[unit], True
    return unit, bias[unit], False


@lru_cache
def _cnn_data(dtype: torch.dtype, tie: bool) -> tuple[TorchModule, Tensor, Tensor, Tensor]:
    """A net, parameters, images of which every fourth one is at a tie or kink, and one image to insert."""
    model = TorchModule(_build_cnn, torch.rand(2, 1, 9, 9))
    theta = model.initial(0)
    with torch.no_grad():
        if tie:
            x = _at_a_tie(model.as_module(theta.to(dtype)))
        else:
            generator = torch.Generator().manual_seed(7)
            for _ in range(200):
                x = torch.rand(1, 9, 9, generator=generator, dtype=dtype)
                unit, bias, differ = _bias_at_a_kink(model.as_module(theta.to(dtype)), x)
                if differ:
                    break
            model.named_parameters(theta)["3.bias"][unit] = bias.double()
    rows = torch.cat((x.to(dtype)[None], torch.zeros(3, 1, 9, 9, dtype=dtype))).repeat(MANY // 4, 1, 1, 1)
    return model, theta, rows, torch.full((1, 1, 9, 9), 0.5, dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "tie"), [(torch.float64, True), (torch.float64, False), (torch.float32, False)], ids=str
)
def test_an_inserted_image_does_not_push_others_over_a_tie_or_kink(dtype: torch.dtype, tie: bool) -> None:
    with threads(1):
        _moves_by_the_clip(*_cnn_data(dtype, tie))


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
