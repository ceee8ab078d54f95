"""What an accountant is, the one fold that applies repetition and sequence, and the table of accountants.

An accountant prices ONE leaf release for a privacy unit and knows how its prices compose. It never sees a
repetition: `total_cost` brings a release to its normal form (each distinct leaf with its multiplicity) and
composes the prices. No accountant can therefore forget a count, and
`cost(Repeated(r, n)) == cost(InSequence((r,) * n))` holds by construction.

The cheapest exact price is `PairCounts`: which dominating pairs were published, and how often each. Composition only
adds counts, so nothing is rounded before a `CountingAccountant` knows the whole composition, and it can choose its grid
for it.

Nothing heavy is imported before an accountant is asked for. A promise is made from the best price (`best_epsilon`) and
signed only if an accountant that shares no formula with it does not contradict it (`second_opinion`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache, reduce
from importlib import import_module
from importlib.metadata import version
from typing import Any, Protocol, TypeVar

from calibrate.accountants.support import (
    PRICED_PAIRS,
    DominatingPair,
    FixedSizeReplacePair,
    Free,
    GaussianPair,
    MixedGaussianPair,
    RandomAllocationPair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
    TruncatedPair,
    Unbounded,
    dominating_pairs,
)
from calibrate.errors import InvalidInput, NotCertified, UnsupportedCombination, count, open_unit
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit
from calibrate.releases import Leaf, Release, multiplicities, reached

Cost = TypeVar("Cost")


class Accountant(Protocol[Cost]):
    """Prices one release; composes prices; turns a price into a certified interval for epsilon."""

    name: str

    def price(self, leaf: Leaf, unit: PrivacyUnit) -> Cost:
        """The cost of publishing `leaf` once; raises UnsupportedCombination where no bound is proved."""
        ...

    def self_compose(self, cost: Cost, times: int) -> Cost:
        """The cost of publishing `times` times what costs `cost`."""
        ...

    def compose(self, first: Cost, second: Cost) -> Cost:
        """The cost of publishing both."""
        ...

    def epsilon(self, cost: Cost, delta: float) -> EpsilonInterval:
        """[lower, upper] of the epsilon at `delta`; lower is 0 where the accountant has only one side."""
        ...


Part = TypeVar("Part")


def self_composed(compose: Callable[[Part, Part], Part], once: Part, times: int, start: Part | None = None) -> Part:
    """`times` independent copies of `once` on top of `start`, by repeated squaring."""
    total, square = start, once
    while True:
        if times & 1:
            total = square if total is None else compose(total, square)
        times >>= 1
        if not times:
            assert total is not None
            return total
        square = compose(square, square)


def total_cost(accountant: Accountant[Cost], release: Release, unit: PrivacyUnit) -> Cost:
    """The fold: the only place where repetition and sequence are applied."""
    costs = (
        accountant.self_compose(accountant.price(leaf, unit), times) for leaf, times in multiplicities(release).items()
    )
    return reduce(accountant.compose, costs)


def epsilon_of(accountant: Accountant[Cost], release: Release, unit: PrivacyUnit, delta: float) -> EpsilonInterval:
    """The certified interval of epsilon at `delta` for a whole release."""
    open_unit("delta", delta)
    return accountant.epsilon(total_cost(accountant, release, unit), delta)


@dataclass(frozen=True)
class PairCounts:
    """Each distinct dominating pair with its multiplicity, in order of first appearance; Free is left out."""

    counts: tuple[tuple[DominatingPair, int], ...]

    @classmethod
    def of(cls, pairs: tuple[DominatingPair, ...]) -> PairCounts:
        return cls(()).plus(tuple((pair, 1) for pair in pairs if not isinstance(pair, Free)))

    @property
    def unprotected(self) -> bool:
        return any(isinstance(pair, Unbounded) for pair, _ in self.counts)

    @property
    def rounds(self) -> int:
        """How many pairs are composed in all."""
        return sum(times for _, times in self.counts)

    @property
    def chance_of_taking_part(self) -> float:
        """No less than the probability that the unit takes part in any batch, and so than delta at any epsilon.

        P and Q of a sampled pair agree unless the unit was drawn, so their total variation is at most the rate;
        total variations add up under composition, also adaptively. A chance of 1 says nothing.
        """
        chance = math.fsum(times * _chance(pair) for pair, times in self.counts)
        return min(1.0, chance * (1 + 1e-12))

    def times(self, times: int) -> PairCounts:
        count("times", times)
        return PairCounts(tuple((pair, n * times) for pair, n in self.counts))

    def plus(self, more: tuple[tuple[DominatingPair, int], ...]) -> PairCounts:
        total = dict(self.counts)
        for pair, times in more:
            total[pair] = total.get(pair, 0) + times
        return PairCounts(tuple(total.items()))


def _chance(pair: DominatingPair) -> float:
    match pair:
        case SubsampledGaussianPair() | SubsampledReplacePair() | FixedSizeReplacePair():
            return pair.rate
        case RandomAllocationPair(batches, drawn):
            return drawn / batches
        case TruncatedPair(whole):
            return whole.rate
        case MixedGaussianPair(components):
            return math.fsum(weight for weight, mu in components if mu > 0)
        case _:
            return 1.0


def priced_pairs(
    accountant: str, leaf: Leaf, unit: PrivacyUnit, supported: tuple[type, ...]
) -> tuple[DominatingPair, ...]:
    """The dominating pairs of a leaf, if the accountant can price every one of them; refused with the remedy if not.

    Free and Unbounded are priced by every accountant: nothing, and infinity.
    """
    pairs = dominating_pairs(leaf, unit)
    for pair in pairs:
        if not isinstance(pair, (*supported, Free, Unbounded)):
            raise UnsupportedCombination(
                f"the {type(pair).__name__} of {leaf!r} with the {accountant} accountant",
                f"it prices only {', '.join(kind.__name__ for kind in supported)}",
                "use the certified accountant, which prices every supported pair",
            )
    return pairs


class CountingAccountant(ABC):
    """An accountant whose price is the multiset of dominating pairs; it evaluates everything at the end.

    A subclass gives its `name`, the kinds of pairs it can price, and both ends of epsilon for a non-empty multiset.
    """

    name: str
    supported: tuple[type, ...] = PRICED_PAIRS

    def price(self, leaf: Leaf, unit: PrivacyUnit) -> PairCounts:
        """The dominating pairs of `leaf` for `unit`; raises UnsupportedCombination where one is not supported."""
        return PairCounts.of(priced_pairs(self.name, leaf, unit, self.supported))

    def self_compose(self, cost: PairCounts, times: int) -> PairCounts:
        """The price of publishing `times` times what costs `cost`."""
        return cost.times(times)

    def compose(self, first: PairCounts, second: PairCounts) -> PairCounts:
        """The price of publishing both."""
        return first.plus(second.counts)

    def epsilon(self, cost: PairCounts, delta: float) -> EpsilonInterval:
        """Both ends of epsilon at `delta`, which is in (0, 1), for the composition `cost`."""
        open_unit("delta", delta)
        if cost.unprotected:
            return EpsilonInterval(math.inf, math.inf)
        return self._interval(cost, delta) if cost.counts else EpsilonInterval(0.0, 0.0)

    @abstractmethod
    def _interval(self, cost: PairCounts, delta: float) -> EpsilonInterval: ...


# The table of accountants, the best price of a release, and a second opinion on it.


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
    interval = epsilon_of(get(name), release, unit, delta)
    begun, lower = reached(release), interval.lower
    if begun != release and multiplicities(begun) != multiplicities(release):
        try:
            lower = min(lower, best_epsilon(begun, unit, delta).interval.lower)
        except NotCertified:
            lower = 0.0
    return priced_by(name, EpsilonInterval(lower, interval.upper))


def priced_by(name: AccountantName, interval: EpsilonInterval) -> Priced:
    """An interval that the accountant called `name` computed, with the library behind it."""
    library = _LIBRARIES.get(name, "privfair")
    return Priced(interval, name, library, _version(library))


@lru_cache(maxsize=256)
def best_epsilon(release: Release, unit: PrivacyUnit, delta: float) -> Priced:
    """The tightest certified interval for epsilon, from the accountant made for this kind of release.

    The last few answers are kept: a solver's last price is what a signature asks for next.

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


def agree(first: Priced, second: Priced) -> bool:
    """Whether both can be right: different accountants whose intervals agree."""
    return first.accountant_name is not second.accountant_name and first.interval.agrees_with(second.interval)


def _by_tightness(release: Release, unit: PrivacyUnit) -> Iterable[AccountantName]:
    kinds = {type(pair) for leaf in multiplicities(release) for pair in dominating_pairs(leaf, unit)}
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


@cache
def _version(library: str) -> str:
    return version(library)
