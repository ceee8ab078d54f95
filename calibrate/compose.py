"""What promises about one person add up to, and what a promise about one unit is worth for another unit.

A person whose data are in several silos, or in several data sets, pays every promise made about them. Promises in one
unit add up by basic composition, also where later ones are chosen in view of earlier results (docs/ledger.md). A
promise about a coarser unit (a user, a record) holds for a finer one (a record, a record's attribute), in one step or
in two; the other way round it says nothing.

Basic composition adds (epsilon, delta). A Renyi filter adds Renyi divergences at one order that is fixed beforehand,
which is smaller for several noisy releases; an odometer reports the total so far. Proofs, with the equation numbers
used here: docs/theorems/composition.md#filters-and-odometers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from calibrate.discrete_noise import ProfileSlack
from calibrate.errors import InvalidInput, open_unit, positive
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Protected, Relation

_COARSENESS = {Protected.ATTRIBUTE: 0, Protected.RECORD: 1, Protected.USER: 2}

UNITS = (
    PrivacyUnit(Protected.USER, Relation.ADD_REMOVE),
    PrivacyUnit(Protected.USER, Relation.REPLACE_ONE),
    PrivacyUnit(Protected.RECORD, Relation.ADD_REMOVE),
    PrivacyUnit(Protected.RECORD, Relation.REPLACE_ONE),
    PrivacyUnit(Protected.ATTRIBUTE, Relation.REPLACE_ATTRIBUTE),
)
"""Every unit, from the one that protects most to the one that protects least."""


class Cost(NamedTuple):
    """An (epsilon, delta) in exact arithmetic, so that ten times 0.1 is 1."""

    epsilon: Fraction
    delta: Fraction


def steps_between(promised: PrivacyUnit, wanted: PrivacyUnit) -> int | None:
    """How many neighbouring steps of the unit `promised` make one step of `wanted`; None where no number is proved.

    Replacing = adding the new unit, then removing the old one, so an add-remove promise covers a replacement in two
    steps (the data set never gets smaller on the way). A record, or its attribute, is a part of its user: changing it
    replaces the user's data. Adding or removing one record of a user is covered by add-remove promises only.
    """
    if promised == wanted:
        return 1
    if _COARSENESS[promised.protected] < _COARSENESS[wanted.protected]:
        return None
    if promised.relation is Relation.ADD_REMOVE:
        return 2
    return None if wanted.relation is Relation.ADD_REMOVE else 1


def cost_for(epsilon: float, delta: float, promised: PrivacyUnit, wanted: PrivacyUnit) -> Cost | None:
    """What an (epsilon, delta) promise about `promised` costs a unit of the kind `wanted`; None where it says nothing.

    Guarantee: group privacy in at most two steps. P0(S) <= e^eps P1(S) + delta and P1(S) <= e^eps P2(S) + delta give
    P0(S) <= e^(2 eps) P2(S) + (1 + e^eps) delta; e^eps is rounded up.
    """
    steps = steps_between(promised, wanted)
    if steps is None:
        return None
    once = Cost(exact(epsilon), exact(delta))
    if steps == 1:
        return once
    try:
        growth = math.exp(epsilon) * (1 + 1e-12)
    except OverflowError:
        growth = math.inf
    if math.isinf(growth):
        return Cost(2 * once.epsilon, Fraction(0) if once.delta == 0 else Fraction(1))
    return Cost(2 * once.epsilon, (1 + Fraction(growth)) * once.delta)


@dataclass(frozen=True)
class UnitPromise:
    """(epsilon, delta) for one unit, made `times` times about the same person, such as once per silo they are in."""

    unit: PrivacyUnit
    epsilon: float
    delta: float
    times: int = 1


def compose(promises: Iterable[UnitPromise]) -> UnitPromise:
    """The promise that all of `promises` together make to one person, for the coarsest unit that each of them covers.

    Guarantee: basic composition with adaptively chosen parameters (docs/ledger.md), for mechanisms whose randomness
    is independent; sums are exact and rounded up. A promise about an attribute says nothing about a record: next to
    one, the sum holds for the attribute alone.
    """
    given = tuple(promises)
    if not given:
        raise InvalidInput("promises", (), "must not be empty", "give at least one promise")
    for unit in UNITS:
        costs = [cost_for(one.epsilon, one.delta, one.unit, unit) for one in given]
        covered = [(cost, one.times) for cost, one in zip(costs, given, strict=True) if cost is not None]
        if len(covered) == len(given):
            epsilon = sum((times * cost.epsilon for cost, times in covered), Fraction(0))
            delta = sum((times * cost.delta for cost, times in covered), Fraction(0))
            return UnitPromise(unit, rounded_up(epsilon), min(1.0, rounded_up(delta)))
    raise InvalidInput(
        "promises",
        sorted({f"{one.unit.protected.value} by {one.unit.relation.value}" for one in given}),
        "have no unit in common",
        "compose promises about one kind of unit",
    )


def exact(decimal: float) -> Fraction:
    """The decimal a person signed: ten times 0.1 is 1, not a little more."""
    return Fraction(repr(float(decimal)))


def rounded_up(value: Fraction) -> float:
    """The decimal of a sum of decimals, or the next double above any other number."""
    nearest = float(value)
    return nearest if exact(nearest) >= value else math.nextafter(nearest, math.inf)


ORDERS: tuple[float, ...] = (
    *(1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 16.0, 20.0, 24.0, 28.0, 32.0),
    *(40.0, 48.0, 64.0, 96.0, 128.0, 256.0),
)
"""At which orders a signed document states its Renyi divergence, and among which a filter chooses one."""

_LARGEST_EPSILON = 64.0
"""Budgets above this one promise next to nothing; their filter is basic composition."""
_EPSILON_KEPT, _DELTA_KEPT = 1e-4, 1e-2
"""Shares of a budget that pay for noise being discrete, whatever is claimed."""
_ROUNDING = 1e-12
"""Relative, for sums and logarithms of a few doubles; each loses less than 2^-50."""
_LEVELS_PER_EPSILON = 4
ODOMETER_DELTA = 1e-6
"""At which delta a ledger's odometer is read; fixed, because a delta chosen in view of results would bound nothing."""


