"""Coins against a declared mechanism: a sharper bound whose coverage holds; contradicting claims are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

import privfair as pf
from audit.bounds import OneRun, OneRunDesign, best_guesses, bound_for, claimed_curve, power_against
from audit.coins.one_run import coin_flip, one_run
from audit.report.results import Conclusion
from calibrate.accountants.gaussian import gaussian_epsilon, gaussian_mu
from calibrate.accountants.registry import best_epsilon
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.releases import Gaussian, Release, Repeated, Sampled, scale_noise
from calibrate.sampling import Batch, Poisson
from tests.audit import strangers_training as strangers

DELTA = 1e-5
SAMPLED = Repeated(Sampled(Poisson(0.3, Batch.SECRET), Gaussian(1.5)), 4)


def shifted(mu: float, coins: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return mu * (coins - 0.5) + random.normal(size=len(coins))


@pytest.mark.parametrize(
    ("mu", "coins", "least"),
    [(1, 100, 1.30), (1, 1000, 2.18), (1, 10_000, 2.73), (4, 100, 5.1), (4, 1000, 8.3), (4, 10_000, 11.0)],
)
def test_the_median_bound_of_gaussian_scores_reaches_the_published_test(mu: int, coins: int, least: float) -> None:
    random, found = np.random.default_rng((mu, coins)), []
    for number in range(200):
        tossed = coin_flip(coins, seed=number)
        found.append(
            one_run(shifted(mu, tossed, random), tossed, delta=DELTA, mechanism=Gaussian(1 / mu)).epsilon_lower
        )
    assert np.median(found) >= 0.95 * least


def sampled_scores(release: Repeated, coins: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The log likelihood ratio of each coin whose record joins Poisson batches of noisy counts."""
    inner = release.release
    assert isinstance(inner, Sampled)
    assert isinstance(inner.release, Gaussian)
    assert isinstance(inner.sampling, Poisson)
    rate, z = inner.sampling.rate, inner.release.noise_multiplier
    shape = (len(coins), release.times)
    seen = coins[:, np.newaxis] * (random.random(shape) < rate) + z * random.normal(size=shape)
    return np.asarray(np.log1p(rate * np.expm1((seen - 0.5) / z**2)).sum(axis=1))


@pytest.mark.parametrize(("declared", "factor"), [(Gaussian(1.0), 1.0), (SAMPLED, 1.0), (SAMPLED, 0.6)])
def test_the_printed_bound_exceeds_the_truth_at_most_as_often_as_it_says(declared: Release, factor: float) -> None:
    """2,000 trainings that use `factor` of the declared noise; seeded, three standard errors above 5%."""
    true = scale_noise(declared, factor)
    price = best_epsilon(true, PrivacyUnit.of(Relation.ADD_REMOVE), DELTA).interval.upper
    random, above = np.random.default_rng(11), 0
    for number in range(2000):
        coins = coin_flip(100, seed=number)
        scores = sampled_scores(true, coins, random) if isinstance(true, Repeated) else shifted(1.0, coins, random)
        lower = one_run(scores, coins, delta=DELTA, mechanism=declared).epsilon_lower
        assert lower is not None
        above += lower > price
    assert above / 2000 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


def test_half_of_the_declared_noise_is_refuted_more_often_than_without_the_mechanism() -> None:
    """At epsilon 1 with 1,000 coins, attacked through the best scores: their share of right guesses is known."""
    mu = 2 * gaussian_mu(1.0, DELTA)
    powers = []
    guesses = best_guesses(1000, 1.0, DELTA, 0.95)
    right = _share_right(guesses / 1000, mu)
    for bound in (bound_for(Gaussian(2 / mu)), OneRun()):
        design = OneRunDesign(1000, guesses, right)
        powers.append(power_against(claimed_curve(bound, 1.0, DELTA), bound, design))
    assert powers[0] > 0.4
    assert powers[1] < 0.2


def _share_right(share: float, mu: float) -> float:
    grid = np.linspace(0, 10, 100_001)
    at = grid[np.argmin(np.abs(ndtr(mu / 2 - grid) + ndtr(-mu / 2 - grid) - share))]
    return float(ndtr(mu / 2 - at) / (ndtr(mu / 2 - at) + ndtr(-mu / 2 - at)))


def test_naming_the_mechanism_proves_more() -> None:
    coins = coin_flip(1000, seed=1)
    scores = sampled_scores(scale_noise(SAMPLED, 0.4), coins, np.random.default_rng(2))  # type: ignore[arg-type]
    named, plain = (one_run(scores, coins, delta=DELTA, mechanism=one).epsilon_lower for one in (SAMPLED, None))
    assert named is not None
    assert plain is not None
    assert named > 1.2 * plain


def test_the_price_of_the_mechanism_is_the_claim() -> None:
    coins = coin_flip(1000, seed=1)
    report = one_run(3.0 * coins, coins, delta=DELTA, mechanism=Gaussian(1.0))
    assert report.verdict is Conclusion.VIOLATED
    assert report.promised is not None
    assert report.promised.epsilon == pytest.approx(gaussian_epsilon(1.0, DELTA))
    assert report.promised.source == "the price of the declared mechanism"


def test_a_control_tells_the_power_against_the_claim() -> None:
    coins, random = coin_flip(1000, seed=1), np.random.default_rng(0)
    silent = random.normal(size=1000)
    for declared in (Gaussian(3.0), SAMPLED):
        asked = {"delta": DELTA, "mechanism": declared}
        assert one_run(silent, coins, **asked).verdict is Conclusion.INCONCLUSIVE  # type: ignore[arg-type]
        assert one_run(silent, coins, controls=coins, **asked).verdict is Conclusion.CONSISTENT  # type: ignore[arg-type]
        weak = one_run(silent, coins, controls=random.normal(size=1000), **asked)  # type: ignore[arg-type]
        assert weak.verdict is Conclusion.INCONCLUSIVE


def test_an_epsilon_below_the_mechanism_is_refused() -> None:
    coins = coin_flip(100, seed=1)
    with pytest.raises(InvalidInput, match="less than the declared mechanism costs"):
        one_run(coins, coins, epsilon=4.0, delta=DELTA, mechanism=Gaussian(1.0))
    assert one_run(coins, coins, epsilon=4.5, delta=DELTA, mechanism=Gaussian(1.0)).verdict is Conclusion.VIOLATED


def test_the_family_of_a_mechanism_is_refused_where_no_mechanism_is_given() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    x = np.random.default_rng(0).normal(size=(40, 2))
    model = linear_model.LogisticRegression().fit(x, x[:, 0] > 0)
    both = (x[:20], (x[:20, 0] > 0)), (x[20:], (x[20:, 0] > 0))
    with pytest.raises(InvalidInput, match="family"):
        pf.audit_model(model, *both, family="mechanism", shadow_models=0)


def test_a_mechanism_proves_more_of_a_training_function_too() -> None:
    loop, asked = strangers.LogisticLoop(0.5), {"delta": DELTA, "access": "gradients", "runs": 24}
    plain, named = (
        pf.audit_training(loop, strangers.census(), mechanism=one, **asked)  # type: ignore[arg-type]
        for one in (None, strangers.DECLARED)
    )
    assert plain.epsilon_lower is not None
    assert named.epsilon_lower is not None
    assert named.epsilon_lower > plain.epsilon_lower + 0.5
    assert named.verdict is Conclusion.VIOLATED
