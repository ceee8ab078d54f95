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
from enum import Enum
from typing import Any, TypeVar, assert_never, final

import numpy as np
from hypothesis import strategies as st

from audit.sensitivity.domain import Domain, NeighbouringPair, Records, joined, size_of
from audit.sensitivity.spaces import Category, Choices
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation

# Neighbouring data sets, built from choices: the unit first, then the others, often in contrast to it.


class Contrast(Enum):
    """How other records relate to the unit's first one: averages move most when one record faces many opposites."""

    INDEPENDENT = "independent"
    EQUAL = "equal"
    OPPOSITE = "opposite"


Row = dict[str, Any]
_CONTRASTS = tuple(Contrast)


def build_pair(choose: Choices, domain: Domain, unit: PrivacyUnit) -> NeighbouringPair | None:
    """A pair under the unit's relation; None where the choices missed a condition on both data sets as a whole.

    Under add-remove the unit is on the left side only. The unit's rows come last.
    """
    domain.require(unit)
    public = {name: space.draw(choose) for name, space in domain.public.items()}
    most_of_unit = domain.most_per_user if unit.protected is Protected.USER else 1
    # Under add-remove the data set without the unit has to reach `fewest` too.
    reserved = domain.fewest + 1 if unit.relation is Relation.ADD_REMOVE else max(1, domain.fewest)
    if reserved > domain.most:
        return None
    left = _unit_rows(choose, domain, choose.integer(1, min(most_of_unit, domain.most - reserved + 1)))
    right = _other_side(choose, domain, unit, left, most_of_unit)
    without = 0 if unit.relation is Relation.ADD_REMOVE else min(len(left), len(right))
    fewest = max(0, domain.fewest - without)
    others = choose.integer(fewest, max(fewest, domain.most - max(len(left), len(right))))
    common = _others(choose, domain, left[0], others)
    shared, first, second = (domain.stacked(rows) for rows in _number(domain, common, left, right))
    pair = _with_shares_met(domain, NeighbouringPair(shared, first, second, public))
    return pair if domain.allows(pair) else None


def _row(choose: Choices, domain: Domain) -> Row:
    return {name: space.draw(choose) for name, space in domain.columns.items()}


def _opposite(domain: Domain, row: Row) -> Row:
    return {name: space.opposite(row[name]) for name, space in domain.columns.items()}


def _in_contrast(choose: Choices, domain: Domain, contrast: Contrast, row: Row) -> Row:
    match contrast:
        case Contrast.INDEPENDENT:
            return _row(choose, domain)
        case Contrast.EQUAL:
            return dict(row)
        case Contrast.OPPOSITE:
            return _opposite(domain, row)
        case _:
            assert_never(contrast)


def _unit_rows(choose: Choices, domain: Domain, size: int) -> list[Row]:
    first = _row(choose, domain)
    contrast = choose.pick(_CONTRASTS)
    return [first] + [_in_contrast(choose, domain, contrast, first) for _ in range(size - 1)]


def _other_side(choose: Choices, domain: Domain, unit: PrivacyUnit, left: list[Row], most: int) -> list[Row]:
    match unit.relation:
        case Relation.ADD_REMOVE:
            return []
        case Relation.REPLACE_ATTRIBUTE:
            assert domain.attribute is not None
            return [left[0] | {domain.attribute: _another(choose, domain, left[0])}]
        case Relation.REPLACE_ONE:
            if choose.pick((True, False)):
                return [_opposite(domain, row) for row in left]
            return _unit_rows(choose, domain, choose.integer(1, min(most, domain.most)))
        case _:
            assert_never(unit.relation)


def _another(choose: Choices, domain: Domain, row: Row) -> Any:
    """Another value of the attribute."""
    assert domain.attribute is not None
    space, now = domain.columns[domain.attribute], row[domain.attribute]
    if isinstance(space, Category):
        return (now + choose.integer(1, max(1, space.size - 1))) % space.size
    return space.opposite(now) if choose.pick((True, False)) else space.draw(choose)


def _others(choose: Choices, domain: Domain, of_unit: Row, size: int) -> list[Row]:
    contrast = choose.pick(_CONTRASTS)
    return [_in_contrast(choose, domain, contrast, of_unit) for _ in range(size)]


def _number(
    domain: Domain, common: list[Row], left: list[Row], right: list[Row]
) -> tuple[list[Row], list[Row], list[Row]]:
    """Users' numbers: the others in blocks from 1, the protected unit is user 0."""
    if domain.user is None:
        return common, left, right
    others = [row | {domain.user: 1 + place // domain.most_per_user} for place, row in enumerate(common)]
    return others, [row | {domain.user: 0} for row in left], [row | {domain.user: 0} for row in right]


def _with_shares_met(domain: Domain, pair: NeighbouringPair) -> NeighbouringPair:
    """Records of scarce groups added to what both share, until every group has its share or the room is used up."""
    for name, space in domain.columns.items():
        if not isinstance(space, Category) or space.least_share == 0.0:
            continue
        while pair.size < domain.most:
            scarce = _scarce(space, name, pair)
            if scarce is None:
                break
            model = pair.left if size_of(pair.left) else pair.right
            added: Records = {key: values[:1].copy() for key, values in model.items()}
            added = {**added, name: np.array([scarce], dtype=np.int64)}
            if domain.user is not None:
                number = 1 + size_of(pair.common) // domain.most_per_user
                added = {**added, domain.user: np.array([number], dtype=np.int64)}
            pair = NeighbouringPair(joined(pair.common, added), pair.left, pair.right, pair.public)
    return pair


def _scarce(space: Category, name: str, pair: NeighbouringPair) -> int | None:
    for records in (pair.before, pair.after):
        if not space.shares_met(records[name]):
            return int(np.bincount(records[name], minlength=space.size).argmin())
    return None


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
    return removed_record(domain).map(_turned)


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
    return removed_user(domain).map(_turned)


def replaced_user(domain: Domain) -> st.SearchStrategy[NeighbouringPair]:
    """User 0 has other records, perhaps another number of them."""
    return neighbours(domain, PrivacyUnit(Protected.USER, Relation.REPLACE_ONE))


def _turned(pair: NeighbouringPair) -> NeighbouringPair:
    return replace(pair, left=pair.right, right=pair.left)
