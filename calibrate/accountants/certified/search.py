"""The smallest noise factor that a composition can certify, found by estimate first and proof last.

The contour integral is nearly exact and cheap, so the search runs on it alone: a secant in log factor against
log delta. Only the answer is certified, by one or two evaluations on the pessimistic lattice (and, if a lower
factor is wanted too, on the optimistic one), a little beside the estimate by what the lattice is known to add.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from calibrate.accountants.certified.accountant import CertifiedAccountant, gaussian_interval, lattice_estimate
from calibrate.accountants.certified.contour import Care, Cumulants, LossTransform, log_delta
from calibrate.accountants.certified.side import log_cut, on_lattice
from calibrate.accountants.directions import Composition, Side, compositions
from calibrate.accountants.pairs import GaussianPair
from calibrate.accountants.support import PairCounts
from calibrate.errors import NotCertified
from calibrate.privacy_unit import EpsilonDelta

# Holding one composition against a target: by a quick estimate, or by a certificate on the lattice.

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


PairsAt = Callable[[float], PairCounts]
"""What a factor costs: the pairs of the release with all its noise times the factor."""

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
