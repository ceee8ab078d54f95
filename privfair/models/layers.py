"""One forward and one backward pass over the activations of a module, layer by layer; weights get no gradients.

Every trainable layer notes what goes into it and what comes out; back-propagating a gradient in the scores to those
outputs gives, for each record, the two things its weight gradients are made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NoReturn, Protocol, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn import functional
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from calibrate.errors import CheckFailed
from privfair.models.model import EXACT, ParameterLayout, Weigh, WeightedGradient
from privfair.rounding import blocks_of, terms_per_block, total_of

# The records' gradients of one back-propagation, measured and summed with weights, mostly without being stored.
#
# A fully connected layer's gradient of one record is an outer product of what went in and what came back, so its norm
# is the product of two norms and the weighted sum is one matrix product. Norms and sums are float64, but for
# `weigh_in_single`.


class Parts(Protocol):
    """grad_1 .. grad_n of something, one per record."""

    def norms(self) -> Tensor:
        """The norm of each record's gradient."""
        ...

    def weighted(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i grad_i as a flat vector."""
        ...


@dataclass(frozen=True, eq=False)
class OuterProducts:
    """Records' gradients right_i left_i^T of a layer without positions, with or without an intercept."""

    left: Tensor
    """What went in, (records, inputs)."""
    right: Tensor
    """What came back, (records, outputs)."""
    intercept: bool = True

    def squared_norms(self) -> Tensor:
        went_in = squares_of_rows(self.left)
        came_back = torch.linalg.vector_norm(self.right, dim=1, dtype=EXACT).square_().add_(underflow(self.right))
        norms: Tensor = came_back * (went_in.add_(1.0) if self.intercept else went_in)
        return norms

    def some(self, rows: slice) -> OuterProducts:
        """Of a run of the records."""
        return replace(self, left=self.left[rows], right=self.right[rows])

    def weighted(self, coefficients: Tensor, records: int) -> tuple[Tensor, ...]:
        """The weighted sums for the weight (outputs, inputs) and the intercept, of one block of records."""
        right = self.right * coefficients[:, None]
        weight = right.T @ self.left.to(EXACT)
        return (weight, right.sum(dim=0)) if self.intercept else (weight,)

    def write_weighted(self, coefficients: Tensor, into: tuple[Tensor, Tensor], at_once: int) -> None:
        """The same in place; float32 within `at_once` records and float64 beyond, unless inputs are too large."""
        right, (weight, bias) = self.right * coefficients[:, None], into
        torch.sum(right, dim=0, out=bias)
        if (
            not at_once
            or not self.left.numel()
            or float(torch.stack(torch.aminmax(self.left)).abs().max()) > _LARGEST_INPUT
        ):
            torch.mm(right.T, self.left.to(EXACT), out=weight)
            return
        single = torch.split(right.to(self.left.dtype), at_once)
        for place, (outer, inner) in enumerate(zip(single, torch.split(self.left, at_once), strict=True)):
            _ = weight.add_(outer.T @ inner) if place else weight.copy_(outer.T @ inner)

    @property
    def values_held(self) -> int:
        """How many numbers are kept in memory."""
        return self.left.numel() + self.right.numel()


def underflow(values: Tensor) -> float:
    """What squares of one record's values may have lost near zero, added back: a large factor could bring it up again.

    2^-1022 a value, twice; also where a library flushes subnormal numbers to zero.
    """
    return values.shape[-1] * 2.0**-1021


def weigh_parts(parts: Parts, losses: Tensor, weigh: Weigh) -> WeightedGradient:
    """Measure, weigh, sum."""
    norms = parts.norms()
    exact_losses = losses.to(EXACT)
    coefficients = coefficients_of(weigh, norms, exact_losses)
    return WeightedGradient(parts.weighted(coefficients), norms, exact_losses, coefficients)


SINGLE_SLACK = 0.004
"""By how much (relatively) norms are enlarged where records are summed in float32, to pay for its rounding.

Each entry of a sum of B outer products, in whatever order, is off by at most (B + 2) 2^-24 times the sum of its terms'
sizes (docs/models.md, point 4); so two neighbouring sums of n parts differ by at most (1 + n (B + 2) 2^-23) times the
longest part, and `records_in_single` keeps the second term below this.
"""
WORTH_SINGLE = 50_000
"""Parameters of a net from which on it pays."""
_FEWEST_IN_SINGLE = 32
_LARGEST_INPUT, _SMALLEST_PART = 2.0**32, 2.0**-32
"""Within these, what float32 loses near zero is below 2^-70 of the longest part."""


def records_in_single(records: int) -> int:
    """How many of a batch's records may be summed in float32 at a time; 0 where it is not worth it."""
    most = int(SINGLE_SLACK * 2**23 / max(1, records)) - 2
    return min(most, records) if most >= _FEWEST_IN_SINGLE else 0


class SingleParts(Parts, Protocol):
    """Parts that can also be summed in float32."""

    def weighted(self, coefficients: Tensor, at_once: int = 0) -> Tensor: ...


def weigh_in_single(parts: SingleParts, losses: Tensor, weigh: Weigh) -> WeightedGradient:
    """Measure, weigh by norms that are enlarged a little, and sum in float32 what that pays for.

    Whatever is summed how, all parts are shorter by that share; so it does not matter that a neighbouring batch may be
    summed otherwise.
    """
    norms = parts.norms().mul_(1.0 + SINGLE_SLACK)
    exact_losses = losses.to(EXACT)
    coefficients = coefficients_of(weigh, norms, exact_losses)
    found = WeightedGradient(torch.empty(0), norms, exact_losses, coefficients)
    at_once = records_in_single(len(norms)) if found.largest_part >= _SMALLEST_PART else 0
    return replace(found, total=parts.weighted(coefficients, at_once))


def coefficients_of(weigh: Weigh, norms: Tensor, losses: Tensor) -> Tensor:
    """The coefficients; norms, their squares and the coefficients are finite, or training stops here."""
    coefficients = weigh(norms, losses).to(EXACT)
    # A NaN or an infinity in either makes its sum of squares infinite or NaN; squares can't cancel.
    if not (math.isfinite(float(norms.dot(norms))) and math.isfinite(float(coefficients.dot(coefficients)))):
        refuse_the_infinite(norms, coefficients)
    return coefficients


def refuse_the_infinite(norms: Tensor, coefficients: Tensor) -> NoReturn:
    """Stop before a NaN, an infinity or an overflow can pass for a clipped gradient."""
    what, values = ("gradient norm", norms) if not torch.isfinite(norms.dot(norms)) else ("coefficient", coefficients)
    bad = int((~torch.isfinite(values.square())).sum())
    raise CheckFailed(
        f"the {what} of {bad or 'each'} of {values.numel()} records is infinite, no number, or too large to be "
        "squared, so it can't be clipped; bring the features to the range of their schema, or lower the step size"
    )


# Per-record gradients of one layer of a torch module, from what went in and what came back.
#
# Three ways, the cheapest is taken: an outer product (fully connected, one position), ghost norms over
# positions (Li et
# al. 2022, arXiv 2110.05679: |sum_t d_t a_t^T|^2 = sum_ts <a_t, a_s> <d_t, d_s>), or the gradients
# themselves, stored.
# Norms and weighted sums are float64.

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

_UNIT = 2.0**-53
_CONVOLUTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: conv1d_weight,
    nn.Conv2d: conv2d_weight,
    nn.Conv3d: conv3d_weight,
}
_EXACT_COSTS, _GRAM_COSTS, _READING_COSTS = 2, 4, 20
"""In products of a large float32 matrix product: one in float64, one in small float64 matrices, a number read twice."""
_ROWS_IN_CACHE = 8
_BLOCK, _BLOCK_SLACK = 128, 2.0**-16
_MOST_PLACES = 2**20
"""Of a layer's patches that are remembered: 8 MB."""
_CANCELLING = 64
"""How much of one record's gradient may cancel between positions before it counts as longer than it is."""
_PATCHES_IN_CACHE = 2**20
"""Numbers of the patches that are gathered at once: 4 MB are still in the cache when they are multiplied."""
_RECORDS_IN_CACHE = 32
"""Convolutions of more records at once are slower: their gradients fall out of the processor's cache."""


