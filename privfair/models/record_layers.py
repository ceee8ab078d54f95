"""Layers that are covered in addition to `privfair.models.layers`: curves, means, norms, sums and shapes.

None of them multiplies two rows with each other. Sums run over numbers that were put on a grid first
(`exact.summable`); everything else is one float64 operation per number. What leaves a layer is clamped, so it is
finite, whatever went in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from calibrate.arrays import Floats
from privfair.models.exact import (
    DOUBLE,
    LARGEST_ACTIVATION,
    SMALLEST_TOP,
    Arithmetic,
    Rows,
    clamped,
    each,
    folded_squares,
    probabilities_of,
    row_sum,
    sigmoid,
    summable,
    tanh,
    through_softmax,
)
from privfair.models.layers import NetLayer, Outer, Own, Part, Prepared, Pull, Values, Weighted, cut_to_steps, numbers

# Between layers, numbers are of the working type; here they are float64.


def wide(values: Values) -> Floats:
    """The numbers in float64."""
    tensor = values.values() if isinstance(values, Rows) else values
    found: Floats = tensor.numpy().astype(np.float64, copy=False)
    return found


def narrow(arithmetic: Arithmetic, values: Floats) -> Tensor:
    """The numbers in the working type, clamped."""
    return torch.from_numpy(np.clip(values, -LARGEST_ACTIVATION, LARGEST_ACTIVATION)).to(arithmetic.dtype)


def unscaled(values: Floats) -> Rows:
    """A record's own sums, as a part of its gradient."""
    return Rows(torch.from_numpy(values), torch.ones(len(values), dtype=DOUBLE))


# Number by number.

Curve = Callable[[Floats], tuple[Floats, Floats]]
"""From numbers to a function's values and slopes."""


def leaky(slope: float) -> Curve:
    """x above zero, `slope` times x elsewhere."""
    return lambda x: (np.where(x > 0, x, x * slope), np.where(x > 0, 1.0, slope))


def logistic(x: Floats) -> tuple[Floats, Floats]:
    """1 / (1 + exp(-x))."""
    s = sigmoid(torch.from_numpy(x)).numpy()
    return s, s * (1.0 - s)


def silu(x: Floats) -> tuple[Floats, Floats]:
    """x / (1 + exp(-x))."""
    s = sigmoid(torch.from_numpy(x)).numpy()
    return x * s, s * (1.0 + x * (1.0 - s))


def gelu(x: Floats) -> tuple[Floats, Floats]:
    """The approximation of x Phi(x) by a hyperbolic tangent."""
    factor, cube = math.sqrt(2 / math.pi), 0.044715
    square = x * x
    t = tanh(torch.from_numpy(factor * (x + cube * (square * x)))).numpy()
    inner = factor * (1.0 + (3 * cube) * square)
    return 0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * ((1.0 - t * t) * inner)


@final
@dataclass(frozen=True)
class Curved(NetLayer):
    """A function of single numbers."""

    curve: Curve

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        values, slopes = self.curve(wide(inputs[0]))
        return narrow(arithmetic, values), lambda delta: ((narrow(arithmetic, wide(delta) * slopes),), None)


@final
@dataclass(frozen=True)
class Add(NetLayer):
    """The sum of two values of the same shape."""

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        def pull(delta: Tensor) -> tuple[tuple[Tensor | None, ...], Part | None]:
            back = narrow(arithmetic, wide(delta))
            return (back, back), None

        return narrow(arithmetic, wide(inputs[0]) + wide(inputs[1])), pull


# Shapes.


@final
@dataclass(frozen=True)
class Permute(NetLayer):
    """The dimensions in another order; the first stays."""

    order: tuple[int, ...]

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        x = inputs[0]
        if isinstance(x, Rows):
            return Rows(x.whole.permute(self.order), x.unit, x.squares), lambda delta: ((None,), None)
        back = tuple(self.order.index(place) for place in range(len(self.order)))
        return x.permute(self.order), lambda delta: ((delta.permute(back),), None)


@final
@dataclass(frozen=True)
class Select(NetLayer):
    """Some entries of each record."""

    index: tuple[int | slice, ...]

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        x, index = numbers(arithmetic, inputs[0]), (slice(None), *self.index)

        def pull(delta: Tensor) -> tuple[tuple[Tensor | None, ...], Part | None]:
            back = torch.zeros(x.shape, dtype=delta.dtype)
            back[index] = delta
            return (back,), None

        return x[index], pull


# Means.


