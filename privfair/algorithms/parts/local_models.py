"""The clients' own models between two aggregations, where every local step is a round of its own.

All of it follows from published gradients, so the server (or anybody) can follow every client's model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from privfair.algorithms.algorithm import Algorithm, Received, SiloTensors
from privfair.models.model import Features, Model, Records, mean_over


def drawn_rows(silo: SiloTensors, batch: Tensor) -> tuple[Records, Tensor, Tensor]:
    """Features, classes and groups of a batch."""
    x = silo.batch(batch)
    return x, x.of(silo.y), x.of(silo.s)


# A client that trains on its own for a while: passes over its batch in mini-batches, in the batch's own order.


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


@final
@dataclass(frozen=True, eq=False)
class OneModel:
    """A state that is the global model and nothing more."""

    theta: Tensor


class OneModelAlgorithm(Algorithm[OneModel]):
    """An algorithm that remembers nothing but its model; a base class."""

    def theta(self, state: OneModel) -> Tensor:
        return state.theta


@final
@dataclass(frozen=True, eq=False)
class LocalModels:
    """The global model, and one row per client while local steps are under way."""

    theta: Tensor
    local: Tensor | None = None
    inner: int = 0
    """Local steps since the last aggregation."""

    def of(self, place: int) -> Tensor:
        return self.theta if self.local is None else self.local[place]

    def rows(self, clients: int) -> Tensor:
        """Every client's model, as a copy."""
        return self.theta.repeat(clients, 1) if self.local is None else self.local.clone()


def place_of(party: str, weights: Mapping[str, float]) -> int:
    """A client's row; clients stand in the order of their weights."""
    if party not in weights:
        raise InvalidInput("client", party, f"is none of {', '.join(weights)}", "give it a weight")
    return tuple(weights).index(party)


def with_mean_change(theta: Tensor, weights: Mapping[str, float], received: Received, name: str) -> Tensor:
    """The model moved by the weighted mean of the changes that clients published under this name."""
    mean = sum(share * received[party][name].values for party, share in weights.items())
    return theta + torch.from_numpy(np.asarray(mean)).to(theta.dtype)


def weighted_mean(weights: Mapping[str, float], rows: Tensor) -> Tensor:
    """The weighted mean of the clients' rows."""
    return torch.tensor(tuple(weights.values()), dtype=rows.dtype) @ rows


# A start that costs nothing: each silo's own minimiser of the loss, which no attribute enters.
#
# Where features and labels are not protected, everything computed from them alone is free. A run may
# therefore begin at
# the mean of the silos' own minimisers (one-shot averaging) instead of at zero, and spend its paid rounds on
# fairness.


def towards_own_minimum(model: Model, theta: Tensor, x: Features, y: Tensor, iterations: int) -> Floats:
    """theta minus what up to `iterations` of L-BFGS make of it on these records; zero without records."""
    begin = theta.detach().numpy().astype(np.float64)
    if len(y) == 0:
        return np.zeros_like(begin)
    weigh = mean_over(len(y))

    def objective(flat: Floats) -> tuple[float, Floats]:
        found = model.weighted_gradient(torch.from_numpy(flat), x, y, weigh)
        return float(found.losses.mean()), found.total.numpy().astype(np.float64)

    return begin - minimum(objective, begin, iterations)


def minimum(
    objective: Callable[[Floats], tuple[float, Floats]], begin: Floats, iterations: int, slope: float = 1e-5
) -> Floats:
    """Where up to `iterations` of L-BFGS end that start at `begin`, or where no entry of the gradient exceeds `slope`.

    `objective` returns the value and the gradient at a point.
    """
    found = minimize(
        objective,
        begin,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": iterations, "maxfun": 4 * iterations, "gtol": slope},
    )
    return np.asarray(found.x, dtype=np.float64)
