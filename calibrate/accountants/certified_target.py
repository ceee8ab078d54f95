"""Holding one composition against a target: by a quick estimate, or by a certificate on the lattice."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibrate.accountants.certified import gaussian_interval, lattice_estimate
from calibrate.accountants.certified_side import log_cut, on_lattice
from calibrate.accountants.contour import Care, Cumulants, LossTransform, log_delta
from calibrate.accountants.dominating_pairs import GaussianPair
from calibrate.accountants.losses.directions import Composition, Side, compositions
from calibrate.accountants.pair_counts import PairCounts
from calibrate.privacy_unit import EpsilonDelta

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
        excesses = [self._estimated(each, k, care).excess for k, each in enumerate(directed)]
        main = max(range(len(excesses)), key=lambda k: excesses[k])
        return main, excesses[main]

    def excess(self, pairs: PairCounts, direction: int, care: Care) -> float:
        """The estimated excess of one direction."""
        return self._estimated(compositions(pairs, self.side)[direction], direction, care).excess

    def lattice_excess(self, pairs: PairCounts, precision: float) -> tuple[float, float]:
        """The excess on the lattice, and by how much the lattice moved it.

        Guarantee: on the upper side the excess is the largest over all directions and rounded up; on the lower
        side it is that of the costlier direction and rounded down.
        """
        epsilon = self.target.epsilon
        directions = [
            self._estimated(each, k, Care.QUICK)
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

    def _estimated(self, composition: Composition, direction: int, care: Care) -> _Direction:
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
    return not pairs.unprotected and _decided(pairs, TargetCheck(target, Side.UPPER)) <= 0


def surely_beyond(pairs: PairCounts, target: EpsilonDelta) -> bool:
    """Whether the composition is certified to break the target (for pairs that are attained)."""
    if _plain_gaussian(pairs):
        return gaussian_interval(pairs, target.delta).lower > target.epsilon
    return pairs.unprotected or _decided(pairs, TargetCheck(target, Side.LOWER)) > 0


def seems_within(pairs: PairCounts, target: EpsilonDelta, check: TargetCheck) -> bool:
    """Whether the estimate meets the target: to steer a search, not to promise anything."""
    if _plain_gaussian(pairs):
        return gaussian_interval(pairs, target.delta).upper <= target.epsilon
    return not pairs.unprotected and check.costlier(pairs, Care.QUICK)[1] <= 0


def _decided(pairs: PairCounts, check: TargetCheck) -> float:
    """The excess on a lattice as fine as the estimated distance from the target asks for."""
    _, distance = check.costlier(pairs, Care.CONFIRMED)
    return check.lattice_excess(pairs, min(0.1, max(_FINEST, 0.3 * abs(distance))))[0]


def _plain_gaussian(pairs: PairCounts) -> bool:
    return all(isinstance(pair, GaussianPair) for pair, _ in pairs.counts)


def _surely_below(composition: Composition, epsilon: float) -> bool:
    """No total loss reaches epsilon, with room for rounding: delta is 0."""
    return composition.largest * (1 + 1e-12) <= epsilon
