"""Rényi formulas as the papers print them, so that a claim can be evaluated exactly as made.

These are not this package's accountants: they reproduce what an author's accountant would answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, logsumexp

from calibrate.accountants.renyi import epsilon_at_order
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from calibrate.roots import find_root

_STEP = 0.02
"""Spacing of the trapezoid rule, in standard deviations; for these entire integrands it is exact to rounding."""


def log_binomial(n: int, k: Floats) -> Floats:
    """The logarithm of n over k, elementwise in k."""
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def poisson_log_moment(order: int, rate: float, sigma: float) -> float:
    """log A_alpha of the Poisson-subsampled Gaussian (Mironov, Talwar, Zhang 2019, integer orders)."""
    k = np.arange(order + 1, dtype=np.float64)
    gaussian = (k * k - k) / (2 * sigma**2)
    if rate == 1:
        return float(gaussian[-1])
    weights = log_binomial(order, k) + (order - k) * math.log1p(-rate) + k * math.log(rate)
    return float(logsumexp(weights + gaussian))


def epsilon_from_renyi(order: float, divergence: float, delta: float) -> float:
    """Lemma 1 of FedFDP (Balle et al. 2020), which is the conversion of the Rényi accountant; at least 0."""
    return max(0.0, epsilon_at_order(divergence, order, delta))


def best_order(divergence: Callable[[int], float], delta: float, largest: int) -> tuple[float, int]:
    """The smallest epsilon over the integer orders 2 .. largest, and the order that gives it."""
    return min((epsilon_from_renyi(a, divergence(a), delta), a) for a in range(2, largest + 1))


def fixed_size_log_moments(rate: float, sigma: float, largest: int) -> Floats:
    """log of the moment bound of fixed-size sampling, orders 2 .. largest (Wang, Balle, Kasiviswanathan 2019).

    Theorem 27 (the strengthened form of Theorem 9) for a Gaussian of multiplier sigma: term i is
    rate^i C(a, i) times the smaller of 2 exp((i-1) i / (2 sigma^2)) and 4 sqrt(D_lo D_hi), with D_l the even
    central moments of the likelihood ratio next to i; the term i = 2 has its own constants.
    """
    i = np.arange(2, largest + 1, dtype=np.float64)
    central = _log_central_moments(sigma, largest)
    low, high = central[(i // 2).astype(int)], central[((i + 1) // 2).astype(int)]
    terms = np.minimum(math.log(4) + (low + high) / 2, math.log(2) + i * (i - 1) / (2 * sigma**2))
    second = 1 / sigma**2
    terms[0] = min(math.log(4) + math.log(math.expm1(second)), second + math.log(2))
    terms += i * math.log(rate)
    orders = range(2, largest + 1)
    sums = [logsumexp(np.append(terms[: order - 1] + log_binomial(order, i[: order - 1]), 0.0)) for order in orders]
    return np.array(sums)


def fixed_size_epsilon(rate: float, sigma: float, rounds: int, delta: float, largest: int) -> float:
    """Epsilon of `rounds` fixed-size rounds by those moments, as a user of that accountant would get it."""
    moments = fixed_size_log_moments(rate, sigma, largest)
    orders = range(2, largest + 1)
    return min(epsilon_from_renyi(a, rounds * float(m) / (a - 1), delta) for a, m in zip(orders, moments, strict=True))


def fixed_size_sigma(rate: float, rounds: int, epsilon: float, delta: float, largest: int) -> float:
    """The multiplier at which that accountant answers `epsilon`."""
    floor = epsilon_from_renyi(largest, 0.0, delta)
    if epsilon <= floor:
        raise InvalidInput(
            "epsilon",
            epsilon,
            f"can't be certified at delta = {delta:g} with orders up to {largest}, whatever the noise",
            f"ask for more than {floor:.3g}, or raise largest_order",
        )

    def excess(log_sigma: float) -> float:
        return fixed_size_epsilon(rate, math.exp(log_sigma), rounds, delta, largest) - epsilon

    low, high = math.log(0.3), math.log(1.0)
    while excess(low) < 0:
        low -= 1
    while excess(high) > 0:
        high += 1
    return math.exp(find_root(excess, low, high, 1e-10, 1e-15))


def _log_central_moments(sigma: float, largest: int) -> Floats:
    """log E[(p/q - 1)^(2j)] under q, for j = 0 .. ceil(largest/2), where p/q = exp(x/sigma - 1/(2 sigma^2))."""
    top = (largest + 1) // 2 + 1
    # exp(2j x/sigma) moves the Gaussian's bulk to 2j/sigma; 10 deviations either side hold all but 1e-23.
    x = np.arange(-10.0, 2 * top / sigma + 10.0, _STEP)
    exponent = x / sigma - 1 / (2 * sigma**2)
    with np.errstate(divide="ignore", over="ignore"):
        log_ratio = np.where(exponent > 30, exponent, np.log(np.abs(np.expm1(np.minimum(exponent, 30.0)))))
    base = -(x**2) / 2 + math.log(_STEP / math.sqrt(2 * math.pi))
    j = np.arange(top + 1, dtype=np.float64)[:, None]
    with np.errstate(invalid="ignore"):
        powers = np.where(j == 0, 0.0, 2 * j * log_ratio[None, :])
    return np.asarray(logsumexp(base[None, :] + powers, axis=1))