class LayerParts(Protocol):
    """The records' gradients in one layer's parameters."""

    def squared_norms(self) -> Tensor: ...

    def some(self, rows: slice) -> LayerParts:
        """Of a run of the records."""
        ...

    def weighted(self, coefficients: Tensor, records: int) -> tuple[Tensor, ...]:
        """sum_i c_i grad_i, one tensor for each parameter, in the layer's order; of one block of `records` records."""
        ...

    @property
    def values_held(self) -> int:
        """How many numbers are kept in memory."""
        ...


@final
@dataclass(frozen=True, eq=False)
class StoredGradients:
    """The gradients themselves, as they were computed: one tensor (records, *shape) for each parameter."""

    gradients: tuple[Tensor, ...]

    def squared_norms(self) -> Tensor:
        return torch.stack([squares_of_rows(gradient.flatten(1)) for gradient in self.gradients]).sum(dim=0)

    def some(self, rows: slice) -> StoredGradients:
        return StoredGradients(tuple(gradient[rows] for gradient in self.gradients))

    def weighted(self, coefficients: Tensor, records: int) -> tuple[Tensor, ...]:
        return tuple(_weighted_rows(coefficients, gradient) for gradient in self.gradients)

    @property
    def values_held(self) -> int:
        return sum(gradient.numel() for gradient in self.gradients)


