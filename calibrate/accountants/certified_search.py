"""The smallest noise factor that a composition can certify, found by estimate first and proof last.

The contour integral is nearly exact and cheap, so the search runs on it alone: a secant in log factor against
log delta. Only the answer is certified, by one or two evaluations on the pessimistic lattice (and, if a lower
factor is wanted too, on the optimistic one), a little beside the estimate by what the lattice is known to add.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from calibrate.accountants.certified import estimate
from calibrate.accountants.certified_side import on_lattice
from calibrate.accountants.contour import Cumulants, LossTransform
from calibrate.accountants.losses.directions import Composition, Side, compositions
from calibrate.accountants.pair_counts import PairCounts
from calibrate.errors import NotCertified
from calibrate.privacy_unit import EpsilonDelta

PairsAt = Callable[[float], PairCounts]
"""What a factor costs: the pairs of the release with all its noise times the factor."""

_LARGEST_STEP = 1.0
_CAP = 40.0
"""Excesses are cut off here, so that an infinite one still points in a direction."""
_CERTIFICATION_ROUNDS = 12


@dataclass(frozen=True)
class Bounds:
    """The factor can be searched for between these; at `low` every noise is already negligible."""

    low: float
    high: float


@dataclass(frozen=True)
class _Direction:
    transform: LossTransform
    saddle: Cumulants
    excess: float


class FactorSearch:
    """Log delta at the target's epsilon, against the logarithm of the factor, for one side of the certificate."""

    def __init__(self, pairs_at: PairsAt, target: EpsilonDelta, side: Side, bounds: Bounds) -> None:
        self.target, self.side = target, side
        self.log_delta = math.log(target.delta)
        self._pairs_at = pairs_at
        self._bounds = bounds
        self._tilts: dict[int, float] = {}

    def estimated(self, start: float, precision: float) -> tuple[float, float]:
        """The factor at which the estimate meets the target, and how log delta falls with log factor there.

        The returned factor is `bounds.low` if even that little noise meets the target.
        """
        low, high = math.log(self._bounds.low), math.log(self._bounds.high)
        x = min(high, max(low, math.log(start)))
        main, excess = self._costlier(x)
        slope, floor, ceiling = 20.0, -math.inf, math.inf
        for _ in range(100):
            if excess > 0:
                floor = x
            else:
                ceiling = x
            following = x + max(-_LARGEST_STEP, min(_LARGEST_STEP, excess / slope))
            if not floor < following < ceiling:
                following = (floor + ceiling) / 2
            following = min(high, max(low, following))
            if abs(excess) < precision * slope or abs(following - x) < 1e-12:
                following, again = x, self._costlier(x)
                if again[0] == main:
                    break
                main = again[0]
            after = self._excess(following, main)
            if following != x and math.isfinite(after - excess):
                slope = max(0.3, (excess - after) / (following - x))
            x, excess = following, after
        if excess > 1e-3 * slope and x >= high - 1e-9:
            raise NotCertified(
                f"no noise factor up to {self._bounds.high:.3g} reaches epsilon = {self.target.epsilon} at "
                f"delta = {self.target.delta}; lower the cost of the parts whose noise is fixed, or raise epsilon"
            )
        return math.exp(x), slope

    def certified(self, factor: float, slope: float, tolerance: float) -> float:
        """A verified factor near the estimated one: as close as the lattice allows on the side's own side.

        Guarantee: at the returned factor the lattice itself was evaluated. On the upper side its delta is at
        most the target's in every direction; on the lower side it exceeds the target's in one direction.
        """
        upper = self.side is Side.UPPER
        precision = tolerance * slope
        best: float | None = None
        x = math.log(factor) + (1.15 if upper else -0.85) * tolerance
        for _ in range(_CERTIFICATION_ROUNDS):
            excess, moved = self._lattice_excess(math.exp(x), precision)
            good = excess <= 0 if upper else excess > 0
            if good:
                best = x if best is None else (min(best, x) if upper else max(best, x))
            if good and abs(excess) <= max(precision, moved):
                break
            if good:  # correct but looser than it need be: come closer, leaving half a precision
                x += (excess + (0.5 if upper else -0.5) * precision) / slope
            else:
                x += (1.05 * excess + (0.1 if upper else -0.1) * precision) / slope
            if best is not None and not (x < best if upper else x > best):
                break
        if best is None:
            raise NotCertified(
                "the noise could not be certified; ask for less precision, or use the pld accountant"
            )
        return math.exp(best)

    def _costlier(self, x: float) -> tuple[int, float]:
        """The direction with the larger delta, and its excess."""
        excesses = [self._excess(x, k) for k in range(len(self._compositions(x)))]
        main = max(range(len(excesses)), key=lambda k: excesses[k])
        return main, excesses[main]

    def _excess(self, x: float, direction: int) -> float:
        return self._direction(self._compositions(x)[direction], direction).excess

    def _direction(self, composition: Composition, direction: int) -> _Direction:
        transform = LossTransform(composition)
        log_delta, saddle = estimate(transform, self.target.epsilon, self._tilts.get(direction, 5.0))
        if math.isfinite(log_delta):
            self._tilts[direction] = saddle.tilt
        return _Direction(transform, saddle, max(-_CAP, min(_CAP, log_delta - self.log_delta)))

    def _compositions(self, x: float) -> tuple[Composition, ...]:
        return compositions(self._pairs_at(math.exp(x)), self.side)

    def _lattice_excess(self, factor: float, precision: float) -> tuple[float, float]:
        """Log delta over the target on the lattice: the largest over all directions, or of the costlier one."""
        epsilon = self.target.epsilon
        directions = [
            self._direction(each, k)
            for k, each in enumerate(self._compositions(math.log(factor)))
            if not _surely_below(each, epsilon)
        ]
        directions.sort(key=lambda each: -each.excess)
        excess = moved = -math.inf
        for direction in directions if self.side is Side.UPPER else directions[:1]:
            spare = max(precision, -0.5 * direction.excess)
            lattice = on_lattice(
                direction.transform, self.side, direction.saddle, epsilon, self.log_delta, spare
            )
            excess = max(excess, lattice.log_delta(epsilon) - self.log_delta)
            moved = max(moved, lattice.moved)
        return max(-_CAP, excess), max(0.0, moved)


def _surely_below(composition: Composition, epsilon: float) -> bool:
    """No total loss reaches epsilon, with room for rounding: delta is 0."""
    return composition.largest * (1 + 1e-12) <= epsilon
