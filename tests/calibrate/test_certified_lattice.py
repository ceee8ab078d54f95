"""A law on the lattice dominates (or is dominated by) the law itself: its profile is above (below) everywhere.

The true profiles are computed here on their own, from closed forms with 40 digits, not from the laws' buckets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp
import numpy as np
import pytest

from calibrate.accountants.grid import LatticeLaw, lattice_edges, optimistic, pessimistic
from calibrate.accountants.losses import (
    GaussianLoss,
    LaplaceLoss,
    MixedGaussianLoss,
    PrivacyLossLaw,
    RandomizedResponseLoss,
)
from calibrate.accountants.sampled_losses import (
    LargerOfBothDirections,
    SubsampledAddition,
    SubsampledRemoval,
    SubsampledReplacement,
)

mp.mp.dps = 40
TILT = 8.0
Profile = Callable[[float], mp.mpf]


def removal(q: float, z: float) -> Profile:
    def profile(e: float) -> mp.mpf:
        inner = 1 + mp.expm1(e) / q
        if inner <= 0:
            return -mp.expm1(e)
        x = mp.mpf(1) / 2 + mp.mpf(z) ** 2 * mp.log(inner)
        above_q, above_p = mp.ncdf(-x / z), mp.ncdf((1 - x) / z)
        return (1 - mp.mpf(q)) * above_q + q * above_p - mp.exp(e) * above_q

    return profile


def mirrored(profile: Profile) -> Profile:
    return lambda e: -mp.expm1(e) + mp.exp(e) * profile(-e)


def replacement(q: float, z: float) -> Profile:
    def profile(e: float) -> mp.mpf:
        def loss(x: mp.mpf) -> mp.mpf:
            up = 1 - q + q * mp.exp((2 * x - 1) / (2 * mp.mpf(z) ** 2))
            down = 1 - q + q * mp.exp((-2 * x - 1) / (2 * mp.mpf(z) ** 2))
            return mp.log(up / down) - e

        x = mp.findroot(loss, (-60 * z - 60, 60 * z + 60), solver="anderson", tol=1e-60, maxsteps=400)
        null, plus, minus = mp.ncdf(-x / z), mp.ncdf((1 - x) / z), mp.ncdf((-1 - x) / z)
        return float((1 - q) * null + q * plus - mp.exp(e) * ((1 - q) * null + q * minus))

    return profile


def gaussian(mu: float) -> Profile:
    def profile(e: float) -> mp.mpf:
        return float(mp.ncdf(-e / mp.mpf(mu) + mu / 2) - mp.exp(e) * mp.ncdf(-e / mp.mpf(mu) - mu / 2))

    return profile


def mixture(components: tuple[tuple[float, float], ...]) -> Profile:
    def profile(e: float) -> mp.mpf:
        parts = (w * (gaussian(mu)(e) if mu > 0 else max(0.0, -math.expm1(e))) for w, mu in components)
        return math.fsum(parts)

    return profile


def laplace(scale: float) -> Profile:
    def profile(e: float) -> mp.mpf:
        if e >= 1 / scale:
            return 0.0
        return -math.expm1(e) if e <= -1 / scale else -math.expm1((e - 1 / scale) / 2)

    return profile


def randomized_response(epsilon: float, k: int) -> Profile:
    def profile(e: float) -> mp.mpf:
        lie = 1 / (math.exp(epsilon) + k - 1)
        atoms = ((epsilon, math.exp(epsilon) * lie), (0.0, (k - 2) * lie), (-epsilon, lie))
        return math.fsum(mass * max(0.0, -math.expm1(e - loss)) for loss, mass in atoms)

    return profile


@dataclass(frozen=True)
class Case:
    law: PrivacyLossLaw
    profile: Profile
    step: float


MIX = ((0.9, 0.0), (0.08, 0.3), (0.02, 0.6))
CASES = {
    "gaussian": Case(GaussianLoss(0.4), gaussian(0.4), 0.01),
    "removal": Case(SubsampledRemoval(0.05, 1.1), removal(0.05, 1.1), 0.004),
    "removal, rare": Case(SubsampledRemoval(1e-3, 0.8), removal(1e-3, 0.8), 1e-4),
    "removal, rate above a half": Case(SubsampledRemoval(0.7, 2.0), removal(0.7, 2.0), 0.01),
    "addition": Case(SubsampledAddition(0.05, 1.1), mirrored(removal(0.05, 1.1)), 0.002),
    "addition, rate above a half": Case(SubsampledAddition(0.7, 2.0), mirrored(removal(0.7, 2.0)), 0.01),
    "replacement": Case(SubsampledReplacement(0.05, 1.1), replacement(0.05, 1.1), 0.005),
    "replacement, little noise": Case(SubsampledReplacement(0.3, 0.2), replacement(0.3, 0.2), 0.05),
    "fixed size": Case(
        LargerOfBothDirections(0.1, 0.7), lambda e: max(removal(0.1, 0.7)(e), mirrored(removal(0.1, 0.7))(e)), 0.01
    ),
    "mixture": Case(MixedGaussianLoss.of(MIX), mixture(MIX), 0.005),
    "laplace": Case(LaplaceLoss(2.5), laplace(2.5), 0.4 / 64),
    "laplace off the lattice": Case(LaplaceLoss(2.5), laplace(2.5), 0.0063),
    "randomized response": Case(RandomizedResponseLoss(0.5, 4), randomized_response(0.5, 4), 0.5 / 32),
    "randomized response off the lattice": Case(RandomizedResponseLoss(0.5, 4), randomized_response(0.5, 4), 0.017),
}


def on_lattice(case: Case, put: Callable[[PrivacyLossLaw, np.ndarray, float], LatticeLaw]) -> LatticeLaw:
    span = case.law.span(-60.0)
    edges = lattice_edges(case.law.nodes(TILT), span, case.step, TILT, narrowest=case.step)
    return put(case.law, edges, case.step)


def lattice_profile(lattice: LatticeLaw, step: float, e: float) -> float:
    gains = np.maximum(0.0, -np.expm1(e - lattice.index * step))
    return math.fsum(lattice.mass * gains) + lattice.infinite


def points(case: Case) -> np.ndarray:
    """On, beside and between lattice points, over all of the support and beyond."""
    low, high = case.law.span(-25.0)
    reach = max(abs(low), abs(high), (case.law.atoms and max(abs(a.loss) for a in case.law.atoms)) or 0.0)
    inside = np.linspace(-1.1 * reach, 1.1 * reach, 35)
    near_zero = case.step * np.array([-1.5, -1.0, -0.5, -0.01, 0.0, 0.01, 0.5, 1.0, 1.5])
    return np.concatenate((inside, near_zero))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_pessimistic_is_above_and_optimistic_below(case: Case) -> None:
    upper, lower = on_lattice(case, pessimistic), on_lattice(case, optimistic)
    for e in points(case):
        truth, rounding = float(case.profile(e)), 1e-15
        assert lattice_profile(upper, case.step, e) >= truth - rounding, e
        assert lattice_profile(lower, case.step, e) <= truth + rounding, e


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_lattice_masses_form_a_measure(case: Case) -> None:
    upper, lower = on_lattice(case, pessimistic), on_lattice(case, optimistic)
    assert upper.mass.min() >= 0
    assert lower.mass.min() >= 0
    assert math.fsum(upper.mass) + upper.infinite == pytest.approx(1, abs=1e-10)
    assert math.fsum(lower.mass) <= 1 + 1e-12
    assert lower.infinite == 0


@pytest.mark.parametrize(
    "name", [name for name in CASES if not name.endswith("off the lattice") and "little noise" not in name]
)
def test_both_lattices_are_close_in_second_order(name: str) -> None:
    """Halving the step quarters the change of the moment generating function at the tilt, on either side."""
    case = CASES[name]
    halved = Case(case.law, case.profile, case.step / 2)

    def moment(each: Case, put: Callable[[PrivacyLossLaw, np.ndarray, float], LatticeLaw]) -> float:
        lattice = on_lattice(each, put)
        return math.fsum(lattice.mass * np.exp(TILT * each.step * lattice.index))

    coarse = moment(case, pessimistic) - moment(case, optimistic)
    fine = moment(halved, pessimistic) - moment(halved, optimistic)
    scale = moment(case, optimistic)
    assert -1e-12 * scale <= fine <= 0.4 * coarse + 1e-11 * scale


def test_a_bucket_error_is_counted_against_the_certificate() -> None:
    """Masses move to the safe side by their stated error, visibly if the error is made large."""

    class Sloppy(GaussianLoss):
        def buckets(self, edges):  # type: ignore[no-untyped-def]
            exact = super().buckets(edges)
            return type(exact)(exact.p, exact.q, exact.p + 1e-6, exact.q + 1e-6, exact.below, exact.above)

    edges = np.arange(-200, 220, dtype=np.int64)
    exact, sloppy = GaussianLoss(0.4), Sloppy(0.4)
    for e in (-0.5, 0.0, 0.5):
        clean, wide = pessimistic(exact, edges, 0.01), pessimistic(sloppy, edges, 0.01)
        assert lattice_profile(wide, 0.01, e) > 1.5 * lattice_profile(clean, 0.01, e)
        clean, wide = optimistic(exact, edges, 0.01), optimistic(sloppy, edges, 0.01)
        assert lattice_profile(wide, 0.01, e) < 0.5 * lattice_profile(clean, 0.01, e)
