"""Two neighbouring data sets as a table to read and as JSON to replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from audit.sensitivity.domain import Domain, NeighbouringPair, Records, size_of
from audit.sensitivity.spaces import Category
from calibrate.errors import InvalidInput

_SIDES = {"common": "both", "left": "first", "right": "second"}


def to_json(pair: NeighbouringPair) -> dict[str, Any]:
    """Plain lists; Python writes floats with all their digits, so a replay gives the very same values."""
    sides = {
        label: {name: values.tolist() for name, values in getattr(pair, part).items()}
        for part, label in _SIDES.items()
    }
    return {
        "in": sides,
        "public": {name: np.asarray(values).tolist() for name, values in pair.public.items()},
    }


def from_json(document: Mapping[str, Any], domain: Domain) -> NeighbouringPair:
    """The pair again; refused where it does not fit the domain."""
    try:
        parts = {part: _records(document["in"][label], domain) for part, label in _SIDES.items()}
        public = {name: np.asarray(document["public"][name], dtype=np.float64) for name in domain.public}
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(
            "counterexample", str(error), "is not a pair of this domain", "replay the JSON of a finding"
        ) from error
    pair = NeighbouringPair(parts["common"], parts["left"], parts["right"], public)
    if not domain.allows(pair):
        raise InvalidInput(
            "counterexample",
            "in",
            "breaks a condition of the domain",
            "replay it with the domain it was found in",
        )
    return pair


def _records(columns: Mapping[str, Any], domain: Domain) -> Records:
    found: dict[str, Any] = {}
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
    """One line a record, marked by the data sets it is in; public values below."""
    names = list(pair.common)
    lines = [["data set", *names]]
    for part, label in _SIDES.items():
        records = getattr(pair, part)
        for row in range(size_of(records)):
            lines.append([label, *(_text(records[name][row]) for name in names)])
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
