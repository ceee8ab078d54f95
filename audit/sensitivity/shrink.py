"""A counterexample a person can read: fewer records, rounder numbers, hardly a smaller distance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from audit.sensitivity.domain import Column, NeighbouringPair, Records, rows_kept, size_of
from audit.sensitivity.spaces import Category
from audit.sensitivity.subject import Subject
from calibrate.claims import Norm
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation

_KEPT = 0.9999
"""Of the distance found, this much is kept: readable numbers, the same story."""
_DECIMALS = (0, 1, 2, 3, 4)
_MOST_TRIALS = 3000
_OF_USER = (("left", "right"), ("left",), ("right",))


@final
@dataclass
class Shrinking:
    """A search downhill in size; `trials` counts calls of the function."""

    subject: Subject
    unit: PrivacyUnit
    norm: Norm
    floor: float
    """No pair with a smaller distance is taken."""
    trials: int = field(default=0, init=False)

    def shrunken(self, pair: NeighbouringPair) -> NeighbouringPair:
        """Passes until nothing gets simpler any more."""
        while True:
            before = pair
            for improve in (self._fewer_records, self._plainer_arrays, self._plainer_entries):
                pair = improve(pair)
            if pair is before or self.trials >= _MOST_TRIALS:
                return pair

    def _accepts(self, pair: NeighbouringPair) -> bool:
        if self.trials >= _MOST_TRIALS or not self.subject.domain.allows(pair):
            return False
        self.trials += 1
        return self.subject.distance(pair, self.norm) >= self.floor

    def _fewer_records(self, pair: NeighbouringPair) -> NeighbouringPair:
        """One record less: of the others; where users are protected, also of the user, on both sides or on one."""
        for parts in (("common",), *(_OF_USER if self.unit.protected is Protected.USER else ())):
            place = min(size_of(getattr(pair, part)) for part in parts)
            while place > 0:
                place -= 1
                if parts != ("common",) and min(size_of(getattr(pair, part)) for part in parts) <= 1:
                    break
                candidate = replace(pair, **{part: _without(getattr(pair, part), place) for part in parts})
                if self._accepts(candidate):
                    pair = candidate
        return pair

    def _plainer_arrays(self, pair: NeighbouringPair) -> NeighbouringPair:
        """A whole array, or a whole row of it, zero or rounded."""
        for part, name in self._places(pair):
            values = getattr(pair, part)[name]
            for plain in _plainer(values):
                candidate = self._with(pair, part, name, plain)
                if self._accepts(candidate):
                    pair = candidate
                    break
        return pair

    def _plainer_entries(self, pair: NeighbouringPair) -> NeighbouringPair:
        for part, name in self._places(pair):
            for place in range(getattr(pair, part)[name].size):
                values = getattr(pair, part)[name]
                for plain in _plainer(values.reshape(-1)[place]):
                    changed = np.array(values)
                    changed.reshape(-1)[place] = plain
                    candidate = self._with(pair, part, name, changed)
                    if self._accepts(candidate):
                        pair = candidate
                        break
        return pair

    def _places(self, pair: NeighbouringPair) -> list[tuple[str, str]]:
        shared = self.unit.relation is Relation.REPLACE_ATTRIBUTE
        found = [("public", name) for name in self.subject.domain.public]
        for part in ("common", "left", "right"):
            for name in self.subject.domain.columns:
                if part == "right" and shared and name != self.subject.domain.attribute:
                    continue
                if len(getattr(pair, part)[name]):
                    found.append((part, name))
        return found

    def _with(self, pair: NeighbouringPair, part: str, name: str, values: Column) -> NeighbouringPair:
        space = {**self.subject.domain.columns, **self.subject.domain.public}[name]
        if isinstance(space, Category):
            values = values.astype(np.int64)
        changed = replace(pair, **{part: {**getattr(pair, part), name: values}})
        shared = self.unit.relation is Relation.REPLACE_ATTRIBUTE and name != self.subject.domain.attribute
        if part == "left" and shared:
            return replace(changed, right={**changed.right, name: values})
        return changed


def _without(records: Records, place: int) -> Records:
    return rows_kept(records, np.arange(size_of(records)) != place)


def floor_of(found: float, claimed: float) -> float:
    """The smallest distance a shrunken counterexample may have: nearly what was found, and above what was claimed."""
    return max(_KEPT * found, claimed) if np.isfinite(found) else found


def _plainer(values: Column) -> Iterator[Column]:
    """Simpler arrays, the simplest first; only such as differ."""
    candidates = [np.zeros_like(values)]
    if np.issubdtype(np.asarray(values).dtype, np.floating):
        candidates += [np.round(values, decimals) + 0.0 for decimals in _DECIMALS]
    for candidate in candidates:
        if not np.array_equal(candidate, values):
            yield candidate
        else:
            return
