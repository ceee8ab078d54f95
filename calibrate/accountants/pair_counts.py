"""The cheapest exact price: which dominating pairs were published, and how often each.

Composition only adds counts, so nothing is rounded before the accountant knows the whole composition, and it
can choose its grid for it. Used by the accountants that evaluate everything at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibrate.accountants.dominating_pairs import (
    DominatingPair,
    FixedSizeReplacePair,
    Free,
    MixedGaussianPair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
    Unbounded,
)
from calibrate.accountants.support import dominating_pairs
from calibrate.errors import UnsupportedCombination
from calibrate.privacy_unit import PrivacyUnit
from calibrate.releases import Leaf
from calibrate.validation import count


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
        case MixedGaussianPair(components):
            return math.fsum(weight for weight, mu in components if mu > 0)
        case _:
            return 1.0


def priced_pairs(
    accountant: str, leaf: Leaf, unit: PrivacyUnit, supported: tuple[type, ...]
) -> tuple[DominatingPair, ...]:
    """The dominating pairs of a leaf, if the accountant can price every one of them; refused by name if not.

    Free and Unbounded are priced by every accountant: nothing, and infinity.
    """
    pairs = dominating_pairs(leaf, unit)
    for pair in pairs:
        if not isinstance(pair, (*supported, Free, Unbounded)):
            raise UnsupportedCombination(
                f"the {type(pair).__name__} of {leaf!r} with the {accountant} accountant",
                f"it prices only {', '.join(kind.__name__ for kind in supported)}",
                "use the certified or the pld accountant, which price every supported pair",
            )
    return pairs
