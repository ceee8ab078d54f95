"""What may be asked of a membership audit beside its attacks; loads nothing, so that it is refused at once."""

from __future__ import annotations

from dataclasses import dataclass

from calibrate.errors import InvalidInput, count
from calibrate.plugins import PluginGroup, installed_plugins

BY_CLASS, BY_CORRECTNESS = "class", "correctness"
LEAST_MODELS = 16
"""Half of the shadow models teach how a record looks in and out, the others are counted."""


@dataclass(frozen=True)
class ExposureOptions:
    """What to look at beside the attacks on all records."""

    by: tuple[str, ...] = ()
    """class, correctness, or the name of a column."""
    records: int = 0
    """How many of the most exposed records to list."""


def require_attack(name: str) -> None:
    """Refuse the name of an attack that no installed package brings; nothing is imported."""
    known = [one.name for one in installed_plugins(PluginGroup.ATTACKS)]
    if name not in known:
        remedy = f"use {', '.join(known)}" if known else "install the package that brings it"
        raise InvalidInput("attack", name, "is not an installed attack (built-in ones run by themselves)", remedy)


def require_models(shadow_models: int, exposed: int) -> None:
    """Refuse a number of shadow models that no attack, or no list of `exposed` records, can use."""
    count("shadow models", shadow_models, least=0)
    if shadow_models == 1:
        raise InvalidInput("shadow models", 1, "must be 0 or at least 2", "one model has no half to be without")
    if exposed and shadow_models < LEAST_MODELS:
        rule = f"must be at least {LEAST_MODELS} for a list of exposed records"
        raise InvalidInput("shadow models", shadow_models, rule, "train more, or leave the list out")
