"""Clipping coefficients."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from calibrate.errors import InvalidInput
from privfair.models.linear import LogisticRegression
from privfair.models.model import SMALLEST_BOUND, clipped_after, clipped_to, mean_over
from privfair.rounding import ROUNDING_SLACK

norms_lists = st.lists(st.floats(0, 1e154, allow_subnormal=True), min_size=1, max_size=20)
bounds = st.floats(SMALLEST_BOUND, 1e100)


def vector(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@settings(deadline=None)
@given(norms_lists, bounds)
def test_clipped_norms_stay_below_the_bound_in_exact_arithmetic(norms: list[float], bound: float) -> None:
    coefficients = clipped_to(bound)(vector(norms), vector(norms))
    for norm, coefficient in zip(norms, coefficients.tolist(), strict=True):
        assert 0 <= coefficient <= 1
        assert Fraction(norm) * Fraction(coefficient) * (1 + Fraction(ROUNDING_SLACK) / 2) <= Fraction(bound)


@settings(deadline=None)
@given(norms_lists, bounds)
def test_clipping_takes_no_more_than_it_must(norms: list[float], bound: float) -> None:
    coefficients = clipped_to(bound)(vector(norms), vector(norms)).tolist()
    for norm, coefficient in zip(norms, coefficients, strict=True):
        wanted = 1.0 if norm <= bound / (1 + ROUNDING_SLACK) else bound / norm
        assert math.isclose(coefficient, wanted, rel_tol=1.001 * ROUNDING_SLACK)
        assert norm > bound / (1 + ROUNDING_SLACK) or coefficient == 1.0


@settings(deadline=None)
@given(norms_lists, bounds)
def test_arrays_and_tensors_get_the_same_coefficients(norms: list[float], bound: float) -> None:
    clip = clipped_to(bound)
    as_array = clip.of_array(np.array(norms))
    assert as_array.tolist() == clip(vector(norms), vector(norms)).tolist()


@settings(deadline=None)
@given(norms_lists, st.floats(-1e6, 1e6), bounds)
def test_a_factor_is_clipped_with_its_gradient(norms: list[float], factor: float, bound: float) -> None:
    losses = torch.linspace(-1.0, 2.0, len(norms), dtype=torch.float64)
    coefficients = clipped_after(lambda of: factor * of, bound)(vector(norms), losses)
    for norm, coefficient, loss in zip(norms, coefficients.tolist(), losses.tolist(), strict=True):
        assert abs(Fraction(norm) * Fraction(coefficient)) <= Fraction(bound)
        assert coefficient * factor * loss >= 0  # the sign is kept


def test_the_mean_divides_by_the_size_it_was_given() -> None:
    assert mean_over(4)(torch.zeros(3), torch.zeros(3)).tolist() == [0.25, 0.25, 0.25]


@pytest.mark.parametrize("bound", [0.0, -1.0, 1e-101, float("nan"), float("inf")])
def test_a_bound_is_a_positive_number(bound: float) -> None:
    with pytest.raises(InvalidInput, match="bound"):
        clipped_to(bound)
    with pytest.raises(InvalidInput, match="bound"):
        clipped_after(lambda losses: losses, bound)


@pytest.mark.parametrize("size", [1e155, 1e200, 1e300])
def test_features_too_large_to_be_squared_are_clamped(size: float) -> None:
    model = LogisticRegression(1)
    x, y = torch.tensor([[1.0], [size]], dtype=torch.float64), torch.tensor([0, 0])
    found = model.weighted_gradient(model.initial(0), x, y, clipped_to(1e-100))
    assert float(found.norms[1]) == math.hypot(2.0**20, 1.0) / 2
    assert found.largest_part <= 1e-100


def test_a_size_is_a_positive_count() -> None:
    with pytest.raises(InvalidInput, match="size"):
        mean_over(0)
