"""Bounds for a declared mechanism: the curves of its release, and how many guesses count.

Naming the mechanism gives the sharper test: a Gaussian release leaks less to a one-run attack than its (epsilon, delta)
allows. What is refuted is the release with all of its noise times a factor; the bound is what such a release costs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from scipy.special import ndtr

from audit.bounds.lower_bound import GuessCounts, LowerBound, Method, OneRunBound, allowed_failure, smallest_level
from audit.bounds.one_run import FDPOneRun, not_allowed
from audit.bounds.trade_off import CurveFamily, ProfileCurve, TradeOff, check_family_delta, curve_at
from audit.settings import CONFIDENCE
from calibrate.accountants.gaussian import gaussian_mu
from calibrate.accountants.registry import best_epsilon
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit, Relation
from calibrate.releases import Gaussian, Leaf, NonPrivate, Release, Together, multiplicities, scale_noise

PROFILE_DELTAS = (0.4, 0.3, 0.2, 0.14, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01, 3e-3, 1e-3, 1e-4, 1e-5, 1e-6)
"""Where the profile of a release is sampled; between the points the curve lies a little too low: the careful side."""
MOST_PRICED = 100.0
"""Larger epsilons say nothing to an audit."""
_ONE_RECORD = PrivacyUnit.of(Relation.ADD_REMOVE)
_PER_DOUBLING = 32
_STEPS = range(-4 * _PER_DOUBLING, 5 * _PER_DOUBLING)
"""The noise factors are 2^(-step / 32): from 16 times the declared noise to 1/32 of it."""
_SHARES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.17, 0.25, 0.33, 0.42, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def profile_points(release: Release, unit: PrivacyUnit, deltas: Iterable[float]) -> tuple[tuple[float, float], ...]:
    """Certified (epsilon, delta) of a release at some deltas; epsilons of 100 or more are left out.

    Guarantee: each point is a certified upper end (calibrate.accountants.registry.best_epsilon) for `unit`.
    """
    priced = ((best_epsilon(release, unit, delta).interval.upper, delta) for delta in deltas)
    return tuple(point for point in priced if point[0] < MOST_PRICED)


def is_gaussian(release: Release) -> bool:
    """Whether the release is one shift of a normal law: Gaussian noise on whole batches, in sequence or together."""
    return all(_is_gaussian(leaf) for leaf in multiplicities(release))


def _is_gaussian(leaf: Leaf) -> bool:
    match leaf:
        case Gaussian():
            return True
        case Together(releases):
            return all(isinstance(one, Gaussian) for one in releases)
        case NonPrivate(depends_on_unit=depends):
            return not depends
        case _:
            return False


@dataclass(frozen=True)
class MechanismOneRun:
    """The f-DP one-run bound against a declared release with all of its noise times a factor.

    Guarantee: docs/theorems/audit-bounds.md, "A declared mechanism"; for mechanisms that are such a release at some
    factor, for adding or removing one record.
    """

    release: Release
    method: ClassVar[Method] = Method.F_DP
    family: ClassVar[CurveFamily] = CurveFamily.MECHANISM

    def p_value(self, counts: GuessCounts, claim: TradeOff) -> float:
        return smallest_level(lambda tau: not_allowed(counts, claim, tau))

    def refutes(self, counts: GuessCounts, claim: TradeOff, confidence: float = CONFIDENCE) -> bool:
        return not_allowed(counts, claim, allowed_failure(confidence))

    def lower_bound(self, counts: GuessCounts, delta: float, confidence: float = CONFIDENCE) -> LowerBound:
        failure = allowed_failure(confidence)
        # Less noise is a lower curve, so the refuted factors end once: the first step that is not refuted.
        first = bisect_left(_STEPS, True, key=lambda step: not not_allowed(counts, _curve(self.release, step), failure))
        epsilon = _interval(self.release, _STEPS[first - 1], delta).lower if first else 0.0
        return LowerBound(epsilon, delta, confidence, self.method, self.family, counts)

    def curve_at(self, epsilon: float, delta: float) -> TradeOff:
        """The curve that the bound has to refute to exceed `epsilon`."""
        first = bisect_left(_STEPS, True, key=lambda step: _interval(self.release, step, delta).lower > epsilon)
        return _curve(self.release, _STEPS[min(first, len(_STEPS) - 1)])


@lru_cache(maxsize=1024)
def _curve(release: Release, step: int) -> ProfileCurve:
    points = profile_points(scale_noise(release, 2.0 ** (-step / _PER_DOUBLING)), _ONE_RECORD, PROFILE_DELTAS)
    return ProfileCurve.of(points or ((0.0, 1.0),))


@lru_cache(maxsize=1024)
def _interval(release: Release, step: int, delta: float) -> EpsilonInterval:
    return best_epsilon(scale_noise(release, 2.0 ** (-step / _PER_DOUBLING)), _ONE_RECORD, delta).interval


def declared_price(release: Release, delta: float) -> EpsilonInterval:
    """Epsilon of a declared release at `delta`, for adding or removing one record."""
    return _interval(release, 0, delta)


def bound_for(mechanism: Release) -> OneRunBound:
    """The sharpest one-run bound for a declared release: a Gaussian has its exact curve, others a certified one."""
    return FDPOneRun(CurveFamily.GAUSSIAN) if is_gaussian(mechanism) else MechanismOneRun(mechanism)


def claimed_curve(bound: OneRunBound, epsilon: float, delta: float) -> TradeOff:
    """The curve that a bound has to refute to exceed `epsilon` at `delta`."""
    if isinstance(bound, MechanismOneRun):
        return bound.curve_at(epsilon, delta)
    return curve_at(bound.family, epsilon, delta)


@lru_cache(maxsize=256)
def best_guesses(coins: int, epsilon: float, delta: float, confidence: float) -> int:
    """How many of this many guesses count: a function of public numbers, so that no error is paid for the choice.

    The number for which a Gaussian release of this claim, attacked through scores +-mu / 2 with normal noise, gives the
    largest bound, at the expected number of right guesses.
    """
    check_family_delta(CurveFamily.GAUSSIAN, delta)
    bound, mu = FDPOneRun(CurveFamily.GAUSSIAN), gaussian_mu(max(epsilon, 1e-3), delta)

    def expected(share: float) -> tuple[float, int]:
        guesses = max(1, round(share * coins))
        right = _share_right(guesses / coins, mu)
        return bound.lower_bound(
            GuessCounts(coins, guesses, math.floor(right * guesses)), delta, confidence
        ).epsilon, guesses

    return max(map(expected, _SHARES))[1]


def _share_right(share: float, mu: float) -> float:
    """How often the strongest `share` of guesses is right when scores are normal around mu / 2 or -mu / 2."""
    low, high = 0.0, mu / 2 + 40.0
    for _ in range(60):
        middle = (low + high) / 2
        beyond = ndtr(mu / 2 - middle) + ndtr(-mu / 2 - middle)
        low, high = (middle, high) if beyond > share else (low, middle)
    right, wrong = float(ndtr(mu / 2 - low)), float(ndtr(-mu / 2 - low))
    return right / (right + wrong)
