"""Solvers over releases: the smallest noise, or the most rounds, with which a promise is kept.

A template release says how the noises relate to each other; one factor scales them all. `solve_noise` finds
the smallest factor whose certified epsilon meets the target, and (if asked) a factor below which the target is
provably broken, so that the user sees the gap. Delta may be as small as 1e-30. The contour integral is nearly exact
and cheap, so the search runs on it alone (`FactorSearch`): a secant in log factor against log delta. Only the answer is
certified, by the certificate that also answers what given noise costs (`best_epsilon`): `epsilon(sigma(t)).upper <= t`.

For given noise more rounds never cost less, so that a bisection finds the most (`solve_rounds`). What is priced is
continuous noise; `calibrate_plan` also keeps back what discrete noise may cost, which is slightly more noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, assert_never

from calibrate.accountants.certified import CertifiedAccountant, gaussian_interval, lattice_estimate
from calibrate.accountants.compose import log_cut
from calibrate.accountants.contour import Care, Cumulants, LossTransform, log_delta
from calibrate.accountants.directions import Composition, Side, compositions
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
_USUAL_SLOPE = 1.5
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
    if _plain_gaussian(pairs):
        start, tolerance = _gaussian_factor(pairs, target), _EXACT
    else:
        start = _estimated_factor(pairs_at, target, bounds)
    nearest = _NearestFactor(template, unit, target, bounds, tolerance, None if tolerance == _EXACT else pairs_at)
    factor = nearest.find(start, Side.UPPER)
    lower, achieved = 0.0, 0.0
    if certificate is Certificate.TWO_SIDED:
        achieved = min(target.epsilon, nearest.price(math.log(factor)).lower)
        lower = nearest.find(factor, Side.LOWER) if factor > bounds.low else 0.0
    release = scale_noise(template, factor)
    return SolvedNoise(release, factor, lower, EpsilonInterval(achieved, target.epsilon), accountant.name)


@dataclass(frozen=True)
class Bounds:
    """The factor is searched for between these; at `low` all noise is already negligible."""

    low: float
    high: float


class _NearestFactor:
    """The factor next to the target by the certificate that everything is answered by, `best_epsilon`.

    An upper end alone is cheaper and nearly always the same, so the search starts with it.
    """

    def __init__(
        self,
        template: Release,
        unit: PrivacyUnit,
        target: EpsilonDelta,
        bounds: Bounds,
        tolerance: float,
        one_way: PairsAt | None,
    ) -> None:
        self._template, self._unit, self._target, self._one_way = template, unit, target, one_way
        self._low, self._high = math.log(bounds.low), math.log(bounds.high)
        self._tolerance = tolerance
        self._known: dict[float, EpsilonInterval] = {}
        self._seen: dict[float, float] = {}
        self._slope = _USUAL_SLOPE

    def price(self, x: float) -> EpsilonInterval:
        """The certified epsilon with all noise times exp(x); an infinite one where none can be certified."""
        if x not in self._known:
            release = scale_noise(self._template, math.exp(x))
            try:
                if self._tolerance in (_EXACT, _USUAL):
                    found = best_epsilon(release, self._unit, self._target.delta).interval
                else:
                    found = epsilon_of(CertifiedAccountant(self._tolerance), release, self._unit, self._target.delta)
            except NotCertified:
                found = EpsilonInterval(0.0, math.inf)
            self._known[x] = found
        return self._known[x]

    def _upper(self, x: float) -> float:
        if self._one_way is None or x in self._known:
            return self.price(x).upper
        return self._upper_alone(x)

    def _upper_alone(self, x: float) -> float:
        if x not in self._seen and self._one_way is not None:
            pairs = self._one_way(math.exp(x))
            self._seen[x] = CertifiedAccountant(self._tolerance).epsilon_upper(pairs, self._target.delta)
        return self._seen[x]

    def find(self, start: float, side: Side) -> float:
        """A factor certified to meet the target (upper side), or to break it, that is at most `tolerance` off.

        Guarantee: the returned factor itself was priced. Epsilon falls at least in proportion to the noise, so that an
        epsilon this close to the target is a factor this close; otherwise a factor this close was refused.
        """
        sign = 1.0 if side is Side.UPPER else -1.0
        x = min(self._high, max(self._low, math.log(start) + 0.3 * sign * self._tolerance))
        sure: float | None = None
        doubtful: float | None = None
        before: tuple[float, float] | None = None
        for step in range(_TRIES):
            excess, close = self._excess(x, side), self._close(x)
            if sign * excess <= 0 and (side is Side.UPPER or excess > 0):
                sure = x if sure is None else sign * min(sign * sure, sign * x)
                if sure == x and (abs(excess) <= close or x <= self._low):
                    break
            else:
                doubtful = x if doubtful is None else sign * max(sign * doubtful, sign * x)
                if x == (self._high if side is Side.UPPER else self._low):
                    break
            if sure is not None and doubtful is not None and abs(sure - doubtful) <= close:
                break
            if before is not None and before[0] != x and (before[1] - excess) * (x - before[0]) > 0:
                self._slope = (before[1] - excess) / (x - before[0])
            before = (x, excess)
            x += max(-_LARGEST_STEP, min(_LARGEST_STEP, (excess + 0.3 * sign * close) / self._slope))
            x = min(self._high, max(self._low, x))
            if sure is not None and doubtful is not None:
                low, high = min(sure, doubtful), max(sure, doubtful)
                x = x if low < x < high and step % 3 else (low + high) / 2
        if sure is None:
            return self._nothing(side)
        if side is Side.LOWER:
            return math.exp(sure)
        if self._one_way is not None and not math.isclose(
            self.price(sure).upper, self._upper_alone(sure), rel_tol=1e-9
        ):
            self._one_way = None  # the certificate has a second way, or another accountant
            return self.find(math.exp(sure), side)
        return math.exp(self._stepped_down(sure))

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

    def _excess(self, x: float, side: Side) -> float:
        """By how much the logarithm of that side's epsilon exceeds the target's."""
        end = self._upper(x) if side is Side.UPPER else self.price(x).lower
        if end <= 0:
            return -_LARGEST_STEP
        excess = math.log(end) - math.log(self._target.epsilon)
        if (end <= self._target.epsilon) != (excess <= 0):  # logarithms round; the comparison decides
            excess = math.copysign(1e-16, end - self._target.epsilon)
        return min(2 * _LARGEST_STEP, max(-2 * _LARGEST_STEP, excess))

    def _nothing(self, side: Side) -> float:
        if side is Side.LOWER:
            return 0.0
        raise NotCertified(
            f"no noise factor up to {math.exp(self._high):.3g} reaches epsilon = {self._target.epsilon} at delta = "
            f"{self._target.delta}; lower the cost of the parts whose noise is fixed, or raise epsilon"
        )


def _gaussian_factor(pairs: PairCounts, target: EpsilonDelta) -> float:
    """Only plain Gaussian releases: mu is inversely proportional to the factor, and epsilon(mu) is analytic."""
    squares = math.fsum(n * pair.mu**2 for pair, n in pairs.counts if isinstance(pair, GaussianPair))
    return math.sqrt(squares) / gaussian_mu(target.epsilon, target.delta)


def _estimated_factor(pairs_at: PairsAt, target: EpsilonDelta, bounds: Bounds) -> float:
    """About the factor that meets the target; `bounds.low` where delta is beyond the chance of ever taking part."""
    if pairs_at(bounds.low).chance_of_taking_part <= target.delta:
        return bounds.low
    start = _central_limit_start(pairs_at, target, bounds)
    return FactorSearch(pairs_at, target, Side.UPPER, bounds).estimate(start, 2e-7)


def _central_limit_start(pairs_at: PairsAt, target: EpsilonDelta, bounds: Bounds) -> float:
    """Where the central limit theorem for privacy losses puts the factor: total mu^2 equals the Gaussian's."""
    wanted = _rough_gaussian_mu(target) ** 2
    low, high = math.log(bounds.low), math.log(bounds.high)
    while high - low > 0.05:
        middle = (low + high) / 2
        total = sum(n * _variance(pair) for pair, n in pairs_at(math.exp(middle)).counts)
        low, high = (middle, high) if total > wanted else (low, middle)
    return math.exp((low + high) / 2)