@final
@dataclass(frozen=True)
class Mean(NetLayer):
    """The mean over some dimensions, none of them the records'."""

    dimensions: tuple[int, ...]
    keep: bool

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        x = wide(inputs[0])
        over = math.prod(x.shape[place] for place in self.dimensions)
        rest = [place for place in range(x.ndim) if place not in self.dimensions]
        sums = row_sum(x.transpose(*rest, *self.dimensions).reshape(*(x.shape[place] for place in rest), over))
        kept = [1 if place in self.dimensions else size for place, size in enumerate(x.shape)]
        values = (sums / over).reshape(kept if self.keep else sums.shape[:-1])

        def pull(delta: Tensor) -> tuple[tuple[Tensor | None, ...], Part | None]:
            return (narrow(arithmetic, np.broadcast_to((wide(delta) / over).reshape(kept), x.shape)),), None

        return narrow(arithmetic, values), pull


@final
@dataclass(frozen=True)
class AvgPool2d(NetLayer):
    """The mean of each window: a sum on a grid and one division."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    count_padding: bool

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        x = wide(inputs[0])
        form, terms = (self.kernel, self.stride, self.padding, False, True, 1), math.prod(self.kernel)
        sums = functional.avg_pool2d(_on_fine_grid(x, terms), *form)
        ones = torch.ones(1, 1, *x.shape[2:], dtype=DOUBLE)
        counts = np.full(1, float(terms)) if self.count_padding else functional.avg_pool2d(ones, *form).numpy()

        def pull(delta: Tensor) -> tuple[tuple[Tensor | None, ...], Part | None]:
            d = _on_fine_grid(wide(delta) / counts, terms)  # windows may overlap
            back = torch.ops.aten.avg_pool2d_backward(d, torch.empty(x.shape, dtype=DOUBLE), *form)
            return (narrow(arithmetic, back.numpy()),), None

        return narrow(arithmetic, sums.numpy() / counts), pull


def _on_fine_grid(values: Floats, terms: int) -> Tensor:
    """Each record rounded to a grid on which sums of `terms` of its numbers are exact."""
    return torch.from_numpy(summable(values.reshape(len(values), -1), terms).reshape(values.shape))


# Normalisation.


@final
@dataclass(frozen=True)
class RowNorm(Weighted):
    """Rows of a record less their mean, divided by their standard deviation; then a factor and an offset.

    A layer norm's rows are the positions, and its parameters run along a row. A group norm's rows are the groups, and
    its parameters run along the channels.
    """

    rows: int
    view: tuple[int, int]
    """One record as its parameters see it."""
    along: int
    """The dimension of (records, *view) that the parameters run along: 1 or 2."""
    shape: tuple[int, ...]
    """Of the parameters."""
    epsilon: float
    weight: str | None
    bias: str | None

    @property
    def held(self) -> int:
        return 4 * math.prod(self.view)

    def prepare(self, arithmetic: Arithmetic, parameters: Mapping[str, Tensor]) -> Prepared:
        weight = torch.ones(1, dtype=DOUBLE) if self.weight is None else parameters[self.weight]
        return Prepared((weight,), 1.0, None if self.bias is None else parameters[self.bias])

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        assert prepared is not None
        x = wide(inputs[0])
        in_rows, viewed = (len(x), self.rows, -1), (len(x), *self.view)
        count = math.prod(self.view) // self.rows
        centred = x.reshape(in_rows)
        centred = centred - row_sum(centred) / count
        spread = np.sqrt(row_sum(centred * centred) / count + self.epsilon)
        spread = np.maximum(spread, SMALLEST_TOP)
        normed = centred / spread
        weight = self._broadcastable(prepared.weight[0])
        values = normed.reshape(viewed) * weight
        if prepared.bias is not None:
            values = values + self._broadcastable(prepared.bias)

        def pull(delta: Tensor) -> tuple[tuple[Tensor | None, ...], Part | None]:
            d = wide(delta).reshape(viewed)
            g = (d * weight).reshape(in_rows)
            back = (g - row_sum(g) / count - normed * (row_sum(g * normed) / count)) / spread
            parts = (d * normed.reshape(viewed), d)
            wanted = (part for part, name in zip(parts, (self.weight, self.bias), strict=True) if name is not None)
            own = tuple(self._over_the_rest(part) for part in wanted)
            return (narrow(arithmetic, back.reshape(x.shape)),), Own(own) if own else None

        return narrow(arithmetic, values.reshape(x.shape)), pull

    def _broadcastable(self, parameter: Tensor) -> Floats:
        """A parameter in a shape that meets (records, *view)."""
        flat: Floats = parameter.numpy().reshape(-1)
        return flat[:, None] if self.along == 1 else flat

    def _over_the_rest(self, part: Floats) -> Rows:
        """The sum over the dimension that the parameters do not run along."""
        sums = row_sum(part if self.along == 1 else part.swapaxes(1, 2))
        return unscaled(sums.reshape(len(part), *self.shape))


# Sequences: embedded tokens, learned offsets such as positions, and attention.


@final
@dataclass(frozen=True)
class Embedding(Weighted):
    """A row of a table for each token; tokens outside the table are zeros and contribute nothing."""

    tokens: int
    width: int
    positions: int
    """Tokens in one record."""
    weight: str
    padding: int | None = None
    """A token whose row is not trained."""

    bias = None

    @property
    def held(self) -> int:
        return self.positions * (3 * self.width + 2 * self.positions)

    def prepare(self, arithmetic: Arithmetic, parameters: Mapping[str, Tensor]) -> Prepared:
        return Prepared((parameters[self.weight].to(arithmetic.dtype),), 1.0, None)

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        assert prepared is not None
        assert isinstance(inputs[0], Rows)
        tokens = inputs[0].whole.reshape(len(inputs[0]), -1)
        known = (tokens >= 0) & (tokens < self.tokens)
        places = torch.where(known, tokens, 0)
        rows = prepared.weight[0][places]
        values = torch.where(known[:, :, None], rows, torch.zeros((), dtype=rows.dtype))

        def pull(delta: Tensor) -> tuple[tuple[Tensor | None, ...], Part | None]:
            return (None,), self._part(torch.where(known, tokens, -1), wide(delta))

        return values.view(*inputs[0].whole.shape, self.width), pull

    def _part(self, tokens: Tensor, delta: Floats) -> Part:
        """Where a record has a token several times, the first place holds the sum: of numbers on a grid, so exact."""
        same = tokens[:, :, None] == tokens[:, None, :]
        first = ~same.tril(-1).any(dim=2) & (tokens >= 0)
        if self.padding is not None:
            first &= tokens != self.padding
        fine = torch.from_numpy(summable(delta.reshape(len(delta), -1), self.positions)).view(
            len(delta), -1, self.width
        )
        sums = torch.bmm((same & first[:, :, None]).to(DOUBLE), fine)
        return _AtTokens(torch.where(first, tokens, 0), sums, self.tokens)


@final
@dataclass(frozen=True, eq=False)
class _AtTokens:
    """Gradients in rows of a table: each record's tokens (records, positions), and their rows, zero if repeated."""

    tokens: Tensor
    rows: Tensor
    table: int

    def squared_norms(self, exactly: bool) -> Tensor:
        return folded_squares(self.rows)

    def add(self, places: Sequence[Tensor], coefficients: Tensor, bound: float | None) -> None:
        tokens = self.tokens.flatten()
        if bound is None:
            places[0].index_add_(0, tokens, (self.rows * each(coefficients, self.rows)).flatten(0, 1))
            return
        cut, step = cut_to_steps(self.rows, coefficients, bound)
        sums = torch.zeros(places[0].shape, dtype=DOUBLE).index_add_(0, tokens, cut.to(DOUBLE).flatten(0, 1))
        places[0].add_(sums, alpha=step)

    def gradients(self) -> tuple[Tensor, ...]:
        found = torch.zeros(len(self.tokens), self.table, self.rows.shape[2], dtype=DOUBLE)
        records = torch.arange(len(self.tokens))[:, None].expand_as(self.tokens)
        return (found.index_put_((records, self.tokens), self.rows, accumulate=True),)


