"""Logistic regression: everything in closed form, one matrix product each way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from calibrate.validation import count
from privfair.models.model import Weigh, WeightedGradient


@final
@dataclass(frozen=True)
class LogisticRegression:
    """Linear scores with an intercept. Two classes need one score: theta has features + 1 entries.

    For more classes theta is a (features + 1) x classes matrix, flattened. The gradient of a record is an outer
    product of its extended features (x, 1) with its residual, so norms factor and clipping costs nothing.
    """

    features: int
    classes: int = 2

    def __post_init__(self) -> None:
        count("features", self.features)
        count("classes", self.classes, least=2)

    @property
    def size(self) -> int:
        return (self.features + 1) * (1 if self.classes == 2 else self.classes)

    def initial(self, seed: int) -> Tensor:
        """Zero: the loss is convex, so the seed does not matter."""
        return torch.zeros(self.size, dtype=torch.float64)

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        scores = self._scores(theta, x)
        if self.classes > 2:
            return scores
        return torch.cat((torch.zeros_like(scores), scores), dim=1)

    def probabilities(self, theta: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(self.logits(theta, x), dim=1)

    def weighted_gradient(self, theta: Tensor, x: Tensor, y: Tensor, weigh: Weigh) -> WeightedGradient:
        logits = self.logits(theta, x)
        losses = functional.cross_entropy(logits, y, reduction="none")
        residual = torch.softmax(logits, dim=1)
        residual[torch.arange(len(y)), y] -= 1.0
        if self.classes == 2:
            residual = residual[:, 1:]
        norms = torch.linalg.vector_norm(residual, dim=1) * _extended_norms(x)
        coefficients = weigh(norms, losses)
        return WeightedGradient(self._outer(x, coefficients[:, None] * residual), norms, losses, coefficients)

    def probability_gradient(self, theta: Tensor, x: Tensor, coefficients: Tensor) -> Tensor:
        return self._outer(x, self._through_softmax(theta, x, coefficients))

    def probability_norms(self, theta: Tensor, x: Tensor, directions: Tensor) -> Tensor:
        probabilities = self.probabilities(theta, x)
        extended = _extended_norms(x)
        along = [
            torch.linalg.vector_norm(self._softmax_pullback(probabilities, v.expand_as(probabilities)), dim=1)
            for v in directions
        ]
        return torch.stack(along, dim=1) * extended[:, None]

    def _scores(self, theta: Tensor, x: Tensor) -> Tensor:
        matrix = theta.reshape(self.features + 1, -1)
        return torch.addmm(matrix[-1], x, matrix[:-1])

    def _through_softmax(self, theta: Tensor, x: Tensor, coefficients: Tensor) -> Tensor:
        return self._softmax_pullback(self.probabilities(theta, x), coefficients)

    def _softmax_pullback(self, probabilities: Tensor, coefficients: Tensor) -> Tensor:
        """The gradient of <coefficients, softmax(scores)> in the free scores."""
        mean = (probabilities * coefficients).sum(dim=1, keepdim=True)
        pulled = probabilities * (coefficients - mean)
        return pulled[:, 1:] if self.classes == 2 else pulled

    def _outer(self, x: Tensor, right: Tensor) -> Tensor:
        return torch.cat((x.T @ right, right.sum(dim=0, keepdim=True))).reshape(-1)


def _extended_norms(x: Tensor) -> Tensor:
    return (x.square().sum(dim=1) + 1.0).sqrt()
