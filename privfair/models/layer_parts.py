"""Per-record gradients of one layer of a torch module, from what went in and what came back.

Three ways, the cheapest is taken: an outer product (fully connected, one position), ghost norms over positions (Li et
al. 2022, arXiv 2110.05679: |sum_t d_t a_t^T|^2 = sum_ts <a_t, a_s> <d_t, d_s>), or the gradients themselves, stored.
Norms and weighted sums are float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn import functional
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from privfair.models.parts import OuterProducts, underflow
from privfair.models.scores import EXACT

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

_UNIT = 2.0**-53
_CONVOLUTIONS = {nn.Conv1d: conv1d_weight, nn.Conv2d: conv2d_weight, nn.Conv3d: conv3d_weight}
_EXACT_COSTS = 2
"""A float64 product takes twice the time of a float32 one."""
_RECORDS_IN_CACHE = 32
"""Convolutions of more records at once are slower: their gradients fall out of the processor's cache."""


class LayerParts(Protocol):
    """The records' gradients in one layer's parameters."""

    def squared_norms(self) -> Tensor: ...

    def weighted(self, coefficients: Tensor) -> tuple[Tensor, ...]:
        """sum_i c_i grad_i, one tensor for each parameter, in the layer's order."""
        ...

    @property
    def values_held(self) -> int:
        """How many numbers are kept in memory."""
        ...


@final
@dataclass(frozen=True, eq=False)
class StoredGradients:
    """The gradients themselves: one tensor (records, *shape) for each parameter, float64."""

    gradients: tuple[Tensor, ...]

    @classmethod
    def of(cls, *gradients: Tensor) -> StoredGradients:
        return cls(tuple(gradient.to(EXACT) for gradient in gradients))

    def squared_norms(self) -> Tensor:
        squares = [
            torch.linalg.vector_norm(gradient.flatten(1), dim=1).square_() for gradient in self.gradients
        ]
        return torch.stack(squares).sum(dim=0)

    def weighted(self, coefficients: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            (coefficients @ gradient.flatten(1)).view(gradient.shape[1:]) for gradient in self.gradients
        )

    @property
    def values_held(self) -> int:
        return sum(gradient.numel() for gradient in self.gradients)


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
        """Not below the true squares: terms of either sign may cancel, so the worst rounding error is added."""
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
        return squares.clamp_min(0.0) + worst

    def weighted(self, coefficients: Tensor) -> tuple[Tensor, ...]:
        right = (self.right * coefficients[:, None, None]).flatten(0, 1)
        weight = (right.T @ self.left.flatten(0, 1)).view(self.weight_shape)
        return (weight, right.sum(dim=0)) if self.intercept else (weight,)

    @property
    def values_held(self) -> int:
        return self.left.numel() + self.right.numel() + 2 * self.left.shape[0] * self.left.shape[1] ** 2


def layer_parts(
    layer: nn.Module, parameters: Mapping[str, Tensor], went_in: Tensor, came_back: Tensor
) -> LayerParts:
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
        return OuterProducts.of(went_in, came_back, intercept)
    left, right = went_in.flatten(1, -2), came_back.flatten(1, -2)
    if _ghost_is_cheaper(left.shape[1], left.shape[2], right.shape[2]):
        return GhostProducts(left.to(EXACT), right.to(EXACT), tuple(layer.weight.shape), intercept)
    weight = right.transpose(1, 2) @ left
    return StoredGradients.of(weight, *((right.sum(dim=1),) if intercept else ()))


def _plain(layer: Convolution) -> bool:
    """Zero padding given in numbers; other paddings go the general way."""
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _convolution(layer: Convolution, went_in: Tensor, came_back: Tensor) -> LayerParts:
    intercept = layer.bias is not None
    shape = tuple(layer.weight.shape)
    positions = math.prod(came_back.shape[2:])
    if (
        type(layer) is nn.Conv2d
        and layer.groups == 1
        and _ghost_is_cheaper(positions, math.prod(shape[1:]), shape[0])
    ):
        patches = functional.unfold(
            went_in, layer.kernel_size, layer.dilation, layer.padding, layer.stride
        ).transpose(1, 2)
        right = came_back.flatten(2).transpose(1, 2)
        return GhostProducts(patches.to(EXACT), right.to(EXACT), shape, intercept)
    weight = _convolution_weights(layer, went_in, came_back)
    return StoredGradients.of(weight, *((came_back.flatten(2).sum(dim=2),) if intercept else ()))


def _convolution_weights(layer: Convolution, went_in: Tensor, came_back: Tensor) -> Tensor:
    """Every record as a group of one grouped convolution: its weight gradient is then the record's own."""
    shape = tuple(layer.weight.shape)
    gradients = went_in.new_empty((len(went_in), *shape), dtype=EXACT)
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
    """Two Gram matrices in float64 against one product a record and its float64 copy."""
    ghost = _EXACT_COSTS * positions**2 * (inputs + outputs)
    stored = (positions + _EXACT_COSTS) * inputs * outputs
    return ghost < stored


def _any_layer(
    layer: nn.Module, parameters: Mapping[str, Tensor], went_in: Tensor, came_back: Tensor
) -> StoredGradients:
    """The layer's own backward, one record at a time, vectorised by torch.func."""

    def one(record: Tensor, pulled: Tensor) -> tuple[Tensor, ...]:
        _, pull = vjp(lambda own: functional_call(layer, own, (record[None],)), dict(parameters))
        return tuple(pull(pulled[None])[0].values())

    return StoredGradients.of(*vmap(one)(went_in, came_back))
