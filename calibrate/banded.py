"""Banded strategies: how the sums of some rounds in a row are mixed before they get independent noise.

A strategy is one column c_0, ..., c_(b-1) of a lower-triangular Toeplitz matrix C with b bands. Round t publishes
sum_j c_j G_(t-j) + noise, and the receiver solves for the G again. Their errors are C^-1 times independent
noise, which largely cancels in the running sums that descent computes. What it costs: docs/theorems/banded.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy.optimize import minimize
from scipy.signal import lfilter

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, count
from calibrate.releases import MOST_BANDS, check_column

_LONGEST = 20_000
"""Rounds that a strategy is optimised for at most; it is valid, and nearly as good, for longer runs."""
_DIGITS = 2.0**-48
"""Coefficients are whole multiples of this, rounded toward zero, so that a column's norm never exceeds 1."""


@cache
def banded_strategy(bands: int, rounds: int) -> tuple[float, ...]:
    """The column of norm 1 whose running sums over `rounds` rounds have about the smallest mean squared error.

    Deterministic and public: it depends on the two numbers alone. It starts at the square root of the matrix of running
    sums (1, 1/2, 3/8, ...; Fichtenberger, Henzinger and Upadhyay 2023), cut off, and follows the gradient from there.
    """
    if count("bands", bands) > MOST_BANDS:
        raise InvalidInput("bands", bands, f"exceeds {MOST_BANDS}", "use fewer bands; more barely help")
    if bands == 1:
        return (1.0,)
    horizon = min(count("rounds", rounds), _LONGEST)
    start: Floats = np.cumprod(np.concatenate(([1.0], 1 - 0.5 / np.arange(1.0, bands))), dtype=np.float64)
    within = [(0.0, 1.0)] * (bands - 1)  # beyond, the power series of the errors explodes
    with np.errstate(over="ignore", invalid="ignore"):
        found = minimize(_log_error_and_gradient, start[1:], args=(horizon,), jac=True, bounds=within)
    column = np.concatenate(([1.0], found.x))
    if not prefix_error(column, horizon) <= prefix_error(start, horizon):
        column = start
    shortened = np.trunc(column / np.linalg.norm(column) / _DIGITS) * _DIGITS
    return check_column(tuple(float(value) for value in shortened * (1 - 2.0**-40)))


def prefix_error(column: Sequence[float] | Floats, rounds: int) -> float:
    """The mean over rounds of the variance of a running sum, for noise of variance 1 and a column scaled to norm 1.

    Independent noise has (rounds + 1) / 2.
    """
    scaled = np.asarray(column, dtype=np.float64)
    errors = _running_errors(scaled / np.linalg.norm(scaled), rounds)
    return float(np.square(errors) @ np.arange(rounds, 0, -1)) / rounds


def _running_errors(column: Floats, rounds: int) -> Floats:
    """The first column of A C^-1, A the matrix of running sums: the power series 1 / (c(x) (1 - x))."""
    impulse = np.zeros(rounds)
    impulse[0] = 1.0
    return np.asarray(lfilter([1.0], np.convolve(column, (1.0, -1.0)), impulse))


def _log_error_and_gradient(tail: Floats, rounds: int) -> tuple[float, Floats]:
    """log(|c|^2 * sum_i w_i e_i^2) and its gradient in c_1, c_2, ..: d e / d c_j is -x^j e(x) / c(x)."""
    column = np.concatenate(([1.0], tail))
    errors = _running_errors(column, rounds)
    weighted = errors * np.arange(rounds, 0, -1)
    total = float(errors @ weighted)
    if not math.isfinite(total):
        return 1e3, np.zeros_like(tail)
    slope = np.asarray(lfilter([1.0], column, errors))
    moved = np.array([weighted[j:] @ slope[: rounds - j] if j < rounds else 0.0 for j in range(1, len(column))])
    norm = float(column @ column)
    return math.log(norm) + math.log(total), 2 * tail / norm - 2 * moved / total
