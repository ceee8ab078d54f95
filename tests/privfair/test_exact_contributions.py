"""What a record contributes is a function of the record and of published values, to the last bit, and it is finite.

The proof is docs/theorems/exact-contributions.md. Here it is attacked: records at kinks and ties of the rounded net,
any batch around them, any order, threads and memory, parameters and features that are no numbers; and the checks
themselves are tried on planted bugs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from privfair.models import exact, layers
from privfair.models.exact import DOUBLE, Arithmetic, Bits, InDouble, Rows
from privfair.models.layers import (
    Conv2d,
    Linear,
    MaxPool2d,
    NetLayer,
    Part,
    Prepared,
    Pull,
    Relu,
    Reshape,
    Tanh,
    Values,
)
from privfair.models.linear import LogisticRegression
from privfair.models.model import ParameterLayout, Weigh, bound_of, clipped_after, clipped_to, shrunk_by_class
from privfair.models.network import Network, chain
from privfair.models.perceptron import Perceptron, _network
from tests.privfair.test_exact_kinks import PLACES, at_kinks, distance, inserted, threads

CLIP = 0.1
ALL_BITS = (Bits.SEVEN, Bits.THIRTEEN, Bits.LARGEST)
SLOW_WIDE = pytest.param((101, 24, 2), marks=pytest.mark.slow)
SUMMED_EXACTLY = (Bits.SEVEN, Bits.THIRTEEN)


# Networks, records and states.


def perceptron(features: int, hidden: tuple[int, ...], classes: int, bits: Bits) -> Network:
    return _network(Perceptron(features, hidden, classes, bits=bits))


@lru_cache
def convolutional(bits: Bits, stride: int = 2, padding: int = 1) -> Network:
    """1 x 9 x 9 images, two convolutions with pooling; with stride 1 the windows overlap."""
    first = Conv2d((1, 9, 9), 3, (3, 3), (1, 1), (padding, padding), (1, 1), "0.weight", "0.bias")
    pool = MaxPool2d((2, 2), (stride, stride), (0, 0), (1, 1), False)
    side = (first.size[0] - 2) // stride + 1
    second = Conv2d((3, side, side), 4, (2, 2), (1, 1), (0, 0), (1, 1), "1.weight", None)
    inputs = 4 * math.prod(second.size)
    last = Linear(inputs, 3, "2.weight", "2.bias")
    shapes = ((3, 1, 3, 3), (3,), (4, 3, 2, 2), (3, inputs), (3,))
    layout = ParameterLayout(("0.weight", "0.bias", "1.weight", "2.weight", "2.bias"), shapes)
    return Network(chain(first, Relu(), pool, second, Tanh(), Reshape((inputs,)), last), layout, 3, bits)


def numbered(*shape: int, seed: int, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 2 - 1


def extremes(count: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Ordinary records, then ones at the edge: zeros, powers of two, subnormal, huge, not numbers."""
    x = numbered(count, *shape, seed=seed)
    flat = x.view(count, -1)
    for place, value in enumerate((0.0, 1.0, 127.5 / 128, 5e-324, 1e-310, 2.0**-101, 1e308, -(2.0**20), 2.0**-3)):
        flat[place] = value
    flat[9, -1], flat[10, 0], flat[11, 0] = 1e308, 2.0, 5e-324
    flat[12, 0], flat[13, -1], flat[14, 0] = math.inf, math.nan, -math.inf
    return x


def labels_of(count: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed))


def broken_states(size: int) -> Iterator[Tensor]:
    """Public states, which anyone may send: ordinary, zero, tiny, huge, not numbers."""
    yield numbered(size, seed=1)
    yield torch.zeros(size, dtype=DOUBLE)
    for value in (5e-324, 1e-200, 2.0**10, 1e308, math.inf, -math.inf, math.nan):
        yield torch.full((size,), value, dtype=DOUBLE)
    for scale in (1e-30, 1e3, 1e300):
        yield numbered(size, seed=2) * scale
    mixed = numbered(size, seed=3)
    mixed[::5], mixed[1::5], mixed[2::5], mixed[3::7] = math.nan, math.inf, 1e308, 5e-324
    yield mixed


