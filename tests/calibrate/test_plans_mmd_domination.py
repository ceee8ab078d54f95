"""MMD-fair FedAvg: a record that leaves a group is covered by the fixed-size pair, checked by integration.

The law of the noisy predictions is written down from scratch: all subsets, all orders, numerical integration over the
plane. Nothing of the proof in docs/theorems/fpfl-and-mmd.md#mmd-fair-fedavg is used.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

STEP = 0.05
GRID = np.arange(-6.0, 7.0, STEP)


def gaussian(mean: float, sigma: float) -> np.ndarray:
    return np.exp(-((GRID - mean) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))


def published(predictions: list[float], draws: int, sigma: float) -> np.ndarray:
    """The density of `draws` (1 or 2) noisy predictions of a uniform subset, in the order of the records."""
    density = np.zeros((len(GRID),) * draws)
    subsets = list(combinations(predictions, draws))
    for subset in subsets:
        factors = [gaussian(mean, sigma) for mean in subset]
        density += factors[0] if draws == 1 else np.multiply.outer(factors[0], factors[1])
    return density / len(subsets)


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * STEP**p.ndim)


def fixed_size_profile(rate: float, sigma: float, epsilon: float) -> float:
    """The larger of the two directions of ((1-q) N(0) + q N(1), N(0)): what the plan is charged for one set."""
    absent = gaussian(0.0, sigma)
    mixed = (1 - rate) * absent + rate * gaussian(1.0, sigma)
    return max(hockey_stick(mixed, absent, epsilon), hockey_stick(absent, mixed, epsilon))


@settings(max_examples=60, deadline=None)
@given(
    others=st.lists(st.floats(0, 1), min_size=2, max_size=4),
    leaving=st.floats(0, 1),
    place=st.integers(0, 4),
    draws=st.integers(1, 2),
    sigma=st.floats(0.4, 1.5),
    epsilon=st.floats(0, 2),
)
def test_leaving_or_entering_a_group_is_dominated_by_the_fixed_size_pair(
    others: list[float], leaving: float, place: int, draws: int, sigma: float, epsilon: float
) -> None:
    place = min(place, len(others))
    group = [*others[:place], leaving, *others[place:]]
    before, after = published(group, draws, sigma), published(others, draws, sigma)
    charged = fixed_size_profile(draws / len(group), sigma, epsilon)
    assert hockey_stick(before, after, epsilon) <= charged + 1e-9
    assert hockey_stick(after, before, epsilon) <= charged + 1e-9


def test_the_pair_is_reached_when_all_others_predict_zero_and_the_record_comes_first() -> None:
    sigma, epsilon, group = 0.7, 0.3, [1.0, 0.0, 0.0, 0.0]
    replaced = [0.0, 0.0, 0.0, 0.0]
    reached = hockey_stick(published(group, 2, sigma), published(replaced, 2, sigma), epsilon)
    absent = gaussian(0.0, sigma)
    mixed = 0.5 * absent + 0.5 * gaussian(1.0, sigma)
    assert reached == pytest.approx(hockey_stick(mixed, absent, epsilon), rel=1e-6)


def test_three_groups_sets_together_cost_two_of_them() -> None:
    """One prediction of each of three groups, as a density in space: a record goes from the first to the third."""
    sigma, here, there = 0.8, [[1.0, 0.0], [0.3, 0.6], [0.0, 0.0]], [[0.0], [0.3, 0.6], [0.0, 0.0, 1.0]]
    coarse = slice(None, None, 4)

    def law(groups: list[list[float]]) -> np.ndarray:
        first, second, third = (published(group, 1, sigma)[coarse] for group in groups)
        return np.einsum("i,j,k->ijk", first, second, third)

    def divergence(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
        return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (4 * STEP) ** p.ndim)

    absent, present = gaussian(0.0, sigma)[coarse], gaussian(1.0, sigma)[coarse]
    left, entered = 0.5 * (absent + present), (2 * absent + present) / 3
    charged = (np.multiply.outer(left, absent), np.multiply.outer(absent, entered))
    for epsilon in (0.0, 0.3, 1.0):
        two_sets = divergence(*charged, epsilon)
        assert divergence(law(here), law(there), epsilon) == pytest.approx(two_sets, abs=1e-9)
        one_set = divergence(left, absent, epsilon)
        assert two_sets > one_set + 0.01
