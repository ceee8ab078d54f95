"""The layers that are covered: each one's forward and backward pass as functions of one record.

A layer puts the factors of every product on their grids and does everything else number by number
(`privfair.models.exact`). Its forward pass returns the values and a function that pulls a gradient back: to what went
in, and to the record's own gradient in the layer's parameters (`Part`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from privfair.models.exact import DOUBLE, LARGEST_CUT, Arithmetic, Factor, Rows, each, folded_squares, squares, tanh
from privfair.rounding import blocks_of

# What one layer adds to the records' gradients: measured record by record, added up with coefficients.

_SHARE = 1.0 - 2.0**-20
"""Before a part is cut: more than its factors can have gained by rounding."""
_OUTER_ROOM = {7: 63.5, 13: 31.5}
"""The largest of a row's upper bits is at least this, so that no cut part passes `LARGEST_CUT`."""
_PATCHES_AT_ONCE, _CUT_AT_ONCE = 2**19, 2**17
"""Numbers that are worked on at once, so that they stay in the processor's cache."""
_STEPS = 2.0**28
"""A clip in steps of the public grid: sums over 2^25 records stay below 2^53."""
MOST_EXACT = 2**25
"""Records in one exact sum."""


class Part(Protocol):
    """The records' gradients in one layer's parameters."""

    def squared_norms(self, exactly: bool) -> Tensor:
        """Each record's squared norm; of what `add` adds up if sums are exact."""
        ...

    def add(self, places: Sequence[Tensor], coefficients: Tensor, bound: float | None) -> None:
        """Add sum_i c_i grad_i to the parameters' places.

        With a `bound` on |c_i grad_i| every part is cut toward zero to a grid that follows from the bound alone, and
        the sum does not round; without one it is a float64 sum.
        """
        ...

    def gradients(self) -> tuple[Tensor, ...]:
        """Each record's own gradients, (records, *shape), float64."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Outer:
    """Gradients back_i in_i^T of a fully connected layer, and back_i of its bias."""

    arithmetic: Arithmetic
    went_in: Rows
    upper: Rows
    """The upper bits of what went in, which enter exact sums."""
    came_back: Rows
    bias: bool
    across: bool

    def squared_norms(self, exactly: bool) -> Tensor:
        kept = self.went_in.squares if exactly == self.arithmetic.sums_exactly else None
        inputs = squares(self.upper if exactly else self.went_in) if kept is None else kept
        return squares(self.came_back) * (inputs + 1.0 if self.bias else inputs)

    def add(self, places: Sequence[Tensor], coefficients: Tensor, bound: float | None) -> None:
        back, shares = self.came_back.whole, coefficients * self.came_back.unit
        place = places[0].T if self.across else places[0]
        if bound is None:
            back, left = back.to(DOUBLE), self.went_in
            place.add_(torch.mm((back * (shares * left.unit)[:, None]).T, left.whole.to(DOUBLE)))
            if self.bias:
                places[1].add_((back * shares[:, None]).sum(dim=0))
            return
        left = self.upper
        step = _step(bound / (_OUTER_ROOM[self.arithmetic.bits] * LARGEST_CUT))
        own = (shares * left.unit * (_SHARE / step)).clamp_(-LARGEST_CUT, LARGEST_CUT).to(back.dtype)
        cut = (back * own[:, None]).clamp_(-LARGEST_CUT, LARGEST_CUT)
        self.arithmetic.products.add_outer(place, cut, left.whole, step)
        if self.bias:
            _add_cut(places[1], back, shares, bound)

    def gradients(self) -> tuple[Tensor, ...]:
        back, left = self.came_back.values(), self.went_in.values()
        weight = left[:, :, None] * back[:, None, :] if self.across else back[:, :, None] * left[:, None, :]
        return (weight, back) if self.bias else (weight,)


@final
@dataclass(frozen=True, eq=False)
class Own:
    """Gradients that are formed record by record, one `Rows` for each parameter: sums over positions."""

    parts: tuple[Rows, ...]

    def squared_norms(self, exactly: bool) -> Tensor:
        first, *rest = (
            folded_squares(part.whole) * part.unit.square() if part.squares is None else part.squares
            for part in self.parts
        )
        return sum(rest, start=first)

    def add(self, places: Sequence[Tensor], coefficients: Tensor, bound: float | None) -> None:
        for part, place in zip(self.parts, places, strict=True):
            shares = coefficients * part.unit
            if bound is None:
                place.add_((shares @ part.whole.to(DOUBLE).flatten(1)).view(place.shape))
            else:
                _add_cut(place, part.whole, shares, bound)

    def gradients(self) -> tuple[Tensor, ...]:
        return tuple(part.values() for part in self.parts)


def _step(least: float) -> float:
    """The power of two at or above this: what is added up in such steps is a float64 number, steps included."""
    mantissa, exponent = math.frexp(least)
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def cut_to_steps(whole: Tensor, shares: Tensor, bound: float) -> tuple[Tensor, float]:
    """The records' numbers times their shares, cut toward zero to whole steps; the step follows from the bound."""
    step = _step(bound / _STEPS)
    cut = (whole.to(DOUBLE) * each(shares * (_SHARE / step), whole)).clamp_(-_STEPS, _STEPS)
    np.trunc(cut.numpy(), out=cut.numpy())
    return cut, step