class BudgetFilter(StrEnum):
    """By which proof a total is kept; SMALLER: by whichever lets the first claim be repeated more often."""

    BASIC = "basic"
    RENYI = "renyi"
    SMALLER = "smaller"


@dataclass(frozen=True)
class SignedCurve:
    """Upper bounds (order, divergence) of everything a run publishes, orders rising, and what discrete noise adds."""

    points: tuple[tuple[float, float], ...]
    slack: ProfileSlack

    def __post_init__(self) -> None:
        orders = [order for order, _ in self.points]
        if orders != sorted(set(orders)) or not all(
            1 < order < math.inf and 0 <= value < math.inf for order, value in self.points
        ):
            raise InvalidInput(
                "Renyi curve",
                self.points,
                "must have rising orders above 1 and finite divergences that are not negative",
                "have the budget signed again",
            )

    def at(self, order: float) -> float:
        """A bound at any order: divergences rise with the order, so the next one that is known will do."""
        return next((value for known, value in self.points if known >= order), math.inf)

    def over(self, order: float, steps: int) -> float:
        """The divergence at `order` between data sets one step or two steps apart (F3)."""
        if steps == 1:
            return self.at(order)
        return (order - 0.5) / (order - 1) * self.at(2 * order) + self.at(2 * order - 1)


@dataclass(frozen=True)
class Spent:
    """One claim as a filter sees it: its (epsilon, delta) for the filter's unit, its curve, and in how many steps."""

    cost: Cost
    curve: SignedCurve | None
    steps: int = 1

    def divergence(self, order: float) -> float:
        return math.inf if self.curve is None else self.curve.over(order, self.steps)


def spent_for(cost: Cost | None, curve: SignedCurve | None, promised: PrivacyUnit, wanted: PrivacyUnit) -> Spent | None:
    """What a claim about `promised` spends of a budget for `wanted`; None where it bounds nothing for it."""
    steps = steps_between(promised, wanted)
    return None if cost is None or steps is None else Spent(cost, curve, steps)


@dataclass(frozen=True)
class RenyiFilter:
    """A total of (`epsilon`, `delta`), kept by the sum of the claims' Renyi divergences at the one order `order`.

    Guarantee: releases whose claims are all admitted are together (epsilon, delta)-private for the unit that the
    divergences speak of, also where each claim is chosen in view of everything released before (Theorem 1 of
    docs/theorems/composition.md#filters-and-odometers; Feldman and Zrnic 2021), and where runs are interleaved (Haney
    et al. 2023, fixed order).
    """

    epsilon: float
    delta: float
    order: float
    most: float
    """The largest sum of divergences."""
    kept: ProfileSlack
    """The largest sum of slacks for discrete noise, in each direction."""

    @staticmethod
    @cache
    def of(epsilon: float, delta: float) -> RenyiFilter | None:
        """The filter of a budget, at the order that admits most of plain Gaussian noise; None where none is proved."""
        positive("epsilon", epsilon)
        if not 0 < delta < 1 or epsilon > _LARGEST_EPSILON:
            return None
        kept = ProfileSlack(epsilon * _EPSILON_KEPT / 2, delta * _DELTA_KEPT / (1 + math.exp(epsilon)))
        try:
            inner = ProfileSlack(2 * kept.epsilon, kept.mass).continuous(EpsilonDelta(epsilon, delta))
        except InvalidInput:
            return None
        most, order = max((_most(inner, order) / order, order) for order in ORDERS)
        return None if most <= 0 else RenyiFilter(epsilon, delta, order, most * order, kept)

    def used(self, claims: Iterable[Spent]) -> float:
        """Which share of the budget the claims take; above 1 they are not admitted, infinite without a curve."""
        total, slack, mass = 0.0, 0.0, 0.0
        for claim in claims:
            total += claim.divergence(self.order)
            if claim.curve is not None:
                slack, mass = slack + claim.curve.slack.epsilon, mass + claim.curve.slack.mass
        if math.isinf(total) or max(slack / self.kept.epsilon, mass / self.kept.mass) * (1 + _ROUNDING) > 1:
            return math.inf
        return total * (1 + _ROUNDING) / self.most

    def admits(self, claims: Iterable[Spent]) -> bool:
        """Whether all of `claims` together keep the total."""
        return self.used(claims) <= 1

    def repeats(self, claim: Spent) -> float:
        """How often one claim fits."""
        share = self.used((claim,))
        return math.inf if share == 0 else 0.0 if math.isinf(share) else math.floor(1 / share)