def _rough_gaussian_mu(target: EpsilonDelta) -> float:
    """The mu of a Gaussian mechanism that meets the target, to a few %: only a start."""

    def enough(mu: float) -> bool:
        # Only the first of the two terms of delta(mu): an upper bound on delta.
        return 0.5 * math.erfc((target.epsilon / mu - mu / 2) / math.sqrt(2)) < target.delta

    return bisected(enough, 1e-6, 2.0 + 2 * math.sqrt(target.epsilon), 0.03)[0]


def _variance(pair: DominatingPair) -> float:
    """About the variance of the loss, which is what the central limit theorem adds up."""
    match pair:
        case GaussianPair(mu):
            return mu**2
        case SubsampledGaussianPair(rate, z) | FixedSizeReplacePair(rate, z):
            return rate**2 * math.expm1(min(700.0, z**-2))
        case SubsampledReplacePair(rate, z):
            return 4 * rate**2 * math.expm1(min(700.0, z**-2))
        case MixedGaussianPair(components):
            return math.fsum(weight * mu**2 for weight, mu in components)
        case TruncatedPair(whole, chance):
            return (1 - chance) * _variance(whole) + chance * _variance(pair.cut)
        case RandomAllocationPair(batches, drawn, z):
            return drawn / batches**2 * math.expm1(min(700.0, z**-2))
        case LaplacePair(scale):
            return scale**-2
        case RandomizedResponsePair(epsilon, _):
            return min(epsilon, epsilon**2)
        case Free() | Unbounded():
            return 0.0
        case _:
            assert_never(pair)


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


