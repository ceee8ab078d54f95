"""Certified intervals of every release x sampling x relation against a computation that shares nothing with them.

Losses are plain quadrature points here, delta is a contour integral over their moments (equation 12 of
docs/theorems/certified-accountant.md) by the trapezoidal rule at two steps, or a sum over all outcomes with 40 digits.
There is no lattice, no transform and no code of the accountants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mpmath as mp
import numpy as np
import pytest

from calibrate.accountants.registry import best_epsilon
from calibrate.arrays import Floats
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit, Relation
from calibrate.releases import Gaussian, InSequence, Laplace, RandomizedResponse, Release, Repeated, Sampled, Together
from calibrate.sampling import Batch, FixedSize, Poisson, RandomAllocation, TruncatedPoisson, WithReplacement

ADD_REMOVE, REPLACE_ONE, ATTRIBUTE = (
    PrivacyUnit.of(each) for each in (Relation.ADD_REMOVE, Relation.REPLACE_ONE, Relation.REPLACE_ATTRIBUTE)
)
CLOSE = 2e-7
"""What the plain computation itself may be off by, in log delta."""


@dataclass(frozen=True)
class Points:
    """Losses with the logarithms of their P-masses, and how often they are composed."""

    log_masses: Floats
    losses: Floats
    count: int


Direction = Sequence[Points]


def _normal(x: Floats, z: float) -> Floats:
    return np.asarray(-(x**2) / (2 * z * z) - math.log(z * math.sqrt(2 * math.pi)))


def _log_ratio(x: Floats, q: float, z: float) -> Floats:
    return np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * z * z))


def sampled(q: float, z: float, count: int) -> tuple[Direction, Direction]:
    """Both directions of ((1-q) N(0) + q N(1), N(0))."""
    spacing = min(z, z * z, 0.5) / 14
    x = np.arange(-13 * z, 1 + 14 * z, spacing)
    ratio, null = _log_ratio(x, q, z), _normal(x, z) + math.log(spacing)
    return [Points(null + ratio, ratio, count)], [Points(null, -ratio, count)]


def replaced(q: float, z: float, count: int) -> tuple[Direction]:
    spacing = min(z, z * z, 0.5) / 30
    x = np.arange(-1 - 13 * z, 1 + 14 * z, spacing)
    ratio = _log_ratio(x, q, z)
    return ([Points(_normal(x, z) + math.log(spacing) + ratio, ratio - _log_ratio(-x, q, z), count)],)


def gaussian(mu: float) -> Points:
    x = np.arange(-13.0, 13.0, 0.05)
    return Points(_normal(x, 1.0) + math.log(0.05), mu * x + mu * mu / 2, 1)


def laplace(scale: float, count: int) -> Points:
    """The loss is 1/b - 2y with density e^-y / 2 on 0 < y < 1/b, and 1/b or -1/b beyond the means."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    y = (1 + nodes) / (2 * scale)
    log_masses = np.append(np.log(weights / (2 * scale)) - y, [0.0, -1 / scale]) - math.log(2)
    return Points(log_masses, np.append(1 / scale - 2 * y, [1 / scale, -1 / scale]), count)


def two_rounds_of(batches: int, z: float, count: int) -> tuple[Direction, Direction]:
    """Random allocation, two rounds of each epoch: S = (1 - 2/t) + (Y_1 + Y_2)/t over a square of normal variables."""
    s, spacing = 1 / z, 0.2
    g = np.arange(-8.0, 8.0 + 2 * s, spacing)
    y, w = np.exp(s * g - s * s / 2), _normal(g, 1.0) + math.log(spacing)
    i, j = np.triu_indices(len(g))
    ratio = np.log1p((y[i] + y[j] - 2) / batches)
    null = w[i] + w[j] + np.where(i == j, 0.0, math.log(2))
    return [Points(null + ratio, ratio, count)], [Points(null, -ratio, count)]


