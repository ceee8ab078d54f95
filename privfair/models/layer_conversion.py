"""Torch layers as nodes of a network, each recognised by its exact type; what is not covered is refused with its name.

A subclass of a covered layer is not covered: it may compute something else.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from calibrate.errors import InvalidInput
from privfair.models.layers import Conv2d, Linear, MaxPool2d, NetLayer, Relu, Reshape, Tanh
from privfair.models.network import Node
from privfair.models.record_layers import (
    Add,
    Attention,
    AvgPool2d,
    Curved,
    Embedding,
    Frozen,
    Mean,
    OneRowHigh,
    RowNorm,
    gelu,
    leaky,
    logistic,
    silu,
)

ALONE = 'write isolation = "alone" under [training.model] (in Python: AloneModule)'
"""The remedy for modules that are not covered."""


def refuse(place: str, what: str, rule: str, remedy: str = "use a covered layer (docs/models.md)") -> NoReturn:
    """Refuse a layer or an operation, naming it."""
    raise InvalidInput("module", f"{place}: {what}" if place else what, rule, f"{remedy}, or {ALONE}")


@final
@dataclass(frozen=True)
class Value:
    """A value of the network: its number, and the shape of one record."""

    number: int
    shape: tuple[int, ...]


@final
class Builder:
    """Collects nodes; `trainable` has the names of the trainable parameters, by identity."""

    def __init__(self, trainable: Mapping[int, str]) -> None:
        self.nodes: list[Node] = []
        self._trainable = trainable
        self._used: dict[str, str] = {}
        self._constants: dict[str, Tensor] = {}

    @property
    def unused(self) -> tuple[str, ...]:
        """Trainable parameters that no node has."""
        return tuple(name for name in self._trainable.values() if name not in self._used)

    def add(self, layer: NetLayer, *inputs: int) -> int:
        """One more node; the number of its value."""
        constants = {name: self._constants[name] for name in layer.parameters if name in self._constants}
        self.nodes.append(Node(Frozen(layer, constants) if constants else layer, inputs))
        return len(self.nodes)

    def use(self, place: str, key: str, value: Tensor) -> str:
        """The name of a layer's parameter; one that is not trained is a constant."""
        full = f"{place}.{key}" if place else key
        trained = self._trainable.get(id(value))
        if trained is None:
            self._constants[full] = value.detach()
            return full
        if trained in self._used:
            rule = f"is used twice, by {self._used[trained]} and by {full}"
            refuse(place, f"the parameter {trained}", rule, "give each layer its own parameters and call it once")
        self._used[trained] = full
        return trained

    def use_any(self, place: str, key: str, value: Tensor | None) -> str | None:
        """The same of a parameter that a layer may lack."""
        return None if value is None else self.use(place, key, value)

    def layer(self, name: str, layer: nn.Module, x: Value) -> int:
        """The nodes of a layer; the number of its value."""
        if type(layer) not in LAYERS:
            refuse_layer(name, layer)
        return LAYERS[type(layer)](self, name, layer, x)


def refuse_layer(name: str, layer: nn.Module) -> NoReturn:
    """Refuse a layer that is not covered, with what to use instead."""
    kind = type(layer).__name__
    match layer:
        case _BatchNorm():
            rule = "normalises by the other records of the batch, so clipping one record bounds nothing"
            refuse(name, kind, rule, "replace it by torch.nn.GroupNorm, which looks at one record only")
        case _InstanceNorm():
            refuse(name, kind, "is not covered", "replace it by torch.nn.GroupNorm with one channel in each group")
        case nn.RNNBase() | nn.RNNCellBase():
            refuse(name, kind, "is recurrent, which is not covered", "use attention or convolutions")
        case _:
            refuse(name, kind, "is not a covered layer")


def require_deterministic(module: nn.Module) -> None:
    """Refuse dropout."""
    for name, layer in module.named_modules():
        if isinstance(layer, _DropoutNd):
            require_no_dropout(name, type(layer).__name__, layer.p)


# Layers, by exact type.

_Convert = Callable[[Builder, str, Any, Value], int]


def _linear(to: Builder, name: str, layer: nn.Linear, x: Value) -> int:
    return _fully_connected(to, name, "", layer.weight, layer.bias, x)


def _fully_connected(to: Builder, name: str, prefix: str, weight: Tensor, bias: Tensor | None, x: Value) -> int:
    outputs, inputs = weight.shape
    names = (to.use(name, f"{prefix}weight", weight), to.use_any(name, f"{prefix}bias", bias))
    return to.add(Linear(inputs, outputs, *names, math.prod(x.shape[:-1])), x.number)


