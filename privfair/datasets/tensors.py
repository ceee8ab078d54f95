"""The same records as torch tensors, for those who train; nothing else in this folder needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privfair.datasets.dataset import Dataset

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Tensors:
    features: torch.Tensor
    label: torch.Tensor
    group: torch.Tensor


def as_tensors(dataset: Dataset, dtype: torch.dtype | None = None) -> Tensors:
    """Copies of the arrays (a data set's own are read-only); features as float32 unless asked otherwise."""
    import torch

    features = torch.from_numpy(np.array(dataset.features))
    return Tensors(
        features.to(torch.float32 if dtype is None else dtype),
        torch.from_numpy(np.array(dataset.label)),
        torch.from_numpy(np.array(dataset.group)),
    )