def rows_of(network: Network, x: Tensor) -> Rows:
    """Features on their grids."""
    rows = network.load(x).rows
    return rows() if callable(rows) else rows


def with_kinks(network: Network, theta: Tensor, x: Tensor) -> Tensor:
    """The state in which all first units of record x[0] are at their kink, or one float above it."""
    layer = next(node.layer for node in network._nodes if isinstance(node.layer, Linear | Conv2d))
    moved = theta.clone()
    places = network.layout.split(moved)
    places[str(layer.bias)].zero_()
    arithmetic = network.arithmetic
    prepared = layer.prepare(arithmetic, network.layout.split(exact.clamped(moved)))
    values, _ = layer.forward(arithmetic, prepared, rows_of(network, x[:1]))
    assert isinstance(values, Tensor)
    per_unit = values.flatten(2).amax(dim=2)[0] if isinstance(layer, Conv2d) else values[0]
    kink = -per_unit
    kink[1::2] = torch.nextafter(kink[1::2], kink[1::2] + 1)
    places[str(layer.bias)].copy_(kink.to(DOUBLE))
    return moved


# The check: everything that is computed of a record, in any batch, equals what is computed of the record alone.

Step = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""From records and labels to tensors with one row for each record."""


def everything(network: Network, theta: Tensor, weigh: Weigh, factors: bool = True) -> Step:
    """Scores, norms, losses, coefficients and the factors of every part."""

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        found = network.weighted_gradient(theta, x, y, weigh)
        of_each = (network.logits(theta, x), found.norms, found.losses, found.coefficients)
        if not factors:
            return of_each
        directions = torch.eye(network.classes, dtype=DOUBLE)[y]
        return (
            *of_each,
            network.score_gradients(theta, x, directions),
            network.probability_norms(theta, x, torch.eye(network.classes, dtype=DOUBLE)[:1]),
        )

    return step


def first_difference(
    step: Step, x: Tensor, y: Tensor, batches: Sequence[Tensor], on_threads: Sequence[int] = (1,)
) -> str | None:
    """The first batch in which a record has other numbers than alone, or numbers that are not finite.

    All batches on one thread, the last of them on others.
    """
    alone = [torch.cat(rows) for rows in zip(*(step(x[[i]], y[[i]]) for i in range(len(x))), strict=True)]
    if not all(bool(torch.isfinite(one).all()) for one in alone):
        return "not finite"
    several = [(number, batches[-1]) for number in on_threads if number > 1]
    for number, rows in (*((1, rows) for rows in batches), *several):
        with threads(number):
            found = step(x[rows], y[rows])
        for place, (one, other) in enumerate(zip(found, alone, strict=True)):
            if not torch.equal(one, other[rows]):
                return f"tensor {place} in a batch of {len(rows)} on {number} threads"
    return None


def some_batches(count: int, sizes: Sequence[int] = (3, 17, 67), seed: int = 0) -> list[Tensor]:
    """Batches of many sizes; half of each is record 0."""
    generator, found = torch.Generator().manual_seed(seed), []
    for size in sizes:
        rows = torch.randint(count, (size,), generator=generator)
        rows[: size // 2] = 0
        found.append(rows)
    return found


def require_sum(network: Network, theta: Tensor, x: Tensor, y: Tensor, place: int, weigh: Weigh, clip: float) -> None:
    """Record `place` moves the sum by the clip at most; by its own part, bit for bit, if sums are exact."""
    kept = torch.arange(len(x)) != place
    after, before = (
        network.weighted_gradient(theta, x, y, weigh),
        network.weighted_gradient(theta, x[kept], y[kept], weigh),
    )
    own = network.weighted_gradient(theta, x[[place]], y[[place]], weigh)
    assert distance(after.total, before.total) <= clip
    assert torch.equal(after.coefficients[kept], before.coefficients)
    assert torch.equal(after.norms[kept], before.norms)
    if network.arithmetic.sums_exactly:
        assert torch.equal(after.total - before.total, own.total)


# Kinks and ties.


@pytest.mark.parametrize("bits", [Bits.SEVEN, Bits.LARGEST])
@pytest.mark.parametrize(("dtype", "features", "hidden"), [(DOUBLE, 13, 4), (torch.float32, 10, 8)], ids=str)
def test_records_at_a_kink_of_the_first_parameters(dtype: torch.dtype, features: int, hidden: int, bits: Bits) -> None:
    theta, rows, more = at_kinks(Perceptron(features, (hidden,), 2), dtype)
    network, y = perceptron(features, (hidden,), 2, bits), torch.zeros(len(rows) + 1, dtype=torch.int64)
    for number, place in zip((2, 1, 1), PLACES.values(), strict=True):
        with threads(number):
            require_sum(network, theta, inserted(rows, place, more), y, place, clipped_to(CLIP), CLIP)


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.parametrize("sizes", [(1, 3, 1, 2), (33, 8, 5, 3), SLOW_WIDE], ids=str)
def test_kinks_of_the_rounded_net(sizes: tuple[int, ...], bits: Bits) -> None:
    network = perceptron(sizes[0], sizes[1:-1], sizes[-1], bits)
    x, y = extremes(18, sizes[:1]), labels_of(18, sizes[-1])
    x[0] = numbered(sizes[0], seed=9)
    theta = with_kinks(network, numbered(network.layout.size, seed=4), x)
    step = everything(network, theta, clipped_to(CLIP))
    assert first_difference(step, x, y, some_batches(18), (1, 2)) is None
    rows = some_batches(18, (400,))[0]
    for number, place in zip((1, 1, 2), (0, 201, 399), strict=True):
        with threads(number):
            require_sum(network, theta, x[rows], y[rows], place, clipped_to(CLIP), CLIP)


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.parametrize("stride", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ties_of_pooling_and_kinks_of_convolutions(stride: int, bits: Bits) -> None:
    network = convolutional(bits, stride)
    x, y = extremes(18, (1, 9, 9)), labels_of(18, 3)
    x[0] = numbered(1, 9, 9, seed=5)
    x[15] = torch.arange(81).view(1, 9, 9) % 2  # every window has equal largest numbers
    x[16] = 1.0
    x[17, :, :, 5:] = x[17, :, :, :4].flip(2)
    theta = with_kinks(network, numbered(network.layout.size, seed=6), x)
    step = everything(network, theta, clipped_to(CLIP))
    assert first_difference(step, x, y, some_batches(18, (3, 40)), (1, 2)) is None
    rows = some_batches(18, (130,))[0]
    for number, place in zip((1, 1, 2), (0, 66, 129), strict=True):
        with threads(number):
            require_sum(network, theta, x[rows], y[rows], place, clipped_to(CLIP), CLIP)


def test_thousands_of_images_are_taken_in_several_runs() -> None:
    network, x, y = convolutional(Bits.SEVEN), extremes(24, (1, 9, 9)), labels_of(24, 3)
    rows = some_batches(24, (4097,))[0]
    require_sum(network, numbered(network.layout.size, seed=6), x[rows], y[rows], 0, clipped_to(CLIP), CLIP)


# Any batch, order, thread, memory; any state.


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.parametrize("images", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_state_gives_finite_numbers_of_each_record(images: bool, bits: Bits) -> None:
    network, shape = (convolutional(bits), (1, 9, 9)) if images else (perceptron(7, (6,), 3, bits), (7,))
    x, y = extremes(16, shape)[[15, 0, 3, 5, 6, 9, 12, 13]], labels_of(8, 3)
    for theta in broken_states(network.layout.size):
        step = everything(network, theta, clipped_to(CLIP))
        assert first_difference(step, x, y, some_batches(8, (21,))) is None
        found = network.weighted_gradient(theta, x, y, clipped_to(CLIP))
        assert torch.isfinite(found.total).all()
        assert found.largest_part <= CLIP
        assert network.weighted_gradient(theta, x[6:], y[6:], clipped_to(CLIP)).total.abs().max() == 0


@pytest.mark.parametrize("bits", ALL_BITS)
def test_gradients_in_scores_that_are_not_numbers_stay_with_their_record(bits: Bits) -> None:
    """As a custom loss may have them."""
    network, x = perceptron(7, (6,), 3, bits), numbered(6, 7, seed=1)
    theta, in_scores = numbered(network.layout.size, seed=2), numbered(6, 3, seed=3)
    in_scores[0, 1], in_scores[1], in_scores[2, 0], in_scores[3] = math.nan, 1e70, math.inf, -1e308
    together = network.score_gradients(theta, x, in_scores)
    alone = torch.cat([network.score_gradients(theta, x[[i]], in_scores[[i]]) for i in range(6)])
    assert torch.equal(together, alone)
    assert torch.isfinite(together).all()
    assert torch.isfinite(network.probability_gradient(theta, x, in_scores)).all()


@pytest.mark.parametrize("classes", [2, 4])
def test_linear_models_for_every_state(classes: int) -> None:
    model = LogisticRegression(7, classes)
    x, y = extremes(20, (7,)), labels_of(20, classes)

    def step_at(theta: Tensor) -> Step:
        def step(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            found = model.weighted_gradient(theta, x, y, clipped_to(CLIP))
            return found.norms, found.losses, found.coefficients, model.probabilities(theta, x)

        return step

    for theta in broken_states(model.size):
        assert first_difference(step_at(theta), x, y, some_batches(20)) is None
        assert torch.isfinite(model.weighted_gradient(theta, x, y, clipped_to(CLIP)).total).all()


@settings(max_examples=8)
@given(
    st.sampled_from(ALL_BITS),
    st.sampled_from([1, 2, 13, 33]),
    st.integers(0, 2**31),
    st.sampled_from([1, 2, 3, 5, 17, 64]),
    st.sampled_from([1, 2, 4]),
)
def test_records_in_any_batch(bits: Bits, features: int, seed: int, size: int, number: int) -> None:
    network = perceptron(features, (5, 3), 3, bits)
    x, y = extremes(18, (features,), seed), labels_of(18, 3, seed)
    x[0] = numbered(features, seed=seed + 1)
    theta = with_kinks(network, numbered(network.layout.size, seed=seed + 2), x)
    step, batches = everything(network, theta, clipped_to(CLIP)), some_batches(18, (size,), seed)
    assert first_difference(step, x, y, batches, (number,)) is None


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.parametrize("size", [4095, 4096, 4097])
def test_records_at_the_edge_of_a_run(size: int, bits: Bits) -> None:
    network = perceptron(13, (4,), 2, bits)
    x, y = extremes(24, (13,)), labels_of(24, 2)
    x[0] = numbered(13, seed=5)
    theta = with_kinks(network, numbered(network.layout.size, seed=3), x)
    rows = some_batches(24, (size,))[0]
    assert first_difference(everything(network, theta, clipped_to(CLIP), False), x, y, [rows], (1, 4)) is None
    require_sum(network, theta, x[rows], y[rows], size // 2, clipped_to(CLIP), CLIP)


@settings(max_examples=20)
@given(st.sampled_from(ALL_BITS), st.sampled_from([2, 7, 61]), st.integers(0, 2**31))
def test_the_order_of_features_does_not_matter(bits: Bits, features: int, seed: int) -> None:
    """With the first layer's columns in the same order: exact products have no order."""
    network, order = perceptron(features, (6,), 3, bits), torch.randperm(features)
    x, y, theta = extremes(20, (features,), seed), labels_of(20, 3, seed), numbered(6 * features + 27, seed=seed)
    other = theta.clone()
    first = network.layout.split(other)["0.weight"]
    first.copy_(network.layout.split(theta)["0.weight"][:, order])
    one = network.weighted_gradient(theta, x, y, clipped_to(CLIP))
    two = network.weighted_gradient(other, x[:, order], y, clipped_to(CLIP))
    for name in ("norms", "losses", "coefficients"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    if bits in SUMMED_EXACTLY:
        gathered = network.layout.split(one.total)["0.weight"][:, order]
        assert torch.equal(gathered, network.layout.split(two.total)["0.weight"])


@settings(max_examples=20)
@given(st.sampled_from(SUMMED_EXACTLY), st.integers(0, 2**31), st.integers(2, 70))
def test_exact_sums_have_no_order_and_repeat(bits: Bits, seed: int, size: int) -> None:
    network, weigh = perceptron(9, (5,), 3, bits), clipped_to(CLIP)
    rows, order = (
        some_batches(20, (size,), seed)[0],
        torch.randperm(size, generator=torch.Generator().manual_seed(seed)),
    )
    x, y, theta = extremes(20, (9,), seed)[rows], labels_of(20, 3, seed)[rows], numbered(68, seed=seed)
    total = network.weighted_gradient(theta, x, y, weigh).total
    assert torch.equal(network.weighted_gradient(theta, x[order], y[order], weigh).total, total)
    twice = network.weighted_gradient(theta, torch.cat((x, x)), torch.cat((y, y)), weigh).total
    assert torch.equal(twice, 2 * total)
    split = [network.weighted_gradient(theta, x[some], y[some], weigh).total for some in (order[:1], order[1:])]
    assert torch.equal(split[0] + split[1], total)


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_where_features_are_stored_does_not_matter(dtype: torch.dtype, bits: Bits) -> None:
    network = perceptron(13, (6,), 3, bits)
    theta, x, y = numbered(network.layout.size, seed=1), numbered(40, 13, seed=2, dtype=dtype), labels_of(40, 3)
    wanted = network.weighted_gradient(theta, x, y, clipped_to(CLIP))
    long = torch.full((4000,), math.nan, dtype=dtype)
    for offset in range(0, 17, 3):
        moved = long[offset : offset + x.numel()].view(x.shape).copy_(x)
        wide = torch.full((40, 29), math.nan, dtype=dtype)
        wide[:, offset % 16 : offset % 16 + 13] = x
        for other in (
            moved,
            x.T.contiguous().T,
            wide[:, offset % 16 : offset % 16 + 13],
            x.flip(0).contiguous().flip(0),
        ):
            found = network.weighted_gradient(theta, other, y, clipped_to(CLIP))
            assert torch.equal(found.total, wanted.total)
            assert torch.equal(found.norms, wanted.norms)
            assert torch.equal(found.losses, wanted.losses)


# Exact sums: parts are never lengthened.


def rules(labels: Tensor, clip: float) -> dict[str, Weigh]:
    return {
        "clipped": clipped_to(clip),
        "negative": clipped_after(lambda losses: -losses, clip),
        "huge": clipped_after(lambda losses: torch.full_like(losses, -1e300), clip),
        "subnormal": clipped_after(lambda losses: torch.full_like(losses, 5e-324), clip),
        "no numbers": clipped_after(lambda losses: losses * math.nan, clip),
        "by class": shrunk_by_class(clipped_to(clip), (1.0, 0.3, 7.0), labels, 3),
    }


@pytest.mark.parametrize("clip", [1e-90, 0.1, *(pytest.param(c, marks=pytest.mark.slow) for c in (2e-100, 1.0, 1e300))])
@pytest.mark.parametrize("bits", ALL_BITS)
def test_no_part_is_longer_than_the_clip(bits: Bits, clip: float) -> None:
    for network, shape in ((perceptron(9, (5,), 3, bits), (9,)), (convolutional(bits), (1, 9, 9))):
        x, y = extremes(16, shape)[[0, 3, 6, 9, 11, 12, 15]], labels_of(7, 3)
        theta = numbered(network.layout.size, seed=1) * 3
        for i in range(len(x)):
            for name, weigh in rules(y[[i]], clip).items():
                part = network.weighted_gradient(theta, x[[i]], y[[i]], weigh).total
                assert _length(part, clip) <= clip, name
        for name, weigh in rules(y, clip).items():
            found = network.weighted_gradient(theta, x, y, weigh)
            assert torch.isfinite(found.total).all(), name
            assert found.largest_part <= clip, name
            assert _length(found.total, clip) <= len(x) * clip, name


def _length(part: Tensor, clip: float) -> float:
    """The norm, computed in units of the clip so that squares stay in range."""
    return distance(part / clip, torch.zeros_like(part)) * clip


def test_cutting_shortens_every_number_of_a_part() -> None:
    """Entry by entry: the part that is added is of the same sign as the gradient and not larger."""
    for bits in SUMMED_EXACTLY:
        network = convolutional(bits)
        theta, x, y = numbered(network.layout.size, seed=1), numbered(12, 1, 9, 9, seed=2), labels_of(12, 3)
        for i in range(len(x)):
            found = network.weighted_gradient(theta, x[[i]], y[[i]], clipped_to(CLIP))
            _, residual = exact.cross_entropy(network.logits(theta, x[[i]]), y[[i]])
            true = network.score_gradients(theta, x[[i]], residual)[0] * found.coefficients
            weights = sum(math.prod(shape) for shape in network.layout.shapes[:3])  # own gradients, not outer products
            assert (found.total[:weights].abs() <= true[:weights].abs()).all()
            assert (found.total[:weights] * true[:weights] >= 0).all()
            assert (found.total - true).abs().max() <= CLIP / 50


def test_a_rule_tells_its_bound() -> None:
    y = torch.zeros(2, dtype=torch.int64)
    for weigh in rules(y, CLIP).values():
        assert bound_of(weigh) == clipped_to(CLIP).reach
    assert bound_of(lambda norms, losses: norms) is None


# Planted bugs: each of them is noticed by the checks above.


@dataclass(frozen=True)
class Broken(NetLayer):
    """A fully connected layer that computes its values by `compute(x, weight, bias)`, off the grid."""

    inputs: int
    outputs: int
    compute: Callable[[Tensor, Tensor, Tensor], Tensor]
    weight: str = "0.weight"
    bias: str = "0.bias"
    parameters: tuple[str, ...] = ("0.weight", "0.bias")

    def prepare(self, arithmetic: Arithmetic, parameters: Any) -> Any:
        return Prepared((parameters[self.weight],), 1.0, parameters[self.bias])

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        assert prepared is not None
        a = inputs[0]
        assert isinstance(a, Rows)
        x = a.values()
        values = self.compute(x, prepared.weight[0], prepared.bias).to(arithmetic.dtype)

        def pull(delta: Tensor) -> tuple[tuple[Tensor | None, ...], Part]:
            return (None,), layers.Outer(arithmetic, a, a, arithmetic.grid(delta), True, False)

        return values, pull


def _broken_net(compute: Callable[[Tensor, Tensor, Tensor], Tensor], features: int) -> Network:
    layout = ParameterLayout(("0.weight", "0.bias", "1.weight", "1.bias"), ((16, features), (16,), (2, 16), (2,)))
    layer = Broken(features, 16, compute)
    return Network(chain(layer, Relu(), Linear(16, 2, "1.weight", "1.bias")), layout, 2, Bits.LARGEST)


def _noticed(network: Network, shape: tuple[int, ...], weigh: Weigh | None = None) -> bool:
    """Whether the check finds a difference, on random records and batches of many sizes."""
    x, y = numbered(16, *shape, seed=11), labels_of(16, network.classes)
    theta = numbered(network.layout.size, seed=12)
    first = network._nodes[0].layer
    if isinstance(first, Broken):  # record 0 sits at the kinks of what the layer computes of it alone
        parameters, x0 = network.layout.split(theta), rows_of(network, x[:1]).values()
        zero = torch.zeros(first.outputs, dtype=DOUBLE)
        parameters[first.bias].copy_(-first.compute(x0, parameters[first.weight], zero)[0])
    step = everything(network, theta, weigh or clipped_to(CLIP), factors=False)
    return first_difference(step, x, y, some_batches(16, (2, 3, 5, 17, 64, 67, 400))) is not None


def _exact_product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    arithmetic = Arithmetic(Bits.LARGEST.number(128), InDouble())
    rows, ((whole,), unit) = arithmetic.grid(x), arithmetic.public(weight)
    return layers.scaled(arithmetic, rows.whole @ whole.T, arithmetic.scale(rows.unit, unit), bias)


def _by_vmap(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: functional.linear(row, weight, bias))(x)


def _padded_to_the_longest(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Records are sequences that end with their last positive number; sums run over the batch's longest."""
    places = torch.arange(1, x.shape[1] + 1)
    lengths = ((x > 0.9) * places).amax(dim=1)
    longest = max(1, int(lengths.max()))
    kept = (x / 3.0 * (places <= lengths[:, None]))[:, :longest]
    return (kept.sum(dim=1, keepdim=True) * weight[:, 0]) + bias


@pytest.mark.parametrize(
    ("compute", "features", "noticed"),
    [
        (_exact_product, 101, False),
        (lambda x, weight, bias: torch.addmm(bias, x, weight.T), 101, True),
        (_by_vmap, 101, True),
        (_padded_to_the_longest, 101, True),
    ],
    ids=["control", "bias inside a product off the grid", "vmap as alone", "padded to the batch's longest"],
)
def test_products_off_the_grid_are_noticed(
    compute: Callable[[Tensor, Tensor, Tensor], Tensor], features: int, noticed: bool
) -> None:
    assert _noticed(_broken_net(compute, features), (features,)) is noticed


@pytest.mark.parametrize("library", [False, True])
def test_a_librarys_sigmoid_in_a_weight_is_noticed(library: bool) -> None:
    sigmoid = torch.sigmoid if library else exact.sigmoid
    weigh: Weigh = lambda norms, losses: sigmoid(losses * 3.0 - norms)  # noqa: E731
    assert _noticed(perceptron(13, (6,), 2, Bits.THIRTEEN), (13,), weigh) is library


@pytest.mark.parametrize("bits", ALL_BITS)
def test_a_scale_of_the_batch_is_noticed(monkeypatch: pytest.MonkeyPatch, bits: Bits) -> None:
    network, honest = perceptron(13, (6,), 2, bits), Arithmetic.grid
    assert not _noticed(network, (13,))

    def of_the_batch(self: Arithmetic, values: Tensor) -> Rows:
        rows = honest(self, values.flatten()[None])
        return Rows(rows.whole.view(values.shape), rows.unit.expand(len(values)).contiguous())

    monkeypatch.setattr(Arithmetic, "grid", of_the_batch)
    assert _noticed(network, (13,))


def test_a_librarys_norm_of_own_gradients_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    network = convolutional(Bits.LARGEST)
    assert not _noticed(network, (1, 9, 9))

    def as_stored(values: Tensor) -> Tensor:
        """Of gradients that are stored parameter by parameter, as a grouped convolution leaves them."""
        return torch.linalg.vector_norm(values.to(DOUBLE).flatten(1).T.contiguous(), dim=0).square()

    monkeypatch.setattr(layers, "folded_squares", as_stored)
    assert _noticed(network, (1, 9, 9))


def test_norms_use_correctly_rounded_roots() -> None:
    values = numbered(200_000, seed=1).abs() * 100
    found = exact.root(values)
    for value, one in zip(values.tolist()[:2000], found.tolist()[:2000], strict=True):
        assert one == math.sqrt(value)
    assert torch.equal(found, torch.from_numpy(np.array([math.sqrt(value) for value in values.tolist()])))
    if torch.equal(torch.sqrt(values), found):
        pytest.skip("this build of torch rounds square roots correctly, so there is nothing to tell apart")
    assert int((torch.sqrt(values) != found).sum()) > 0
