"""Solvers over releases: the smallest noise, or the most rounds, with which a promise is kept.

A template release says how the noises relate to each other; one factor scales them all. `solve_noise` finds
the smallest factor whose certified epsilon meets the target, and (if asked) a factor below which the target is
provably broken, so that the user sees the gap. Delta may be as small as 1e-30. The contour integral is nearly exact
and cheap, so the search runs on it alone (`FactorSearch`): a secant in log factor against log delta. Only the answer is
certified, by one or two evaluations on the pessimistic lattice (and, if a lower factor is wanted too, on the optimistic
one), close to the estimate by what the lattice is known to add (`TargetCheck`).

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
from calibrate.accountants.compose import log_cut, on_lattice
from calibrate.accountants.contour import Care, Cumulants, LossTransform, log_delta
from calibrate.accountants.directions import Composition, Side, compositions
from calibrate.accountants.gaussian import gaussian_mu
from calibrate.accountants.registry import PairCounts, best_epsilon, leave_room, total_cost
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
    Unbounded,
)
from calibrate.errors import InvalidInput, NotCertified, positive
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit
from calibrate.releases import Gaussian, Laplace, Release, Sampled, Together, leaves, scale_noise, untruncated

PairsAt = Callable[[float], PairCounts]
"""What a factor costs: the pairs of the release with all its noise times the factor."""

_STRONGEST_MU = 30.0
"""Noise below 1/30 of a unit's reach hides nothing worth certifying: the search does not go lower."""
_WIDEST = 1e9


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
    tolerance: float = 1e-5,
) -> SolvedNoise:
    """The smallest factor x such that `scale_noise(template, x)` is certified to meet the target.

    Guarantee: `scale_noise(template, result.factor)` is (target.epsilon, target.delta)-private for the unit, by the
    certified accountant (docs/theorems/certified-accountant.md). More noise never costs more, so the same
    holds for every larger factor. `tolerance` is how far above the optimum the factor may lie, relatively,
    because of the discretisation; fixed-size batches have a wider, honest gap between the proved bounds.
    """
    positive("tolerance", tolerance)
    _check_has_noise(template)
    whole, chance = untruncated(template)
    if chance:  # cut batches cost delta alone (docs/theorems/sampling.md#truncated-poisson-batches), whatever the noise
        solved = solve_noise(whole, unit, leave_room(target, chance), Certificate.UPPER, tolerance)
        lower = solve_noise(whole, unit, target, certificate, tolerance).factor_lower
        release = scale_noise(template, solved.factor)
        return SolvedNoise(release, solved.factor, lower, solved.certified, solved.accountant)
    accountant = CertifiedAccountant()

    def pairs_at(factor: float) -> PairCounts:
        return total_cost(accountant, scale_noise(template, factor), unit)

    pairs = pairs_at(1.0)
    if pairs.unprotected:
        raise NotCertified(
            "the template publishes something of the unit in the clear, which no noise factor protects; "
            "add noise to it, or declare it as not depending on the unit"
        )
    if all(isinstance(pair, GaussianPair) for pair, _ in pairs.counts):
        factor, lower = _exact_gaussian(pairs_at, target)
    else:
        factor, lower = _search_factor(pairs_at, pairs, target, certificate, tolerance)
    at_factor = pairs_at(factor)
    achieved = 0.0
    if certificate is Certificate.TWO_SIDED:
        achieved = min(target.epsilon, accountant.epsilon_lower(at_factor, target.delta))
    else:
        lower = 0.0
    release = scale_noise(template, factor)
    return SolvedNoise(release, factor, lower, EpsilonInterval(achieved, target.epsilon), accountant.name)


def _search_factor(
    pairs_at: PairsAt, pairs: PairCounts, target: EpsilonDelta, certificate: Certificate, tolerance: float
) -> tuple[float, float]:
    bounds = Bounds(max(_strength(pair) for pair, _ in pairs.counts) / _STRONGEST_MU, _WIDEST)
    if pairs.chance_of_taking_part <= target.delta:  # no noise is needed; the least that is searched is given
        return bounds.low, 0.0
    start = _central_limit_start(pairs_at, target, bounds)
    above = FactorSearch(pairs_at, target, Side.UPPER, bounds)
    estimated, slope = above.estimate(start, 0.02 * tolerance)
    factor = above.certify(estimated, slope, tolerance)
    if certificate is Certificate.UPPER or estimated <= bounds.low:
        return factor, 0.0
    below = FactorSearch(pairs_at, target, Side.LOWER, bounds)
    if any(isinstance(pair, FixedSizeReplacePair) for pair, _ in pairs.counts):
        estimated, slope = below.estimate(0.9 * estimated, 0.02 * tolerance)
    return factor, below.certify(estimated, slope, tolerance)


