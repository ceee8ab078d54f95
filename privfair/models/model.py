"""What an algorithm needs from a model.

A model is a pure function of a flat parameter vector `theta`. Its central operation is the *weighted
gradient*: sum_i c_i grad_i, where the coefficients c_i may depend on each record's gradient norm and loss. That
is per-record clipping, fair clipping and plain averaging in one, and no per-record gradient need be stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Weigh = Callable[[Tensor, Tensor], Tensor]
"""From gradient norms and losses of the records of a batch to their coefficients."""


@dataclass(frozen=True)
class WeightedGradient:
    """sum_i c_i grad_i with what was measured on the way; tensors over records have one entry each."""

    total: Tensor
    norms: Tensor
    losses: Tensor
    coefficients: Tensor

    @property
    def largest_part(self) -> float:
        """The largest norm of one record's part c_i grad_i."""
        if self.norms.numel() == 0:
            return 0.0
        return float((self.coefficients.abs() * self.norms).max())


class Model(Protocol):
    """A classifier; `size` parameters, `classes` classes."""

    @property
    def size(self) -> int: ...

    @property
    def classes(self) -> int: ...

    def initial(self, seed: int) -> Tensor:
        """A parameter vector to start from; the same for the same seed."""
        ...

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Scores of shape (records, classes)."""
        ...

    def probabilities(self, theta: Tensor, x: Tensor) -> Tensor:
        """Class probabilities of shape (records, classes)."""
        ...

    def weighted_gradient(self, theta: Tensor, x: Tensor, y: Tensor, weigh: Weigh) -> WeightedGradient:
        """sum_i c_i grad_i of the cross-entropy loss."""
        ...

    def probability_gradient(self, theta: Tensor, x: Tensor, coefficients: Tensor) -> Tensor:
        """The gradient of sum_i <coefficients_i, probabilities_i> in theta."""
        ...

    def probability_norms(self, theta: Tensor, x: Tensor, directions: Tensor) -> Tensor:
        """For each record and each direction v: the norm of the gradient of <v, probabilities_i>; (records, v)."""
        ...


def mean_over(size: int) -> Weigh:
    """Every record with weight 1/size: the plain mean, whatever the batch's real size."""
    return lambda norms, losses: torch.full_like(norms, 1.0 / size)


def clipped_to(bound: float) -> Weigh:
    """min(1, bound / norm), nudged down so that rounding cannot push a part over its bound."""

    def weigh(norms: Tensor, losses: Tensor) -> Tensor:
        slack = 1 + 8 * torch.finfo(norms.dtype).eps
        return (bound / (norms * slack).clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1.0)

    return weigh