@final
@dataclass(frozen=True)
class Offset(Weighted):
    """A parameter of a record's shape, added to every record: learned positions, for example."""

    shape: tuple[int, ...]
    """Of the parameter; as many numbers as a record has."""
    weight: str
    bias = None

    def prepare(self, arithmetic: Arithmetic, parameters: Mapping[str, Tensor]) -> Prepared:
        return Prepared((parameters[self.weight],), 1.0, None)

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        assert prepared is not None
        x = wide(inputs[0])

        def pull(delta: Tensor) -> tuple[tuple[Tensor | None, ...], Part | None]:
            back = narrow(arithmetic, wide(delta))
            return (back,), Own((unscaled(wide(back).reshape(len(x), *self.shape)),))

        return narrow(arithmetic, x + prepared.weight[0].numpy().reshape(x.shape[1:])), pull


@final
@dataclass(frozen=True)
class Attention(NetLayer):
    """softmax(q k^T / sqrt(d)) v of each head, for (positions, queries and keys and values); the heads in a row.

    Every product puts both factors on grids, one for each record and head.
    """

    heads: int
    positions: int
    width: int
    """Of all heads together."""

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.width // self.heads, self.positions)

    @property
    def held(self) -> int:
        return self.positions * (6 * self.heads * self.positions + 12 * self.width)

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        x = wide(inputs[0]).reshape(-1, self.positions, 3, self.heads, self.width // self.heads)
        q, k, v = (arithmetic.grid(torch.from_numpy(self._by_head(x[:, :, place]))) for place in range(3))
        share = 1.0 / math.sqrt(self.width // self.heads)
        weights = probabilities_of(_product(arithmetic, q, _turned(k)) * share)
        w = arithmetic.grid(weights)

        def pull(delta: Tensor) -> tuple[tuple[Tensor | None, ...], Part | None]:
            by_head = self._by_head(wide(delta).reshape(len(x), self.positions, self.heads, -1))
            d = arithmetic.grid(torch.from_numpy(by_head))
            into = through_softmax(weights, _product(arithmetic, d, _turned(v))) * share
            s = arithmetic.grid(narrow(arithmetic, into.numpy()))
            backs = (
                _product(arithmetic, s, k),
                _product(arithmetic, _turned(s), q),
                _product(arithmetic, _turned(w), d),
            )
            joined = np.stack([self._by_position(back) for back in backs], axis=2)
            return (narrow(arithmetic, joined.reshape(len(x), self.positions, -1)),), None

        values = self._by_position(_product(arithmetic, w, v))
        return narrow(arithmetic, values.reshape(len(x), self.positions, -1)), pull

    def _by_head(self, values: Floats) -> Floats:
        """(records, positions, heads, d) as (records and heads, positions, d)."""
        return np.ascontiguousarray(values.swapaxes(1, 2)).reshape(-1, self.positions, values.shape[-1])

    def _by_position(self, values: Tensor) -> Floats:
        """Back again."""
        found: Floats = values.numpy().reshape(-1, self.heads, self.positions, values.shape[-1]).swapaxes(1, 2)
        return found


def _product(arithmetic: Arithmetic, left: Rows, right: Rows) -> Tensor:
    """Each record's own product, in float64; units are powers of two."""
    whole = arithmetic.batched(left.whole, right.whole).to(DOUBLE)
    return whole * each(left.unit * right.unit, whole)


def _turned(rows: Rows) -> Rows:
    return Rows(rows.whole.transpose(1, 2), rows.unit)


# Layers in another guise.


@dataclass(frozen=True, eq=False)
class _Guise(NetLayer):
    inner: NetLayer

    @property
    def parameters(self) -> tuple[str, ...]:
        return self.inner.parameters

    @property
    def widths(self) -> tuple[int, ...]:
        return self.inner.widths

    @property
    def held(self) -> int:
        return self.inner.held

    def prepare(self, arithmetic: Arithmetic, parameters: Mapping[str, Tensor]) -> Prepared | None:
        return self.inner.prepare(arithmetic, parameters)


@final
class OneRowHigh(_Guise):
    """A layer of images on sequences (channels, length): images of one row."""

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        x = inputs[0]
        image = x.shaped(x.whole.shape[1], 1, -1) if isinstance(x, Rows) else x.unsqueeze(2)
        values, inner_pull = self.inner.forward(arithmetic, prepared, image)
        assert isinstance(values, Tensor)

        def pull(delta: Tensor) -> tuple[tuple[Tensor | None, ...], Part | None]:
            (back,), part = inner_pull(delta.unsqueeze(2))
            if isinstance(part, Own):
                weight, *rest = part.parts
                part = Own((Rows(weight.whole.squeeze(-2), weight.unit), *rest))
            return (None if back is None else back.squeeze(2),), part

        return values.squeeze(2), pull


@final
@dataclass(frozen=True, eq=False)
class Frozen(_Guise):
    """A layer some of whose parameters are constants: gradients pass through it, and it has a part for the others."""

    constants: Mapping[str, Tensor]

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(name for name in self.inner.parameters if name not in self.constants)

    def prepare(self, arithmetic: Arithmetic, parameters: Mapping[str, Tensor]) -> Prepared | None:
        constants = {name: clamped(value) for name, value in self.constants.items()}
        return super().prepare(arithmetic, {**parameters, **constants})

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        values, inner_pull = self.inner.forward(arithmetic, prepared, *inputs)
        kept = tuple(name not in self.constants for name in self.inner.parameters)

        def pull(delta: Tensor) -> tuple[tuple[Tensor | None, ...], Part | None]:
            backs, part = inner_pull(delta)
            return backs, _some_of(part, kept) if part is not None and any(kept) else None

        return values, pull


def _some_of(part: Part, kept: tuple[bool, ...]) -> Part:
    """The gradients in some of a layer's parameters."""
    match part:
        case Outer():
            return replace(part, bias=False) if kept[0] else Own((part.came_back,))
        case Own():
            return Own(tuple(one for one, keep in zip(part.parts, kept, strict=True) if keep))
        case _:
            raise TypeError(f"{type(part).__name__} belongs to one parameter")