def squares_of_rows(rows: Tensor) -> Tensor:
    """The squared norm of each row, not below the true one; of float32 rows in blocks, whose squares float64 adds up.

    A block's norm is off by at most (_BLOCK + 4) 2^-24 in its square, and what its squares lose near zero is added.
    """
    whole = 0 if rows.dtype == EXACT else rows.shape[1] // _BLOCK * _BLOCK
    squares: Tensor = torch.linalg.vector_norm(rows[:, whole:], dim=1, dtype=EXACT).square_()
    if whole:
        blocks = torch.linalg.vector_norm(rows[:, :whole].reshape(len(rows), -1, _BLOCK), dim=2).to(EXACT)
        squares += blocks.square_().sum(dim=1).mul_(1.0 + _BLOCK_SLACK).add_(whole * 2.0**-125)
    if whole and not math.isfinite(float(squares.sum())):
        squares = torch.linalg.vector_norm(rows, dim=1, dtype=EXACT).square_()
    return squares


def _weighted_rows(coefficients: Tensor, rows: Tensor) -> Tensor:
    """sum_i c_i rows_i in float64; float32 rows are converted a few at a time, while they are in the cache."""
    flat = rows.flatten(1)
    if flat.dtype == EXACT:
        return (coefficients @ flat).view(rows.shape[1:])
    total = torch.zeros(flat.shape[1], dtype=EXACT)
    for some in range(0, len(flat), _ROWS_IN_CACHE):
        total.addmv_(flat[some : some + _ROWS_IN_CACHE].T.to(EXACT), coefficients[some : some + _ROWS_IN_CACHE])
    return total.view(rows.shape[1:])


@final
@dataclass(frozen=True, eq=False)
class GhostProducts:
    """Gradients sum_t right_it left_it^T over positions t, measured without being formed."""

    left: Tensor
    """What went in, (records, positions, inputs), float64."""
    right: Tensor
    """What came back, (records, positions, outputs), float64."""
    weight_shape: tuple[int, ...]
    intercept: bool

    def squared_norms(self) -> Tensor:
        """Not below the true squares: terms of either sign may cancel, so the worst rounding error is added.

        Nor below the squared sum of the positions' own norms over `_CANCELLING`: what cancels is rounded all the same.
        """
        inputs = self.left @ self.left.transpose(1, 2)
        if self.intercept:
            inputs += 1.0
        outputs = self.right @ self.right.transpose(1, 2)
        squares = (inputs * outputs).sum(dim=(1, 2))
        lengths = (inputs.diagonal(dim1=1, dim2=2) * outputs.diagonal(dim1=1, dim2=2)).sqrt()
        # No term goes through more roundings than this, and their sizes add up to at most (sum_t |a_t| |d_t|)^2.
        roundings = self.left.shape[2] + self.right.shape[2] + inputs.shape[1] ** 2 + 8
        worst = roundings * _UNIT * lengths.sum(dim=1).square()
        worst += underflow(self.right) * inputs.diagonal(dim1=1, dim2=2).sqrt().sum(dim=1).square()
        return torch.maximum(squares.clamp_min(0.0) + worst, lengths.sum(dim=1).div_(_CANCELLING).square_())

    def some(self, rows: slice) -> GhostProducts:
        return replace(self, left=self.left[rows], right=self.right[rows])

    def weighted(self, coefficients: Tensor, records: int) -> tuple[Tensor, ...]:
        right, left = (self.right * coefficients[:, None, None]).flatten(0, 1), self.left.flatten(0, 1)
        blocks = list(blocks_of(len(right), terms_per_block(records, _CANCELLING)))
        weight = total_of(right[terms].T @ left[terms] for terms in blocks).view(self.weight_shape)
        return (weight, total_of(right[terms].sum(dim=0) for terms in blocks)) if self.intercept else (weight,)

    @property
    def values_held(self) -> int:
        return self.left.numel() + self.right.numel() + 2 * self.left.shape[0] * self.left.shape[1] ** 2


