"""The closed-form suprema of SteFFLe's gradients against direct evaluation of psi's gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.theorems.steffle import Frequencies, Radius, theta_gradient_supremum, weight_gradient_supremum


def gradients(
    w: np.ndarray, f: np.ndarray, jacobian: np.ndarray, group: int, p: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """grad_theta and grad_W of psi = -Tr(W diag(F) W^T) + 2 Tr(W F s^T P^(-1/2)) - 1, written out by hand."""
    s = np.zeros(len(p))
    s[group] = 1.0
    grad_w = -2 * w * f[None, :] + 2 * np.outer(s / np.sqrt(p), f)
    by_f = -(w**2).sum(axis=0) + 2 * w.T @ (s / np.sqrt(p))
    return jacobian.T @ by_f, grad_w


def numeric_gradient_w(w: np.ndarray, f: np.ndarray, group: int, p: np.ndarray) -> np.ndarray:
    def psi(at: np.ndarray) -> float:
        s = np.zeros(len(p))
        s[group] = 1.0
        first = np.trace(at @ np.diag(f) @ at.T)
        return float(-first + 2 * np.trace(at @ np.outer(f, s) @ np.diag(p**-0.5)) - 1)

    step, out = 1e-6, np.zeros_like(w)
    for index in np.ndindex(*w.shape):
        up, down = w.copy(), w.copy()
        up[index] += step
        down[index] -= step
        out[index] = (psi(up) - psi(down)) / (2 * step)
    return out


def test_the_hand_written_gradient_is_the_gradient_of_psi() -> None:
    rng = np.random.default_rng(1)
    w, f, p = rng.normal(size=(3, 4)), rng.dirichlet(np.ones(4)), np.array([0.2, 0.3, 0.5])
    _, by_hand = gradients(w, f, np.zeros((4, 2)), 1, p)
    assert by_hand == pytest.approx(numeric_gradient_w(w, f, 1, p), abs=1e-8)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    groups=st.integers(2, 4),
    classes=st.integers(2, 5),
    rho=st.floats(0.02, 1.0),
    radius=st.sampled_from(Radius),
    frequencies=st.sampled_from(Frequencies),
)
def test_no_instance_exceeds_the_suprema(
    seed: int, groups: int, classes: int, rho: float, radius: Radius, frequencies: Frequencies
) -> None:
    rng = np.random.default_rng(seed)
    rho = rho / groups
    if frequencies is Frequencies.EXACT:
        p = rho + (1 - groups * rho) * rng.dirichlet(np.ones(groups))
    else:
        p = rho * rng.uniform(1, 3, size=groups)
    size, lipschitz = 1.7, 0.6
    w = rng.normal(size=(groups, classes))
    w *= size / (np.linalg.norm(w) if radius is Radius.FROBENIUS else np.abs(w).max())
    f = rng.dirichlet(np.ones(classes) * 0.2)
    jacobian = rng.normal(size=(classes, 3))
    jacobian -= jacobian.mean(axis=0)  # F sums to 1
    jacobian *= lipschitz / np.linalg.norm(jacobian, 2)
    theta_a, w_a = gradients(w, f, jacobian, 0, p)
    theta_b, w_b = gradients(w, f, jacobian, 1, p)
    m = 7
    bound_w = weight_gradient_supremum(m, rho, groups, frequencies)
    bound_theta = theta_gradient_supremum(m, rho, groups, frequencies, classes, lipschitz, size, radius)
    assert np.linalg.norm(w_a - w_b) / m <= bound_w * (1 + 1e-12)
    assert np.linalg.norm(theta_a - theta_b) / m <= bound_theta * (1 + 1e-12)


@pytest.mark.parametrize("classes", [2, 3, 4, 7])
@pytest.mark.parametrize("radius", Radius)
@pytest.mark.parametrize(
    ("rho", "other", "frequencies"),
    [(0.3, 0.3, Frequencies.AT_LEAST_RHO), (0.3, 0.7, Frequencies.EXACT), (0.5, 0.5, Frequencies.EXACT)],
)
def test_an_instance_reaches_the_suprema(
    classes: int, radius: Radius, rho: float, other: float, frequencies: Frequencies
) -> None:
    p, size, lipschitz, m = np.array([rho, other]), 1.7, 0.6, 9
    if radius is Radius.FROBENIUS:
        direction = np.zeros(classes)
        direction[:2] = 1, -1
        w = np.outer([1 / math.sqrt(rho), -1 / math.sqrt(other)], direction)
        w *= size / np.linalg.norm(w)
    else:
        direction = np.where(np.arange(classes) % 2, 1.0, -1.0)
        w = np.outer([1.0, -1.0], direction) * size
    orthogonal = direction - direction.mean()
    jacobian = lipschitz * np.outer(orthogonal / np.linalg.norm(orthogonal), [1.0, 0.0])
    f = np.eye(classes)[0]
    theta_a, w_a = gradients(w, f, jacobian, 0, p)
    theta_b, w_b = gradients(w, f, jacobian, 1, p)
    reached_w, reached_theta = np.linalg.norm(w_a - w_b) / m, np.linalg.norm(theta_a - theta_b) / m
    assert reached_w == pytest.approx(weight_gradient_supremum(m, rho, 2, frequencies), rel=1e-12)
    bound = theta_gradient_supremum(m, rho, 2, frequencies, classes, lipschitz, size, radius)
    assert reached_theta == pytest.approx(bound, rel=1e-12)
