"""Which release has a proved dominating pair under which adjacency: the one place that decides.

`dominating_pairs(leaf, unit)` maps one leaf release to the pairs whose composition dominates it, or refuses
by name with the remedy. All accountants price what this function returns, so that none of them can support
(or misread) a combination on its own.

==================  ======================  =========================  ============================
release             add-remove              replace-one                replace-attribute
==================  ======================  =========================  ============================
Gaussian            GaussianPair(1/z)       GaussianPair(2/z)          GaussianPair(1/z)
Laplace             LaplacePair(b)          LaplacePair(b/2)           LaplacePair(b)
randomised resp.    refused                 RandomizedResponsePair     RandomizedResponsePair
Poisson, secret     SubsampledGaussianPair  SubsampledReplacePair      refused
fixed size, secret  Subsampled..Pair(z/2)   FixedSizeReplacePair(z/2)  refused
shuffled, secret    refused                 refused                    refused
w/ repl., secret    refused                 refused                    refused
allocated, secret   RandomAllocationPair    refused                    refused
Poisson, revealed   refused                 MixedGaussianPair          MixedGaussianPair
fixed, revealed     refused                 MixedGaussianPair          MixedGaussianPair
w/ repl., revealed  refused                 MixedGaussianPair          MixedGaussianPair
shuffled, revealed  refused                 GaussianPair(2/z)          GaussianPair(1/z), per epoch
allocated, rev.     refused                 MixedGaussianPair          MixedGaussianPair, per epoch
cyclic, whole       GaussianPair(1/z)       GaussianPair(2/z)          refused, per cycle
cyclic, sampled     SubsampledGaussianPair  refused                    refused, per cycle
==================  ======================  =========================  ============================

Several Gaussian values of one batch (`Together`) are one Gaussian value with the joint multiplier, *inside*
the sampling. A batch that always holds every unit is a full batch. Proofs: docs/theorems/certified-accountant.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import assert_never

from calibrate.accountants.pairs import (
    PRICED_PAIRS,
    DominatingPair,
    FixedSizeReplacePair,
    Free,
    GaussianPair,
    LaplacePair,
    MixedGaussianPair,
    RandomAllocationPair,
    RandomizedResponsePair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
    Unbounded,
)
from calibrate.errors import UnsupportedCombination, count, open_unit
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit, Relation, bounds_apart
from calibrate.releases import (
    Gaussian,
    Laplace,
    Leaf,
    NonPrivate,
    RandomizedResponse,
    Sampled,
    Together,
    joint_gaussian,
)
from calibrate.sampling import (
    Batch,
    Cyclic,
    FixedSize,
    Poisson,
    RandomAllocation,
    Sampling,
    ShuffledEpochs,
    TruncatedPoisson,
    WithReplacement,
)

_NEGLIGIBLE_WEIGHT = 1e-300
"""Binomial weights below this, relative to the largest, are dropped: far below the slack of every certificate."""


def dominating_pairs(leaf: Leaf, unit: PrivacyUnit) -> tuple[DominatingPair, ...]:
    """The pairs whose composition dominates one publication of `leaf`, for the protected `unit`.

    Guarantee: for that unit, every hockey-stick divergence of the leaf is at most that of the returned
    pairs composed (docs/theorems/certified-accountant.md, "Dominating pairs"). Raises UnsupportedCombination
    where no such pair is proved.
    """
    match leaf:
        case Gaussian() | Laplace():
            return (_full_batch_pair(leaf, unit),)
        case Together():
            return _full_batch_pairs(leaf, unit)
        case RandomizedResponse(epsilon, categories):
            if unit.relation is Relation.ADD_REMOVE:
                raise UnsupportedCombination(
                    "randomised response x add-remove",
                    "the number of responses itself shows whether the unit is there",
                    "use replace-one or replace-attribute",
                )
            return (RandomizedResponsePair(epsilon, categories),)
        case NonPrivate(depends_on_unit=depends):
            return (Unbounded() if depends else Free(),)
        case Sampled(sampling, release):
            if _always_everybody(sampling, unit):
                return dominating_pairs(release, unit)
            return (_sampled_pair(sampling, release, unit),)
        case _:
            assert_never(leaf)


def _full_batch_pair(release: Gaussian | Laplace, unit: PrivacyUnit) -> GaussianPair | LaplacePair:
    match release:
        case Gaussian(multiplier):
            return GaussianPair(bounds_apart(unit.relation) / multiplier)
        case Laplace(scale):
            return LaplacePair(scale / bounds_apart(unit.relation))
        case _:
            assert_never(release)


def _full_batch_pairs(together: Together, unit: PrivacyUnit) -> tuple[DominatingPair, ...]:
    """Without sampling there is no common batch to exploit: Gaussians join exactly, the rest is a sequence."""
    gaussians = tuple(part for part in together.releases if isinstance(part, Gaussian))
    others = tuple(_full_batch_pair(part, unit) for part in together.releases if isinstance(part, Laplace))
    joint = joint_gaussian(Together(gaussians)) if gaussians else None
    return others if joint is None else (_full_batch_pair(joint, unit), *others)


def _always_everybody(sampling: Sampling, unit: PrivacyUnit) -> bool:
    """Whether each batch (for shuffled epochs: the only batch of an epoch) is sure to hold every unit once."""
    match sampling:
        case Poisson(rate=rate, batch=batch):
            return rate == 1.0 and not (batch is Batch.REVEALED and unit.relation is Relation.ADD_REMOVE)
        case FixedSize(population, size) | ShuffledEpochs(population, size):
            return population == size and unit.relation is not Relation.ADD_REMOVE
        case RandomAllocation(batches=batches, batch=batch):
            return batches == 1 and not (batch is Batch.REVEALED and unit.relation is Relation.ADD_REMOVE)
        case WithReplacement() | TruncatedPoisson() | Cyclic():
            return False
        case _:
            assert_never(sampling)


def _sampled_pair(sampling: Sampling, release: Gaussian | Laplace | Together, unit: PrivacyUnit) -> DominatingPair:
    joint = None if isinstance(release, Laplace) else joint_gaussian(release)
    if joint is None:
        raise UnsupportedCombination(
            f"Laplace noise on a {_name(sampling)} batch",
            "only Gaussian values of a sampled batch have a proved pair here",
            "use Gaussian noise, or publish the Laplace value on the full batch",
        )
    _refuse_unproved(sampling, unit)
    revealed = sampling.batch is Batch.REVEALED
    z, mu = joint.noise_multiplier, bounds_apart(unit.relation) / joint.noise_multiplier
    match sampling:
        case Poisson(rate=rate):
            if revealed:
                return _participation_pair(rate, mu)
            if unit.relation is Relation.ADD_REMOVE:
                return SubsampledGaussianPair(rate, z)
            return SubsampledReplacePair(rate, z)
        case FixedSize():
            if revealed:
                return _participation_pair(sampling.rate, mu)
            # The unit takes the place of another one, so the sum moves by two bounds under either relation.
            added = unit.relation is Relation.ADD_REMOVE
            return SubsampledGaussianPair(sampling.rate, z / 2) if added else FixedSizeReplacePair(sampling.rate, z / 2)
        case ShuffledEpochs():
            return GaussianPair(mu)
        case WithReplacement(population, draws):
            return _multiplicity_pair(population, draws, mu)
        case RandomAllocation(batches):
            if not revealed:
                return RandomAllocationPair(batches, sampling.drawn, z)
            return _participation_pair(sampling.drawn / batches, mu) if sampling.drawn < batches else GaussianPair(mu)
        case Cyclic(rate=rate):  # docs/theorems/banded.md, theorems 1 and 2
            return GaussianPair(mu) if rate == 1 else SubsampledGaussianPair(rate, z)
        case TruncatedPoisson():
            raise UnsupportedCombination(
                "a truncated batch on its own",
                "what is cut off costs delta, which no dominating pair holds",
                "price the whole release with calibrate.accountants.accountant.epsilon_of",
            )
        case _:
            assert_never(sampling)


def _refuse_unproved(sampling: Sampling, unit: PrivacyUnit) -> None:
    """Raise for each combination of sampling, batch and relation without a proved pair."""
    name = f"{sampling.batch.value} {_name(sampling)} batches x {unit.relation.value}"
    if unit.relation is Relation.ADD_REMOVE:
        if isinstance(sampling, FixedSize) and sampling.size == sampling.population:
            raise UnsupportedCombination(
                name,
                f"without the unit fewer than {sampling.size} are left to fill a batch",
                "draw fewer than there are units, or use replace-one",
            )
        if not isinstance(sampling, Poisson | RandomAllocation | FixedSize | TruncatedPoisson | Cyclic):
            raise UnsupportedCombination(
                name,
                "the batches of this sampling depend on the number of units, which add-remove changes",
                "use replace-one (two bounds), Poisson or fixed-size sampling, or random allocation",
            )
        if sampling.batch is Batch.REVEALED:
            raise UnsupportedCombination(
                name,
                "a revealed batch shows that the unit is in the data",
                "keep the batch secret, or use replace-one or replace-attribute",
            )
    if sampling.batch is Batch.REVEALED:
        return
    if isinstance(sampling, Cyclic) and sampling.rate < 1 and unit.relation is not Relation.ADD_REMOVE:
        raise UnsupportedCombination(
            name,
            "a replaced unit may change its group, and amplification is proved here for one group only",
            "use add-remove, or let each group take part whole (a rate of one over the batches per cycle)",
        )
    if isinstance(sampling, ShuffledEpochs | WithReplacement):
        raise UnsupportedCombination(
            name,
            "no amplification by this sampling is proved here for secret batches",
            "account the batch as revealed, or sample by Poisson or by fixed size",
        )
    if isinstance(sampling, RandomAllocation) and unit.relation is Relation.REPLACE_ONE:
        raise UnsupportedCombination(
            name,
            "amplification by random allocation is proved here for added and removed units only",
            "use add-remove, or account the batch as revealed",
        )
    if unit.relation is Relation.REPLACE_ATTRIBUTE:
        raise UnsupportedCombination(
            name,
            "the part that a record's two messages share is unbounded and shows whether it was in the batch",
            "account the batch as revealed, or clip the whole contribution and account under replace-one",
        )


def _participation_pair(rate: float, mu: float) -> MixedGaussianPair:
    return MixedGaussianPair(((1 - rate, 0.0), (rate, mu)))


def _multiplicity_pair(population: int, draws: int, mu: float) -> DominatingPair:
    """How often one unit is drawn is Binomial(draws, 1/population); j draws move the sum j times as far."""
    if population == 1:
        return GaussianPair(draws * mu)
    mode, odds = min(draws, (draws + 1) // population), 1 / (population - 1)
    unnormalised = {mode: 1.0}
    for j in range(mode, draws):  # ratios of neighbours, outward from the mode: no cancellation anywhere
        unnormalised[j + 1] = unnormalised[j] * odds * (draws - j) / (j + 1)
        if unnormalised[j + 1] < _NEGLIGIBLE_WEIGHT:
            break
    for j in range(mode, 0, -1):
        unnormalised[j - 1] = unnormalised[j] * j / (odds * (draws - j + 1))
        if unnormalised[j - 1] < _NEGLIGIBLE_WEIGHT:
            break
    total = math.fsum(unnormalised.values())
    return MixedGaussianPair(tuple((weight / total, j * mu) for j, weight in sorted(unnormalised.items())))


def _name(sampling: Sampling) -> str:
    match sampling:
        case Poisson():
            return "Poisson"
        case FixedSize():
            return "fixed-size"
        case ShuffledEpochs():
            return "shuffled-epoch"
        case WithReplacement():
            return "with-replacement"
        case RandomAllocation():
            return "randomly allocated"
        case TruncatedPoisson():
            return "truncated Poisson"
        case Cyclic():
            return "cyclic"
        case _:
            assert_never(sampling)


# The cheapest exact price: which dominating pairs were published, and how often each.
#
# Composition only adds counts, so nothing is rounded before the accountant knows the whole composition, and it
# can choose its grid for it. Used by the accountants that evaluate everything at the end.


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
        """Both ends of epsilon at `delta`, which lies in (0, 1), for the composition `cost`."""
        open_unit("delta", delta)
        if cost.unprotected:
            return EpsilonInterval(math.inf, math.inf)
        return self._interval(cost, delta) if cost.counts else EpsilonInterval(0.0, 0.0)

    @abstractmethod
    def _interval(self, cost: PairCounts, delta: float) -> EpsilonInterval: ...
