"""A client that trains on its own for a while: passes over its batch in mini-batches, in the batch's own order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats


def local_change(
    theta: Tensor,
    batch: Tensor,
    epochs: int,
    size: int | None,
    rate: float,
    gradient: Callable[[Tensor, Tensor], Tensor],
) -> Floats:
    """Where descent along `gradient(theta, rows)` ends, minus where it began. The batch is in random order already."""
    moved = theta
    for _ in range(epochs):
        for rows in torch.split(batch, size or max(1, len(batch))):
            if len(rows):
                moved = moved - rate * gradient(moved, rows).to(theta.dtype)
    return (moved - theta).numpy().astype(np.float64)
