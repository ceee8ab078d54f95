"""What a silo computes on its own: passes over its batch in mini-batches, or the minimiser of its own loss.

Where features and labels are not protected, everything computed from them alone is free. A run may therefore begin at
the mean of the silos' own minimisers (one-shot averaging) instead of at zero, and spend its paid rounds on fairness.
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
from privfair.algorithms.algorithm import Algorithm, Received
from privfair.models.model import Features, Model, mean_over


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

    model: Model
    seed: int

    def start(self) -> OneModel:
        return OneModel(self.model.initial(self.seed))

    def theta(self, state: OneModel) -> Tensor:
        return state.theta


def with_mean_change(theta: Tensor, weights: Mapping[str, float], received: Received, name: str) -> Tensor:
    """The model moved by the weighted mean of the changes that clients published under this name."""
    mean = sum(share * received[party][name].values for party, share in weights.items())
    return theta + torch.from_numpy(np.asarray(mean)).to(theta.dtype)


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
