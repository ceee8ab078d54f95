"""What an algorithm needs from a model.

A model is a pure function of a flat parameter vector `theta`. Its central operation is the *weighted
gradient*: sum_i c_i grad_i, where the coefficients c_i may depend on each record's gradient norm and loss. That
is per-record clipping, fair clipping and plain averaging in one, and no per-record gradient need be stored.

The features' type (float32 or float64) decides in which precision scores and back-propagation are computed; `theta`
is cast to it. Norms, coefficients and the weighted sum are float64 in either case, and so is everything returned in a
`WeightedGradient`: clipping is not where precision is saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from privfair.models.weighing import Weigh, clipped_after, clipped_to, mean_over

__all__ = ("Model", "Weigh", "WeightedGradient", "clipped_after", "clipped_to", "mean_over")


@dataclass(frozen=True, eq=False)
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
        """A parameter vector to start from, in float64; the same for the same seed."""
        ...

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Scores of shape (records, classes); differentiable in theta, by autograd and by torch.func."""
        ...

    def probabilities(self, theta: Tensor, x: Tensor) -> Tensor:
        """Class probabilities of shape (records, classes)."""
        ...

    def weighted_gradient(self, theta: Tensor, x: Tensor, y: Tensor, weigh: Weigh) -> WeightedGradient:
        """sum_i c_i grad_i of the cross-entropy loss; no records give the zero vector."""
        ...

    def probability_gradient(self, theta: Tensor, x: Tensor, coefficients: Tensor) -> Tensor:
        """The gradient of sum_i <coefficients_i, probabilities_i> in theta."""
        ...

    def probability_norms(self, theta: Tensor, x: Tensor, directions: Tensor) -> Tensor:
        """For each record and each direction v: the norm of the gradient of <v, probabilities_i>; (records, v)."""
        ...

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        """The parameters by name and in their shapes, as a torch state dict holds them; views of theta."""
        ...
