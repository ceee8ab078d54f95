"""A counterexample a person can read: fewer records, rounder numbers, almost the same distance; as table or JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from audit.claims.claim import Column, Domain, NeighbouringPair, Records, size_of, without_row
from audit.claims.spaces import Category
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation

# Two neighbouring data sets as a table to read and as JSON to replay.

_SIDES = {"common": "both", "left": "first", "right": "second"}


def to_json(pair: NeighbouringPair) -> dict[str, object]:
    """Plain lists; Python writes floats with all their digits, so a replay gives the very same values."""
    sides = {
        label: {name: values.tolist() for name, values in getattr(pair, part).items()} for part, label in _SIDES.items()
    }
    public = {name: np.asarray(values).tolist() for name, values in pair.public.items()}
    return {"in": sides, "place": pair.place, "public": public}


def from_json(document: Mapping[str, Any], domain: Domain) -> NeighbouringPair:
    """The pair again; refused where it does not fit the domain."""
    try:
        parts = {part: _records(document["in"][label], domain) for part, label in _SIDES.items()}
        public = {name: np.asarray(document["public"][name], dtype=np.float64) for name in domain.public}
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(
            "counterexample", str(error), "is not a pair of this domain", "replay the JSON of a search"
        ) from error
    pair = NeighbouringPair(parts["common"], parts["left"], parts["right"], public, document.get("place"))
    if not domain.allows(pair):
        raise InvalidInput(
            "counterexample", "in", "breaks a condition of the domain", "replay it with the domain it was found in"
        )
    return pair


def _records(columns: Mapping[str, Any], domain: Domain) -> Records:
    found: dict[str, Column] = {}
    for name, space in domain.columns.items():
        if isinstance(space, Category):
            found[name] = np.asarray(columns[name], dtype=np.int64).reshape(-1)
        else:
            values = np.asarray(columns[name], dtype=np.float64)
            found[name] = values.reshape(len(columns[name]), *space.shape)
    if domain.user is not None:
        found[domain.user] = np.asarray(columns[domain.user], dtype=np.int64).reshape(-1)
    return found


def table(pair: NeighbouringPair) -> str:
    """One line per record in its order, marked by the data sets it is in; public values below."""
    names = list(pair.common)
    shared, place = size_of(pair.common), size_of(pair.common) if pair.place is None else pair.place
    rows = [("both", pair.common, row) for row in range(place)]
    rows += [("first", pair.left, row) for row in range(size_of(pair.left))]
    rows += [("second", pair.right, row) for row in range(size_of(pair.right))]
    rows += [("both", pair.common, row) for row in range(place, shared)]
    lines = [["data set", *names]]
    lines += [[label, *(_text(records[name][row]) for name in names)] for label, records, row in rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(names) + 1)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    text.insert(1, "  ".join("-" * width for width in widths))
    text += [f"public {name} = {_text(np.asarray(values))}" for name, values in pair.public.items()]
    return "\n".join(line.rstrip() for line in text)


def _text(value: Any) -> str:
    if np.ndim(value) == 0:
        return f"{float(value):.5g}" if _real(value) else str(int(value))
    return "[" + ", ".join(_text(part) for part in value) + "]"


def _real(value: Any) -> bool:
    return np.issubdtype(np.asarray(value).dtype, np.floating)


_KEPT = 0.9999
"""Of the distance found, this much is kept: readable numbers, the same story."""
_DECIMALS = (0, 1, 2, 3, 4)
_OF_USER = (("left", "right"), ("left",), ("right",))


@final
@dataclass
class Shrinking:
    """A search downhill in size; `trials` counts the pairs that were tried."""

    domain: Domain
    unit: PrivacyUnit
    refutes: Callable[[NeighbouringPair], bool]
    """Whether a simpler pair still tells the story."""
    most_trials: int = 3000
    trials: int = field(default=0, init=False)

    def shrink(self, pair: NeighbouringPair) -> NeighbouringPair:
        """Passes until nothing gets simpler any more."""
        while True:
            before = pair
            for improve in (self._fewer_records, self._unit_last, self._plainer_arrays, self._plainer_entries):
                pair = improve(pair)
            if pair is before or self.trials >= self.most_trials:
                return pair

    def _accepts(self, pair: NeighbouringPair) -> bool:
        if self.trials >= self.most_trials or not self.domain.allows(pair):
            return False
        self.trials += 1
        return self.refutes(pair)

    def _fewer_records(self, pair: NeighbouringPair) -> NeighbouringPair:
        """One record less: of the others; where users are protected, also of the user, on both sides or on one."""
        for row in range(size_of(pair.common) - 1, -1, -1):
            candidate = pair.without_common(row)
            if self._accepts(candidate):
                pair = candidate
        for parts in _OF_USER if self.unit.protected is Protected.USER else ():
            row = min(size_of(getattr(pair, part)) for part in parts)
            while row > 0 and min(size_of(getattr(pair, part)) for part in parts) > 1:
                row -= 1
                candidate = pair.with_parts({part: without_row(getattr(pair, part), row) for part in parts})
                if self._accepts(candidate):
                    pair = candidate
        return pair

    def _unit_last(self, pair: NeighbouringPair) -> NeighbouringPair:
        """The unit behind all others, where the order of records does not matter."""
        last = replace(pair, place=None)
        return last if pair.place is not None and self._accepts(last) else pair

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
        found = [("public", name) for name in self.domain.public]
        for part in ("common", "left", "right"):
            for name in self.domain.columns:
                if part == "right" and shared and name != self.domain.attribute:
                    continue
                if len(getattr(pair, part)[name]):
                    found.append((part, name))
        return found

    def _with(self, pair: NeighbouringPair, part: str, name: str, values: Column) -> NeighbouringPair:
        space = {**self.domain.columns, **self.domain.public}[name]
        if isinstance(space, Category):
            values = values.astype(np.int64)
        changed = pair.with_parts({part: {**getattr(pair, part), name: values}})
        shared = self.unit.relation is Relation.REPLACE_ATTRIBUTE and name != self.domain.attribute
        if part == "left" and shared:
            return replace(changed, right={**changed.right, name: values})
        return changed


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
