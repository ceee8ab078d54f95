"""Inputs at the edges of the documented ranges: answered quickly, and right where a peer is not."""

from __future__ import annotations

import math

import mpmath as mp
import pytest

from calibrate import questions
from calibrate.accountants import compose as module
from calibrate.accountants.compose import CountedLaws, LatticeComposition, Window, compose
from calibrate.accountants.registry import best_epsilon
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.releases import Gaussian, Repeated, Sampled
from calibrate.sampling import Poisson

ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)


C, STEP = 2.84, mp.mpf("0.05")
"""Any C > 0 is right; this is the saddle point. The period 2 pi / STEP = 126 is far beyond the loss."""


def deltas_by_quadrature(z: float, q: float, rounds: int, epsilons: tuple[float, ...]) -> list[mp.mpf]:
    """Delta of the removal direction with 30 digits: two trapezoidal rules, no lattice and no transform.

    E exp(s L) is the integral of r(x)^(1+s) under N(0, z^2), and delta the contour integral of
    exp(rounds * log E exp(s L) - s epsilon) / (s (1 + s)) over s = C + i t (equation 12).
    """
    with mp.workdps(30):
        spacing = mp.mpf(z) / 10
        x = [spacing * k for k in range(-150, 10 * math.ceil(15 + 4 / z))]
        losses = [mp.log(1 - q + q * mp.exp((2 * v - 1) / (2 * mp.mpf(z) ** 2))) for v in x]
        weights = [spacing * mp.npdf(v, 0, z) * mp.exp((1 + C) * loss) for v, loss in zip(x, losses, strict=True)]

        def integrand(t: mp.mpf) -> list[mp.mpf]:
            s = mp.mpc(C, t)
            moment = mp.fsum(w * mp.expj(t * loss) for w, loss in zip(weights, losses, strict=True))
            log_total = rounds * mp.log(moment)
            return [mp.re(mp.exp(log_total - s * epsilon) / (s * (1 + s))) for epsilon in epsilons]

        terms = [[each / 2 for each in integrand(mp.mpf(0))]]
        while len(terms) < 10 or max(abs(each[0]) for each in terms[-6:]) > mp.mpf(10) ** -9 * abs(terms[0][0]):
            terms.append(integrand(STEP * len(terms)))
        return [STEP / mp.pi * mp.fsum(column) for column in zip(*terms, strict=True)]


@pytest.mark.slow
def test_a_third_computation_sides_with_the_interval_against_a_peer_whose_rounding_is_as_large_as_delta() -> None:
    """dp-accounting 0.6.0 answers 8.54265 here: 710,013 rounds times 1e-16 of rounding are a sixth of this delta."""
    z, q, rounds, delta, theirs = 0.54016, 2.3838e-4, 710_013, 1.1213e-9, 8.54265
    release = Repeated(Sampled(Poisson(q), Gaussian(z)), rounds)
    interval = best_epsilon(release, ADD_REMOVE, delta).interval
    assert theirs < interval.lower
    at_theirs, at_lower, at_upper = deltas_by_quadrature(z, q, rounds, (theirs, interval.lower, interval.upper))
    assert at_theirs > 1.01 * delta
    assert at_lower >= delta >= at_upper


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The points of all lattices that are composed by a transform from here on: what time and memory grow with."""
    points: list[int] = []

    def counted(laws: CountedLaws, step: float, window: Window) -> LatticeComposition:
        made = compose(laws, step, window)
        points.append(made.length)
        return made

    monkeypatch.setattr(module, "compose", counted)
    return points


@pytest.mark.parametrize(
    ("z", "q", "rounds", "delta"), [(0.1, 0.1, 3, 1e-5), (0.81, 5.7e-7, 12, 3e-19), (0.05, 1e-8, 50, 1e-30)]
)
def test_few_participations_or_little_noise_take_few_lattices(
    z: float, q: float, rounds: int, delta: float, work: list[int]
) -> None:
    questions.epsilon(noise_multiplier=z, sampling_rate=q, rounds=rounds, delta=delta)
    assert sum(work) < 3_000_000


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_noise_for_few_participations_is_found_on_few_lattices(relation: str, work: list[int]) -> None:
    sigma = questions.sigma(epsilon=8, delta=1e-12, sampling_rate=2e-6, rounds=6, relation=relation)
    assert sigma == pytest.approx(0.314306, rel=1e-5)
    assert sum(work) < 3_000_000
    assert (
        questions.epsilon(noise_multiplier=sigma, sampling_rate=2e-6, rounds=6, delta=1e-12, relation=relation).upper
        <= 8
    )


@pytest.mark.parametrize(
    ("rate", "rounds", "epsilon", "delta"), [(1.38e-3, 1, 0.7, 4.4e-11), (1.93e-3, 2, 0.0715, 7e-11)]
)
def test_few_rounds_with_large_losses_are_solved_by_their_price(
    rate: float, rounds: int, epsilon: float, delta: float
) -> None:
    """The lattice at the target's epsilon can't certify these; the price of a little more noise can."""

    def upper(sigma: float) -> float:
        return questions.epsilon(noise_multiplier=sigma, sampling_rate=rate, rounds=rounds, delta=delta).upper

    sigma = questions.sigma(epsilon=epsilon, delta=delta, sampling_rate=rate, rounds=rounds)
    assert upper(sigma) <= epsilon
    assert upper(0.99 * sigma) > epsilon
