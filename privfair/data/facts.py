"""What was taken from the data instead of being known beforehand, and when that is allowed.

A mean, a list of categories or the number of groups that is taken from private records is a publication
that no budget pays for. Nothing here is forbidden as such: each fact is written down in the data set, and a run that
promises privacy refuses the facts its promise does not cover.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from calibrate.errors import UnsupportedCombination
from calibrate.manifest import strict_json
from calibrate.manifest.strict_json import Json
from calibrate.privacy_unit import PrivacyUnit, Protected


def digest(value: Json) -> str:
    """SHA-256 of the canonical JSON (RFC 8785) of a value, as `sha256:` and 64 hexadecimal digits."""
    return f"sha256:{strict_json.digest(value)}"


class FactKind(Enum):
    """Which part of the records a fact was read from."""

    SCALE = "the scale of a numeric feature"
    CATEGORIES = "the categories of a feature"
    CLASSES = "the list of classes"
    GROUPS = "the list of groups"
    ATTRIBUTE_IN_FEATURES = "a feature from which the sensitive attribute was made"


@dataclass(frozen=True)
class DerivedFact:
    """One column and what was taken from it."""

    kind: FactKind
    column: str


@dataclass(frozen=True)
class NothingPromised:
    """The explicit opposite of a privacy unit; `why` is shown wherever the run is shown."""

    why: str


_REMEDY = {
    FactKind.SCALE: "give public bounds or a public mean and scale, or pay for noisy statistics",
    FactKind.CATEGORIES: "write the public list of categories into the schema",
    FactKind.CLASSES: "write the classes into the schema",
    FactKind.GROUPS: "write the groups into the schema",
    FactKind.ATTRIBUTE_IN_FEATURES: "leave that feature out",
}

_REVEALS_ATTRIBUTE = (FactKind.GROUPS, FactKind.ATTRIBUTE_IN_FEATURES)


def _forbidden(kind: FactKind, unit: PrivacyUnit) -> bool:
    # Replacing an attribute leaves x and y as they are, so facts about x and y are the same in both
    # neighbouring data sets. Replacing a record or a user may change any of them; what the features
    # contain is then irrelevant, because the whole record is protected.
    if unit.protected is Protected.ATTRIBUTE:
        return kind in _REVEALS_ATTRIBUTE
    return kind is not FactKind.ATTRIBUTE_IN_FEATURES


def require_allowed(facts: tuple[DerivedFact, ...], promise: PrivacyUnit | NothingPromised) -> None:
    """Raise `UnsupportedCombination` at the first fact that the promise does not cover.

    Guarantee: if this returns for a `PrivacyUnit`, none of the listed facts differs between two data sets
    that are neighbours in that unit's relation, so using them costs no budget.
    """
    for fact in facts:
        if isinstance(promise, PrivacyUnit) and _forbidden(fact.kind, promise):
            raise UnsupportedCombination(
                f"{fact.kind.value} (column {fact.column!r}) read from the data, "
                f"with {promise.relation.value} privacy of one {promise.protected.value},",
                "it can differ between neighbouring data sets and no budget pays for it",
                _REMEDY[fact.kind],
            )