def _most(target: EpsilonDelta, order: float) -> float:
    """The largest Renyi divergence at `order` that implies `target`, rounded down (F2)."""
    found = target.epsilon - math.log1p(-1 / order) + (math.log(target.delta) + math.log(order)) / (order - 1)
    return found - _ROUNDING * (abs(found) + abs(math.log(target.delta)) / (order - 1) + 1)


def chosen_filter(kind: BudgetFilter, epsilon: float, delta: float, first: Spent | None) -> RenyiFilter | None:
    """The filter in force for a budget whose first claim is `first`; None: basic composition.

    The first claim is made before anything of the data was released, so a choice by it depends on no data; a later
    choice would, and both filters would have to share delta.
    """
    if kind is BudgetFilter.BASIC:
        return None
    found = RenyiFilter.of(epsilon, delta)
    if kind is BudgetFilter.RENYI or found is None or first is None:
        return found
    return found if found.repeats(first) > basic_repeats(first.cost, epsilon, delta) else None


def basic_repeats(cost: Cost, epsilon: float, delta: float) -> float:
    """How often a claim fits a budget by basic composition."""
    fits = [exact(most) // one for most, one in ((epsilon, cost.epsilon), (delta, cost.delta)) if one > 0]
    return float(min(fits)) if fits else math.inf


def odometer(claims: Sequence[Spent], delta: float) -> float:
    """The epsilon spent so far, at `delta`, in quarters: it may be read whenever one likes and acted upon.

    Guarantee: whatever rule decides when to stop and what to claim next, for every event S and each reading e,
    the sum over e of P(S, reading e) - exp(e) P'(S, reading e) is at most `delta` for neighbouring data
    (docs/theorems/composition.md#filters-and-odometers, Theorem 2). Infinite above 64, and where a claim has no curve.
    """
    open_unit("delta", delta)
    if not claims:
        return 0.0
    for level in range(1, int(_LARGEST_EPSILON * _LEVELS_PER_EPSILON) + 1):
        found = RenyiFilter.of(level / _LEVELS_PER_EPSILON, delta / (level * (level + 1)))
        if found is not None and found.admits(claims):
            return found.epsilon
    return math.inf


def fixed_total(claims: Sequence[Spent], delta: float) -> float:
    """The least epsilon at `delta` of claims that are all known beforehand, by the best order; infinite where none is.

    Guarantee: Renyi composition (Mironov 2017, Proposition 1) with conversion (F2); nothing was chosen in view of
    results, so the order may be chosen last.
    """
    if not claims or not 0 < delta < 1 or any(claim.curve is None for claim in claims):
        return math.inf
    slacks = [claim.curve.slack for claim in claims if claim.curve is not None]
    slack, mass = sum(each.epsilon for each in slacks), sum(each.mass for each in slacks)
    best = math.inf
    for order in ORDERS:
        total = sum(claim.divergence(order) for claim in claims)
        if math.isinf(total):
            continue
        inner = delta * (1 - _DELTA_KEPT)
        epsilon = total + math.log1p(-1 / order) - (math.log(inner) + math.log(order)) / (order - 1)
        epsilon = max(0.0, epsilon) * (1 + 1e-9) + 1e-9
        with suppress(InvalidInput):  # discrete noise leaves nothing to promise at this order
            promised = ProfileSlack(2 * slack, mass).certified(EpsilonDelta(epsilon, inner))
            best = min(best, promised.epsilon) if promised.delta <= delta else best
    return best


def compose_beforehand(promises: Sequence[UnitPromise], curves: Sequence[SignedCurve | None]) -> UnitPromise:
    """The smaller of basic composition and Renyi composition, at the same delta, for the unit of `compose`.

    `curves` are the signed divergences of `promises`, one for each. The result holds for promises that were made
    without looking at one another's results; basic composition, `compose`, holds for any.
    """
    total = compose(promises)
    claims: list[Spent] = []
    for promise, curve in zip(promises, curves, strict=True):
        cost = cost_for(promise.epsilon, promise.delta, promise.unit, total.unit)
        spent = spent_for(cost, curve, promise.unit, total.unit)
        if spent is None:  # pragma: no cover - `compose` chose a unit that every promise covers
            return total
        claims += [spent] * promise.times
    return replace(total, epsilon=min(total.epsilon, fixed_total(claims, total.delta)))
