"""A plan's parameters as plain values, and a plan from plain values."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, cast

from calibrate.plans.plan import PlainValue

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def plain_parameters(plan: DataclassInstance) -> dict[str, PlainValue]:
    """The fields of a plan by name, enums as their values: fit for a manifest, TOML and JSON."""
    plain: dict[str, PlainValue] = {}
    for field in fields(plan):
        value = getattr(plan, field.name)
        plain[field.name] = cast(PlainValue, value.value if isinstance(value, Enum) else value)
    return plain
