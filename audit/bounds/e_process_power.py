"""The exact probability that the e-process refutes a promise when every guess is right at one rate.

The wealth after k guesses depends only on how many were right, so refutation is a first passage of a counting
process over a known boundary; its probability is computed by carrying the distribution of the count forward.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from audit.bounds.e_process import EProcess, log_odds
from audit.bounds.trade_off import EpsilonDeltaCurve

_NEGLIGIBLE = 1e-15
_MOST_STEPS = 20_000
"""Later guesses are not followed: the power is then a lower bound."""


def crossing_probability(
    method: EProcess,
    promise: EpsilonDeltaCurve,
    coins: int,
    guesses: int,
    choices: int,
    success_rate: float,
    failure: float,
) -> float:
    """P[the promise is refuted within `guesses` guesses, each right with probability `success_rate`]."""
    toll = method.toll(coins, promise, choices)
    log_needed = -math.log(method.left(1 - failure, toll))
    steps = min(guesses, _MOST_STEPS)
    boundary = toll.forgiven + _boundary(method, promise.epsilon, choices, steps, log_needed)
    lowest, alive, crossed = 0, np.ones(1), 0.0
    for needed in boundary.tolist():
        moved = np.zeros(len(alive) + 1)
        moved[:-1] = alive * (1 - success_rate)
        moved[1:] += alive * success_rate
        kept = max(0, min(len(moved), needed - lowest))
        crossed += float(moved[kept:].sum())
        alive = moved[:kept]
        solid = np.flatnonzero(alive > _NEGLIGIBLE)
        if not len(solid):
            break
        lowest, alive = lowest + int(solid[0]), alive[solid[0] : solid[-1] + 1]
    return crossed


def _boundary(
    method: EProcess, epsilon: float, choices: int, guesses: int, log_needed: float
) -> NDArray[np.int64]:
    """For k = 1 .. guesses the fewest right guesses whose wealth exceeds the need (k + 1 if none does)."""
    bets = np.array([log_odds(epsilon, lead, choices) for lead in method.leads])
    steps = np.arange(1, guesses + 1)
    low, high = np.full(guesses, -1), steps + 1
    while (high - low > 1).any():
        middle = (low + high) // 2
        wealth = np.logaddexp.reduce(
            middle[:, None] * bets[:, 0] + (steps - middle)[:, None] * bets[:, 1], axis=1
        )
        enough = wealth - math.log(len(method.leads)) > log_needed
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    return np.asarray(high, dtype=np.int64)
