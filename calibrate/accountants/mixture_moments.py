"""Moments of the likelihood ratio of two Gaussian mixtures, by the trapezoid rule.

The integrands are analytic in a strip around the real line (the nearest zero of a mixture lies pi z^2 away), so
the trapezoid rule converges faster than any power of the step; with the step chosen here its error is far
below the rounding of the sum, and `_OUTWARD` covers that rounding.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp

_OUTWARD = 1e-13
_MOST_NODES = 4_000_000
_DEVIATIONS = 14.0


def log_mixture_moment(
    rate: float, noise_multiplier: float, upper_mean: float, lower_mean: float, order: float
) -> float:
    """log of the integral of P^order * Q^(1 - order), rounded up.

    P = (1-q) N(0, z^2) + q N(upper_mean, z^2), Q likewise with lower_mean; the means lie in [-1, 1]. A negative
    order is allowed. Infinite when the grid would be larger than memory should bear: an upper bound still.
    """
    z = noise_multiplier
    # Every factor is a Gaussian with a mean in [-1, 1] raised to at most |order| + 1: the mass lies within.
    reach = 2 * abs(order) + 2 + _DEVIATIONS * z
    step = min(z, z * z) / 8
    if 2 * reach / step > _MOST_NODES:
        return math.inf
    x = np.arange(-reach, reach + step, step)

    def log_density(mean: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        log_here, log_there = math.log1p(-rate) if rate < 1 else -math.inf, math.log(rate)
        tilt = (2 * x * mean - mean**2) / (2 * z * z)
        return np.logaddexp(log_here, log_there + tilt) - (x / z) ** 2 / 2

    log_integrand = order * log_density(upper_mean) + (1 - order) * log_density(lower_mean)
    total = float(logsumexp(log_integrand)) + math.log(step / (z * math.sqrt(2 * math.pi)))
    return total + _OUTWARD * (1 + abs(total))
