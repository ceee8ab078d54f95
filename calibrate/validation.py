"""The few numeric rules that every frozen value of this package checks at construction."""

from __future__ import annotations

import math
from numbers import Integral, Real

from calibrate.errors import InvalidInput


def _finite(argument: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidInput(argument, value, "must be a finite number", "give a plain decimal number")
    return float(value)


def positive(argument: str, value: float) -> float:
    if _finite(argument, value) <= 0:
        raise InvalidInput(argument, value, "must be greater than 0", "give a positive number")
    return float(value)


def open_unit(argument: str, value: float) -> float:
    """A number strictly between 0 and 1, such as delta."""
    if not 0 < _finite(argument, value) < 1:
        raise InvalidInput(argument, value, "must lie strictly between 0 and 1", "give for example 1e-5")
    return float(value)


def rate(argument: str, value: float) -> float:
    """A probability that is not zero, such as a sampling rate."""
    if not 0 < _finite(argument, value) <= 1:
        raise InvalidInput(argument, value, "must lie in (0, 1]", "give a fraction such as 0.01")
    return float(value)


def count(argument: str, value: int, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InvalidInput(
            argument, value, f"must be a whole number, at least {least}", f"give {least} or more"
        )
    return int(value)