def log_delta(direction: Direction, epsilon: float) -> float:
    """The contour integral at the saddle point, by two steps that must agree."""
    if sum(part.count * part.losses.max() for part in direction) <= epsilon:
        return -math.inf
    low, high = 1e-3, 1e5
    while high / low > 1.001:
        c = math.sqrt(low * high)
        slope = sum(part.count * float(_tilted(part, c) @ part.losses) for part in direction) - epsilon
        low, high = (low, c) if slope - 1 / c - 1 / (1 + c) > 0 else (c, high)
    parts = [(part, _tilted(part, c)) for part in direction]
    means = [float(p @ part.losses) for part, p in parts]
    spread = math.sqrt(
        sum(part.count * float(p @ (part.losses - m) ** 2) for (part, p), m in zip(parts, means, strict=True))
    )
    log_moment = sum(part.count * _log_total(part.log_masses + c * part.losses) for part in direction)
    found = []
    for length in (30.0, 41.0):
        step = 2 * math.pi / (length * (spread + 2 / c))
        terms = np.zeros(0)
        while len(terms) < 40 or np.abs(terms[-9:]).max() > 1e-10 * terms[0]:
            t = step * np.arange(len(terms), len(terms) + 40)
            total = np.zeros(len(t), dtype=np.complex128)
            for part, p in parts:
                seen = p > 1e-15 * p.max()
                total += part.count * np.log(np.exp(1j * np.outer(t, part.losses[seen])) @ p[seen])
            block = (np.exp(total - 1j * t * epsilon) / ((c + 1j * t) * (1 + c + 1j * t))).real
            terms = np.append(terms, block)
            assert len(terms) < 600
        found.append(float(np.log(step / math.pi * (terms.sum() - terms[0] / 2))))
    assert abs(found[0] - found[1]) < CLOSE
    return log_moment - c * epsilon + found[0]


def _log_total(exponents: Floats) -> float:
    return float(np.logaddexp.reduce(exponents))


def _tilted(part: Points, c: float) -> Floats:
    exponents = part.log_masses + c * part.losses
    weights = np.exp(exponents - exponents.max())
    return np.asarray(weights / weights.sum())


def joined(directions: tuple[Direction, ...], *more: Points) -> tuple[Direction, ...]:
    return tuple([*direction, *more] for direction in directions)


JOINT = (2.0**-2 + 3.0**-2) ** -0.5
COMPOSED = [
    (Repeated(Sampled(Poisson(0.02), Gaussian(0.9)), 700), ADD_REMOVE, 1e-8, sampled(0.02, 0.9, 700)),
    (Repeated(Sampled(Poisson(0.3), Gaussian(4.0)), 40), REPLACE_ONE, 1e-12, replaced(0.3, 4.0, 40)),
    (Repeated(Sampled(Poisson(0.004), Gaussian(0.7)), 900_000), REPLACE_ONE, 1e-5, replaced(0.004, 0.7, 900_000)),
    (Repeated(Sampled(FixedSize(60, 9), Gaussian(5.0)), 90), ADD_REMOVE, 1e-20, sampled(0.15, 2.5, 90)),
    (
        Repeated(Sampled(Poisson(0.1), Together((Gaussian(2.0), Gaussian(3.0)))), 150),
        ADD_REMOVE,
        1e-6,
        sampled(0.1, JOINT, 150),
    ),
    (
        InSequence((Repeated(Sampled(Poisson(0.1), Gaussian(2.0)), 30), Gaussian(3.0), Repeated(Laplace(9.0), 4))),
        ADD_REMOVE,
        1e-7,
        joined(sampled(0.1, 2.0, 30), gaussian(1 / 3), laplace(9.0, 4)),
    ),
    (
        InSequence((Repeated(Sampled(Poisson(0.1), Gaussian(2.0)), 30), Gaussian(3.0), Repeated(Laplace(9.0), 4))),
        REPLACE_ONE,
        1e-7,
        joined(replaced(0.1, 2.0, 30), gaussian(2 / 3), laplace(4.5, 4)),
    ),
    (Repeated(Sampled(RandomAllocation(2), Gaussian(2.0)), 30), ADD_REMOVE, 1e-6, two_rounds_of(2, 2.0, 30)),
    (Repeated(Sampled(RandomAllocation(9, 2), Gaussian(1.4)), 60), ADD_REMOVE, 1e-7, two_rounds_of(9, 1.4, 60)),
]


@pytest.mark.parametrize(("release", "unit", "delta", "directions"), COMPOSED)
def test_no_interval_excludes_the_truth(
    release: Release, unit: PrivacyUnit, delta: float, directions: tuple[Direction, ...]
) -> None:
    interval = best_epsilon(release, unit, delta).interval
    at_lower, at_upper = (max(log_delta(each, end) for each in directions) for end in _ends(interval))
    assert at_upper - CLOSE <= math.log(delta) <= at_lower + CLOSE
    assert interval.upper < 1.005 * interval.lower


def _ends(interval: EpsilonInterval) -> tuple[float, float]:
    return interval.lower, interval.upper


def test_a_batch_of_fixed_size_with_a_replaced_unit_lies_above_what_is_attained() -> None:
    interval = best_epsilon(Repeated(Sampled(FixedSize(50, 10), Gaussian(6.0)), 60), REPLACE_ONE, 1e-6).interval
    attained = max(log_delta(each, interval.lower) for each in sampled(0.2, 3.0, 60))
    assert attained + CLOSE >= math.log(1e-6)
    assert max(log_delta(each, interval.upper) for each in sampled(0.2, 3.0, 60)) < math.log(1e-6)


