"""The smallest noise factor that a composition can certify, found by estimate first and proof last.

The contour integral is nearly exact and cheap, so the search runs on it alone: a secant in log factor against
log delta. Only the answer is certified, by one or two evaluations on the pessimistic lattice (and, if a lower
factor is wanted too, on the optimistic one), a little beside the estimate by what the lattice is known to add.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from calibrate.accountants.certified_target import TargetCheck
from calibrate.accountants.contour import Care
from calibrate.accountants.losses.directions import Side
from calibrate.accountants.pair_counts import PairCounts
from calibrate.errors import NotCertified
from calibrate.privacy_unit import EpsilonDelta

PairsAt = Callable[[float], PairCounts]
"""What a factor costs: the pairs of the release with all its noise times the factor."""

_LARGEST_STEP = 1.0
_ROUNDS = 12
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

    def estimated(self, start: float, precision: float) -> tuple[float, float]:
        """The factor at which the estimate meets the target, and how log delta falls with log factor there.

        The returned factor is `bounds.low` if even that little noise meets the target. The search runs on the
        quick estimate of the costlier direction; its root is then confirmed, and mended if need be.
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

    def certified(self, factor: float, slope: float, tolerance: float) -> float:
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
        if best is None:
            raise NotCertified(
                "the noise could not be certified; ask for less precision, or use the pld accountant"
            )
        return math.exp(best)

    def _pairs(self, log_factor: float) -> PairCounts:
        return self._pairs_at(math.exp(log_factor))
