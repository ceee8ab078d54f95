"""What a canary is, and what its coin decides."""

from __future__ import annotations

from enum import Enum

from calibrate.errors import UnsupportedCombination
from calibrate.privacy_unit import Relation


class CanaryKind(Enum):
    """The record (or the user's only record) that is put into the training data."""

    GRADIENT = "gradient-space"
    """White box: a gradient of the auditor's choice, far longer than the clip, in a direction of its own."""
    RARE_INPUT = "rare input"
    """A blank record with one feature that no other record has at that size."""
    MISLABELLED = "mislabelled"
    """A record of the data with another class than its own."""


class CoinMeaning(Enum):
    """What the two sides of a canary's coin are: neighbours in the manifest's own relation."""

    IN_OR_OUT = "in or out"
    """Add-remove: side 1 is the data with the canary, side 0 without it."""
    ONE_OF_TWO = "one of two versions"
    """Replace-one: opposite gradients; the rare input or a blank one; the wrong class or the right one."""


def coin_meaning(relation: Relation) -> CoinMeaning:
    """The coin whose two sides are neighbours under `relation`; attributes have an audit of their own."""
    match relation:
        case Relation.ADD_REMOVE:
            return CoinMeaning.IN_OR_OUT
        case Relation.REPLACE_ONE:
            return CoinMeaning.ONE_OF_TWO
        case _:
            raise UnsupportedCombination(
                f"canaries under {relation.value}",
                "the record itself is not what is protected",
                "audit it by coins on the attribute",
            )