_LARGEST_STEP = 1.0


class FactorSearch:
    """Log delta at the target's epsilon against the logarithm of the factor, for one side of the certificate."""

    def __init__(self, pairs_at: PairsAt, target: EpsilonDelta, side: Side, bounds: Bounds) -> None:
        self._check = TargetCheck(target, side)
        self._pairs_at = pairs_at
        self._bounds = bounds

    def estimate(self, start: float, precision: float) -> float:
        """The factor at which the estimate meets the target.

        The returned factor is `bounds.low` if even that little noise meets the target. The search runs on the
        quick estimate of the costlier direction; its root is then confirmed, and corrected if need be.
        """
        low, high = math.log(self._bounds.low), math.log(self._bounds.high)
        x, care = min(high, max(low, math.log(start))), Care.QUICK
        main, excess = self._check.costlier(self._pairs(x), care)
        slope, floor, ceiling = 20.0, -math.inf, math.inf
        for _ in range(100):
            if abs(excess) < precision * slope or (x == low and excess < 0):
                if care is Care.CONFIRMED:
                    break
                care, floor, ceiling = Care.CONFIRMED, -math.inf, math.inf
                main, excess = self._check.costlier(self._pairs(x), care)
                continue
            floor, ceiling = (x, ceiling) if excess > 0 else (floor, x)
            following = x + max(-_LARGEST_STEP, min(_LARGEST_STEP, excess / slope))
            if not floor < following < ceiling:
                following = (floor + ceiling) / 2
            following = min(high, max(low, following))
            if abs(following - x) < 1e-13:
                break
            after = self._check.excess(self._pairs(following), main, care)
            slope = max(0.3, (excess - after) / (following - x))
            x, excess = following, after
        return math.exp(x)

    def _pairs(self, log_factor: float) -> PairCounts:
        return self._pairs_at(math.exp(log_factor))


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
    accountant, check = CertifiedAccountant(), TargetCheck(target, Side.UPPER)

    def seems(times: int) -> bool:
        return seems_within(total_cost(accountant, release_at(times), unit), target, check)

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


_CAP = 40.0
"""Excesses are cut off here, so that an infinite one still points in a direction."""


@dataclass(frozen=True)
class _Direction:
    transform: LossTransform
    saddle: Cumulants
    excess: float


class TargetCheck:
    """By how much log delta at the target's epsilon exceeds the target's, for one side of the certificate.

    Remembers the tilts of earlier compositions, which are good guesses for similar ones, and in which
    directions (and for about how many steps) the contour integral failed: a failure costs hundreds of points.
    """

    def __init__(self, target: EpsilonDelta, side: Side) -> None:
        self.target, self.side = target, side
        self._log_delta = math.log(target.delta)
        self._tilts: dict[int, float] = {}
        self._contour_fails: set[tuple[int, int]] = set()

    def costlier(self, pairs: PairCounts, care: Care) -> tuple[int, float]:
        """The direction with the larger estimated delta, and its excess."""
        directed = compositions(pairs, self.side)
        excesses = [self._estimate(each, k, care).excess for k, each in enumerate(directed)]
        main = max(range(len(excesses)), key=lambda k: excesses[k])
        return main, excesses[main]

    def excess(self, pairs: PairCounts, direction: int, care: Care) -> float:
        """The estimated excess of one direction."""
        return self._estimate(compositions(pairs, self.side)[direction], direction, care).excess

    def _estimate(self, composition: Composition, direction: int, care: Care) -> _Direction:
        transform = LossTransform(composition, log_cut(self._log_delta))
        guess, found = self._tilts.get(direction, 5.0), None
        like_this = (direction, composition.steps.bit_length())
        if like_this not in self._contour_fails:
            found = log_delta(transform, self.target.epsilon, guess, care)
        if found is None:
            self._contour_fails.add(like_this)
            found = lattice_estimate(transform, self.target.epsilon, self._log_delta, guess)
        value, saddle = found
        if math.isfinite(value):
            self._tilts[direction] = saddle.tilt
        return _Direction(transform, saddle, max(-_CAP, min(_CAP, value - self._log_delta)))


def seems_within(pairs: PairCounts, target: EpsilonDelta, check: TargetCheck) -> bool:
    """Whether the estimate meets the target: to steer a search, not to promise anything."""
    if _plain_gaussian(pairs):
        return gaussian_interval(pairs, target.delta).upper <= target.epsilon
    return not pairs.unprotected and check.costlier(pairs, Care.QUICK)[1] <= 0


def _plain_gaussian(pairs: PairCounts) -> bool:
    return all(isinstance(pair, GaussianPair) for pair, _ in pairs.counts)
