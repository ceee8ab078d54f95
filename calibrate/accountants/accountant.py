"""What an accountant is, and the one fold that applies repetition and sequence.

An accountant prices ONE leaf release for a privacy unit and knows how its prices compose. It never sees a
repetition: `total_cost` brings a release to its normal form (each distinct leaf with its multiplicity) and
composes the prices. No accountant can therefore forget a count, and
`cost(Repeated(r, n)) == cost(InSequence((r,) * n))` holds by construction.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Protocol, TypeVar

from calibrate.discrete_noise import ProfileSlack
from calibrate.errors import InvalidInput, NotCertified, open_unit
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit
from calibrate.releases import Leaf, Release, multiplicities, untruncated

Cost = TypeVar("Cost")


class Accountant(Protocol[Cost]):
    """Prices one release; composes prices; turns a price into a certified interval for epsilon."""

    name: str

    def price(self, leaf: Leaf, unit: PrivacyUnit) -> Cost:
        """The cost of publishing `leaf` once; raises UnsupportedCombination where no bound is proved."""
        ...

    def self_compose(self, cost: Cost, times: int) -> Cost:
        """The cost of publishing `times` times what costs `cost`."""
        ...

    def compose(self, first: Cost, second: Cost) -> Cost:
        """The cost of publishing both."""
        ...

    def epsilon(self, cost: Cost, delta: float) -> EpsilonInterval:
        """[lower, upper] of the epsilon at `delta`; lower is 0 where the accountant has only one side."""
        ...


_LEAST_EPSILON = 1e-12


def total_cost(accountant: Accountant[Cost], release: Release, unit: PrivacyUnit) -> Cost:
    """The fold: the only place where repetition and sequence are applied."""
    costs = (
        accountant.self_compose(accountant.price(leaf, unit), times) for leaf, times in multiplicities(release).items()
    )
    return reduce(accountant.compose, costs)


def epsilon_of(accountant: Accountant[Cost], release: Release, unit: PrivacyUnit, delta: float) -> EpsilonInterval:
    """The certified interval of epsilon at `delta` for a whole release.

    Truncated batches are priced as what they are cut from, at a delta that leaves room for the cuts
    (docs/theorems/truncated-poisson.md, equation 2). The lower end needs no room: few units are never cut.
    """
    open_unit("delta", delta)
    whole, chance = untruncated(release)
    cost = total_cost(accountant, whole, unit)
    interval = accountant.epsilon(cost, delta)
    if chance == 0 or math.isinf(interval.upper):
        return interval
    bound = max(interval.upper, _LEAST_EPSILON)
    while True:  # the room shrinks as the bound grows, so this ends: in an answer or in a refusal
        upper = accountant.epsilon(cost, leave_room(EpsilonDelta(bound, delta), chance).delta).upper
        if upper <= bound:
            return EpsilonInterval(min(interval.lower, upper), upper)
        bound = upper * (1 + 1e-3)


def leave_room(target: EpsilonDelta, chance: float) -> EpsilonDelta:
    """What Poisson batches must satisfy so that batches which are cut with this chance keep the target."""
    try:
        return ProfileSlack(0.0, chance).continuous(target)
    except InvalidInput:
        raise NotCertified(
            f"some batch is cut with probability {min(1.0, chance):.3g}, which uses up delta = {target.delta:g}; "
            "raise the batch limit, or sample less"
        ) from None
