"""Hypothesis strategies for neighbouring data sets, for property-based tests of one's own.

Each strategy draws a `NeighbouringPair` of a `Domain`; the domain states the conditions: bounded features (`Box`,
`Ball`), a minority fraction (`Category(groups, least_share)`), W in a ball (a public `Ball`). Hypothesis shrinks
towards few records, zeros and simple corner cases.

    @given(replaced_record(Domain({"x": Box(0, 1)}, fewest=1)))
    def test_mean(pair):
        assert abs(pair.before["x"].mean() - pair.after["x"].mean()) <= 1 / len(pair.before["x"])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, final

from hypothesis import strategies as st

from audit.claims.claim import Domain, NeighbouringPair, build_pair
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation

Option = TypeVar("Option")


@final
@dataclass(frozen=True)
class _HypothesisChoices:
    """Choices that Hypothesis makes, records and shrinks."""

    draw: Callable[..., object]

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))  # type: ignore[call-overload, no-any-return]

    def real(self, low: float, high: float) -> float:
        return float(self.draw(st.floats(low, high)))  # type: ignore[arg-type]

    def pick(self, options: Sequence[Option]) -> Option:
        return self.draw(st.sampled_from(options))  # type: ignore[return-value]


def neighbours(domain: Domain, unit: PrivacyUnit) -> st.SearchStrategy[NeighbouringPair]:
    """Pairs under any relation. Under add-remove the unit is in the first data set (`before`) only."""
    domain.require(unit)

    @st.composite
    def pairs(draw: Callable[..., object]) -> NeighbouringPair | None:
        return build_pair(_HypothesisChoices(draw), domain, unit)

    return pairs().filter(lambda pair: pair is not None)  # type: ignore[return-value]


def removed_record(domain: Domain) -> st.SearchStrategy[NeighbouringPair]:
    """`after` lacks one record of `before`."""
    return neighbours(domain, PrivacyUnit(Protected.RECORD, Relation.ADD_REMOVE))


def added_record(domain: Domain) -> st.SearchStrategy[NeighbouringPair]:
    """`after` has one record more than `before`."""
    return removed_record(domain).map(_swap_sides)


def replaced_record(domain: Domain) -> st.SearchStrategy[NeighbouringPair]:
    """One record has become another one."""
    return neighbours(domain, PrivacyUnit(Protected.RECORD, Relation.REPLACE_ONE))


def replaced_attribute(domain: Domain) -> st.SearchStrategy[NeighbouringPair]:
    """One record's value of the domain's `attribute` is another one; all else is the same."""
    return neighbours(domain, PrivacyUnit(Protected.ATTRIBUTE, Relation.REPLACE_ATTRIBUTE))


def removed_user(domain: Domain) -> st.SearchStrategy[NeighbouringPair]:
    """`after` lacks user 0 with all their records."""
    return neighbours(domain, PrivacyUnit(Protected.USER, Relation.ADD_REMOVE))


def added_user(domain: Domain) -> st.SearchStrategy[NeighbouringPair]:
    """`after` has one user more, with up to `most_per_user` records."""
    return removed_user(domain).map(_swap_sides)


def replaced_user(domain: Domain) -> st.SearchStrategy[NeighbouringPair]:
    """User 0 has other records, possibly another number of them."""
    return neighbours(domain, PrivacyUnit(Protected.USER, Relation.REPLACE_ONE))


def _swap_sides(pair: NeighbouringPair) -> NeighbouringPair:
    return replace(pair, left=pair.right, right=pair.left)