def _exact_gaussian(pairs_at: PairsAt, target: EpsilonDelta) -> tuple[float, float]:
    """Only plain Gaussian releases: mu is inversely proportional to the factor, and epsilon(mu) is analytic."""
    squares = math.fsum(n * pair.mu**2 for pair, n in pairs_at(1.0).counts if isinstance(pair, GaussianPair))
    factor = math.sqrt(squares) / gaussian_mu(target.epsilon, target.delta)
    while gaussian_interval(pairs_at(factor), target.delta).upper > target.epsilon:
        factor *= 1 + 2**-50
    lower = factor * (1 - 1e-13)
    while gaussian_interval(pairs_at(lower), target.delta).lower <= target.epsilon:
        lower *= 1 - 1e-13
    return factor, lower


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
_ROUNDS = 8
_ROUNDING_PER_ROUND = 6e-12
"""About what directed rounding moves log delta by, per composed round: only a first guess."""


@dataclass(frozen=True)
class Bounds:
    """The factor is searched for between these; at `low` all noise is already negligible."""

    low: float
    high: float


class FactorSearch:
    """Log delta at the target's epsilon against the logarithm of the factor, for one side of the certificate."""

    def __init__(self, pairs_at: PairsAt, target: EpsilonDelta, side: Side, bounds: Bounds) -> None:
        self._check = TargetCheck(target, side)
        self._pairs_at = pairs_at
        self._bounds = bounds

    def estimate(self, start: float, precision: float) -> tuple[float, float]:
        """The factor at which the estimate meets the target, and how log delta falls with log factor there.

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
        if excess > 1e-3 * slope and x >= high - 1e-9:
            target = self._check.target
            raise NotCertified(
                f"no noise factor up to {self._bounds.high:.3g} reaches epsilon = {target.epsilon} at delta = "
                f"{target.delta}; lower the cost of the parts whose noise is fixed, or raise epsilon"
            )
        return math.exp(x), slope

    def certify(self, factor: float, slope: float, tolerance: float) -> float:
        """A verified factor near the estimated one: as close as the lattice allows on the side's own side.

        Guarantee: at the returned factor the lattice itself was evaluated. On the upper side its delta is at
        most the target's in every direction; on the lower side it exceeds the target's in one direction.
        """
        sign = 1.0 if self._check.side is Side.UPPER else -1.0
        precision, low = tolerance * slope, math.log(self._bounds.low)
        best: float | None = None
        rounding = _ROUNDING_PER_ROUND * self._pairs_at(factor).rounds / slope
        x = max(low, math.log(factor) + (1.15 if sign > 0 else -0.85) * tolerance + sign * rounding)
        if factor <= self._bounds.low:  # nowhere to come closer to: only the verdict counts
            precision, x = 0.05, low
        if self._pairs_at(factor).rounds == 1:
            return self._certify_by_price(math.log(factor), tolerance)
        for _ in range(_ROUNDS):
            excess, moved = self._check.lattice_excess(self._pairs(x), precision)
            good = excess <= 0 if sign > 0 else excess > 0
            if good and (best is None or sign * x < sign * best):
                best = x
            if good and (abs(excess) <= max(precision, moved) or x <= low):
                break
            # Good but looser than it need be: come closer, leaving half a precision. Not good: step past.
            aim = excess + sign * 0.5 * precision if good else 1.05 * excess + sign * 0.1 * precision
            x = max(low, x + aim / slope)
            if best is not None and sign * x >= sign * best:
                break
        return self._certify_by_price(math.log(factor), tolerance) if best is None else math.exp(best)

    def _certify_by_price(self, start: float, tolerance: float) -> float:
        """The same by epsilon itself: step out until its certified end is on the right side, then halve.

        One release has epsilon in closed form; where few rounds have large losses a lattice made for its own epsilon
        is the sharper one.
        """
        sign = 1.0 if self._check.side is Side.UPPER else -1.0
        target, accountant = self._check.target, CertifiedAccountant()

        def is_sure(x: float) -> bool:
            pairs = self._pairs(x)
            if sign > 0:
                return accountant.epsilon_upper(pairs, target.delta) <= target.epsilon
            return accountant.epsilon_lower(pairs, target.delta) > target.epsilon

        low, high = math.log(self._bounds.low), math.log(self._bounds.high)
        doubtful, step = start - sign * tolerance, tolerance
        for _ in range(_ROUNDS):
            sure = min(high, max(low, start + sign * step))
            if is_sure(sure):
                break
            doubtful, step = sure, 3 * step
        else:
            raise NotCertified("the noise could not be certified; ask for less precision, or use more noise")
        while abs(sure - doubtful) > 2 * tolerance:
            middle = (sure + doubtful) / 2
            sure, doubtful = (middle, doubtful) if is_sure(middle) else (sure, middle)
        return math.exp(sure)

    def _pairs(self, log_factor: float) -> PairCounts:
        return self._pairs_at(math.exp(log_factor))


MOST_ROUNDS = 10**9
_ONE_IN = 20_000
"""Beyond this many rounds the last one in so many is not fought for: deciding it would take a huge lattice."""


def solve_rounds(
    release_at: Callable[[int], Release], unit: PrivacyUnit, target: EpsilonDelta, most: int = MOST_ROUNDS
) -> int:
    """The largest n, at most `most`, for which `release_at(n)` is certified to meet the target; 0 if there is none.

    `release_at` must cost more for larger n. Guarantee: `release_at(n)` is (target.epsilon, target.delta)-private for
    the unit, by the certified accountant. A bisection on the quick estimate finds the place, which is then certified.
    """
    if untruncated(release_at(1))[1]:  # what is cut off costs delta, in proportion to the rounds
        return largest_within(lambda times: _truncated_within(release_at(times), unit, target), most)
    accountant, check = CertifiedAccountant(), TargetCheck(target, Side.UPPER)

    def pairs(times: int) -> PairCounts:
        return total_cost(accountant, release_at(times), unit)

    low = largest_within(lambda times: seems_within(pairs(times), target, check), most)
    while low and not surely_within(pairs(low), target):
        low -= max(1, low // _ONE_IN)
    return low


def largest_within(within: Callable[[int], bool], most: int) -> int:
    """The largest count for which a falling predicate holds; 0 if it holds for none."""
    low, high = 0, 1
    while high <= most and within(high):
        low, high = high, 2 * high
    return int(bisected(within, low, min(high, most + 1))[0])


def bisected(
    within: Callable[[Any], bool], low: float, high: float, precision: float | None = None
) -> tuple[float, float]:
    """Where a falling predicate ends between `low`, where it holds, and `high`, where it does not.

    Whole numbers end up next to each other; with a relative `precision` the ends come that close.
    """
    while high - low > (1 if precision is None else precision * low):
        middle = math.floor((low + high) / 2) if precision is None else math.sqrt(low * high)
        low, high = (middle, high) if within(middle) else (low, middle)
    return low, high


def _truncated_within(release: Release, unit: PrivacyUnit, target: EpsilonDelta) -> bool:
    try:
        return best_epsilon(release, unit, target.delta).interval.upper <= target.epsilon
    except NotCertified:
        return False


_CAP = 40.0
"""Excesses are cut off here, so that an infinite one still points in a direction."""
_FINEST = 1e-5
"""Log delta is not asked for more precisely than this to decide on which side of a target it lies."""


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

    def lattice_excess(self, pairs: PairCounts, precision: float) -> tuple[float, float]:
        """The excess on the lattice, and by how much the lattice moved it.

        Guarantee: on the upper side the excess is the largest over all directions and rounded up; on the lower
        side it is that of the costlier direction and rounded down.
        """
        epsilon = self.target.epsilon
        directions = [
            self._estimate(each, k, Care.QUICK)
            for k, each in enumerate(compositions(pairs, self.side))
            if not _surely_below(each, epsilon)
        ]
        directions.sort(key=lambda each: -each.excess)
        excess, moved = -math.inf, 0.0
        for k, each in enumerate(directions if self.side is Side.UPPER else directions[:1]):
            # The cheaper direction only has to be shown to be cheaper.
            enough = precision if k == 0 else max(precision, -0.5 * each.excess)
            lattice = on_lattice(each.transform, self.side, each.saddle, epsilon, self._log_delta, enough)
            excess = max(excess, lattice.log_delta(epsilon) - self._log_delta)
            moved = lattice.moved if k == 0 else moved
        return max(-_CAP, excess), moved

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


def surely_within(pairs: PairCounts, target: EpsilonDelta) -> bool:
    """Whether the composition is certified to meet the target."""
    if _plain_gaussian(pairs):
        return gaussian_interval(pairs, target.delta).upper <= target.epsilon
    if pairs.chance_of_taking_part <= target.delta:
        return True
    return not pairs.unprotected and _decide(pairs, TargetCheck(target, Side.UPPER)) <= 0


def seems_within(pairs: PairCounts, target: EpsilonDelta, check: TargetCheck) -> bool:
    """Whether the estimate meets the target: to steer a search, not to promise anything."""
    if _plain_gaussian(pairs):
        return gaussian_interval(pairs, target.delta).upper <= target.epsilon
    return not pairs.unprotected and check.costlier(pairs, Care.QUICK)[1] <= 0


def _decide(pairs: PairCounts, check: TargetCheck) -> float:
    """The excess on a lattice as fine as the estimated distance from the target asks for."""
    _, distance = check.costlier(pairs, Care.CONFIRMED)
    return check.lattice_excess(pairs, min(0.1, max(_FINEST, 0.3 * abs(distance))))[0]


def _plain_gaussian(pairs: PairCounts) -> bool:
    return all(isinstance(pair, GaussianPair) for pair, _ in pairs.counts)


def _surely_below(composition: Composition, epsilon: float) -> bool:
    """No total loss reaches epsilon, with room for rounding: delta is 0."""
    return composition.largest * (1 + 1e-12) <= epsilon
