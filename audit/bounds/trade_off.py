"""Trade-off curves: what a privacy promise says about every test between two neighbouring data sets.

A curve f is symmetric, convex and non-increasing: no test with false-positive rate a has a false-negative
rate below f(a). The same curve read as an event inequality is

    least_probability(p) = f(1 - p):  an event of probability p on one data set has at least this
                                      probability on every neighbour.

Three curves are enough, and the union is closed: an exact Gaussian, one (epsilon, delta) promise, and
finitely many such promises held at once (the privacy profile of a manifest, sampled where it was certified).
Auditing rejects curves; a curve that lies too low is rejected later, so a sampled profile errs on the
careful side.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from statistics import NormalDist
from typing import assert_never

from calibrate.accountants.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from calibrate.errors import InvalidInput, UnsupportedCombination

_quantile = NormalDist().inv_cdf
_SQRT_2 = math.sqrt(2)
MOST_EPSILON = 500.0
"""exp of more overflows soon; no audit can reach it."""
_OUTWARD = 1 + 1e-12
"""A relative margin, far above rounding, by which a null curve is widened."""
_GAUSSIAN_POINTS = 48
_LEAST_POINT_DELTA = 1e-12


def _phi(x: float) -> float:
    """The normal distribution function, accurate in the lower tail too."""
    return 0.5 * math.erfc(-x / _SQRT_2)


@dataclass(frozen=True)
class GaussianCurve:
    """The curve of one Gaussian release: f(a) = Phi(Phi^-1(1 - a) - mu)."""

    mu: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mu) and self.mu >= 0):
            raise InvalidInput("mu", self.mu, "must be finite and at least 0", "give sensitivity / deviation")

    def least_probability(self, p: float) -> float:
        if p <= 0:
            return 0.0
        return _phi(_quantile(p) - self.mu) if p < 1 else 1.0

    def type_two_error(self, type_one: float) -> float:
        if type_one <= 0:
            return 1.0
        return _phi(-_quantile(type_one) - self.mu) if type_one < 1 else 0.0

    def points(self) -> tuple[EpsilonDeltaCurve, ...]:
        """Some of the (epsilon, delta) promises that the curve implies, from epsilon = 0 up."""
        top = gaussian_epsilon(self.mu, _LEAST_POINT_DELTA)
        grid = (top * i / (_GAUSSIAN_POINTS - 1) for i in range(_GAUSSIAN_POINTS))
        return tuple(EpsilonDeltaCurve(eps, min(1.0, gaussian_delta(self.mu, eps) * (1 + 1e-9))) for eps in grid)


@dataclass(frozen=True)
class EpsilonDeltaCurve:
    """The curve of one promise: f(a) = max(0, 1 - delta - e^eps a, e^-eps (1 - delta - a))."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= MOST_EPSILON:
            raise InvalidInput("epsilon", self.epsilon, f"must lie in [0, {MOST_EPSILON:g}]", "give 0 or more")
        if not 0 <= self.delta <= 1:
            raise InvalidInput("delta", self.delta, "must lie in [0, 1]", "give for example 1e-5, or 0")

    def least_probability(self, p: float) -> float:
        ratio = math.exp(self.epsilon)
        return max(0.0, (p - self.delta) / ratio, 1 - self.delta - ratio * (1 - p))

    def type_two_error(self, type_one: float) -> float:
        ratio = math.exp(self.epsilon)
        return max(0.0, 1 - self.delta - ratio * type_one, (1 - self.delta - type_one) / ratio)

    def points(self) -> tuple[EpsilonDeltaCurve, ...]:
        return (self,)


@dataclass(frozen=True)
class _Line:
    """height + slope * (x - anchor); anchored where the line matters, so that nothing cancels."""

    slope: float
    anchor: float
    height: float

    def at(self, x: float) -> float:
        return self.height + self.slope * (x - self.anchor)


