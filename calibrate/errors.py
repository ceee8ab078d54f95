"""Every error privfair raises on purpose.

::

    PrivfairError                     exit code
    ├── InvalidInput                  2   a value breaks a rule
    ├── UnsupportedCombination        2   no proved bound for this release, sampling and adjacency
    ├── NotCertified                  1   the numbers could not be certified to the asked precision
    ├── CheckFailed                   1   a check or a gate of a pipeline failed
    └── Refused                       3   trust, manifest, ledger or gate said no
        ├── TrustRefused                  a key or a trust file is not acceptable
        ├── ManifestRefused               a manifest failed a numbered verification step
        ├── LedgerRefused                 the ledger does not grant the charge, or is not intact
        ├── TranscriptRefused             a transcript is damaged, or does not fit its ledger
        ├── AuditRefused                  a signed audit cannot be believed, or is about another model
        └── GateRefused                   a contribution is not what the manifest allows

Each message names the argument, its value, the rule and the remedy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import get_close_matches
from numbers import Integral, Real


class PrivfairError(Exception):
    """Base of all deliberate errors; `exit_code` is what the command line returns."""

    exit_code: int = 1


class InvalidInput(PrivfairError, ValueError):
    """A value breaks a rule that the caller can fix."""

    exit_code = 2

    def __init__(self, argument: str, value: object, rule: str, remedy: str) -> None:
        self.argument = argument
        self.value = value
        self.rule = rule
        self.remedy = remedy
        super().__init__(f"{argument} = {_shown(value)}: {rule}; {remedy}")


def _shown(value: object) -> str:
    """A value in a message: at most 200 characters, and never an error about the error."""
    try:
        text = "[]" if value == () else repr(value)
    except Exception:  # a whole number of thousands of digits has no repr
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


class UnsupportedCombination(PrivfairError):
    """There is no proved bound for what was asked, and none is made up."""

    exit_code = 2

    def __init__(self, combination: str, why: str, remedy: str) -> None:
        self.combination = combination
        self.why = why
        self.remedy = remedy
        super().__init__(f"{combination} is not supported: {why}; {remedy}")


class NotCertified(PrivfairError):
    """A numerical certificate could not be produced."""


class CheckFailed(PrivfairError):
    """A check that guards a pipeline did not pass."""


class Refused(PrivfairError):
    """Trust, manifest, ledger or gate said no."""

    exit_code = 3


class TrustRefused(Refused):
    """A key or a trust file is not acceptable."""


class ManifestRefused(Refused):
    """A manifest failed one numbered verification step."""

    def __init__(self, step: str, why: str, remedy: str) -> None:
        self.step = step
        self.why = why
        self.remedy = remedy
        super().__init__(f"manifest refused at step {step}: {why}; {remedy}")


class LedgerRefused(Refused):
    """The ledger does not grant the charge, or is not intact."""


class GateRefused(Refused):
    """A contribution is not what the manifest allows."""


def nearest(name: str, names: Sequence[str]) -> str:
    """The remedy for a wrong name: the nearest right one, or all of them."""
    close = get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"use {', '.join(names)}"


# The few numeric rules that every frozen value of this package checks at construction.


def _finite(argument: str, value: float) -> float:
    plain = type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))
    if not plain or not math.isfinite(value):
        raise InvalidInput(argument, value, "must be a finite number", "give a plain decimal number")
    return float(value)


def positive(argument: str, value: float) -> float:
    """The value of `argument` as a float, if it is finite and above 0; refused otherwise."""
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
        raise InvalidInput(argument, value, "must be in (0, 1]", "give a fraction such as 0.01")
    return float(value)


def count(argument: str, value: int, least: int = 1) -> int:
    """The value of `argument` as an int, if it is a whole number of at least `least`; refused otherwise."""
    # Nearly always a plain int, and asking an abstract class for it would take longer than all the rest.
    if (type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral))) or value < least:
        raise InvalidInput(argument, value, f"must be a whole number, at least {least}", f"give {least} or more")
    if least and value >= 2**53:  # a seed, which may be 0, may be as long as it likes
        raise InvalidInput(argument, value, "must be below 2^53, or a double can't hold it", "give a smaller number")
    return int(value)
