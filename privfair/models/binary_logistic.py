"""The clipped step of two-class logistic regression, in numpy: the same formulas at half of torch's overhead.

At a few hundred records and features the arithmetic takes some ten microseconds; the rest of a step is the cost of
calling the library, which numpy keeps lower. All of it is float64, whatever the features' type.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from privfair.models.model import WeightedGradient
from privfair.models.parts import refuse_the_infinite, weighed
from privfair.models.scores import EXACT
from privfair.models.weighing import ClippedTo, Weigh

_SIGN = np.array((1.0, -1.0))
"""By class: whether a growing score speaks against it."""


def binary_weighted_gradient(theta: Tensor, x: Tensor, y: Tensor, weigh: Weigh) -> WeightedGradient:
    """sum_i c_i grad_i for the scores x theta[:-1] + theta[-1] of class 1; tensors in the CPU's memory."""
    features = x.numpy() if x.dtype is EXACT else x.numpy().astype(np.float64)
    weights, labels = theta.numpy(), y.numpy()
    if np.bitwise_or.reduce(labels) not in (
        0,
        1,
    ):  # a negative label sets the sign bit, a larger one a higher bit
        raise InvalidInput("y", _strangest(labels), "must be class 0 or 1", "number the classes 0 and 1")
    sign = _SIGN.take(labels)
    # By how much the score speaks against the true class: losses and residuals then never cancel.
    against = features.dot(weights[:-1])
    against += weights.item(-1)
    against *= sign
    losses = np.logaddexp(0.0, against)
    residual = expit(against)
    norms = np.vecdot(features, features)
    norms += 1.0
    np.sqrt(norms, out=norms)
    norms *= residual
    coefficients = _weighed(weigh, norms, losses)
    residual *= sign
    residual *= coefficients
    total = np.empty(len(weights))
    np.dot(residual, features, out=total[:-1])
    total[-1] = np.add.reduce(residual)
    wrap = torch.from_numpy
    return WeightedGradient(wrap(total), wrap(norms), wrap(losses), wrap(coefficients))


def _weighed(weigh: Weigh, norms: Floats, losses: Floats) -> Floats:
    if not isinstance(weigh, ClippedTo):
        return weighed(weigh, torch.from_numpy(norms), torch.from_numpy(losses)).numpy()
    coefficients = weigh.of_array(norms)
    if not math.isfinite(norms.dot(norms)):  # the coefficients are then finite too
        refuse_the_infinite(torch.from_numpy(norms), torch.from_numpy(coefficients))
    return coefficients


def _strangest(labels: NDArray[np.int64]) -> int:
    return int(labels[np.abs(labels - 0.5).argmax()])
