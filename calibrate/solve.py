"""Solvers over releases: the smallest noise, or the most rounds, with which a promise is kept.

A template release says how the noises relate to each other; one factor scales them all. `solve_noise` finds
the smallest factor whose certified epsilon meets the target, and (if asked) a factor below which the target is
provably broken, so that the user sees the gap. Delta may be as small as 1e-30. Secants in log factor against log
epsilon follow a cheap estimate first. The answer is certified by the certificate that prices given noise
(`best_epsilon`): `epsilon(sigma(t)).upper <= t`.

For given noise more rounds never cost less, so that a bisection finds the most (`solve_rounds`). What is priced is
continuous noise; `calibrate_plan` also keeps back what discrete noise may cost, which is slightly more noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from typing import Any, assert_never

from calibrate.accountants.certified import CertifiedAccountant
from calibrate.accountants.directions import Side
from calibrate.accountants.gaussian import gaussian_mu
from calibrate.accountants.registry import PairCounts, best_epsilon, epsilon_of, total_cost
from calibrate.accountants.support import (
    DominatingPair,
    FixedSizeReplacePair,
    Free,
    GaussianPair,
    LaplacePair,
    MixedGaussianPair,
    RandomAllocationPair,
    RandomizedResponsePair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
    TruncatedPair,
    Unbounded,
)
from calibrate.errors import InvalidInput, NotCertified, positive
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit
from calibrate.releases import Gaussian, Laplace, Release, Sampled, Together, leaves, scale_noise

PairsAt = Callable[[float], PairCounts]
"""What a factor costs: the pairs of the release with all its noise times the factor."""

_STRONGEST_MU = 30.0
"""Noise below 1/30 of a unit's reach hides nothing worth certifying: the search does not go lower."""
_WIDEST = 1e12
_USUAL, _EXACT = 1e-5, 2e-13
"""How close a factor comes to the target: as a rule, and where epsilon is analytic."""
_ROUGH = 1e-3
"""And an estimate to the certified root."""
_USUAL_SLOPE, _LARGEST_STEP = 1.5, 1.0
_TRIES = 60
_RUGGED, _STEP_DOWN = 5e-5, 1e-4
"""Where few large losses decide: how close a factor comes to the target, and the step (relative) to smaller ones."""
_SMOOTH = 1e-3
"""They decide where intervals are wider than this."""


class Certificate(Enum):
    """How much is proved about a solved factor."""

    UPPER = "upper"
    TWO_SIDED = "two-sided"


@dataclass(frozen=True)
class SolvedNoise:
    """The factor found, what it achieves, and how far below it the optimum can lie.

    `factor_lower` is a factor at which the target is provably broken (and with every smaller one); 0 if none
    was asked for or none exists. `certified` is the epsilon of `release` at the target's delta; its lower end is
    0 unless the certificate is two-sided.
    """

    release: Release
    factor: float
    factor_lower: float
    certified: EpsilonInterval
    accountant: str

    @property
    def gap(self) -> float:
        """The factor is at most this fraction above the optimum; infinite if no lower factor is known."""
        return self.factor / self.factor_lower - 1 if self.factor_lower > 0 else math.inf


@lru_cache(maxsize=256)
def solve_noise(
    template: Release,
    unit: PrivacyUnit,
    target: EpsilonDelta,
    certificate: Certificate = Certificate.TWO_SIDED,
    tolerance: float = _USUAL,
) -> SolvedNoise:
    """The smallest factor x such that `scale_noise(template, x)` is certified to meet the target.

    Guarantee: `scale_noise(template, result.factor)` is (target.epsilon, target.delta)-private for the unit, by the
    certified accountant (docs/theorems/certified-accountant.md). More noise never costs more, so the same
    holds for every larger factor. `tolerance` is how far above the optimum the factor may lie, relatively,
    because of the discretisation; fixed-size batches have a wider, honest gap between the proved bounds.
    """
    positive("tolerance", tolerance)
    _check_has_noise(template)
    accountant = CertifiedAccountant()

    def pairs_at(factor: float) -> PairCounts:
        return total_cost(accountant, scale_noise(template, factor), unit)

    pairs = pairs_at(1.0)
    if pairs.unprotected:
        raise NotCertified(
            "the template publishes something of the unit in the clear, which no noise factor protects; "
            "add noise to it, or declare it as not depending on the unit"
        )
    bounds = Bounds(max(_strength(pair) for pair, _ in pairs.counts) / _STRONGEST_MU, _WIDEST)
    start = bounds.low * _STRONGEST_MU
    if _plain_gaussian(pairs):
        start, tolerance = _gaussian_factor(pairs, target), _EXACT
    nearest = _NearestFactor(template, unit, target, bounds, tolerance, pairs_at)
    factor = nearest.smallest(start)
    lower, achieved = 0.0, 0.0
    if certificate is Certificate.TWO_SIDED:
        achieved = min(target.epsilon, nearest.price(math.log(factor)).lower)
        lower = nearest.largest_broken(factor) if factor > bounds.low else 0.0
    release = scale_noise(template, factor)
    return SolvedNoise(release, factor, lower, EpsilonInterval(achieved, target.epsilon), accountant.name)


