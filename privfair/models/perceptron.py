"""Fully connected nets, clipped by ghost norms.

A layer's gradient of one record is delta a^T (and delta for the intercept), so its squared norm is
|delta|^2 (|a|^2 + 1), and the weighted sum over the records is one matrix product of the a and the weighted delta that
the first backward pass already produced (Goodfellow 2015, arXiv 1510.01799; Bu et al. 2023, arXiv 2210.00038).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn

from calibrate.errors import InvalidInput, count
from privfair.models.exact import Bits
from privfair.models.layers import Linear, NetLayer, Relu, Reshape, Tanh
from privfair.models.model import EXACT, Activation, ParameterLayout
from privfair.models.network import Network, NetworkModel, chain

_ACTIVATIONS: dict[Activation, tuple[NetLayer, type[nn.Module]]] = {
    Activation.RELU: (Relu(), nn.ReLU),
    Activation.TANH: (Tanh(), nn.Tanh),
}


@final
@dataclass(frozen=True)
class Perceptron(NetworkModel):
    """A multi-layer perceptron; `hidden` are the sizes of its hidden layers, at least one.

    theta holds weight (outputs x inputs) and bias of one layer after another, as `torch.nn.Sequential` names them.
    """

    features: int
    hidden: tuple[int, ...]
    classes: int = 2
    activation: Activation = Activation.RELU
    bits: Bits = Bits.THIRTEEN

    def __post_init__(self) -> None:
        count("features", self.features)
        count("classes", self.classes, least=2)
        if not isinstance(self.hidden, tuple) or not self.hidden:
            rule = "must be a tuple of at least one size"
            raise InvalidInput("hidden", self.hidden, rule, "give (64,), or take logistic regression")
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

    def initial(self, seed: int) -> Tensor:
        """Each layer uniform within 1 / sqrt(inputs), as torch's linear layers start."""
        generator = torch.Generator().manual_seed(seed)
        pieces = []
        for weight in self.layout.shapes[::2]:
            within = 1.0 / math.sqrt(weight[1])
            for shape in (weight, weight[:1]):
                pieces.append((torch.rand(math.prod(shape), generator=generator, dtype=EXACT) * 2 - 1) * within)
        return torch.cat(pieces)

    @property
    def _network(self) -> Network:
        return _network(self)

    def as_module(self, theta: Tensor) -> nn.Sequential:
        """The same net as a torch module, for use elsewhere."""
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((self.features, *self.hidden, self.classes)):
            layers += [nn.Linear(inputs, outputs, dtype=theta.dtype), _ACTIVATIONS[self.activation][1]()]
        module = nn.Sequential(*layers[:-1])
        module.load_state_dict(self.layout.split(theta))
        return module


@lru_cache(maxsize=32)
def _network(model: Perceptron) -> Network:
    layers: list[NetLayer] = [Reshape((model.features,))]
    for place, (inputs, outputs) in enumerate(pairwise((model.features, *model.hidden, model.classes))):
        layers.append(Linear(inputs, outputs, f"{2 * place}.weight", f"{2 * place}.bias"))
        layers.append(_ACTIVATIONS[model.activation][0])
    return Network(chain(*layers[:-1]), model.layout, model.classes, model.bits)