def layer_parts(layer: nn.Module, parameters: Mapping[str, Tensor], went_in: Tensor, came_back: Tensor) -> LayerParts:
    """The parts of any layer; `parameters` are its trainable ones, by name, in order."""
    whole = tuple(parameters) in (("weight",), ("weight", "bias")) and all(
        parameter is None or name in parameters for name, parameter in layer._parameters.items()
    )
    # A subclass may do something else with its weight: only the layers themselves are taken apart by hand.
    if whole and type(layer) is nn.Linear:
        return _linear(layer, went_in, came_back)
    if whole and isinstance(layer, Convolution) and type(layer) in _CONVOLUTIONS and _plain(layer):
        return _convolution(layer, went_in, came_back)
    return _any_layer(layer, parameters, went_in, came_back)


def _linear(layer: nn.Linear, went_in: Tensor, came_back: Tensor) -> LayerParts:
    intercept = layer.bias is not None
    if went_in.ndim == 2:
        return OuterProducts(went_in, came_back, intercept)
    left, right = went_in.flatten(1, -2), came_back.flatten(1, -2)
    if _ghost_is_cheaper(left.shape[1], left.shape[2], right.shape[2]):
        return GhostProducts(left.to(EXACT), right.to(EXACT), tuple(layer.weight.shape), intercept)
    weight = right.transpose(1, 2) @ left
    return StoredGradients((weight, *((right.sum(dim=1),) if intercept else ())))


