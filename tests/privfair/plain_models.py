"""The models in plain float64 arithmetic of torch, differentiable: the reference side of comparisons.

The package's own scores are step functions of theta, because features and weights are rounded to a grid of p bits
(`privfair.models.exact`). So finite differences and autograd are taken here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, pad

from privfair.models.linear import LogisticRegression
from privfair.models.model import Activation
from privfair.models.perceptron import Perceptron

ROUNDED = {"rtol": 1e-6, "atol": 1e-7}
"""How close exact models with the largest number of bits are to these: factors of products have 20 to 26 bits."""


@final
@dataclass(frozen=True)
class Plain:
    """The same model with the same theta, in real numbers up to the rounding of float64."""

    model: LogisticRegression | Perceptron

    @property
    def classes(self) -> int:
        return self.model.classes

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        parameters, values = list(self.model.named_parameters(theta).values()), x.to(theta.dtype)
        for place in range(0, len(parameters), 2):
            values = linear(values, parameters[place], parameters[place + 1])
            if isinstance(self.model, Perceptron) and place + 2 < len(parameters):
                values = values.relu() if self.model.activation is Activation.RELU else values.tanh()
        return pad(values, (1, 0)) if values.shape[-1] == 1 else values

    def probabilities(self, theta: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(self.logits(theta, x), dim=-1)

    def losses(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Each record's cross-entropy."""
        return cross_entropy(self.logits(theta, x), y, reduction="none")
