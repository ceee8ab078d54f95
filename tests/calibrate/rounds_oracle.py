"""Solving for the schedule instead of the noise: the most rounds, or the largest sampling rate, within a target.

Both costs grow with what is solved for, so a bisection on the quick estimate finds the place and only its
neighbourhood is certified.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from calibrate.accountants.accountant import total_cost
from calibrate.accountants.certified.accountant import CertifiedAccountant
from calibrate.accountants.certified.search import TargetCheck, seems_within, surely_beyond, surely_within
from calibrate.accountants.losses.directions import Side
from calibrate.accountants.support import PairCounts
from calibrate.errors import InvalidInput, NotCertified, count, positive
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit
from calibrate.releases import InSequence, Release, Repeated

_MOST_ROUNDS = 10**9
_ONE_IN = 20_000
"""Beyond this many rounds the last one in so many is not fought for: deciding it would take a huge lattice."""


@dataclass(frozen=True)
class SolvedRounds:
    """The most rounds that are certified, and the fewest that are proved to be too many (None if not known)."""

    release: Release
    rounds: int
    too_many: int | None
    certified: EpsilonInterval
    accountant: str


@dataclass(frozen=True)
class SolvedRate:
    """The largest sampling rate that is certified, and a larger one that is proved to be too much (or None)."""

    release: Release
    rate: float
    too_much: float | None
    certified: EpsilonInterval
    accountant: str


def solve_rounds(
    per_round: Release, unit: PrivacyUnit, target: EpsilonDelta, once: Release | None = None, most: int = _MOST_ROUNDS
) -> SolvedRounds:
    """The largest number of rounds of `per_round` (beside `once`) that is certified to meet the target.

    Guarantee: the returned release is (target.epsilon, target.delta)-private for the unit, by the certified
    accountant. Fewer rounds cost less. Raises NotCertified if not even one round fits.
    """
    count("most rounds", most)

    def release(rounds: int) -> Release:
        repeated = Repeated(per_round, rounds)
        return repeated if once is None else InSequence((once, repeated))

    search = _Search(lambda rounds: release(int(rounds)), unit, target)
    rounds = _largest_seeming(search, Side.UPPER, most)
    rounds -= rounds // _ONE_IN
    while rounds >= 1 and not search.within(rounds):
        rounds -= max(1, rounds // _ONE_IN)
    if rounds < 1:
        raise NotCertified(
            f"not even one round meets epsilon = {target.epsilon} at delta = {target.delta}; "
            "add noise, sample less, or raise epsilon"
        )
    breaking = _largest_seeming(search, Side.LOWER, most) + 1
    candidates = sorted({breaking, breaking + 1, breaking + 1 + breaking // 50_000, breaking + breaking // 500})
    too_many = next((n for n in candidates if rounds < n <= most and search.beyond(n)), None)
    return SolvedRounds(release(rounds), rounds, too_many, search.interval(rounds), search.accountant.name)


def solve_rate(
    release_at: Callable[[float], Release], unit: PrivacyUnit, target: EpsilonDelta, tolerance: float = 1e-5
) -> SolvedRate:
    """The largest sampling rate q in (0, 1] for which `release_at(q)` is certified to meet the target.

    `release_at` must cost more with a larger rate. Guarantee: as for `solve_rounds`.
    """
    positive("tolerance", tolerance)
    search = _Search(release_at, unit, target)
    if search.within(1.0):
        return SolvedRate(release_at(1.0), 1.0, None, search.interval(1.0), search.accountant.name)
    low, high = math.log(1e-9), 0.0
    if not search.seems_within(math.exp(low)):
        raise NotCertified(
            f"no sampling rate down to 1e-9 meets epsilon = {target.epsilon} at delta = {target.delta}; "
            "add noise, publish fewer rounds, or raise epsilon"
        )
    while high - low > tolerance / 4:
        middle = (low + high) / 2
        low, high = (middle, high) if search.seems_within(math.exp(middle)) else (low, middle)
    for back in (0.0, 0.25, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0):
        found = math.exp(low - back * tolerance)
        if search.within(found):
            above = (min(1.0, math.exp(high + more * tolerance)) for more in (0.5, 1.0, 5.0, 100.0))
            too_much = next((q for q in above if search.beyond(q)), None)
            return SolvedRate(release_at(found), found, too_much, search.interval(found), search.accountant.name)
    raise NotCertified("the sampling rate could not be certified; ask for less precision")


class _Search:
    """The cost of a release as a function of one number, held against the target."""

    def __init__(self, release_at: Callable[[float], Release], unit: PrivacyUnit, target: EpsilonDelta) -> None:
        self.accountant = CertifiedAccountant()
        self._release_at, self._unit, self._target = release_at, unit, target
        self._checks = {side: TargetCheck(target, side) for side in Side}

    def pairs(self, at: float) -> PairCounts:
        pairs = total_cost(self.accountant, self._release_at(at), self._unit)
        if not pairs.counts:
            raise InvalidInput(
                "release", self._release_at(at), "costs nothing, so any amount fits", "give a release with noise"
            )
        return pairs

    def seems_within(self, at: float, side: Side = Side.UPPER) -> bool:
        return seems_within(self.pairs(at), self._target, self._checks[side])

    def within(self, at: float) -> bool:
        return surely_within(self.pairs(at), self._target)

    def beyond(self, at: float) -> bool:
        return surely_beyond(self.pairs(at), self._target)

    def interval(self, at: float) -> EpsilonInterval:
        lower = self.accountant.epsilon_lower(self.pairs(at), self._target.delta)
        return EpsilonInterval(min(lower, self._target.epsilon), self._target.epsilon)


def _largest_seeming(search: _Search, side: Side, most: int) -> int:
    """The largest whole number up to `most` whose estimate meets the target; 0 if there is none."""
    low, high = 0, 1
    while high <= most and search.seems_within(high, side):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if search.seems_within(middle, side) else (low, middle)
    return low
