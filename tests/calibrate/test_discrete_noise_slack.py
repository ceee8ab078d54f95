"""The theorems about discrete against continuous noise, checked against exact numbers on coarse grids."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import norm

from calibrate.discrete_noise import (
    STEPS_PER_SCALE,
    ProfileSlack,
    combined,
    gaussian_distance_slack,
    laplace_distance_slack,
    profile_slack,
)
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import EpsilonDelta

SIGMAS = [1.0, 1.5, 2.0, 4.0, 8.0, 16.0]
EPSILONS = np.linspace(0.01, 4, 60)


def _discrete(sigma: float) -> tuple[np.ndarray, np.ndarray]:
    support = np.arange(-math.ceil(12 * sigma) - 20, math.ceil(12 * sigma) + 21)
    weights = np.exp(-(support**2) / (2 * sigma**2))
    return support, weights / math.fsum(weights)


def _rounded(support: np.ndarray, sigma: float) -> np.ndarray:
    away = np.abs(support)  # differences of upper tails do not cancel
    return norm.sf((away - 0.5) / sigma) - norm.sf((away + 0.5) / sigma)


def _continuous_profile(mu: float, epsilon: float) -> float:
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2))


def _discrete_profile(sigma: float, shift: tuple[int, ...], epsilon: float) -> float:
    """The hockey-stick divergence of two shifted products of discrete Gaussians, summed over the support."""
    support, probabilities = _discrete(sigma)
    left, right = np.ones(1), np.ones(1)
    for v in shift:
        shifted = probabilities * np.exp((support**2 - (support - v) ** 2) / (2 * sigma**2))
        left = np.multiply.outer(left, probabilities).ravel()
        right = np.multiply.outer(right, shifted).ravel()
    return float(np.maximum(left - math.exp(epsilon) * right, 0).sum())


@pytest.mark.parametrize("sigma", SIGMAS)
def test_pointwise_ratios_of_discrete_and_rounded_gaussian(sigma: float) -> None:
    """Lemma 1: p <= exp(1 / (24 s^2)) r and r <= p * Theta * exp(k^2 / (24 s^4))."""
    support, discrete = _discrete(sigma)
    inside = np.abs(support) < 8 * sigma
    ratio = discrete[inside] / _rounded(support[inside], sigma)
    theta = 1 + 2.1 * math.exp(-2 * math.pi**2 * sigma**2)
    assert ratio.max() <= math.exp(1 / (24 * sigma**2)) * (1 + 1e-10)
    assert np.all(1 / ratio <= theta * np.exp(support[inside] ** 2 / (24 * sigma**4)) * (1 + 1e-10))
    assert ratio.max() >= math.exp(1 / (24 * sigma**2)) * (1 - 0.02 / sigma**2)  # and the bound is not idle


@pytest.mark.parametrize("sigma", SIGMAS)
def test_total_variation_of_one_value(sigma: float) -> None:
    support, discrete = _discrete(sigma)
    distance = np.abs(discrete - _rounded(support, sigma)).sum() / 2
    bound = gaussian_distance_slack(Fraction(sigma), 1, 1).mass
    assert bound / 3 < distance <= bound


@pytest.mark.parametrize("scale", [1.0, 2.5, 10.0, 100.0])
def test_total_variation_of_one_laplace_value(scale: float) -> None:
    support = np.arange(-int(40 * scale), int(40 * scale) + 1)
    discrete = np.tanh(1 / (2 * scale)) * np.exp(-np.abs(support) / scale)
    rounded = np.exp(-np.abs(support) / scale) * np.sinh(1 / (2 * scale))
    rounded[support == 0] = -np.expm1(-1 / (2 * scale))
    distance = np.abs(discrete - rounded).sum() / 2
    bound = laplace_distance_slack(Fraction(scale), 1, 1).mass
    assert bound / 3 < distance <= bound


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("shift", [(1,), (2,), (5,), (1, 1), (2, 1), (3, -4)], ids=str)
def test_both_slacks_cover_the_discrete_profile(sigma: float, shift: tuple[int, ...]) -> None:
    mu = math.hypot(*shift) / sigma
    for epsilon in EPSILONS:
        if _continuous_profile(mu, epsilon) < 1e-30:
            break  # of the order of what the sum over a bounded support leaves out
        truth = _discrete_profile(sigma, shift, epsilon)
        in_delta = gaussian_distance_slack(Fraction(sigma), len(shift), 1)
        assert truth <= _continuous_profile(mu, epsilon) + (1 + math.exp(epsilon)) * in_delta.mass
        in_epsilon = profile_slack(Fraction(sigma), len(shift), 1)
        if epsilon > in_epsilon.epsilon:
            base = EpsilonDelta(epsilon - in_epsilon.epsilon, _continuous_profile(mu, epsilon - in_epsilon.epsilon))
            if base.delta * math.exp(in_epsilon.epsilon) < 1:
                assert truth <= in_epsilon.certified(base).delta


def _sampled_profiles(sigma: float, v: int, q: float, epsilon: float) -> tuple[float, float]:
    """delta of ((1-q) N(0) + q N(v), N(0)) and of its mirror, for continuous noise, in closed form."""
    odds, cut = math.exp(epsilon), []
    for level in (odds - (1 - q), 1 / odds - (1 - q)):  # where q exp((2 v x - v^2) / (2 s^2)) crosses the level
        cut.append((math.log(level / q) * 2 * sigma**2 + v**2) / (2 * v) if level > 0 else -math.inf)
    add = q * norm.sf((cut[0] - v) / sigma) + (1 - q - odds) * norm.sf(cut[0] / sigma)
    remove = (1 - odds * (1 - q)) * norm.cdf(cut[1] / sigma) - odds * q * norm.cdf((cut[1] - v) / sigma)
    return float(add), float(remove)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize(("v", "q"), [(1, 0.1), (2, 0.5), (5, 0.01), (4, 0.9)])
def test_slack_covers_poisson_sampled_noise_in_both_directions(sigma: float, v: int, q: float) -> None:
    support, base = _discrete(sigma)
    mixture = base * ((1 - q) + q * np.exp((2 * v * support - v**2) / (2 * sigma**2)))
    mass = gaussian_distance_slack(Fraction(sigma), 1, 1).mass
    for epsilon in EPSILONS:
        bounds = _sampled_profiles(sigma, v, q, epsilon)
        pairs = ((mixture, base), (base, mixture))
        for (first, second), continuous in zip(pairs, bounds, strict=True):
            truth = np.maximum(first - math.exp(epsilon) * second, 0).sum()
            assert truth <= continuous + (1 + math.exp(epsilon)) * mass


def test_without_slack_the_claim_would_be_false() -> None:
    """On a coarse grid the discrete Gaussian is *not* covered by the continuous profile: 35% more delta."""
    continuous, discrete = _continuous_profile(1 / 4, 2.95), _discrete_profile(4.0, (1,), 2.95)
    assert discrete > 1.3 * continuous


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("order", [1.1, 2.0, 3.0, 7.5, 32.0])
def test_renyi_divergence_needs_no_slack(sigma: float, order: float) -> None:
    """Theorem 1: at every order the discrete Gaussian costs at most order * v^2 / (2 sigma^2)."""
    support, probabilities = _discrete(sigma)
    log_p = np.log(probabilities)
    for v in (1, 2, 3):
        log_q = log_p + (support**2 - (support - v) ** 2) / (2 * sigma**2)
        total = np.logaddexp.reduce(order * log_q + (1 - order) * log_p)
        assert total / (order - 1) <= order * v**2 / (2 * sigma**2) * (1 + 1e-9) + 1e-12


def test_slack_of_a_large_training_run_is_below_one_in_a_billion() -> None:
    """A million parameters, ten thousand rounds, on the grid that is used."""
    run = profile_slack(STEPS_PER_SCALE, 10**6, 10**4)
    assert run.epsilon < 1e-9
    assert gaussian_distance_slack(STEPS_PER_SCALE, 10**6, 10**4).mass < 1e-9
    promise = run.certified(EpsilonDelta(1.0, 1e-5))
    assert 0 < promise.epsilon - 1 < 1e-9
    assert 0 < promise.delta - 1e-5 < 1e-13


def test_combining_adds_both_parts() -> None:
    assert combined([ProfileSlack(0.25, 0.5), ProfileSlack(0.5, 0.125)]) == ProfileSlack(0.75, 0.625)
    assert combined([]) == ProfileSlack(0.0, 0.0)


def test_distance_slack_leaves_epsilon_alone() -> None:
    assert gaussian_distance_slack(1 << 30, 10, 10).certified(EpsilonDelta(1.0, 1e-5)).epsilon == 1.0


@pytest.mark.parametrize("slack", [profile_slack, gaussian_distance_slack, laplace_distance_slack])
def test_refusals(slack) -> None:  # type: ignore[no-untyped-def]
    for arguments in ((Fraction(1, 2), 1, 1), (0, 1, 1), (4, 0, 1), (4, 1, 0), (4, 1.5, 1)):
        with pytest.raises(InvalidInput):
            slack(*arguments)


def test_a_promise_that_slack_destroys_is_refused() -> None:
    with pytest.raises(InvalidInput, match="delta"):
        gaussian_distance_slack(1, 100, 100).certified(EpsilonDelta(1.0, 1e-5))
    with pytest.raises(InvalidInput, match="epsilon"):
        profile_slack(1 << 30, 1, 1).certified(EpsilonDelta(1000.0, 1e-5))
    for bad in (-1.0, math.inf, math.nan):
        with pytest.raises(InvalidInput):
            ProfileSlack(bad, 0.0)
