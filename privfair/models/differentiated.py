"""Gradients of a model that only says its scores: by autograd, and each record's norm by torch.func."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from privfair.models.layers import coefficients_of
from privfair.models.model import EXACT, Weigh, WeightedGradient, cross_entropy

_BLOCK = 2**22
"""Gradient entries held at once."""


class Differentiated(ABC):
    """What a `Model` needs beside its scores, from the scores alone; slower than a model's own formulas."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many parameters theta has."""

    @abstractmethod
    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Scores of shape (records, classes), differentiable in theta."""

    def probabilities(self, theta: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(self.logits(theta, x), dim=1)

    def weighted_gradient(self, theta: Tensor, x: Tensor, y: Tensor, weigh: Weigh) -> WeightedGradient:
        losses = cross_entropy(self.logits(theta, x), y)[0].detach().to(EXACT)
        one_hot = torch.nn.functional.one_hot(y, 2)
        norms = self._norms(theta, x, lambda scores, code: -(torch.log_softmax(scores, dim=0) * code).sum(), one_hot)
        coefficients = coefficients_of(weigh, norms, losses)
        moving = theta.detach().clone().requires_grad_(True)
        weighed = (coefficients * cross_entropy(self.logits(moving, x), y)[0]).sum()
        (total,) = torch.autograd.grad(weighed, moving)
        return WeightedGradient(total.to(EXACT), norms, losses, coefficients)

    def probability_gradient(self, theta: Tensor, x: Tensor, coefficients: Tensor) -> Tensor:
        moving = theta.detach().clone().requires_grad_(True)
        (total,) = torch.autograd.grad((coefficients * self.probabilities(moving, x)).sum(), moving)
        return total.to(EXACT)

    def probability_norms(self, theta: Tensor, x: Tensor, directions: Tensor) -> Tensor:
        found = [
            self._norms(
                theta, x, lambda scores, code: (torch.softmax(scores, dim=0) * code).sum(), one.expand(len(x), -1)
            )
            for one in directions
        ]
        return torch.stack(found, dim=1)

    def _norms(self, theta: Tensor, x: Tensor, value: Callable[[Tensor, Tensor], Tensor], codes: Tensor) -> Tensor:
        """For each record the norm of the gradient of value(scores, code) in theta."""

        def one(parameters: Tensor, features: Tensor, code: Tensor) -> Tensor:
            return value(self.logits(parameters, features[None])[0], code)

        of_each = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))
        pieces = [
            torch.linalg.vector_norm(of_each(theta, features, code).to(EXACT), dim=1)
            for features, code in zip(*(torch.split(t, max(1, _BLOCK // self.size)) for t in (x, codes)), strict=True)
        ]
        return torch.cat(pieces) if pieces else torch.zeros(0, dtype=EXACT)
