"""What promises about one person add up to, and what a promise about one unit is worth for another unit.

A person whose data are in several silos, or in several data sets, pays every promise made about them. Promises in one
unit add up by basic composition, also where later ones are chosen in view of earlier results (docs/ledger.md). A
promise about a coarser unit (a user, a record) holds for a finer one (a record, a record's attribute), in one step or
in two; the other way round it says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from calibrate.errors import InvalidInput
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation

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
    is independent; sums are exact and rounded up. A promise about an attribute says nothing about a record: beside
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