def _convolution(to: Builder, name: str, layer: nn.Conv1d | nn.Conv2d, x: Value) -> int:
    kind = type(layer).__name__
    if layer.groups != 1:
        refuse(name, kind, f"has {layer.groups} groups; one is covered", "set groups=1")
    if layer.padding_mode != "zeros":
        refuse(name, kind, f"pads in the mode {layer.padding_mode!r}", 'set padding_mode="zeros"')
    if not all(x.shape):
        refuse(name, kind, "is called on one record without a batch dimension")
    reach = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    if layer.padding == "same" and any(one % 2 for one in reach):
        refuse(name, kind, 'pads its two ends differently for padding="same"', "use an odd kernel size")
    same = [one // 2 for one in reach]
    padding = same if layer.padding == "same" else [0] * len(same) if layer.padding == "valid" else layer.padding
    shape = (x.shape[0], *_pair(x.shape[1:], 1))
    kernel, stride, dilation = (_pair(one, 1) for one in (layer.kernel_size, layer.stride, layer.dilation))
    names = (to.use(name, "weight", layer.weight), to.use_any(name, "bias", layer.bias))
    image = Conv2d(shape, layer.out_channels, kernel, stride, _pair(padding, 0), dilation, *names)
    return to.add(image if len(same) == 2 else OneRowHigh(image), x.number)


def _pair(value: Any, rest: int, dimensions: int = 0) -> tuple[int, int]:
    """A size for height and width, given as one or as a number for all dimensions; sequences have the height `rest`."""
    sizes = (value,) * dimensions if isinstance(value, int) else tuple(value)
    return (sizes[0], sizes[1]) if len(sizes) == 2 else (rest, sizes[0])


def _max_pool(to: Builder, name: str, layer: nn.MaxPool1d | nn.MaxPool2d, x: Value) -> int:
    if layer.return_indices:
        refuse(name, type(layer).__name__, "returns indices", "set return_indices=False")
    sizes = len(x.shape) - 1
    kernel, stride = _pair(layer.kernel_size, 1, sizes), _pair(layer.stride, 1, sizes)
    padding, dilation = _pair(layer.padding, 0, sizes), _pair(layer.dilation, 1, sizes)
    pool = MaxPool2d(kernel, stride, padding, dilation, layer.ceil_mode)
    return to.add(pool if sizes == 2 else OneRowHigh(pool), x.number)


def _avg_pool(to: Builder, name: str, layer: nn.AvgPool1d | nn.AvgPool2d, x: Value) -> int:
    if layer.ceil_mode or getattr(layer, "divisor_override", None) is not None:
        refuse(name, type(layer).__name__, "has ceil_mode or divisor_override", "leave them out")
    sizes = len(x.shape) - 1
    form = (_pair(layer.kernel_size, 1, sizes), _pair(layer.stride, 1, sizes), _pair(layer.padding, 0, sizes))
    pool = AvgPool2d(*form, layer.count_include_pad)
    return to.add(pool if sizes == 2 else OneRowHigh(pool), x.number)


def _adaptive_pool(to: Builder, name: str, layer: nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d, x: Value) -> int:
    sizes = len(x.shape) - 1
    if layer.output_size not in (1, (1,), (1, 1)):
        refuse(name, type(layer).__name__, f"has an output size of {layer.output_size}; 1 is covered", "set it to 1")
    return to.add(Mean(tuple(range(2, sizes + 2)), keep=True), x.number)


def _layer_norm(to: Builder, name: str, layer: nn.LayerNorm, x: Value) -> int:
    shape = tuple(layer.normalized_shape)
    rows = math.prod(x.shape) // math.prod(shape)
    names = (to.use_any(name, "weight", layer.weight), to.use_any(name, "bias", layer.bias))
    return to.add(RowNorm(rows, (rows, math.prod(shape)), 2, shape, layer.eps, *names), x.number)


def _group_norm(to: Builder, name: str, layer: nn.GroupNorm, x: Value) -> int:
    channels = layer.num_channels
    view = (channels, math.prod(x.shape) // channels)
    names = (to.use_any(name, "weight", layer.weight), to.use_any(name, "bias", layer.bias))
    return to.add(RowNorm(layer.num_groups, view, 1, (channels,), layer.eps, *names), x.number)


def _embedding(to: Builder, name: str, layer: nn.Embedding, x: Value) -> int:
    if layer.max_norm is not None or layer.scale_grad_by_freq:
        refuse(name, "Embedding", "has max_norm or scale_grad_by_freq", "leave them out")
    if x.number != 0:
        refuse(name, "Embedding", "takes computed tokens", "let the records be the tokens")
    weight = to.use(name, "weight", layer.weight)
    tokens, width = layer.weight.shape
    return to.add(Embedding(tokens, width, math.prod(x.shape), weight, layer.padding_idx), x.number)


def _gelu(to: Builder, name: str, layer: nn.GELU, x: Value) -> int:
    if layer.approximate != "tanh":
        rule = "needs the error function, which is not covered"
        refuse(name, "GELU", rule, "give torch.nn.GELU(approximate='tanh')")
    return to.add(Curved(gelu), x.number)


def _dropout(to: Builder, name: str, layer: _DropoutNd, x: Value) -> int:
    require_no_dropout(name, type(layer).__name__, layer.p)
    return x.number


def require_no_dropout(name: str, kind: str, p: float) -> None:
    """Refuse a layer that draws random numbers."""
    if p > 0:
        rule = f"draws random numbers (p = {p:g}), but a contribution must be a function of the record"
        raise InvalidInput("module", f"{name}: {kind}", rule, "set p = 0; the privacy noise regularises")


def _attention(to: Builder, name: str, layer: nn.MultiheadAttention, x: Value) -> int:
    require_no_dropout(name, "MultiheadAttention", layer.dropout)
    if not layer.batch_first:
        refuse(name, "MultiheadAttention", "takes dimension 0 for the positions", "set batch_first=True")
    if layer.in_proj_weight is None or layer.bias_k is not None or layer.add_zero_attn:
        refuse(name, "MultiheadAttention", "has kdim, vdim, add_bias_kv or add_zero_attn", "leave them out")
    positions, width = x.shape
    into = _fully_connected(to, name, "in_proj_", layer.in_proj_weight, layer.in_proj_bias, x)
    attended = Value(to.add(Attention(layer.num_heads, positions, width), into), x.shape)
    return _linear(to, f"{name}.out_proj", layer.out_proj, attended)


def _encoder_layer(to: Builder, name: str, layer: nn.TransformerEncoderLayer, x: Value) -> int:
    parts = dict(layer.named_children()) | {"activation": _activation(f"{name}.activation", layer.activation)}
    for norm, block in (
        ("norm1", ("self_attn", "dropout1")),
        ("norm2", ("linear1", "activation", "dropout", "linear2", "dropout2")),
    ):
        before = (norm, *block) if layer.norm_first else block
        x = Value(to.add(Add(), x.number, _in_turn(to, name, parts, before, x).number), x.shape)
        x = x if layer.norm_first else _in_turn(to, name, parts, (norm,), x)
    return x.number


def _in_turn(to: Builder, name: str, parts: Mapping[str, nn.Module], keys: Iterable[str], x: Value) -> Value:
    """Some of a layer's parts, one after another; all of them act on the last dimension."""
    for key in keys:
        width = getattr(parts[key], "out_features", x.shape[-1])
        x = Value(to.layer(f"{name}.{key}", parts[key], x), (*x.shape[:-1], width))
    return x


def _activation(name: str, given: Any) -> nn.Module:
    """What an encoder layer was given, a module or a function, as a module."""
    if isinstance(given, nn.Module):
        return given
    if given in (functional.relu, torch.relu):
        return nn.ReLU()
    options = given.keywords if isinstance(given, functools.partial) else {}
    if getattr(given, "func", given) is functional.gelu:
        return nn.GELU(**options)
    refuse(name, getattr(given, "__name__", str(given)), "is not a covered activation")


def _encoder(to: Builder, name: str, encoder: nn.TransformerEncoder, x: Value) -> int:
    parts = {f"layers.{place}": layer for place, layer in enumerate(encoder.layers)}
    parts |= {} if encoder.norm is None else {"norm": encoder.norm}
    return _in_turn(to, name, parts, parts, x).number


def _without_parameters(build: Callable[[Any], NetLayer]) -> _Convert:
    return lambda to, name, layer, x: to.add(build(layer), x.number)


def _flatten(to: Builder, name: str, layer: nn.Flatten, x: Value) -> int:
    if layer.start_dim == 0:
        refuse(name, "Flatten", "joins records", "set start_dim=1")
    return to.add(Reshape(tuple(torch.empty(1, *x.shape).flatten(layer.start_dim, layer.end_dim).shape[1:])), x.number)


LAYERS: dict[type[nn.Module], _Convert] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.MaxPool1d: _max_pool,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool1d: _avg_pool,
    nn.AvgPool2d: _avg_pool,
    nn.AdaptiveAvgPool1d: _adaptive_pool,
    nn.AdaptiveAvgPool2d: _adaptive_pool,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
    nn.Embedding: _embedding,
    nn.MultiheadAttention: _attention,
    nn.TransformerEncoderLayer: _encoder_layer,
    nn.TransformerEncoder: _encoder,
    nn.ReLU: _without_parameters(lambda layer: Relu()),
    nn.LeakyReLU: _without_parameters(lambda layer: Curved(leaky(float(layer.negative_slope)))),
    nn.Tanh: _without_parameters(lambda layer: Tanh()),
    nn.Sigmoid: _without_parameters(lambda layer: Curved(logistic)),
    nn.SiLU: _without_parameters(lambda layer: Curved(silu)),
    nn.GELU: _gelu,
    nn.Flatten: _flatten,
    nn.Identity: lambda to, name, layer, x: x.number,
    nn.Dropout: _dropout,
    nn.Dropout1d: _dropout,
    nn.Dropout2d: _dropout,
}
"""Covered layers."""