@dataclass(frozen=True)
class Bounds:
    """The factor is searched for between these; at `low` all noise is already negligible."""

    low: float
    high: float


class _NearestFactor:
    """The factor next to the target by the certificate that everything is answered by, `best_epsilon`.

    An estimate says where it is. An upper end alone is cheaper and nearly always the same, so the search continues with
    it, and with the whole certificate only where that has a second way or another accountant.
    """

    def __init__(
        self,
        template: Release,
        unit: PrivacyUnit,
        target: EpsilonDelta,
        bounds: Bounds,
        tolerance: float,
        pairs_at: PairsAt,
    ) -> None:
        self._template, self._unit, self._target, self._pairs_at = template, unit, target, pairs_at
        self._low, self._high = math.log(bounds.low), math.log(bounds.high)
        self._tolerance = tolerance
        self._accountant = CertifiedAccountant(tolerance)
        self._known: dict[float, EpsilonInterval] = {}
        self._slope = _USUAL_SLOPE

    def price(self, x: float) -> EpsilonInterval:
        """The certified epsilon with all noise times exp(x); an infinite one where none can be certified."""
        if x not in self._known:
            release = scale_noise(self._template, math.exp(x))
            try:
                if self._tolerance in (_EXACT, _USUAL):
                    found = best_epsilon(release, self._unit, self._target.delta).interval
                else:
                    found = epsilon_of(self._accountant, release, self._unit, self._target.delta)
            except NotCertified:
                found = EpsilonInterval(0.0, math.inf)
            self._known[x] = found
        return self._known[x]

    def smallest(self, start: float) -> float:
        """A factor that was certified to meet the target, of which slightly less was refused.

        Guarantee: the returned factor itself was priced.
        """
        x = math.log(start)
        if self._tolerance != _EXACT:
            x = self._near(self._estimate, x, Side.UPPER, _ROUGH)
            alone = cache(self._upper_alone)
            x = self._near(alone, min(self._high, x), Side.UPPER)
            if x < math.inf and math.isclose(self.price(x).upper, alone(x), rel_tol=1e-9):
                return math.exp(self._stepped_down(x))
        x = self._near(lambda y: self.price(y).upper, min(self._high, x), Side.UPPER)
        if x == math.inf:
            raise NotCertified(
                f"no noise factor up to {math.exp(self._high):.3g} reaches epsilon = {self._target.epsilon} at delta = "
                f"{self._target.delta}; lower the cost of the parts whose noise is fixed, or raise epsilon"
            )
        return math.exp(self._stepped_down(x))

    def largest_broken(self, start: float) -> float:
        """A factor that was certified to break the target, of which slightly more was not; 0 if there is none."""
        return math.exp(self._near(lambda x: self.price(x).lower, math.log(start), Side.LOWER))

    def _estimate(self, x: float) -> float:
        return self._certified(CertifiedAccountant.epsilon_estimate, x)

    def _upper_alone(self, x: float) -> float:
        return self._certified(CertifiedAccountant.epsilon_upper, x)

    def _certified(self, ask: Callable[[CertifiedAccountant, PairCounts, float], float], x: float) -> float:
        try:
            return ask(self._accountant, self._pairs_at(math.exp(x)), self._target.delta)
        except NotCertified:
            return math.inf

    def _near(self, end: Callable[[float], float], start: float, side: Side, within: float = 0.0) -> float:
        """Where an end of epsilon meets the target (upper side) or breaks it, at most `within` or the tolerance off.

        Infinity, with the sign of the side, if there is none. Epsilon falls at least in proportion to the noise, so
        that an epsilon this close to the target is a factor this close; otherwise a factor this close was refused.
        """
        sign = 1.0 if side is Side.UPPER else -1.0
        x = min(self._high, max(self._low, start + 0.3 * sign * self._tolerance))
        sure, doubtful = sign * math.inf, -sign * math.inf
        before: tuple[float, float] | None = None
        for step in range(_TRIES):
            excess, close = self._excess(end(x)), max(within, self._close(x))
            if sign * excess <= 0 and (side is Side.UPPER or excess > 0):
                sure = sign * min(sign * sure, sign * x)
                if sure == x and (abs(excess) <= close or x <= self._low):
                    break
            else:
                doubtful = sign * max(sign * doubtful, sign * x)
                if x == (self._high if side is Side.UPPER else self._low):
                    break
            if abs(sure - doubtful) <= close:
                break
            if before is not None and before[0] != x and (before[1] - excess) * (x - before[0]) > 0:
                self._slope = (before[1] - excess) / (x - before[0])
            before = (x, excess)
            x += max(-_LARGEST_STEP, min(_LARGEST_STEP, (excess + 0.3 * sign * close) / self._slope))
            x = min(self._high, max(self._low, x))
            low, high = min(sure, doubtful), max(sure, doubtful)
            if high < math.inf and low > -math.inf:
                x = x if low < x < high and step % 3 else (low + high) / 2
        return sure

    def _close(self, x: float) -> float:
        found = self._known.get(x)
        rugged = found is not None and found.upper - found.lower > _SMOOTH * found.upper
        return max(self._tolerance, _RUGGED) if rugged else self._tolerance

    def _stepped_down(self, x: float) -> float:
        """From a certified factor on to smaller ones that are certified as well.

        Where few large losses decide, the upper end is rugged: below a refused factor it may be met again.
        """
        while self._close(x) > self._tolerance:
            below = max(self._low, x - _STEP_DOWN)
            if below == x or self.price(below).upper > self._target.epsilon:
                break
            x = below
        return x

    def _excess(self, end: float) -> float:
        """By how much the logarithm of an end of epsilon exceeds the target's."""
        if end <= 0:
            return -_LARGEST_STEP
        excess = math.log(end) - math.log(self._target.epsilon)
        if (end <= self._target.epsilon) != (excess <= 0):  # logarithms round; the comparison decides
            excess = math.copysign(1e-16, end - self._target.epsilon)
        return min(2 * _LARGEST_STEP, max(-2 * _LARGEST_STEP, excess))


