"""Mechanisms of the literature, right and wrong, each with its claim: the bug lists of StatDP and DP-Auditorium.

Sparse vector: Lyu, Su, Li, "Understanding the Sparse Vector Technique for Differential Privacy" (2017), Figure 1.
StatDP: Ding, Wang, Wang, Zhang, Kifer, "Detecting Violations of Differential Privacy" (2018).
DP-Auditorium: Kong, Munoz Medina, Ribero, Syed, "DP-Auditorium" (2023): its mechanisms.

Queries count records: entry i of a record in [0, 1]^m moves query i by at most 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.claims.claim import Domain
from audit.claims.spaces import Box
from calibrate.privacy_unit import Relation

EPSILON = 2.0
QUERIES = 6
_BELOW, _ABOVE, _STOPPED = np.nan, 1.0, -np.inf
Mechanism = Callable[..., Any]


def sparse_vector(
    threshold_scale: float, query_scale: float, most: int | None, *, numbers: bool = False, redraw: bool = False
) -> Mechanism:
    """For each query whether it is above a noisy threshold of 1; after `most` such answers nothing more is said."""

    def mechanism(x: Any, rng: np.random.Generator, runs: int) -> Any:
        queries = x.sum(axis=0)
        noisy = queries + (rng.laplace(0, query_scale, (runs, len(queries))) if query_scale > 0 else 0.0)
        threshold = 1.0 + rng.laplace(0, threshold_scale, runs)
        found, answered = np.full((runs, len(queries)), _STOPPED), np.zeros(runs)
        for place in range(len(queries)):
            above = np.broadcast_to(noisy[..., place], runs) >= threshold
            told = np.where(above, noisy[..., place] if numbers else _ABOVE, _BELOW)
            found[:, place] = np.where(answered < (most or np.inf), told, _STOPPED)
            answered += above
            if redraw:
                threshold = np.where(above, 1.0 + rng.laplace(0, threshold_scale, runs), threshold)
        return found

    return mechanism


def noisy_max(scale: float, noise: str = "laplace", *, value: bool = False) -> Mechanism:
    """The place of the largest noisy count, or (wrongly) its value."""

    def mechanism(x: Any, rng: np.random.Generator, runs: int) -> Any:
        noisy = x.sum(axis=0) + getattr(rng, noise)(scale=scale, size=(runs, x.shape[1]))
        return noisy.max(axis=1) if value else noisy.argmax(axis=1)

    return mechanism


def laplace_sum(scale: float, *, rounded: bool = True) -> Mechanism:
    """A sum with Laplace noise; on a grid of 1/1024 its floats betray nothing."""

    def mechanism(x: Any, rng: np.random.Generator, runs: int) -> Any:
        if not rounded:
            return x.sum() + rng.laplace(0, scale, runs)
        return np.round(np.round(x.sum() * 1024) + rng.laplace(0, 1024 * scale, runs)) / 1024

    return mechanism


def mean(noisy_divisor: bool, noise: str = "laplace", factor: float = 1.0) -> Mechanism:
    """A sum over a count at epsilon 1, with noise whose scale shows the true count, and perhaps that as divisor."""

    def mechanism(x: Any, rng: np.random.Generator, runs: int) -> Any:
        counted = np.maximum(len(x) + rng.laplace(0, 2.0, runs), 1.0)
        divisor = counted if noisy_divisor else np.full(runs, float(len(x)))
        return x.sum() / divisor + getattr(rng, noise)(0.0, factor * 2.0 / len(x), runs)

    return mechanism


def noisy_sum_over_noisy_count(x: Any, rng: np.random.Generator, runs: int) -> Any:
    """The right way: both are paid for, and dividing them is post-processing."""
    total = x.sum() + rng.laplace(0, 2 / EPSILON, runs)
    return total / np.maximum(len(x) + rng.laplace(0, 2 / EPSILON, runs), 1.0)


@dataclass(frozen=True)
class Published:
    """A mechanism that claims `epsilon` (at `delta`), and whether it keeps it."""

    name: str
    source: str
    mechanism: Mechanism
    keeps: bool
    relation: Relation = Relation.REPLACE_ONE
    queries: int | None = QUERIES
    epsilon: float = EPSILON
    delta: float = 0.0
    low_bits: bool = False

    @property
    def domain(self) -> Domain:
        space = Box(0.0, 1.0) if self.queries is None else Box(0.0, 1.0, (self.queries,))
        return Domain({"x": space}, fewest=1)


_HALF, _COUNT = EPSILON / 2, 2
_SVT = "Lyu et al., Algorithm "
_ADD, _GAUSS = Relation.ADD_REMOVE, float(np.sqrt(2 * np.log(1.25e5)))
PUBLISHED = (
    Published("sparse vector", _SVT + "1", sparse_vector(1 / _HALF, 2 * _COUNT / _HALF, _COUNT), True),
    Published(
        "sparse vector, threshold redrawn",
        _SVT + "2",
        sparse_vector(_COUNT / _HALF, 2 * _COUNT / _HALF, _COUNT, redraw=True),
        True,
    ),
    Published(
        "sparse vector that shows the noisy query",
        _SVT + "3 (StatDP iSVT4)",
        sparse_vector(2 / 3, 2 / 3, 1, numbers=True),
        False,
        queries=8,
        epsilon=3.0,
    ),
    Published(
        "sparse vector whose noise ignores the count",
        _SVT + "4 (StatDP iSVT3)",
        sparse_vector(4 / EPSILON, 4 / (3 * EPSILON), QUERIES),
        False,
    ),
    Published(
        "sparse vector without noise on queries", _SVT + "5 (StatDP iSVT1)", sparse_vector(1 / _HALF, 0.0, None), False
    ),
    Published(
        "sparse vector that never stops", _SVT + "6 (StatDP iSVT2)", sparse_vector(1 / _HALF, 1 / _HALF, None), False
    ),
    Published("noisy max", "StatDP", noisy_max(2 / EPSILON), True),
    Published("noisy max, exponential noise", "StatDP", noisy_max(2 / EPSILON, "exponential"), True),
    Published("noisy max, Gumbel noise", "DP-Auditorium", noisy_max(2 / EPSILON, "gumbel"), True),
    Published("noisy max with half the noise", "wrong scale", noisy_max(1 / EPSILON), False),
    Published("noisy max that shows the value", "StatDP", noisy_max(2 / EPSILON, value=True), False),
    Published(
        "noisy max that shows the value, exponential noise",
        "StatDP",
        noisy_max(2 / EPSILON, "exponential", value=True),
        False,
    ),
    Published("Laplace sum", "Dwork et al. (2006)", laplace_sum(1 / EPSILON), True, _ADD, None, low_bits=True),
    Published("Laplace sum, scale 1/(2 epsilon)", "wrong scale", laplace_sum(1 / (2 * EPSILON)), False, _ADD, None),
    Published("histogram, scale epsilon", "StatDP", laplace_sum(0.5), False, _ADD, None, epsilon=0.5),
    Published(
        "Laplace sum in floats",
        "Mironov (2012)",
        laplace_sum(1 / EPSILON, rounded=False),
        False,
        _ADD,
        None,
        low_bits=True,
    ),
    Published("mean, noisy sum over noisy count", "textbook", noisy_sum_over_noisy_count, True, _ADD, None),
    Published("mean, true count", "DP-Auditorium", mean(False), False, _ADD, None, epsilon=1.0),
    Published("mean, true count in the scale", "DP-Auditorium", mean(True), False, _ADD, None, epsilon=1.0),
    Published(
        "Gaussian mean, true count", "DP-Auditorium", mean(False, "normal", _GAUSS), False, _ADD, None, 1.0, 1e-5
    ),
)