def _plain(layer: Convolution) -> bool:
    """Zero padding given in numbers; other paddings go the general way."""
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _convolution(layer: Convolution, went_in: Tensor, came_back: Tensor) -> LayerParts:
    intercept = layer.bias is not None
    shape = tuple(layer.weight.shape)
    positions = math.prod(came_back.shape[2:])
    outputs = came_back.flatten(2)
    if type(layer) is nn.Conv2d and layer.groups == 1:
        inputs = math.prod(shape[1:])
        if _ghost_is_cheaper(positions, inputs, shape[0]):
            patches = _patches(layer, went_in).to(EXACT)
            return GhostProducts(patches, outputs.transpose(1, 2).to(EXACT), shape, intercept)
        weight = went_in.new_empty((len(went_in), *shape))
        for rows in blocks_of(len(went_in), max(1, _PATCHES_IN_CACHE // (positions * inputs))):
            torch.bmm(outputs[rows], _patches(layer, went_in[rows]), out=weight[rows].view(-1, shape[0], inputs))
    else:
        weight = _convolution_weights(layer, went_in, came_back)
    return StoredGradients((weight, *((outputs.sum(dim=2),) if intercept else ())))


def _patches(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """What each output of a convolution looks at: (records, positions, inputs)."""
    assert not isinstance(layer.padding, str)  # see `_plain`
    high, wide = layer.padding
    padded = functional.pad(images, (wide, wide, high, high)) if high or wide else images
    form = (layer.kernel_size, layer.dilation, layer.stride)
    places = _patch_places(tuple(padded.shape[1:]), *form)
    if places is None:
        return functional.unfold(padded, layer.kernel_size, layer.dilation, 0, layer.stride).transpose(1, 2)
    return padded.flatten(1).index_select(1, places.flatten()).view(len(images), *places.shape)


@lru_cache(maxsize=16)
def _patch_places(
    shape: tuple[int, ...], kernel: tuple[int, ...], dilation: tuple[int, ...], stride: tuple[int, ...]
) -> Tensor | None:
    """Where in a flat image each patch lies, (positions, inputs): gathering is faster than unfolding; None if large."""
    numbered = torch.arange(math.prod(shape), dtype=EXACT).view(1, *shape)
    if math.prod(shape) * math.prod(kernel) > _MOST_PLACES:
        return None
    return functional.unfold(numbered, kernel, dilation, 0, stride)[0].T.long().contiguous()


def _convolution_weights(layer: Convolution, went_in: Tensor, came_back: Tensor) -> Tensor:
    """Every record as a group of one grouped convolution: its weight gradient is then the record's own."""
    shape = tuple(layer.weight.shape)
    gradients = went_in.new_empty((len(went_in), *shape))
    for start in range(0, len(went_in), _RECORDS_IN_CACHE):
        some = slice(start, start + _RECORDS_IN_CACHE)
        records = len(went_in[some])
        stacked = _CONVOLUTIONS[type(layer)](
            went_in[some].reshape(1, -1, *went_in.shape[2:]),
            (records * shape[0], *shape[1:]),
            came_back[some].reshape(1, -1, *came_back.shape[2:]),
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            groups=records * layer.groups,
        )
        gradients[some] = stacked.view(records, *shape)
    return gradients


def _ghost_is_cheaper(positions: int, inputs: int, outputs: int) -> bool:
    """Two small Gram matrices and one product in float64, against one product per record that is read twice."""
    ghost = _GRAM_COSTS * positions**2 * (inputs + outputs) + _EXACT_COSTS * positions * inputs * outputs
    stored = (positions + _READING_COSTS) * inputs * outputs
    return ghost < stored


def _any_layer(
    layer: nn.Module, parameters: Mapping[str, Tensor], went_in: Tensor, came_back: Tensor
) -> StoredGradients:
    """The layer's own backward, one record at a time, vectorised by torch.func."""

    def one(record: Tensor, pulled: Tensor) -> tuple[Tensor, ...]:
        pull = vjp(lambda own: functional_call(layer, own, (record[None],)), dict(parameters))[1]
        return tuple(pull(pulled[None])[0].values())

    return StoredGradients(tuple(vmap(one)(went_in, came_back)))


_COPIES = 4
"""How many copies of a record's gradient torch.func keeps, roughly."""


class IrregularLayer(Exception):
    """A layer is used in a way that layer-by-layer gradients don't cover; the module then goes the general way."""


@final
@dataclass(frozen=True)
class Unit:
    """A submodule that owns trainable parameters directly; all trainable parameters below it count as its own."""

    name: str
    parameter_names: tuple[str, ...]
    """Names within the unit."""

    def full_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}.{own}" if self.name else own for own in self.parameter_names)


def units_of(module: nn.Module, name: str = "") -> tuple[Unit, ...]:
    """The units of a module, in the order of its parameters."""
    if any(parameter is not None and parameter.requires_grad for parameter in module._parameters.values()):
        trainable = tuple(own for own, parameter in module.named_parameters() if parameter.requires_grad)
        return (Unit(name, trainable),)
    return tuple(
        unit
        for child_name, child in module.named_children()
        for unit in units_of(child, f"{name}.{child_name}" if name else child_name)
    )


@final
@dataclass(frozen=True, eq=False)
class ModuleParts:
    """The parts of all layers of one pass, laid out as theta is."""

    layout: ParameterLayout
    layers: tuple[tuple[tuple[str, ...], LayerParts], ...]
    """Full parameter names and the layer's parts."""

    def norms(self) -> Tensor:
        return torch.stack([parts.squared_norms() for _, parts in self.layers]).sum(dim=0).sqrt()

    def weighted(self, coefficients: Tensor) -> Tensor:
        return total_of(self.sums(coefficients, len(coefficients)))

    def sums(self, coefficients: Tensor, records: int) -> Iterator[Tensor]:
        """sum_i c_i grad_i, block by block; these are some of a batch of `records` records."""
        for rows in blocks_of(len(coefficients), terms_per_block(records)):
            found: dict[str, Tensor] = {}
            for names, parts in self.layers:
                own = parts if rows.stop >= len(coefficients) and rows.start == 0 else parts.some(rows)
                found.update(zip(names, own.weighted(coefficients[rows], records), strict=True))
            yield self.layout.join(found)

    @property
    def values_held(self) -> int:
        return sum(parts.values_held for _, parts in self.layers)


@final
@dataclass(frozen=True, eq=False)
class _Note:
    """What one unit saw in the forward pass, with the version numbers that reveal a later change in place."""

    went_in: Tensor
    came_out: Tensor
    versions: tuple[int, int]

    def unchanged(self) -> bool:
        return (self.went_in._version, self.came_out._version) == self.versions


@final
class LayerTrace:
    """A forward pass that remembers; `parts` can be asked for several gradients in the scores."""

    def __init__(
        self,
        module: nn.Module,
        units: tuple[Unit, ...],
        layout: ParameterLayout,
        parameters: Mapping[str, Tensor],
        x: Tensor,
    ) -> None:
        self._module = module
        self._layout = layout
        self._parameters = parameters
        self._notes: dict[Unit, _Note] = {}
        handles = [
            module.get_submodule(unit.name).register_forward_hook(self._noting(unit, len(x)), with_kwargs=True)
            for unit in units
        ]
        try:
            with torch.enable_grad():
                self._scores = functional_call(module, dict(parameters), (x,))
        finally:
            for handle in handles:
                handle.remove()
        if len(self._notes) != len(units) or not all(note.unchanged() for note in self._notes.values()):
            raise IrregularLayer("a layer was skipped, or its values were changed in place")

    @property
    def logits(self) -> Tensor:
        scores: Tensor = self._scores.detach()
        return scores

    @property
    def values_held(self) -> int:
        return sum(note.went_in.numel() + note.came_out.numel() for note in self._notes.values())

    def parts(self, in_scores: Tensor) -> ModuleParts:
        """Back-propagate a gradient in the scores."""
        outputs = [note.came_out for note in self._notes.values()]
        came_back = torch.autograd.grad(
            self._scores, outputs, in_scores, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        layers = tuple(
            (unit.full_names(), self._layer(unit, note, gradient))
            for (unit, note), gradient in zip(self._notes.items(), came_back, strict=True)
        )
        return ModuleParts(self._layout, layers)

    def _layer(self, unit: Unit, note: _Note, came_back: Tensor) -> LayerParts:
        own = {name: self._parameters[full] for name, full in zip(unit.parameter_names, unit.full_names(), strict=True)}
        return layer_parts(self._module.get_submodule(unit.name), own, note.went_in, came_back)

    def _noting(self, unit: Unit, records: int) -> Any:
        def note(layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            regular = (
                unit not in self._notes
                and len(given) == 1
                and not named
                and all(isinstance(value, Tensor) and value.ndim >= 2 for value in (*given, output))
                and given[0].shape[0] == output.shape[0] == records
            )
            if not regular:
                raise IrregularLayer(f"{unit.name} is not called once with one tensor of records")
            # The first layers' outputs start the graph: nothing is propagated to weights or to the data.
            if not output.requires_grad:
                output.requires_grad_()
            self._notes[unit] = _Note(given[0].detach(), output, (given[0]._version, output._version))

        return note


@final
class WholeTrace:
    """The general way: every record's gradient by torch.func, one record being all that a pass ever sees."""

    def __init__(self, module: nn.Module, layout: ParameterLayout, parameters: Mapping[str, Tensor], x: Tensor) -> None:
        self._module = module
        self._layout = layout
        self._parameters = parameters
        self._x = x
        self.logits = scores_record_by_record(module, parameters, x)

    @property
    def values_held(self) -> int:
        """torch.func keeps activations that can't be counted from outside; a few copies of the gradient stand in."""
        return _COPIES * len(self._x) * (self._layout.size + self._x[0].numel())

    def parts(self, in_scores: Tensor) -> ModuleParts:
        def one(record: Tensor, pulled: Tensor) -> tuple[Tensor, ...]:
            pull = vjp(lambda own: functional_call(self._module, own, (record[None],)), dict(self._parameters))[1]
            return tuple(pull(pulled[None])[0].values())

        stored = StoredGradients(tuple(vmap(one)(self._x, in_scores)))
        return ModuleParts(self._layout, ((self._layout.names, stored),))


def scores_record_by_record(module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The scores of each record as if it were alone, vectorised; a module that looks at values can't pass."""
    with torch.no_grad():
        scores: Tensor = vmap(lambda record: functional_call(module, dict(parameters), (record[None],))[0])(x)
        return scores
