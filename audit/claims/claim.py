"""What is claimed about which function: neighbouring data sets never give values further apart than a bound.

A claim is about a domain: columns, public values, how many records; pairs of neighbouring data sets are drawn from it.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, Generic, TypeVar, assert_never, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from audit.claims.spaces import Category, Choices, RandomChoices, Space
from calibrate.errors import InvalidInput, count, positive
from calibrate.privacy_unit import Norm, PrivacyUnit, Protected, Relation, SensitivityClaim

Result = TypeVar("Result")


class Refutation(AssertionError, Generic[Result]):
    """A counterexample was found; `result` has it, and says what was searched."""

    def __init__(self, result: Result) -> None:
        self.result = result
        super().__init__(str(result))


@final
@dataclass(frozen=True)
class DistanceClaim:
    """|f(D) - f(D')| <= bound for all neighbours D, D'; an audit judges distances and nothing else.

    A plan's `SensitivityClaim` bounds one unit's *contribution* under add-remove and replace-one; `from_contribution`
    turns it into the distance it implies.
    """

    bound: float
    relation: Relation = Relation.ADD_REMOVE
    protected: Protected = Protected.RECORD
    norm: Norm = Norm.L2

    def __post_init__(self) -> None:
        positive("bound", self.bound)
        _ = self.unit

    @property
    def unit(self) -> PrivacyUnit:
        """Whose data differs between neighbours, and how."""
        if self.relation is Relation.REPLACE_ATTRIBUTE:
            return PrivacyUnit(Protected.ATTRIBUTE, self.relation)
        return PrivacyUnit(self.protected, self.relation)

    @classmethod
    def from_contribution(cls, claim: SensitivityClaim, protected: Protected = Protected.RECORD) -> DistanceClaim:
        """The distance that a bound on one unit's contribution implies."""
        return cls(claim.distance, claim.relation, protected, claim.norm)


class Arrays(Enum):
    """What the function takes and computes with; through torch, gradients are exact."""

    NUMPY = "numpy"
    TORCH = "torch"


@final
@dataclass(frozen=True, eq=False)
class Subject:
    """A function whose parameters are named after columns and public values of the domain.

    It may return a number, an array, or a tuple of them, which is measured as one vector. A value that is not finite
    is treated as infinitely far from everything: no noise hides it.
    """

    function: Callable[..., Any]
    domain: Domain
    arrays: Arrays = Arrays.NUMPY

    def __post_init__(self) -> None:
        _ = self.parameters

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Columns and public values that the function takes."""
        return parameters_of(self.function, self.domain.names, "function")

    def distance(self, pair: NeighbouringPair, norm: Norm) -> float:
        """How far apart the function's values on the two data sets are."""
        with warnings.catch_warnings(), np.errstate(all="ignore"), torch.no_grad():
            warnings.simplefilter("ignore")
            return float(self.distance_of(pair.before, pair.after, pair.public, norm))

    def distance_of(
        self, before: Mapping[str, Any], after: Mapping[str, Any], public: Mapping[str, Any], norm: Norm
    ) -> Tensor:
        """The same for arrays or tensors; differentiable where the function is, and given tensors."""
        first, second = self._value(before, public), self._value(after, public)
        if first.shape != second.shape:
            raise InvalidInput(
                "function",
                (tuple(first.shape), tuple(second.shape)),
                "returns values of different sizes on neighbouring data sets, so they have no distance",
                "return a value whose shape does not depend on the records",
            )
        if not bool(torch.isfinite(first).all() and torch.isfinite(second).all()):
            return torch.tensor(math.inf, dtype=torch.float64)
        difference = first - second
        length: Tensor = torch.linalg.vector_norm(difference, ord=1 if norm is Norm.L1 else 2)
        return length

    def _value(self, records: Mapping[str, Any], public: Mapping[str, Any]) -> Tensor:
        given = {name: records[name] if name in records else public[name] for name in self.parameters}
        match self.arrays:
            case Arrays.NUMPY:
                returned = self.function(**{name: _copy(value) for name, value in given.items()})
            case Arrays.TORCH:
                returned = self.function(**{name: _tensor(value) for name, value in given.items()})
            case _:
                assert_never(self.arrays)
        return _flatten(returned)


def parameters_of(function: Callable[..., Any], names: Sequence[str], argument: str) -> tuple[str, ...]:
    """Which of these names the function takes; refused if it needs another one. `argument` is what to call it."""
    taken = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in names and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY:
            taken.append(name)
        elif parameter.default is inspect.Parameter.empty:
            rule = f"takes a parameter that is none of {', '.join(names)}"
            value = f"{getattr(function, '__name__', argument)}(.. {name} ..)"
            raise InvalidInput(
                argument, value, rule, "name the parameters after the domain's columns and public values"
            )
    return tuple(taken)


def _copy(value: Any) -> Any:
    return value.detach().numpy().copy() if isinstance(value, Tensor) else np.array(value)


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


def _flatten(returned: Any) -> Tensor:
    if isinstance(returned, (tuple, list)) and any(isinstance(part, (Tensor, np.ndarray)) for part in returned):
        return torch.cat([_flatten(part) for part in returned])
    if isinstance(returned, Tensor):
        return returned.reshape(-1).to(torch.float64)
    return torch.from_numpy(np.asarray(returned, dtype=np.float64).reshape(-1).copy())


Column = NDArray[Any]
Records = Mapping[str, Column]
"""By column, one row per record."""


@final
@dataclass(frozen=True)
class Domain:
    """The data sets a claim speaks of.

    `columns` are private values of each record; `public` are values both sides share and an adversary may choose
    (W, theta, a published mean). Either data set of a pair has `fewest` to `most` records. `attribute` names the column
    that replace-attribute changes. `user` names the column that will hold users' numbers; it is filled in by itself.
    `unit_last` keeps the changed unit behind all other records, for a function that shuffles them itself: its orders on
    two neighbours may be coupled like that.
    """

    columns: Mapping[str, Space | Category]
    public: Mapping[str, Space] = field(default_factory=dict)
    fewest: int = 0
    most: int = 5
    attribute: str | None = None
    user: str | None = None
    most_per_user: int = 3
    unit_last: bool = False

    def __post_init__(self) -> None:
        count("fewest", self.fewest, least=0)
        count("most", self.most, least=max(1, self.fewest))
        count("most_per_user", self.most_per_user)
        if not self.columns or set(self.columns) & set(self.public):
            raise InvalidInput(
                "columns", sorted(self.columns), "must be there and differ from public names", "name them apart"
            )
        if self.attribute is not None and self.attribute not in self.columns:
            raise InvalidInput("attribute", self.attribute, "is not a column", "name the sensitive column")
        if self.user is not None and (self.user in self.columns or self.user in self.public):
            raise InvalidInput("user", self.user, "is filled in by itself", "leave it out of the columns")

    @property
    def names(self) -> tuple[str, ...]:
        """What a function may call its parameters."""
        own = (self.user,) if self.user is not None else ()
        return (*self.columns, *own, *self.public)

    def require(self, unit: PrivacyUnit) -> None:
        """Refuse a unit that these data sets do not have."""
        if unit.protected is Protected.ATTRIBUTE and self.attribute is None:
            raise InvalidInput("attribute", None, "must name a column under replace-attribute", "set attribute")
        if unit.protected is Protected.USER and self.user is None:
            raise InvalidInput("user", None, "must name a column where users are protected", "set user")

    def stack(self, rows: Sequence[Mapping[str, Any]]) -> Records:
        """Rows as columns of the right types, also when there are none."""
        found: dict[str, Column] = {}
        for name, space in self.columns.items():
            if isinstance(space, Category):
                found[name] = np.array([row[name] for row in rows], dtype=np.int64)
            else:
                values = [np.asarray(row[name], dtype=np.float64) for row in rows]
                found[name] = np.stack(values) if values else np.zeros((0, *space.shape))
        if self.user is not None:
            found[self.user] = np.array([row[self.user] for row in rows], dtype=np.int64)
        return found

    def allows(self, pair: NeighbouringPair) -> bool:
        """Whether both data sets and the public values meet every condition stated here."""
        for records in (pair.before, pair.after):
            if not self.fewest <= size_of(records) <= self.most:
                return False
            for name, space in self.columns.items():
                if not space.contains(records[name]):
                    return False
                if isinstance(space, Category) and not space.shares_met(records[name]):
                    return False
        return all(space.contains(pair.public[name][None]) for name, space in self.public.items())


@final
@dataclass(frozen=True, eq=False)
class NeighbouringPair:
    """Two data sets: what they share, and the one unit's rows on either side (none on a side that lacks the unit).

    The unit's rows stand before the shared record number `place`, so that functions which depend on the order of
    records are put to the test; None puts them last.
    """

    common: Records
    left: Records
    right: Records
    public: Records
    place: int | None = None

    @property
    def before(self) -> Records:
        return inserted(self.common, self.left, self.place)

    @property
    def after(self) -> Records:
        return inserted(self.common, self.right, self.place)

    @property
    def size(self) -> int:
        """Records of the larger data set."""
        return size_of(self.common) + max(size_of(self.left), size_of(self.right))

    def with_parts(self, parts: Mapping[str, Records]) -> NeighbouringPair:
        """Other records or public values, by the names of the fields; the same order."""
        return replace(
            self,
            common=parts.get("common", self.common),
            left=parts.get("left", self.left),
            right=parts.get("right", self.right),
            public=parts.get("public", self.public),
        )

    def without_common(self, row: int) -> NeighbouringPair:
        """One shared record less; the unit keeps its neighbours."""
        place = self.place - 1 if self.place is not None and row < self.place else self.place
        return replace(self, common=without_row(self.common, row), place=place)


def size_of(records: Records) -> int:
    """How many records there are."""
    return len(next(iter(records.values())))


def inserted(common: Records, unit: Records, place: int | None) -> Records:
    """The unit's rows before the shared record number `place`, or last."""
    return {
        name: np.concatenate([values[:place], unit[name], values[len(values) if place is None else place :]])
        for name, values in common.items()
    }


def without_row(records: Records, row: int) -> Records:
    """All records but one."""
    return {name: np.delete(values, row, axis=0) for name, values in records.items()}


# Neighbouring data sets, built from choices: the unit first, then the others, often in contrast to it.


class Contrast(Enum):
    """How other records relate to the unit's first one: averages move most when one record faces many opposites."""

    INDEPENDENT = "independent"
    EQUAL = "equal"
    OPPOSITE = "opposite"


Row = dict[str, NDArray[Any] | int]
_CONTRASTS = tuple(Contrast)


def build_pair(choose: Choices, domain: Domain, unit: PrivacyUnit) -> NeighbouringPair | None:
    """A pair under the unit's relation; None where the choices missed a condition on both data sets as a whole.

    Under add-remove the unit is on the left side only. The unit's rows may stand anywhere among the others.
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
    shared, first, second = (domain.stack(rows) for rows in _number(domain, common, left, right))
    pair = _with_shares_met(domain, NeighbouringPair(shared, first, second, public))
    if not domain.unit_last:
        pair = replace(pair, place=size_of(pair.common) - choose.integer(0, size_of(pair.common)))
    return pair if domain.allows(pair) else None


def random_pairs(
    domain: Domain, unit: PrivacyUnit, generator: np.random.Generator, number: int
) -> list[NeighbouringPair]:
    """This many random pairs, less those that missed a condition; refused if there is none."""
    choose = RandomChoices(generator)
    pairs = [pair for _ in range(number) if (pair := build_pair(choose, domain, unit)) is not None]
    if not pairs:
        rule = f"holds no neighbouring data sets under {unit.relation.value}"
        raise InvalidInput("domain", (domain.fewest, domain.most), rule, "allow more records or smaller shares")
    return pairs


def _row(choose: Choices, domain: Domain) -> Row:
    return {name: space.draw(choose) for name, space in domain.columns.items()}


def _opposite(domain: Domain, row: Row) -> Row:
    return {name: space.opposite(np.asarray(row[name])) for name, space in domain.columns.items()}


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
    return space.opposite(np.asarray(now)) if choose.pick((True, False)) else space.draw(choose)


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
            pair = replace(pair, common=inserted(pair.common, added, None))
    return pair


def _scarce(space: Category, name: str, pair: NeighbouringPair) -> int | None:
    for records in (pair.before, pair.after):
        if not space.shares_met(records[name]):
            return int(np.bincount(records[name], minlength=space.size).argmin())
    return None
