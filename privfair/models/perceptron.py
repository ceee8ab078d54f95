"""Fully connected nets: forward and backward by hand, clipped by ghost norms, no second backward pass.

A layer's gradient of one record is delta a^T (and delta for the intercept), so its squared norm is
|delta|^2 (|a|^2 + 1), and the weighted sum over the records is one matrix product of the a and the weighted delta that
the first backward pass already produced (Goodfellow 2015, arXiv 1510.01799; Bu et al. 2023, arXiv 2210.00038).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import assert_never, final

import torch
from torch import Tensor, nn

from calibrate.errors import InvalidInput, count
from privfair.models.layers import WORTH_SINGLE, OuterProducts, squares_of_rows, underflow, weigh_in_single, weigh_parts
from privfair.models.model import (
    EXACT,
    Activation,
    ParameterLayout,
    Weigh,
    WeightedGradient,
    cross_entropy,
    in_working_precision,
    through_softmax,
)
from privfair.rounding import sum_in_blocks, terms_per_block


@final
@dataclass(frozen=True)
class Perceptron:
    """A multi-layer perceptron; `hidden` are the sizes of its hidden layers, at least one.

    theta holds weight (outputs x inputs) and bias of each layer in turn, as `torch.nn.Sequential` names them.
    """

    features: int
    hidden: tuple[int, ...]
    classes: int = 2
    activation: Activation = Activation.RELU

    def __post_init__(self) -> None:
        count("features", self.features)
        count("classes", self.classes, least=2)
        if not isinstance(self.hidden, tuple) or not self.hidden:
            raise InvalidInput(
                "hidden", self.hidden, "must be a tuple of at least one size", "give (64,), or take logistic regression"
            )
        for size in self.hidden:
            count("hidden", size)

    @cached_property
    def layout(self) -> ParameterLayout:
        sizes = (self.features, *self.hidden, self.classes)
        names, shapes = [], []
        for position, (inputs, outputs) in enumerate(pairwise(sizes)):
            names += [f"{2 * position}.weight", f"{2 * position}.bias"]
            shapes += [(outputs, inputs), (outputs,)]
        return ParameterLayout(tuple(names), tuple(shapes))

    @property
    def size(self) -> int:
        return self.layout.size

    def initial(self, seed: int) -> Tensor:
        """Each layer uniform within 1 / sqrt(inputs), as torch's linear layers start."""
        generator = torch.Generator().manual_seed(seed)
        pieces = []
        for weight in self.layout.shapes[::2]:
            within = 1.0 / math.sqrt(weight[1])
            for shape in (weight, weight[:1]):
                pieces.append((torch.rand(math.prod(shape), generator=generator, dtype=EXACT) * 2 - 1) * within)
        return torch.cat(pieces)

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        return self._forward(theta, x).logits

    def probabilities(self, theta: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(self.logits(theta, x), dim=1)

    def weighted_gradient(self, theta: Tensor, x: Tensor, y: Tensor, weigh: Weigh) -> WeightedGradient:
        passed = self._forward(theta, x)
        losses, residual = cross_entropy(passed.logits, y)
        weighing = weigh_in_single if x.dtype == torch.float32 and self.size >= WORTH_SINGLE else weigh_parts
        return weighing(passed.parts(residual), losses, weigh)

    def probability_gradient(self, theta: Tensor, x: Tensor, coefficients: Tensor) -> Tensor:
        passed = self._forward(theta, x)
        pulled = through_softmax(torch.softmax(passed.logits, dim=1), coefficients.to(passed.logits.dtype))
        return passed.parts(pulled).weighted(torch.ones(len(x), dtype=EXACT, device=x.device))

    def probability_norms(self, theta: Tensor, x: Tensor, directions: Tensor) -> Tensor:
        passed = self._forward(theta, x)
        probabilities = torch.softmax(passed.logits, dim=1)
        along = [passed.parts(through_softmax(probabilities, v)).norms() for v in directions.to(probabilities.dtype)]
        return torch.stack(along, dim=1) if along else torch.zeros(len(x), 0, dtype=EXACT)

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        return self.layout.split(theta)

    def as_module(self, theta: Tensor) -> nn.Sequential:
        """The same net as a torch module, for use elsewhere."""
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((self.features, *self.hidden, self.classes)):
            layers += [nn.Linear(inputs, outputs, dtype=theta.dtype), _module(self.activation)]
        module = nn.Sequential(*layers[:-1])
        module.load_state_dict(self.named_parameters(theta))
        return module

    def _forward(self, theta: Tensor, x: Tensor) -> _Pass:
        flat = x.flatten(1)
        pieces = list(self.layout.split(in_working_precision(theta, flat)).values())
        weights, biases = pieces[::2], pieces[1::2]
        inputs = [flat]
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            inputs.append(_activate(self.activation, torch.addmm(bias, inputs[-1], weight.T)))
        logits = torch.addmm(biases[-1], inputs[-1], weights[-1].T)
        return _Pass(self.layout, self.activation, tuple(weights), tuple(inputs), logits)


@final
@dataclass(frozen=True, eq=False)
class _Pass:
    """A forward pass: what went into each layer."""

    layout: ParameterLayout
    activation: Activation
    weights: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    logits: Tensor

    def parts(self, in_scores: Tensor) -> _LayeredParts:
        """Back-propagate a gradient in the scores; every layer keeps its two factors."""
        delta = in_scores
        layers = [OuterProducts(self.inputs[-1], delta)]
        for weight, output, went_in in zip(self.weights[:0:-1], self.inputs[:0:-1], self.inputs[-2::-1], strict=True):
            delta = (delta @ weight) * _slope(self.activation, output)
            layers.append(OuterProducts(went_in, delta))
        return _LayeredParts(self.layout, tuple(reversed(layers)))


@final
@dataclass(frozen=True, eq=False)
class _LayeredParts:
    layout: ParameterLayout
    layers: tuple[OuterProducts, ...]

    def norms(self) -> Tensor:
        """sqrt(sum over layers |delta|^2 (|a|^2 + 1)), all layers at once."""
        went_in = torch.stack([squares_of_rows(layer.left) for layer in self.layers])
        came_back = torch.stack([torch.linalg.vector_norm(one.right, dim=1, dtype=EXACT) for one in self.layers])
        lost = max(underflow(layer.right) for layer in self.layers)
        return went_in.add_(1.0).mul_(came_back.square_().add_(lost)).sum(dim=0).sqrt_()

    def weighted(self, coefficients: Tensor, at_once: int = 0) -> Tensor:
        if len(coefficients) <= terms_per_block(len(coefficients)):
            return self._sum(self.layers, coefficients, at_once)
        return sum_in_blocks(
            len(coefficients),
            lambda rows: self._sum(tuple(layer.some(rows) for layer in self.layers), coefficients[rows], at_once),
        )

    def _sum(self, layers: tuple[OuterProducts, ...], coefficients: Tensor, at_once: int) -> Tensor:
        """Of one block of records."""
        total = torch.empty(self.layout.size, dtype=EXACT)
        places = list(self.layout.split(total).values())
        for layer, weight, bias in zip(layers, places[::2], places[1::2], strict=True):
            layer.write_weighted(coefficients, (weight, bias), at_once)
        return total


def _activate(activation: Activation, values: Tensor) -> Tensor:
    match activation:
        case Activation.RELU:
            return values.relu_()
        case Activation.TANH:
            return values.tanh_()
        case _:
            assert_never(activation)


def _slope(activation: Activation, output: Tensor) -> Tensor:
    """The activation's derivative, from its output."""
    match activation:
        case Activation.RELU:
            return output.sign()  # outputs are never negative, and comparing is slower
        case Activation.TANH:
            return 1.0 - output.square()
        case _:
            assert_never(activation)


def _module(activation: Activation) -> nn.Module:
    match activation:
        case Activation.RELU:
            return nn.ReLU()
        case Activation.TANH:
            return nn.Tanh()
        case _:
            assert_never(activation)