def _gaussian_factor(pairs: PairCounts, target: EpsilonDelta) -> float:
    """Only plain Gaussian releases: mu is inversely proportional to the factor, and epsilon(mu) is analytic."""
    squares = math.fsum(n * pair.mu**2 for pair, n in pairs.counts if isinstance(pair, GaussianPair))
    return math.sqrt(squares) / gaussian_mu(target.epsilon, target.delta)


def _strength(pair: DominatingPair) -> float:
    """The signal over the noise of one pair, which falls in proportion to the factor; 0 where there is none."""
    match pair:
        case GaussianPair(mu):
            return mu
        case SubsampledGaussianPair(_, z) | FixedSizeReplacePair(_, z) | SubsampledReplacePair(_, z):
            return 1 / z
        case RandomAllocationPair(noise_multiplier=z):
            return 1 / z
        case TruncatedPair():
            return _strength(pair.cut)
        case MixedGaussianPair(components):
            return min(mu for _, mu in components if mu > 0)
        case LaplacePair(scale):
            return 1 / scale
        case RandomizedResponsePair() | Free() | Unbounded():
            return 0.0
        case _:
            assert_never(pair)


def _check_has_noise(template: Release) -> None:
    noisy = (Gaussian, Laplace, Together, Sampled)
    if not any(isinstance(leaf, noisy) for leaf, _ in leaves(template)):
        raise InvalidInput(
            "template", template, "has no Gaussian or Laplace noise to solve for", "give a release with noise"
        )


MOST_ROUNDS = 10**9
_ONE_IN = 20_000
"""Beyond this many rounds the last one in this many is not fought for: deciding it would take a huge lattice."""


def solve_rounds(
    release_at: Callable[[int], Release], unit: PrivacyUnit, target: EpsilonDelta, most: int = MOST_ROUNDS
) -> int:
    """The largest n, at most `most`, for which `release_at(n)` is certified to meet the target; 0 if there is none.

    `release_at` must cost more for larger n. Guarantee: `release_at(n)` is (target.epsilon, target.delta)-private for
    the unit, by the certified accountant. A bisection on the quick estimate finds the place, which is then certified.
    """
    accountant = CertifiedAccountant()

    def seems(times: int) -> bool:
        try:
            pairs = total_cost(accountant, release_at(times), unit)
            return accountant.epsilon_estimate(pairs, target.delta) <= target.epsilon
        except NotCertified:
            return False

    def surely(times: int) -> bool:
        try:
            return best_epsilon(release_at(times), unit, target.delta).interval.upper <= target.epsilon
        except NotCertified:
            return False

    low = largest_within(seems, most)
    good, bad, reach = 0, most + 1, max(1, low // _ONE_IN)
    while low > good:  # away from the estimate, ever faster, until it is bracketed
        if surely(low):
            good, low = low, min(bad - 1, low + reach)
        else:
            bad, low = low, max(good, low - reach)
        if good and bad <= most:
            break
        reach *= 4
    return int(bisected(surely, good, bad, max(1, good // _ONE_IN))[0]) if bad - good > 1 else good


def largest_within(within: Callable[[int], bool], most: int) -> int:
    """The largest count for which a falling predicate holds; 0 if it holds for none."""
    low, high = 0, 1
    while high <= most and within(high):
        low, high = high, 2 * high
    return int(bisected(within, low, min(high, most + 1))[0])


def bisected(within: Callable[[Any], bool], low: float, high: float, precision: float = 1) -> tuple[float, float]:
    """Where a falling predicate ends between `low`, where it holds, and `high`, where it does not.

    Whole numbers end up at most `precision` apart; with one below 1, which is relative, other numbers do.
    """
    while high - low > (precision if precision >= 1 else precision * low):
        middle = math.floor((low + high) / 2) if precision >= 1 else math.sqrt(low * high)
        low, high = (middle, high) if within(middle) else (low, middle)
    return low, high


def _plain_gaussian(pairs: PairCounts) -> bool:
    return all(isinstance(pair, GaussianPair) for pair, _ in pairs.counts)
