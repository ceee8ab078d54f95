"""What data sets look like: columns, public values, how many records; and two neighbouring ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from audit.sensitivity.spaces import Category, Space
from calibrate.errors import InvalidInput, count
from calibrate.privacy_unit import PrivacyUnit, Protected

Column = NDArray[Any]
Records = Mapping[str, Column]
"""By column, one row a record."""


@final
@dataclass(frozen=True)
class Domain:
    """The data sets a claim speaks of.

    `columns` are private values of each record; `public` are values both sides share and an adversary may choose
    (W, theta, a published mean). Either data set of a pair has `fewest` to `most` records. `attribute` names the column
    that replace-attribute changes. `user` names the column that will hold users' numbers; it is filled in by itself.
    """

    columns: Mapping[str, Space | Category]
    public: Mapping[str, Space] = field(default_factory=dict)
    fewest: int = 0
    most: int = 5
    attribute: str | None = None
    user: str | None = None
    most_per_user: int = 3

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
        own = (self.user,) if self.user is not None else ()
        return (*self.columns, *own, *self.public)

    def require(self, unit: PrivacyUnit) -> None:
        """Refuse a unit that these data sets do not have."""
        if unit.protected is Protected.ATTRIBUTE and self.attribute is None:
            raise InvalidInput("attribute", None, "must name a column under replace-attribute", "set attribute")
        if unit.protected is Protected.USER and self.user is None:
            raise InvalidInput("user", None, "must name a column where users are protected", "set user")

    def stacked(self, rows: list[Mapping[str, Any]]) -> Records:
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
    """Two data sets: what they share, and the one unit's rows on either side (none on a side that lacks the unit)."""

    common: Records
    left: Records
    right: Records
    public: Records

    @property
    def before(self) -> Records:
        return joined(self.common, self.left)

    @property
    def after(self) -> Records:
        return joined(self.common, self.right)

    @property
    def size(self) -> int:
        """Records of the larger data set."""
        return size_of(self.common) + max(size_of(self.left), size_of(self.right))


def size_of(records: Records) -> int:
    return len(next(iter(records.values())))


def joined(first: Records, second: Records) -> Records:
    return {name: np.concatenate([first[name], second[name]]) for name in first}


def rows_kept(records: Records, keep: NDArray[Any]) -> Records:
    return {name: values[keep] for name, values in records.items()}
