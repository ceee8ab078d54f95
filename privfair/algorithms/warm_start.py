"""A start that costs nothing: each silo's own minimiser of the loss, which no attribute enters.

Where features and labels are not protected, everything computed from them alone is free. A run may therefore begin at
the mean of the silos' own minimisers (one-shot averaging) instead of at zero, and spend its paid rounds on fairness.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from calibrate.arrays import Floats
from privfair.models.model import Model, mean_over


def towards_own_minimum(model: Model, theta: Tensor, x: Tensor, y: Tensor, iterations: int) -> Floats:
    """theta minus what up to `iterations` of L-BFGS make of it on these records; zero without records."""
    begin = theta.detach().numpy().astype(np.float64)
    if len(y) == 0:
        return np.zeros_like(begin)
    weigh = mean_over(len(y))

    def objective(flat: Floats) -> tuple[float, Floats]:
        found = model.weighted_gradient(torch.from_numpy(flat), x, y, weigh)
        return float(found.losses.mean()), found.total.numpy().astype(np.float64)

    limits = {"maxiter": iterations, "maxfun": 4 * iterations}
    found = minimize(objective, begin, jac=True, method="L-BFGS-B", options=limits)
    return begin - np.asarray(found.x, dtype=np.float64)
