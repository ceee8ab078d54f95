"""The rows of a batch, without copying them when the batch is everybody."""

from __future__ import annotations

import torch
from torch import Tensor


def drawn_rows(batch: Tensor, *columns: Tensor) -> tuple[Tensor, ...]:
    """Each column at the rows `batch`."""
    length = len(columns[0])
    if len(batch) == length and torch.equal(batch, torch.arange(length, dtype=batch.dtype)):
        return columns
    return tuple(column[batch] for column in columns)
