"""What a release costs, read at any point of its trade-off curve, and the parameter with which it meets a target.

Every number comes from one certificate, `best_epsilon`: an interval of epsilon at a given delta. A delta at a given
epsilon is that certificate read the other way round, and a true-positive rate follows from it by the lines that every
(epsilon, delta) draws below the curve (docs/theorems/accountants.md, section "Reading the curve").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from calibrate.accountants.certified import CertifiedAccountant
from calibrate.accountants.directions import Side, compositions
from calibrate.accountants.registry import PairCounts, best_epsilon, total_cost
from calibrate.errors import InvalidInput, NotCertified
from calibrate.privacy_unit import CertifiedInterval, EpsilonDelta, EpsilonInterval, PrivacyUnit
from calibrate.releases import Neighbours, Release, scale_noise
from calibrate.solve import MOST_ROUNDS, Certificate, largest_within, solve_noise, solve_rounds

Costing = Callable[[float], float | None]

_CLOSE = 1e-5
"""How close, in log delta, a certified end is brought to the estimate."""
_SMALLEST_DELTA = 1e-300
_PRECISION = 1e-6
"""Relative, of a parameter that is not a factor on all noise."""
_OCTAVES = 40
"""Powers of two, in one direction from 1, among which such a parameter is looked for."""


@dataclass(frozen=True)
class Answers:
    """What `release` costs for the protected `unit`; every answer is an interval certified to hold the number."""

    release: Release
    unit: PrivacyUnit

    def epsilon(self, delta: float) -> EpsilonInterval:
        """The smallest epsilon at `delta`, by the tightest accountant."""
        return best_epsilon(self.release, self.unit, delta).interval

    def delta(self, epsilon: float) -> CertifiedInterval:
        """The smallest delta at `epsilon`: deltas on both sides of which the certified epsilons lie."""
        if not 0 <= epsilon < math.inf:
            raise InvalidInput("epsilon", epsilon, "must be finite and at least 0", "give 0 or more")
        cost = self._cost
        if cost.unprotected:
            return CertifiedInterval(1.0, 1.0)
        if all(each.largest * (1 + 1e-12) <= epsilon for each in compositions(cost, Side.UPPER)):
            return CertifiedInterval(0.0, 0.0)
        start = min(-_CLOSE, CertifiedAccountant().log_delta(cost, epsilon))
        upper = self._sure(start, +1, lambda delta: self.epsilon(delta).upper <= epsilon)
        lower = self._sure(math.log(upper), -1, lambda delta: self.epsilon(delta).lower > epsilon)
        if 0 < lower < upper:  # the estimate may have been above both
            upper = self._sure(math.log(lower), +1, lambda delta: self.epsilon(delta).upper <= epsilon)
        return CertifiedInterval(min(lower, upper), upper)

    @cached_property
    def _cost(self) -> PairCounts:
        return total_cost(CertifiedAccountant(), self.release, self.unit)

    @staticmethod
    def _sure(start: float, sign: int, holds: Callable[[float], bool]) -> float:
        """The delta nearest to exp(start) at which `holds` was found true, upwards (+1) or downwards (-1)."""
        doubtful, step = start, _CLOSE
        while True:
            sure = start + sign * step
            if sure >= 0:
                return 1.0
            if sure < math.log(_SMALLEST_DELTA):
                return 0.0 if sign < 0 else _SMALLEST_DELTA
            if holds(math.exp(sure)):
                break
            doubtful, step = sure, 4 * step
        while abs(sure - doubtful) > 2 * _CLOSE:
            middle = (sure + doubtful) / 2
            sure, doubtful = (middle, doubtful) if holds(math.exp(middle)) else (sure, middle)
        return math.exp(sure)


@dataclass(frozen=True)
class Goal:
    """A number that a release may cost at most, and where on its curve it is read."""

    epsilon: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        if self.epsilon is None or self.delta is None:
            raise InvalidInput("target", self, "is not complete", "give epsilon and delta")
        EpsilonDelta(self.epsilon, self.delta)

    @property
    def promise(self) -> EpsilonDelta | None:
        """The target, if it is one of epsilon."""
        return None if self.epsilon is None or self.delta is None else EpsilonDelta(self.epsilon, self.delta)

    @property
    def most(self) -> float:
        """The largest value that is allowed."""
        assert self.epsilon is not None
        return self.epsilon

    def read(self, priced: Answers) -> CertifiedInterval:
        """The same number of a release."""
        assert self.delta is not None
        return priced.epsilon(self.delta)

    def met_by(self, priced: Answers) -> bool:
        """Whether it is certified that a release costs no more."""
        try:
            return self.read(priced).upper <= self.most
        except NotCertified:
            return False


@dataclass(frozen=True)
class Calibrated:
    """A parameter's `value` with which `release` is certified to meet a target."""

    value: float
    release: Release
    unit: PrivacyUnit
    target: Goal

    @cached_property
    def certificate(self) -> CertifiedInterval:
        """What was asked for, of this release: its upper end is at most the target."""
        return self.target.read(Answers(self.release, self.unit))