@dataclass(frozen=True)
class ProfileCurve:
    """Several (epsilon, delta) promises held at once: the pointwise largest of their curves.

    Build it from the certified upper deltas of an accountant at any finite set of epsilons. More points
    give a higher, sharper curve; no set of certified points gives a wrong one.
    """

    promises: tuple[EpsilonDeltaCurve, ...]
    _lines: tuple[_Line, ...] = field(init=False, repr=False, compare=False)
    _breaks: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.promises, tuple) or not self.promises:
            raise InvalidInput("promises", self.promises, "must be a non-empty tuple", "give at least one point")
        lines, breaks = _upper_envelope(self.promises)
        object.__setattr__(self, "_lines", lines)
        object.__setattr__(self, "_breaks", breaks)

    @classmethod
    def of(cls, points: tuple[tuple[float, float], ...]) -> ProfileCurve:
        """From plain (epsilon, delta) pairs."""
        return cls(tuple(EpsilonDeltaCurve(epsilon, delta) for epsilon, delta in points))

    def least_probability(self, p: float) -> float:
        return max(0.0, self._lines[bisect_right(self._breaks, p)].at(p))

    def type_two_error(self, type_one: float) -> float:
        return self.least_probability(1 - type_one)

    def points(self) -> tuple[EpsilonDeltaCurve, ...]:
        return self.promises


TradeOff = GaussianCurve | EpsilonDeltaCurve | ProfileCurve


class CurveFamily(Enum):
    """Curves ordered by epsilon at a fixed delta; a lower bound says which of them the data refute.

    EPSILON_DELTA assumes nothing: refuting its curve at epsilon refutes (epsilon, delta) privacy.
    GAUSSIAN assumes that the release is (dominated by) one Gaussian release; its epsilon is the one
    of that Gaussian, and it says nothing about, for example, randomised response.
    MECHANISM assumes that the release is a declared one with all of its noise times some factor.
    """

    EPSILON_DELTA = "epsilon-delta"
    GAUSSIAN = "gaussian"
    MECHANISM = "mechanism"


def curve_at(family: CurveFamily, epsilon: float, delta: float) -> TradeOff:
    """The member of a family with this epsilon at this delta, rounded toward the larger null."""
    match family:
        case CurveFamily.EPSILON_DELTA:
            return EpsilonDeltaCurve(epsilon, delta)
        case CurveFamily.GAUSSIAN:
            check_family_delta(family, delta)
            return GaussianCurve(gaussian_mu(epsilon, delta) * _OUTWARD)
        case CurveFamily.MECHANISM:
            raise UnsupportedCombination("a mechanism's curve", "it needs the release", "use MechanismOneRun.curve_at")
        case _:
            assert_never(family)


def curves_of(family: CurveFamily, delta: float) -> Callable[[float], TradeOff]:
    """The curves of a family by their parameter, lower for a larger one: epsilon at `delta`, or a Gaussian's mu."""
    check_family_delta(family, delta)
    return GaussianCurve if family is CurveFamily.GAUSSIAN else lambda epsilon: EpsilonDeltaCurve(epsilon, delta)


def check_family_delta(family: CurveFamily, delta: float) -> None:
    """A Gaussian has no finite epsilon at delta = 0; every family needs 0 <= delta < 1."""
    if not 0 <= delta < 1:
        raise InvalidInput("delta", delta, "must lie in [0, 1)", "give the manifest's delta, for example 1e-5")
    if family is CurveFamily.GAUSSIAN and delta == 0:
        raise UnsupportedCombination(
            "the Gaussian family at delta = 0", "its epsilon is infinite", "give a positive delta"
        )


def _upper_envelope(promises: tuple[EpsilonDeltaCurve, ...]) -> tuple[tuple[_Line, ...], tuple[float, ...]]:
    """The largest of the promises' lines on [0, 1] as pieces by growing slope, and where pieces change."""
    lines = [_Line(0.0, 0.0, 0.0)]
    for promise in promises:
        ratio = math.exp(promise.epsilon)
        # The two lines of f(p): (p - delta) / e^eps, and 1 - delta - e^eps (1 - p).
        lines += [_Line(1 / ratio, promise.delta, 0.0), _Line(ratio, 1.0, 1 - promise.delta)]
    pieces: list[_Line] = []
    starts: list[float] = []
    for line in sorted(lines, key=lambda line: (line.slope, line.at(1.0))):
        while pieces:
            start = _overtakes(pieces[-1], line)
            if start > (starts[-1] if starts else -math.inf):
                break
            pieces.pop()
            if starts:
                starts.pop()
        if pieces:
            starts.append(start)
        pieces.append(line)
    return tuple(pieces), tuple(starts)


def _overtakes(flatter: _Line, steeper: _Line) -> float:
    """The x from which the steeper line is the larger one."""
    lead = flatter.at(0.0) - steeper.at(0.0)
    if steeper.slope == flatter.slope:
        return -math.inf if lead <= 0 else math.inf
    return lead / (steeper.slope - flatter.slope)
