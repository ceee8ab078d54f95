"""Theorem C.2's lower end: drawing with replacement is at least as telling as Poisson sampling at rate 1-(1-1/n)^m."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

STEP = 0.02


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - np.exp(epsilon) * q, 0).sum() * STEP)


@settings(max_examples=30, deadline=None)
@given(records=st.integers(2, 200), draws=st.integers(1, 60), multiplier=st.floats(0.5, 4), epsilon=st.floats(0, 3))
def test_multiplicities_dominate_presence(records: int, draws: int, multiplier: float, epsilon: float) -> None:
    x = np.arange(-12 * multiplier, draws + 12 * multiplier, STEP)
    absent = norm.pdf(x, 0, multiplier)
    weights = binom.pmf(np.arange(draws + 1), draws, 1 / records)
    drawn = sum((w * norm.pdf(x, j, multiplier) for j, w in enumerate(weights)), np.zeros_like(x))
    rate = 1 - (1 - 1 / records) ** draws
    poisson = (1 - rate) * absent + rate * norm.pdf(x, 1, multiplier)
    assert hockey_stick(drawn, absent, epsilon) >= hockey_stick(poisson, absent, epsilon) - 1e-9
    assert hockey_stick(absent, drawn, epsilon) >= hockey_stick(absent, poisson, epsilon) - 1e-9
