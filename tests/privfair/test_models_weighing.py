"""Clipping coefficients, and what rounding may do to a clipped sum."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from calibrate.errors import CheckFailed, InvalidInput
from privfair.models.layers import GhostProducts, OuterProducts
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
def test_norms_too_large_to_be_squared_are_refused(size: float) -> None:
    """Their coefficients may be subnormal, and those round by far more than the slack."""
    model = LogisticRegression(1)
    x, y = torch.tensor([[1.0], [size]], dtype=torch.float64), torch.tensor([0, 0])
    for theta in (model.initial(0), model.initial(0).requires_grad_()):
        with pytest.raises(CheckFailed, match="gradient norm of 1 of 2 records is infinite, no number, or too large"):
            model.weighted_gradient(theta, x, y, clipped_to(1e-100))


def test_a_size_is_a_positive_count() -> None:
    with pytest.raises(InvalidInput, match="size"):
        mean_over(0)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 60), st.integers(0, 2**16), st.floats(-6, 6))
def test_the_sum_in_floating_point_is_as_far_off_as_proved(records: int, seed: int, size: float) -> None:
    """Against rational arithmetic: |fl(sum) - sum| <= (n + 3) u sum |parts|."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(records, 3, generator=generator, dtype=torch.float64) * 10.0**size
    right = torch.randn(records, 2, generator=generator, dtype=torch.float64)
    weights = torch.rand(records, generator=generator, dtype=torch.float64)
    weight, bias = OuterProducts(left, right).weighted(weights, records)
    sizes = sum(
        abs(c) * math.hypot(*r) * math.hypot(1.0, *a)
        for c, r, a in zip(weights.tolist(), right.tolist(), left.tolist(), strict=True)
    )
    off = 0.0
    for j in range(2):
        for k in range(4):
            column = [*left[:, k].tolist()] if k < 3 else [1.0] * records
            exact = sum(
                Fraction(c) * Fraction(r) * Fraction(a)
                for c, r, a in zip(weights.tolist(), right[:, j].tolist(), column, strict=True)
            )
            found = float(weight[j, k]) if k < 3 else float(bias[j])
            off += float(Fraction(found) - exact) ** 2
    assert math.sqrt(off) <= (records + 3) * 2.0**-53 * sizes


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**16), st.integers(0, 15), st.booleans())
def test_ghost_norms_are_never_below_the_true_ones(positions: int, seed: int, cancelling: int, intercept: bool) -> None:
    """Also where positions cancel to almost nothing: then 1/64 of the sum of their own norms stands in."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(1, positions, 3, generator=generator, dtype=torch.float64)
    right = torch.randn(1, positions, 2, generator=generator, dtype=torch.float64)
    left = torch.cat((left, left), dim=1)
    right = torch.cat((right, -right * (1 + 10.0**-cancelling)), dim=1)
    parts = GhostProducts(left, right, (2, 3), intercept)
    extended = torch.cat((left, torch.ones_like(left[:, :, :1])), dim=2) if intercept else left
    exact = Fraction(0)
    for j in range(2):
        for k in range(extended.shape[2]):
            entry = sum(
                Fraction(float(d)) * Fraction(float(a)) for d, a in zip(right[0, :, j], extended[0, :, k], strict=True)
            )
            exact += entry**2
    found = Fraction(float(parts.squared_norms()[0]))
    sizes = (left.norm(dim=2).add(1) * right.norm(dim=2)).sum() ** 2
    assert exact <= found <= max(exact, Fraction(float(sizes)) / 64**2) + Fraction(float(sizes)) * Fraction(1, 10**12)


@pytest.mark.parametrize("size", [1e-140, 1e-155, 1e-160, 1e-170, 1e-200])
def test_squares_that_vanish_do_not_hide_a_part(size: float) -> None:
    """|delta| = size, |a| = 1e150: the squares of delta are lost, the gradient is not."""
    left = torch.full((1, 3), 1e150, dtype=torch.float64)
    right = torch.full((1, 2), size, dtype=torch.float64)
    exact = 6 * Fraction(1e150) ** 2 * Fraction(size) ** 2
    for squared in (
        OuterProducts(left, right, intercept=False).squared_norms(),
        GhostProducts(left[:, None], right[:, None], (2, 3), intercept=False).squared_norms(),
    ):
        assert Fraction(float(squared[0])) * (1 + Fraction(1, 10**9)) >= exact