def calibrate(
    make: Callable[[float], Release],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    relation: Neighbours = "add-remove",
    between: tuple[float, float] | None = None,
) -> Calibrated:
    """The value of any one parameter with which a release is certified to meet a target, as nearly as it can.

    Arguments:
        make: The release for a value of the parameter: of noise, rate or whatever makes it cost only more or only less.
        epsilon, delta: The target: epsilon at most this, at this delta.
        relation: How neighbouring data sets differ: "add-remove", "replace-one" or "replace-attribute".
        between: The smallest and the largest value to look at; by default powers of two around 1.

    Guarantee: `.release`, made with `.value`, meets the target for the relation; `.certificate` is what it costs.

    >>> import privfair as pf
    >>> found = pf.calibrate(lambda z: pf.Gaussian(z).sampled(pf.Poisson(0.01)) * 1000, epsilon=1, delta=1e-5)
    >>> round(found.value, 3), found.certificate.upper <= 1
    (1.415, True)
    """
    target, unit = Goal(epsilon, delta), PrivacyUnit.named(relation)
    factor = _noise_factor(make, unit, target) if between is None else None
    value = _parameter(make, unit, target, between) if factor is None else factor
    return Calibrated(value, make(value), unit, target)


def most(
    make: Callable[[int], Release],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    relation: Neighbours = "add-remove",
    at_most: int = MOST_ROUNDS,
) -> int:
    """The largest whole number (of rounds, sites, bands) with which a release is certified to meet a target, or 0.

    Arguments:
        make: The release for a number; it must cost more for a larger one.
        epsilon, delta: The target, as for `calibrate`.
        relation: How neighbouring data sets differ, as for `calibrate`.
        at_most: The largest number to look at.

    >>> import privfair as pf
    >>> pf.most(lambda rounds: pf.Gaussian(2.0).sampled(pf.Poisson(0.01)) * rounds, epsilon=1, delta=1e-5)
    2433
    """
    target, unit = Goal(epsilon, delta), PrivacyUnit.named(relation)
    if target.promise is not None:
        return solve_rounds(make, unit, target.promise, at_most)
    return largest_within(lambda number: target.met_by(Answers(make(number), unit)), at_most)


def _noise_factor(make: Callable[[float], Release], unit: PrivacyUnit, target: Goal) -> float | None:
    """The value, if it is a factor on all noise, which a faster search can find; None if it is something else."""
    if target.promise is None:
        return None
    try:
        template = make(1.0)
        scaled = scale_noise(template, 2.0)
        if scaled == template or scaled != make(2.0):
            return None
        factor = solve_noise(template, unit, target.promise, Certificate.UPPER).factor
        return factor if make(factor) == scale_noise(template, factor) else None
    except InvalidInput:
        return None


def _parameter(
    make: Callable[[float], Release], unit: PrivacyUnit, target: Goal, between: tuple[float, float] | None
) -> float:
    """The costliest value that meets the target, between two of which one does and one does not."""

    def cost(value: float) -> float | None:
        """What is certified at most for a value; None where it is out of range."""
        try:
            return target.read(Answers(make(value), unit)).upper
        except InvalidInput:
            return None
        except NotCertified:
            return math.inf

    good, bad = _ends(cost, target.most) if between is None else _given_ends(cost, target.most, between)
    while abs(good - bad) > _PRECISION * abs(good):
        middle = math.sqrt(good * bad) if good > 0 and bad > 0 else (good + bad) / 2
        found = cost(middle)
        good, bad = (middle, bad) if found is not None and found <= target.most else (good, middle)
    return good


def _given_ends(
    cost: Callable[[float], float | None], most: float, between: tuple[float, float]
) -> tuple[float, float]:
    """Of the given values one that meets the target and one that does not, or the costlier one of two that do."""
    costs = [(found, value) for value in between if (found := cost(value)) is not None]
    good = [value for found, value in sorted(costs) if found <= most]
    if not good:
        raise NotCertified(f"no value between {between[0]:g} and {between[1]:g} meets the target; look further")
    bad = [value for found, value in costs if found > most]
    return good[-1], (bad or good)[-1]


def _ends(cost: Costing, most: float) -> tuple[float, float]:
    """A value that meets the target and one that does not, next to each other among the powers of two.

    From 1 the search follows what one more power does to the cost, until the cost no longer changes.
    """
    value, before = 1.0, cost(1.0)
    upward = cost(2.0)
    beyond = cost(0.5) if upward is None else upward
    if before is not None and beyond is not None:
        met, dearer = before <= most, beyond > before
        factor = 2.0 if (met == dearer) == (upward is not None) else 0.5
        for _ in range(_OCTAVES):
            after = cost(value * factor)
            if after is None:
                break
            if (after <= most) != met:
                return (value, value * factor) if met else (value * factor, value)
            if before < math.inf and math.isclose(after, before, rel_tol=1e-6):
                break
            value, before = value * factor, after
        if met:  # the costliest possible value is within the target
            return value, value
    raise NotCertified("the target is met by none of the values that were tried; give `between`, or another target")
