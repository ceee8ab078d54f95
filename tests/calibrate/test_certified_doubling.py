"""Composing point by point: rare large losses against plain integration, and each step against all its outcomes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from calibrate.accountants import grid
from calibrate.accountants.certified import CertifiedAccountant
from calibrate.accountants.directions import Side, compositions
from calibrate.accountants.doubling import _Cells, _sum, epsilon_by_doubling
from calibrate.accountants.registry import PairCounts
from calibrate.accountants.sampled_losses import Points, SubsampledRemoval
from calibrate.accountants.support import (
    FixedSizeReplacePair,
    LaplacePair,
    PricedPair,
    RandomizedResponsePair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
)
from calibrate.arrays import Floats


def profile_of_one(e: Floats, q: float, z: float) -> Floats:
    """Delta of one sampled Gaussian at any e, also below 0: P(x > x_e) - exp(e) Q(x > x_e)."""
    inner = 1 + np.expm1(e) / q
    x = 0.5 + z * z * np.log(np.where(inner > 0, inner, 1.0))
    within = q * ndtr((1 - x) / z) - (q + np.expm1(e)) * ndtr(-x / z)
    return np.where(inner > 0, within, -np.expm1(e))


NODES, WEIGHTS = np.polynomial.legendre.leggauss(10)
PANELS = 40


def profile_of(e: Floats, q: float, z: float, rounds: int) -> Floats:
    """Delta of several rounds: integrals over the first ones, the profile of the last in closed form.

    Nearly all mass has a loss of nearly 0, so what is integrated bends sharply where the loss is e: panels begin there.
    """
    if rounds == 1:
        return profile_of_one(e, q, z)
    first, last = -14 * z, 1 + 16 * z
    bend = np.clip(0.5 + z * z * np.log(np.maximum(1 + np.expm1(e) / q, 1e-300)), first + z / 8, last - z / 8)
    total = np.zeros(len(e))
    for begin, end in ((np.full(len(e), first), bend), (bend, np.full(len(e), last))):
        width = (end - begin)[:, None, None] / PANELS
        x = begin[:, None, None] + width * (np.arange(PANELS)[:, None] + (1 + NODES) / 2)
        loss = np.log1p(q * np.expm1((2 * x - 1) / (2 * z * z)))
        mass = width / 2 * WEIGHTS * np.exp(-(x**2) / (2 * z * z) + loss) / (z * math.sqrt(2 * math.pi))
        rest = profile_of((e[:, None, None] - loss).ravel(), q, z, rounds - 1).reshape(x.shape)
        total += (mass * rest).sum(axis=(1, 2))
    return total


def log_delta_by_integration(epsilon: float, q: float, z: float, rounds: int) -> float:
    return math.log(float(profile_of(np.array([epsilon]), q, z, rounds)[0]))


@pytest.mark.parametrize(
    ("z", "q", "rounds", "delta"),
    [
        (0.607, 6.99e-8, 2, 7.6e-27),
        (4.2, 2.28e-8, 2, 6.0e-20),
        (1.12, 3.67e-7, 2, 4.6e-21),
        (0.809, 3.01e-7, 3, 1.0e-15),
    ],
)
def test_rare_large_losses_against_plain_integration(z: float, q: float, rounds: int, delta: float) -> None:
    cost = PairCounts(((SubsampledGaussianPair(q, z), rounds),))
    interval = CertifiedAccountant().epsilon(cost, delta)
    assert log_delta_by_integration(interval.lower, q, z, rounds) >= math.log(delta) - 1e-6
    assert log_delta_by_integration(interval.upper, q, z, rounds) <= math.log(delta) + 1e-6
    assert interval.upper < 1.02 * interval.lower


@pytest.mark.parametrize(
    ("pair", "rounds", "delta"),
    [
        (SubsampledGaussianPair(0.3, 2.0), 7, 1e-6),
        (SubsampledGaussianPair(0.01, 0.8), 50, 1e-9),
        (SubsampledReplacePair(0.05, 1.5), 21, 1e-7),
        (FixedSizeReplacePair(0.2, 1.2), 5, 1e-5),
        (LaplacePair(4.0), 6, 1e-4),
        (RandomizedResponsePair(0.5, 3), 6, 1e-3),
    ],
)
def test_both_ways_of_composing_agree(pair: PricedPair, rounds: int, delta: float) -> None:
    """The lattice is right to a few parts in 1e5 here, and shares no arithmetic with sums of points."""
    cost = PairCounts(((pair, rounds),))
    interval = CertifiedAccountant().epsilon(cost, delta)
    for side, end in ((Side.UPPER, interval.upper), (Side.LOWER, interval.lower)):
        point_by_point = max(epsilon_by_doubling(each, side, math.log(delta)) for each in compositions(cost, side))
        sign = 1 if side is Side.UPPER else -1
        assert -2e-4 < sign * (point_by_point / end - 1) < 0.05


def profile(losses: Floats, masses: Floats, e: Floats) -> Floats:
    return np.asarray(np.maximum(-np.expm1(np.minimum(e[:, None] - losses, 0.0)), 0.0) @ masses)


@pytest.mark.parametrize("upper", [True, False])
def test_a_sum_in_cells_lies_on_its_own_side_of_all_outcomes(upper: bool) -> None:
    random = np.random.default_rng(3)
    cells = _Cells(np.exp(-np.arange(0.0, 20, 1.5)), np.exp(-np.arange(0.0, 30, 1.5)))
    laws = []
    for scale in (0.3, 2.0):
        values = np.sort(random.normal(0, scale, 40))
        laws.append(Points(values, random.dirichlet(np.full(40, 0.2)), 0.0))
    every = np.linspace(-8, 8, 1001)
    for first, second in ((laws[0], laws[1]), (laws[1], laws[1])):
        exact = profile(
            (first.values[:, None] + second.values).ravel(), (first.masses[:, None] * second.masses).ravel(), every
        )
        put = _sum(first, second, cells, upper)
        above = profile(put.values, put.masses, every) - exact
        assert len(put.values) < 80
        assert np.all(above >= -1e-13) if upper else np.all(above <= 1e-13)
        assert np.abs(above).max() > 1e-6  # cells this coarse do move it


def test_shared_buckets_stay_below_the_profile_where_no_chords_do() -> None:
    """Buckets of uneven width and mass, where chords fail: equation 19 keeps all mass and no profile is exceeded."""
    random = np.random.default_rng(11)
    for _ in range(40):
        width = random.choice([0.01, 0.08, 0.5], 30)
        edges = np.append(0.0, np.cumsum(width)) - 3
        inside = edges[:-1] + width * random.uniform(0, 1, 30)
        mass = random.dirichlet(np.full(30, 0.1))
        nodes = grid._shared_down(mass, -mass * np.expm1(edges[:-1] - inside), width)
        every = np.linspace(-4, edges[-1] + 1, 701)
        assert np.all(nodes >= 0)
        assert nodes.sum() == pytest.approx(1.0, abs=1e-12)
        assert np.all(profile(edges, nodes, every) <= profile(inside, mass, every) + 1e-13)


def test_merging_the_bulk_leaves_nothing_out() -> None:
    """Each of three million rounds may lose no more than a share of delta, or the lower end is lost with it."""
    law, step = SubsampledRemoval(1.45e-7, 0.317), 9e-5
    span = law.span(-58.0)
    merged = grid.optimistic_with_merged_bulk(law, law.nodes(2.2, span[1]), span, step, 2.2, step)
    assert merged is not None
    assert 1 - merged.mass.sum() < 1e-12
    every = np.linspace(-1e-6, 5, 500)
    exact = profile_of_one(every, 1.45e-7, 0.317)
    assert np.all(profile(merged.offset + merged.index * step, merged.mass, every) <= exact * (1 + 1e-9) + 1e-22)


@pytest.mark.parametrize(
    ("z", "q", "rounds", "delta"),
    [(0.317, 1.45e-7, 3_375_798, 1.1e-11), (0.27, 2.75e-5, 199_739, 6.0e-18), (1.63, 3.49e-4, 74_768, 2.5e-22)],
)
def test_the_lower_end_of_long_runs_is_close(z: float, q: float, rounds: int, delta: float) -> None:
    interval = CertifiedAccountant().epsilon(PairCounts(((SubsampledGaussianPair(q, z), rounds),)), delta)
    assert interval.upper < 1.001 * interval.lower
