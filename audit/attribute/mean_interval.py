"""A confidence interval for the mean of bounded numbers that holds at every sample size.

Attack and imputation are right on nearly the same records, so their difference is zero nearly always; the normal
approximation and the bootstrap then promise more than they keep. The interval here is a test by betting: a gambler who
bets against "the mean is m" with stakes chosen from earlier values only has a wealth that exceeds 2/alpha with
probability at most alpha/2 if m is the mean (Ville's inequality), and becomes rich quickly if it is not.
"""

from __future__ import annotations

import math

import numpy as np

from audit.report.results import Interval
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, open_unit

_LARGEST_STAKE = 0.75
"""No bet may lose more than this share of the wealth, so that it never runs out."""
_HALVINGS = 40


def mean_interval(values: Floats, low: float, high: float, confidence: float) -> Interval:
    """The mean of independent values in [low, high] with a common mean, given in an order unrelated to the values.

    Guarantee: covers that mean with probability at least `confidence`, whatever the distribution
    (docs/theorems/attribute-inference.md, the interval).
    """
    if len(values) == 0:
        raise InvalidInput("values", "none", "must not be empty", "give at least one")
    if values.min() < low or values.max() > high:
        raise InvalidInput("values", float(values.min()), f"must lie in [{low}, {high}]", "report this as a bug")
    alpha = 1 - open_unit("confidence", confidence)
    scaled = np.clip((np.asarray(values, dtype=np.float64) - low) / (high - low), 0.0, 1.0)
    width = high - low
    lower = low + width * _lower_end(scaled, alpha)
    upper = high - width * _lower_end(1 - scaled, alpha)
    mean = float(np.mean(values))
    return Interval(value=mean, lower=min(lower, mean), upper=max(upper, mean))


def _lower_end(values: Floats, alpha: float) -> float:
    """The largest m on a fine grid for which the wealth of betting on "more than m" refutes every mean up to m.

    The wealth falls as m grows, factor by factor, so halving finds the end; the refuted side is returned.
    """
    stakes = _stakes(values, alpha)
    goal = math.log(2 / alpha)
    refuted, kept = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (refuted + kept) / 2
        if _best_log_wealth(values, stakes, middle) >= goal:
            refuted = middle
        else:
            kept = middle
    return refuted


def _best_log_wealth(values: Floats, stakes: Floats, mean: float) -> float:
    """The largest wealth on the way: stopping there was allowed."""
    bets = np.minimum(stakes, _LARGEST_STAKE / mean)
    return float(np.cumsum(np.log1p(bets * (values - mean))).max())


def _stakes(values: Floats, alpha: float) -> Floats:
    """How much to bet on each value, by the variance of those before it."""
    count = len(values)
    places = np.arange(1, count + 1)
    running = (0.5 + np.cumsum(values)) / (places + 1)
    variance = (0.25 + np.cumsum((values - running) ** 2)) / (places + 1)
    before = np.concatenate([[0.25], variance[:-1]])
    return np.sqrt(2 * math.log(2 / alpha) / (count * before))
