"""The modified method of differential multipliers (Platt and Barr 1987), for gaps with a tolerance.

Minimise phi subject to g = 0, where g_a = max(0, |rate overall - rate of a| - tolerance): ascend in the multipliers,
descend on phi + lambda . g + (damping / 2) |g|^2. Everything here is a function of published sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrate.arrays import Floats


@dataclass(frozen=True, eq=False)
class RateSums:
    """Sums over one round's records of one rate: by group, its values, its gradients, and how many records."""

    values: Floats
    """(groups,)"""
    gradients: Floats
    """(groups, parameters)"""
    counts: Floats
    """(groups,)"""


@dataclass(frozen=True, eq=False)
class Violations:
    """g and its gradient, one row a group; a group without enough records has zeros."""

    size: Floats
    gradient: Floats
    gaps: Floats
    """|rate overall - rate of the group|; nan where it is not known."""


def violations(sums: RateSums, tolerance: float, least_count: float) -> Violations:
    """By how much each group's rate is too far from the overall rate.

    Noisy counts can be tiny or negative. A group below `least_count` is left out of this round; rates are brought back
    to [0, 1], where exact ones lie. Both are post-processing.
    """
    groups = len(sums.counts)
    gaps = np.full(groups, np.nan)
    size, gradient = np.zeros(groups), np.zeros_like(sums.gradients)
    total = float(sums.counts.sum())
    if total < least_count:
        return Violations(size, gradient, gaps)
    overall = float(np.clip(sums.values.sum() / total, 0.0, 1.0))
    overall_gradient = sums.gradients.sum(axis=0) / total
    for group in range(groups):
        number = float(sums.counts[group])
        if number < least_count:
            continue
        difference = overall - float(np.clip(sums.values[group] / number, 0.0, 1.0))
        gaps[group] = abs(difference)
        excess = gaps[group] - tolerance
        if excess >= 0:
            size[group] = excess
            gradient[group] = np.sign(difference) * (overall_gradient - sums.gradients[group] / number)
    return Violations(size, gradient, gaps)


def ascended(multipliers: Floats, found: Violations, step: float) -> Floats:
    """lambda + step * g."""
    return multipliers + step * found.size


def descent(loss_gradient: Floats, multipliers: Floats, damping: float, found: Violations) -> Floats:
    """The gradient of phi + lambda . g + (damping / 2) |g|^2."""
    return loss_gradient + (multipliers + damping * found.size) @ found.gradient
