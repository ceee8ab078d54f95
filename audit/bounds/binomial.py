"""Binomial probabilities, accurate in both tails and vectorised where a bound needs many of them."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats
from scipy.special import betainc, betaincc, gammaln

from calibrate.arrays import Floats, Integers


def at_least(least: int, trials: int, miss: float) -> float:
    """P[X >= least] for X ~ Binomial(trials, 1 - miss); the rate is given by its complement, often small."""
    if least <= 0:
        return 1.0
    return float(betaincc(trials - least + 1, least, miss)) if least <= trials else 0.0


def at_most(most: int, trials: int, rate: float) -> float:
    """P[X <= most] for X ~ Binomial(trials, rate)."""
    if most < 0:
        return 0.0
    return float(1 - betainc(most + 1, trials - most, rate)) if most < trials else 1.0


def two_sided(count: Integers | int, trials: int, rate: Floats | float) -> Floats:
    """How likely X ~ Binomial(trials, rate) is as small or as large as `count`: twice the smaller tail, at most 1."""
    law, found = stats.binom(trials, rate), np.asarray(count)
    return np.asarray(np.minimum(1.0, 2 * np.minimum(law.cdf(found), law.sf(found - 1))))


def log_ways(trials: int, values: Floats) -> Floats:
    """log of the binomial coefficients."""
    return np.asarray(gammaln(trials + 1) - gammaln(values + 1) - gammaln(trials - values + 1))


def log_masses(values: Floats, trials: int, miss: float) -> Floats:
    """log P[X = value] for X ~ Binomial(trials, 1 - miss)."""
    hits, misses = values * math.log1p(-miss), (trials - values) * math.log(miss)
    return log_ways(trials, values) + hits + misses


def usual_range(trials: int, least_rate: float, most_rate: float, cut: float) -> tuple[int, int]:
    """Counts outside have probability at most 2 exp(-cut) at every rate between the two (Bernstein)."""
    first = max(0, math.floor(trials * least_rate - _reach(trials, least_rate, cut)))
    last = min(trials, math.ceil(trials * most_rate + _reach(trials, most_rate, cut)))
    return first, last


def _reach(trials: int, rate: float, cut: float) -> float:
    """The t with t^2 / (2 (n p (1 - p) + t / 3)) = cut."""
    # The positive root of t^2 - 2 cut t / 3 - 2 cut n p (1 - p) = 0.
    return cut / 3 + math.sqrt(cut**2 / 9 + 2 * cut * trials * rate * (1 - rate))