def test_cut_batches_by_plain_quadrature() -> None:
    """Each round is a Poisson batch, or where others fill the batch one of half the noise."""
    sampling, rounds, delta = TruncatedPoisson(0.05, 800, 60), 60, 1e-6
    interval = best_epsilon(Repeated(Sampled(sampling, Gaussian(2.0)), rounds), ADD_REMOVE, delta).interval
    with mp.workdps(40):
        q = mp.mpf(0.05)
        full = float(mp.fsum(mp.binomial(799, k) * q**k * (1 - q) ** (799 - k) for k in range(60, 400)))
    assert full > 100 * delta
    found = [
        log_delta([_either(whole[0], cut[0], full)], interval.upper)
        for whole, cut in zip(sampled(0.05, 2.0, rounds), sampled(0.05, 1.0, rounds), strict=True)
    ]
    assert max(found) == pytest.approx(math.log(delta), abs=1e-3)
    assert max(found) <= math.log(delta) + CLOSE


def _either(usual: Points, other: Points, chance: float) -> Points:
    masses = np.concatenate([usual.log_masses + math.log1p(-chance), other.log_masses + math.log(chance)])
    return Points(masses, np.concatenate([usual.losses, other.losses]), usual.count)


def _gaussian_delta(mu: mp.mpf, epsilon: float) -> mp.mpf:
    e = mp.mpf(epsilon)
    return mp.ncdf(mu / 2 - e / mu) - mp.exp(e) * mp.ncdf(-mu / 2 - e / mu)


REVEALED = [
    (Poisson(0.07, Batch.REVEALED), {0: 0.93, 1: 0.07}),
    (FixedSize(50, 3, Batch.REVEALED), {0: 0.94, 1: 0.06}),
    (RandomAllocation(20, 7, Batch.REVEALED), {0: 0.65, 1: 0.35}),
    (WithReplacement(9, 4), {j: math.comb(4, j) * 8 ** (4 - j) / 9**4 for j in range(5)}),
]


@pytest.mark.parametrize("unit", [REPLACE_ONE, ATTRIBUTE], ids=["replace-one", "replace-attribute"])
@pytest.mark.parametrize(("sampling", "draws"), REVEALED)
def test_revealed_batches_against_the_sum_over_all_draws(
    sampling: Poisson | FixedSize | RandomAllocation | WithReplacement, draws: dict[int, float], unit: PrivacyUnit
) -> None:
    rounds, z, delta = 8, 3.0, 1e-6
    apart = 2 if unit is REPLACE_ONE else 1
    interval = best_epsilon(Repeated(Sampled(sampling, Gaussian(z)), rounds), unit, delta).interval
    with mp.workdps(40):
        law = {0: mp.mpf(1)}
        for _ in range(rounds):
            following: dict[int, mp.mpf] = {}
            for seen, chance in law.items():
                for times, weight in draws.items():
                    following[seen + times**2] = following.get(seen + times**2, mp.mpf(0)) + chance * weight
            law = following
        at_lower, at_upper = (
            mp.fsum(w * _gaussian_delta(mp.sqrt(n) * apart / mp.mpf(z), e) for n, w in law.items() if n)
            for e in _ends(interval)
        )
        assert at_upper <= delta * (1 + 1e-9) <= at_lower * (1 + 2e-9)
    assert interval.upper < 1.0001 * interval.lower


@pytest.mark.parametrize("categories", [2, 5])
def test_responses_against_the_sum_over_all_answers(categories: int) -> None:
    strength, rounds, delta = 0.4, 30, 1e-5
    interval = best_epsilon(Repeated(RandomizedResponse(strength, categories), rounds), REPLACE_ONE, delta).interval
    with mp.workdps(40):
        total = mp.exp(strength) + categories - 1
        one = {1: mp.exp(strength) / total, -1: 1 / total, 0: (categories - 2) / total}
        law = {0: mp.mpf(1)}
        for _ in range(rounds):
            following: dict[int, mp.mpf] = {}
            for lead, chance in law.items():
                for step, weight in one.items():
                    following[lead + step] = following.get(lead + step, mp.mpf(0)) + chance * weight
            law = following
        at_lower, at_upper = (
            mp.fsum(w * max(0, 1 - mp.exp(e - strength * n)) for n, w in law.items()) for e in _ends(interval)
        )
        assert at_upper <= delta * (1 + 1e-9) <= at_lower * (1 + 2e-9)
    assert interval.upper < 1.001 * interval.lower
