"""What an accountant is, and the one fold that applies repetition and sequence.

An accountant prices ONE leaf release for a privacy unit and knows how its prices compose. It never sees a
repetition: `total_cost` brings a release to its normal form (each distinct leaf with its multiplicity) and
composes the prices. No accountant can therefore forget a count, and
`cost(Repeated(r, n)) == cost(InSequence((r,) * n))` holds by construction.
"""

from __future__ import annotations

from functools import reduce
from typing import Protocol, TypeVar

from calibrate.errors import open_unit
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit
from calibrate.releases import Leaf, Release, multiplicities

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


def total_cost(accountant: Accountant[Cost], release: Release, unit: PrivacyUnit) -> Cost:
    """The fold: the only place where repetition and sequence are applied."""
    costs = (
        accountant.self_compose(accountant.price(leaf, unit), times) for leaf, times in multiplicities(release).items()
    )
    return reduce(accountant.compose, costs)


def epsilon_of(accountant: Accountant[Cost], release: Release, unit: PrivacyUnit, delta: float) -> EpsilonInterval:
    """The certified interval of epsilon at `delta` for a whole release."""
    open_unit("delta", delta)
    return accountant.epsilon(total_cost(accountant, release, unit), delta)
