"""All accountants by name, the best price of a release, and a second opinion on it.

Nothing heavy is imported before an accountant is asked for. A promise is made from the best price and signed
only if an accountant that shares no formula with it does not contradict it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Any

from calibrate.accountants.accountant import Accountant, epsilon_of
from calibrate.accountants.support import Free, GaussianPair, MixedGaussianPair, Unbounded, dominating_pairs
from calibrate.errors import InvalidInput, NotCertified, UnsupportedCombination
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit
from calibrate.releases import Release, multiplicities, untruncated


class AccountantName(StrEnum):
    CERTIFIED = "certified"
    GAUSSIAN = "gaussian"
    REVEALED = "revealed"
    PLD = "pld"
    RENYI = "renyi"
    MOMENTS = "moments"
    PRV = "prv"


ACCOUNTANTS: tuple[AccountantName, ...] = tuple(AccountantName)

_HOMES = {
    AccountantName.CERTIFIED: ("certified", "CertifiedAccountant"),
    AccountantName.GAUSSIAN: ("gaussian", "GaussianAccountant"),
    AccountantName.REVEALED: ("gaussian", "RevealedAccountant"),
    AccountantName.PLD: ("pld", "PrivacyLossAccountant"),
    AccountantName.RENYI: ("renyi", "RenyiAccountant"),
    AccountantName.MOMENTS: ("renyi", "MomentsAccountant"),
    AccountantName.PRV: ("pld", "PrvAccountant"),
}

_LIBRARIES = {AccountantName.PLD: "dp-accounting", AccountantName.PRV: "prv-accountant"}
"""Where a number comes from if not from this package."""

OVERLAP_TOLERANCE = 1e-9
"""Two intervals agree if they overlap after each end is moved outward by this share of itself: rounding that
an accountant bounds only to first order must not look like a contradiction."""


@dataclass(frozen=True)
class Priced:
    """A certified interval, and who computed it: the accountant and the library (with version) behind it."""

    interval: EpsilonInterval
    accountant_name: AccountantName
    library: str
    version: str


def get(name: AccountantName | str) -> Accountant[Any]:
    """A fresh accountant with its default settings; imports what it needs only now."""
    if name not in ACCOUNTANTS:
        raise InvalidInput("accountant", str(name), "is not known", f"choose one of {', '.join(ACCOUNTANTS)}")
    module, accountant = _HOMES[AccountantName(name)]
    made: Accountant[Any] = getattr(import_module(f"calibrate.accountants.{module}"), accountant)()
    return made


def price(name: AccountantName, release: Release, unit: PrivacyUnit, delta: float) -> Priced:
    """The answer of the accountant called `name` for `release`, the protected `unit` and `delta` in (0, 1)."""
    return priced_by(name, epsilon_of(get(name), release, unit, delta))


def priced_by(name: AccountantName, interval: EpsilonInterval) -> Priced:
    """An interval that the accountant called `name` computed, with the library behind it."""
    library = _LIBRARIES.get(name, "privfair")
    return Priced(interval, name, library, _version(library))


def best_epsilon(release: Release, unit: PrivacyUnit, delta: float) -> Priced:
    """The tightest certified interval for epsilon, from the accountant made for this kind of release.

    `release` is everything that is published, `unit` what is protected and against which change, `delta` in (0, 1).

    Guarantee: the release is (interval.upper, delta)-private for `unit`. Raises UnsupportedCombination where
    no bound is proved, NotCertified where none could be computed.
    """
    return _first_answer(_by_tightness(release, unit), release, unit, delta)


def second_opinion(release: Release, unit: PrivacyUnit, delta: float, first: Priced | None = None) -> Priced:
    """The same release priced by an accountant that is independent of the `first` one (default: the best).

    dp-accounting's privacy loss distributions if they can say something finite, Renyi divergences otherwise.
    """
    taken = (first or best_epsilon(release, unit, delta)).accountant_name
    others = (name for name in (AccountantName.PLD, AccountantName.RENYI) if name is not taken)
    return _first_answer(others, release, unit, delta)


def agree(first: Priced, second: Priced, tolerance: float = OVERLAP_TOLERANCE) -> bool:
    """Whether both can be right: different accountants whose intervals overlap, each end moved by `tolerance`."""
    if first.accountant_name is second.accountant_name:
        return False
    return _widen(first.interval, tolerance).overlaps(_widen(second.interval, tolerance))


def _by_tightness(release: Release, unit: PrivacyUnit) -> Iterable[AccountantName]:
    kinds = {type(pair) for leaf in multiplicities(untruncated(release)[0]) for pair in dominating_pairs(leaf, unit)}
    kinds -= {Free, Unbounded}
    if kinds <= {GaussianPair}:
        yield AccountantName.GAUSSIAN
    elif kinds <= {GaussianPair, MixedGaussianPair}:
        yield AccountantName.REVEALED
    yield AccountantName.CERTIFIED


def _first_answer(names: Iterable[AccountantName], release: Release, unit: PrivacyUnit, delta: float) -> Priced:
    """The first accountant that can price this release with a finite bound; else the last one's own answer."""
    refusals: list[str] = []
    unbounded: Priced | None = None
    for name in names:
        try:
            answer = price(name, release, unit, delta)
        except (NotCertified, UnsupportedCombination) as refusal:
            refusals.append(f"{name}: {refusal}")
            continue
        if answer.interval.upper < float("inf") or answer.interval.lower == float("inf"):
            return answer
        unbounded = unbounded or answer
    if unbounded is None:
        raise NotCertified(f"no accountant could price this release ({'; '.join(refusals)})")
    return unbounded


def _widen(interval: EpsilonInterval, tolerance: float) -> EpsilonInterval:
    return EpsilonInterval(interval.lower * (1 - tolerance), interval.upper * (1 + tolerance))


@cache
def _version(library: str) -> str:
    return version(library)
