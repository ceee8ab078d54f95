"""The clients' own models between two aggregations, where every local step is a round of its own.

All of it follows from published gradients, so the server (or anybody) can follow every client's model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput


@final
@dataclass(frozen=True, eq=False)
class LocalModels:
    """The global model, and one row a client while local steps are under way."""

    theta: Tensor
    local: Tensor | None = None
    inner: int = 0
    """Local steps since the last aggregation."""

    def of(self, place: int) -> Tensor:
        return self.theta if self.local is None else self.local[place]

    def rows(self, clients: int) -> Tensor:
        """Every client's model, as a copy."""
        return self.theta.repeat(clients, 1) if self.local is None else self.local.clone()

    def arrays(self) -> dict[str, Floats]:
        arrays = {"theta": as_floats(self.theta), "inner": np.array(self.inner, dtype=np.float64)}
        return arrays if self.local is None else arrays | {"local": as_floats(self.local)}

    @classmethod
    def restored(cls, arrays: Mapping[str, Floats], dtype: torch.dtype) -> LocalModels:
        local = as_tensor(arrays["local"], dtype) if "local" in arrays else None
        return cls(as_tensor(arrays["theta"], dtype), local, int(arrays["inner"]))


def as_floats(values: Tensor) -> Floats:
    return np.asarray(values.numpy(), dtype=np.float64).copy()


def as_tensor(values: Floats, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float64)).to(dtype)


def place_of(party: str, weights: Mapping[str, float]) -> int:
    """A client's row; clients stand in the order of their weights."""
    if party not in weights:
        raise InvalidInput("client", party, f"is none of {', '.join(weights)}", "give it a weight")
    return tuple(weights).index(party)


def averaged(weights: Mapping[str, float], rows: Tensor) -> Tensor:
    """The weighted mean of the clients' rows."""
    return torch.tensor(tuple(weights.values()), dtype=rows.dtype) @ rows
