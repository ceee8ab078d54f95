"""From scores to losses and probabilities, and back: what every classifier shares."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrate.errors import InvalidInput

EXACT = torch.float64
"""The type of everything that decides or applies a clipping coefficient."""


def in_working_precision(theta: Tensor, x: Tensor) -> Tensor:
    """theta in the features' type (token numbers leave it as it is); half precision is refused."""
    dtype = x.dtype if x.dtype.is_floating_point else theta.dtype
    if dtype not in (torch.float32, torch.float64):
        raise InvalidInput(
            "features", str(dtype), "must be float32 or float64", "convert them with x.to(torch.float32)"
        )
    return theta.to(dtype)


def cross_entropy(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Each record's loss, and its gradient in the scores: softmax minus the true class's indicator."""
    log_probabilities = torch.log_softmax(logits, dim=1)
    labels = y[:, None]
    losses = -log_probabilities.gather(1, labels)[:, 0]
    residual = log_probabilities.exp().scatter_add(1, labels, logits.new_full((1, 1), -1.0).expand(len(y), 1))
    return losses, residual


def through_softmax(probabilities: Tensor, coefficients: Tensor) -> Tensor:
    """The gradient of <coefficients_i, softmax(scores_i)> in the scores, for each record; broadcasts on the left."""
    mean = (probabilities * coefficients).sum(dim=-1, keepdim=True)
    return probabilities * (coefficients - mean)