def _add_cut(place: Tensor, whole: Tensor, shares: Tensor, bound: float) -> None:
    """Add the records' numbers times their shares, each cut toward zero to a step that follows from the bound."""
    for some in blocks_of(len(whole), max(1, _CUT_AT_ONCE // max(1, place.numel()))):
        cut, step = cut_to_steps(whole[some], shares[some], bound)
        place.add_(torch.from_numpy(np.add.reduce(cut.numpy(), axis=0)), alpha=step)


# The layers.

Values = Tensor | Rows
"""Of all records: numbers in the working type, or the features, which are on their grids already."""
Pull = Callable[[Tensor], tuple[tuple[Tensor | None, ...], Part | None]]
"""From the gradient in a layer's values to the gradient in each of its inputs, and to the layer's part."""


@final
@dataclass(frozen=True, eq=False)
class Prepared:
    """A layer's parameters, finite and clamped; a weight of products is a factor in a `unit`."""

    weight: Factor
    unit: float
    bias: Tensor | None


class NetLayer(ABC):
    """One operation of a network; a base class with the answers of a layer without parameters and products."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its trainable parameters, in the order in which its part has them."""
        return ()

    @property
    def widths(self) -> tuple[int, ...]:
        """Over how many terms its products run, forwards, backwards, and over positions."""
        return ()

    @property
    def held(self) -> int:
        """Numbers that it holds per record beyond its values; 0 where records may be taken thousands at a time."""
        return 0

    def prepare(self, arithmetic: Arithmetic, parameters: Mapping[str, Tensor]) -> Prepared | None:
        """What all records share."""
        return None

    @abstractmethod
    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        """Its values, and what pulls a gradient back."""


class Weighted(NetLayer):
    """A layer with a weight and a bias, each of which it may lack; a base class."""

    weight: str | None
    bias: str | None

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(name for name in (self.weight, self.bias) if name is not None)


def on_grid(arithmetic: Arithmetic, values: Values) -> Rows:
    """A factor of a product."""
    return values if isinstance(values, Rows) else arithmetic.grid(values)


def numbers(arithmetic: Arithmetic, values: Values) -> Tensor:
    """What a number-by-number operation works on."""
    return values.values(arithmetic.dtype) if isinstance(values, Rows) else values


@final
@dataclass(frozen=True)
class Linear(Weighted):
    """x W^T + b over the last dimension; dimensions between record and features are positions."""

    inputs: int
    outputs: int
    weight: str
    bias: str | None
    positions: int = 1
    across: bool = False
    """Whether the weight is held as (inputs, outputs)."""

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.inputs, self.outputs, self.positions)

    @property
    def held(self) -> int:
        return 0 if self.positions == 1 else self.inputs * self.outputs

    def prepare(self, arithmetic: Arithmetic, parameters: Mapping[str, Tensor]) -> Prepared:
        bias = None if self.bias is None else parameters[self.bias].to(arithmetic.dtype)
        weight = parameters[self.weight]
        return Prepared(*arithmetic.public(weight.T if self.across else weight), bias)

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        assert prepared is not None
        weight, unit, bias = prepared.weight, prepared.unit, prepared.bias
        a = on_grid(arithmetic, inputs[0])
        shape = (*a.whole.shape[:-1], self.outputs)
        factor = arithmetic.products.split(a.whole.reshape(-1, self.inputs))
        product = arithmetic.products.product(factor, tuple(one.T for one in weight))
        values = scaled(arithmetic, product.view(shape), arithmetic.scale(a.unit, unit), bias)

        def pull(delta: Tensor) -> tuple[tuple[Tensor | None, ...], Part]:
            d = arithmetic.grid(delta)
            part: Part
            if a.whole.ndim == 2:
                part = Outer(arithmetic, a, arithmetic.high(a, factor), d, self.bias is not None, self.across)
            else:
                part = summed_over_positions(arithmetic, a, d, self.bias is not None)
            if isinstance(inputs[0], Rows):
                return (None,), part
            came_back = arithmetic.products.split(d.whole.reshape(-1, self.outputs))
            back = arithmetic.products.product(came_back, weight)
            return (scaled(arithmetic, back.view(a.whole.shape), arithmetic.scale(d.unit, unit)),), part

        return values, pull


def scaled(arithmetic: Arithmetic, product: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """An exact product in its units, plus a bias. The scale is a power of two, so one rounding even if it is fused."""
    whole = product.to(arithmetic.dtype)
    if bias is None:
        return whole.mul_(each(scale, whole))
    return torch.addcmul(bias, whole, each(scale, whole), out=whole)


def summed_over_positions(arithmetic: Arithmetic, a: Rows, d: Rows, bias: bool) -> Own:
    """sum_t d_t a_t^T of each record, and sum_t d_t: (records, positions, ...) on grids."""
    left, right = a.whole.flatten(1, -2), d.whole.flatten(1, -2)
    weight = Rows(arithmetic.batched(right.transpose(1, 2), left), a.unit * d.unit)
    return Own((weight, Rows(right.to(DOUBLE).sum(dim=1), d.unit))) if bias else Own((weight,))


@final
@dataclass(frozen=True)
class Conv2d(Weighted):
    """A convolution of images (channels, height, width) with zero padding, as a product over patches."""

    shape: tuple[int, int, int]
    """Of one input."""
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    weight: str
    bias: str | None

    @property
    def patch(self) -> int:
        return self.shape[0] * math.prod(self.kernel)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the output."""
        high, wide = (
            (side + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for side, pad, dilation, kernel, stride in zip(
                self.shape[1:], self.padding, self.dilation, self.kernel, self.stride, strict=True
            )
        )
        return high, wide

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.patch, math.prod(self.size), self.outputs * math.prod(self.kernel))

    @property
    def held(self) -> int:
        return self.patch * self.outputs

    def prepare(self, arithmetic: Arithmetic, parameters: Mapping[str, Tensor]) -> Prepared:
        bias = None if self.bias is None else parameters[self.bias].to(arithmetic.dtype)
        images = parameters[self.weight].reshape(self.outputs, self.shape[0], *self.kernel)
        channels_last = images.permute(0, 2, 3, 1)
        return Prepared(*arithmetic.public(channels_last.reshape(self.outputs, -1)), bias)

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        assert prepared is not None
        weight, unit, bias = prepared.weight, prepared.unit, prepared.bias
        a = on_grid(arithmetic, inputs[0])
        positions, scale = math.prod(self.size), arithmetic.scale(a.unit, unit)
        images = arithmetic.products.split(a.whole.reshape(-1, *self.shape))
        frames = [self._frame(len(a), one.dtype) for one in images]
        for frame, one in zip(frames, images, strict=True):
            self._inside(frame).copy_(one)
        blocks = tuple(blocks_of(len(a), max(1, _PATCHES_AT_ONCE // (self.patch * max(positions, self.outputs)))))
        rows = torch.empty(len(a), positions, self.outputs, dtype=arithmetic.dtype)
        for some in blocks:
            patches = tuple(self._patches(one[some]).view(-1, self.patch) for one in frames)
            product = arithmetic.products.product(patches, tuple(one.T for one in weight))
            rows[some] = scaled(arithmetic, product.view(-1, positions, self.outputs), scale[some], bias)
        values = rows.transpose(1, 2).view(len(a), self.outputs, *self.size)

        def pull(delta: Tensor) -> tuple[tuple[Tensor | None, ...], Part]:
            d = arithmetic.grid(delta.permute(0, 2, 3, 1).reshape(len(a), positions, self.outputs))
            whole = torch.empty(len(a), self.outputs, self.patch, dtype=arithmetic.exact_type(positions))
            lengths, own_unit = torch.empty(len(a), dtype=DOUBLE), a.unit * d.unit
            came_back = arithmetic.products.split(d.whole)
            for some in blocks:
                back = tuple(one[some].transpose(1, 2) for one in came_back)
                own = arithmetic.each_product(back, tuple(self._patches(one[some]) for one in frames))
                whole[some], lengths[some] = own, folded_squares(own)
            whole = whole.view(-1, self.outputs, *self.kernel, self.shape[0]).permute(0, 1, 4, 2, 3)
            parts = [Rows(whole, own_unit, lengths.mul_(own_unit.square()))]
            if self.bias is not None:
                parts.append(Rows(d.whole.to(whole.dtype).sum(dim=1), d.unit))
            part = Own(tuple(parts))
            if isinstance(inputs[0], Rows):
                return (None,), part
            in_images = self._back(arithmetic, came_back, weight)
            return (scaled(arithmetic, in_images, arithmetic.scale(d.unit, unit)),), part

        return values, pull

    def _frame(self, records: int, dtype: torch.dtype) -> Tensor:
        """Zeros for images and the padding around them, channels last."""
        channels, height, width = self.shape
        return torch.zeros(records, height + 2 * self.padding[0], width + 2 * self.padding[1], channels, dtype=dtype)

    def _inside(self, padded: Tensor) -> Tensor:
        """The images without their padding, (records, channels, height, width)."""
        (top, left), (_, height, width) = self.padding, self.shape
        return padded[:, top : top + height, left : left + width].permute(0, 3, 1, 2)

    def _patches(self, padded: Tensor) -> Tensor:
        """What each output looks at: (records, positions, patch)."""
        record, row, column, channel = padded.stride()
        strides = (self.stride[0] * row, self.stride[1] * column, self.dilation[0] * row, self.dilation[1] * column)
        seen = padded.as_strided(
            (len(padded), *self.size, *self.kernel, self.shape[0]), (record, *strides, channel), padded.storage_offset()
        )
        return torch.from_numpy(np.ascontiguousarray(seen.numpy())).view(len(padded), -1, self.patch)

    def _back(self, arithmetic: Arithmetic, d: Factor, weight: Factor) -> Tensor:
        """The gradient in the images, in whole numbers: each place of the kernel sends a product to where it looked.

        What overlaps is added exactly: the width counts overlaps.
        """
        (high, wide), (down, right), (rows, columns) = self.size, self.stride, self.dilation
        by_place = [one.view(self.outputs, *self.kernel, self.shape[0]) for one in weight]
        flat = tuple(one.reshape(-1, self.outputs) for one in d)
        padded = self._frame(len(d[0]), arithmetic.exact_type(self.widths[2]))
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                here = tuple(one[:, i, j] for one in by_place)
                sent = arithmetic.products.product(flat, here).view(len(d[0]), high, wide, -1)
                top, left = i * rows, j * columns
                padded[:, top : top + down * high : down, left : left + right * wide : right].add_(sent)
        return self._inside(padded)


@final
@dataclass(frozen=True)
class Relu(NetLayer):
    """max(x, 0)."""

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        values = numbers(arithmetic, inputs[0]).relu()
        return values, lambda delta: ((torch.ops.aten.threshold_backward(delta, values, 0.0),), None)


@final
@dataclass(frozen=True)
class Tanh(NetLayer):
    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        values = tanh(numbers(arithmetic, inputs[0]))
        return values, lambda delta: ((delta * (1.0 - values * values),), None)


@final
@dataclass(frozen=True)
class Reshape(NetLayer):
    """Each record in another shape, its numbers in the same order."""

    shape: tuple[int, ...]

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        x = inputs[0]
        if isinstance(x, Rows):  # features stay on their grids
            return x.shaped(*self.shape), lambda delta: ((None,), None)
        return x.reshape(len(x), *self.shape), lambda delta: ((delta.reshape(x.shape),), None)


@final
@dataclass(frozen=True)
class MaxPool2d(NetLayer):
    """The largest number of each window; of equal ones the first."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    ceil: bool

    @property
    def overlaps(self) -> bool:
        """Whether a number may be in several windows."""
        sides = zip(self.kernel, self.dilation, self.stride, strict=True)
        return any(dilation * (kernel - 1) >= stride for kernel, dilation, stride in sides)

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        x = numbers(arithmetic, inputs[0])
        form = (self.kernel, self.stride, self.padding, self.dilation, self.ceil)
        values, places = functional.max_pool2d_with_indices(x, *form)

        def pull(delta: Tensor) -> tuple[tuple[Tensor | None, ...], Part | None]:
            if not self.overlaps:
                return (torch.ops.aten.max_pool2d_with_indices_backward(delta, x, *form, places),), None
            d = arithmetic.grid(delta)  # whole numbers are added exactly
            spread = torch.ops.aten.max_pool2d_with_indices_backward(d.whole, x, *form, places)
            return (Rows(spread, d.unit).values(arithmetic.dtype),), None

        return values, pull


@final
@dataclass(frozen=True)
class FreeScore(NetLayer):
    """Two classes' scores of one free score: the first class has zero."""

    def forward(self, arithmetic: Arithmetic, prepared: Prepared | None, *inputs: Values) -> tuple[Values, Pull]:
        score = numbers(arithmetic, inputs[0])
        return functional.pad(score, (1, 0)), lambda delta: ((delta[:, 1:],), None)
