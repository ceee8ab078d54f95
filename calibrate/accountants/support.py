"""Which release has a proved dominating pair under which adjacency: the one place that decides.

`dominating_pairs(leaf, unit)` maps one leaf release to the pairs whose composition dominates it, or refuses
with the remedy. All accountants price what this function returns, so that none of them can support
(or misread) a combination on its own.

==================  ======================  =========================  ============================
release             add-remove              replace-one                replace-attribute
==================  ======================  =========================  ============================
Gaussian            GaussianPair(1/z)       GaussianPair(2/z)          GaussianPair(1/z)
Laplace             LaplacePair(b)          LaplacePair(b/2)           LaplacePair(b)
randomised resp.    refused                 RandomizedResponsePair     RandomizedResponsePair
Poisson, secret     SubsampledGaussianPair  SubsampledReplacePair      refused
truncated, secret   TruncatedPair           TruncatedPair              refused
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

A pair (P, Q) dominates a release when, for every pair of neighbouring data sets and every e, the release's
hockey-stick divergence at e^e is at most that of (P, Q). Dominating pairs compose (also adaptively), so an
accountant needs nothing else. Every scale convention of `releases` is already resolved in a pair: its multiplier is
the noise over the distance between the means that the pair itself has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import assert_never, get_args

from calibrate.errors import InvalidInput, UnsupportedCombination, count, positive, rate
from calibrate.privacy_unit import PrivacyUnit, Relation, bounds_apart
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
    scheme_of,
)


@dataclass(frozen=True)
class GaussianPair:
    """P = N(mu, 1), Q = N(0, 1); its own mirror image."""

    mu: float

    def __post_init__(self) -> None:
        positive("mu", self.mu)


@dataclass(frozen=True)
class _SubsampledPair:
    """A Gaussian release on a secret batch that a unit joins with probability `rate`."""

    rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        rate("sampling rate", self.rate)
        positive("noise multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class SubsampledGaussianPair(_SubsampledPair):
    """Secret batch, add-remove: ((1-q) N(0, z^2) + q N(1, z^2), N(0, z^2)) **and** its mirror image.

    For Poisson batches z is the release's multiplier, for batches of fixed size half of it.

    The two directions differ, and a bound must cover both (compose each alone, then take the larger).
    """


@dataclass(frozen=True)
class SubsampledReplacePair(_SubsampledPair):
    """Secret Poisson batch, replace-one: ((1-q) N(0, z^2) + q N(1, z^2), (1-q) N(0, z^2) + q N(-1, z^2)).

    Its own mirror image. The multiplier is relative to one contribution bound: the means are +1 and -1.
    """


@dataclass(frozen=True)
class FixedSizeReplacePair(_SubsampledPair):
    """Secret batch of fixed size, replace-one: the pointwise maximum of a pair's profile and its mirror's.

    The pair is ((1-q) N(0, z^2) + q N(1, z^2), N(0, z^2)); `noise_multiplier` is already this z, which is HALF
    the release's multiplier because a replaced unit moves the sum by two bounds. Composing the pointwise
    maximum is an upper bound. Composing one direction alone is attained by a real data set: a lower bound.
    """


@dataclass(frozen=True)
class RandomAllocationPair:
    """One epoch of random allocation, add-remove: (mean over i of N(e_i, z^2 I), N(0, z^2 I)) **and** its mirror image.

    `batches` are the rounds of an epoch, of which the first `drawn` are made
    (docs/theorems/sampling.md#random-allocation).
    """

    batches: int
    drawn: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        count("batches per epoch", self.batches)
        count("rounds of the epoch", self.drawn)
        positive("noise multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class MixedGaussianPair:
    """Revealed batch: with probability w_j the observer sees which j it is and a Gaussian pair with mu_j.

    `components` holds (w_j, mu_j) with distinct, increasing mu_j >= 0; mu = 0 is "took no part". The weights
    sum to one. Its own mirror image. For revealed Poisson batches: ((1-q, 0), (q, mu)).
    """

    components: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        weights = [weight for weight, _ in self.components]
        shifts = [mu for _, mu in self.components]
        ordered = all(low < high for low, high in pairwise(shifts))
        if (
            not weights
            or min(weights) < 0
            or not ordered
            or not 0 <= shifts[0] <= shifts[-1] < math.inf
            or abs(math.fsum(weights) - 1) > 1e-9
        ):
            raise InvalidInput(
                "components",
                self.components,
                "must be weights that sum to 1, each with a larger shift than the one before",
                "list each shift once, smallest first",
            )


@dataclass(frozen=True)
class LaplacePair:
    """P = Laplace(1, b), Q = Laplace(0, b) on the line; its own mirror image."""

    scale: float

    def __post_init__(self) -> None:
        positive("Laplace scale", self.scale)


@dataclass(frozen=True)
class RandomizedResponsePair:
    """The truth is category 1 under P and 2 under Q; reported by k-ary randomised response."""

    epsilon: float
    categories: int

    def __post_init__(self) -> None:
        positive("randomised-response epsilon", self.epsilon)
        count("categories", self.categories, least=2)


@dataclass(frozen=True)
class TruncatedPair:
    """Secret truncated Poisson batch: with probability `cut_chance` the observer sees that others fill the batch.

    Then a unit that joins takes another one's place, which moves the sum by two bounds: the pair of half the noise.
    Otherwise nothing is cut. An upper bound: `whole`, the pair of Poisson batches, is attained by a data set that is
    never cut.
    """

    whole: SubsampledGaussianPair | SubsampledReplacePair
    cut_chance: float

    @property
    def cut(self) -> SubsampledGaussianPair | SubsampledReplacePair:
        """What is published where others fill the batch."""
        return replace(self.whole, noise_multiplier=self.whole.noise_multiplier / 2)


@dataclass(frozen=True)
class Free:
    """P = Q: the release does not depend on the unit."""


@dataclass(frozen=True)
class Unbounded:
    """P and Q are disjoint: nothing is protected, epsilon is infinite at every delta < 1."""


PricedPair = (
    GaussianPair
    | SubsampledGaussianPair
    | SubsampledReplacePair
    | FixedSizeReplacePair
    | MixedGaussianPair
    | RandomAllocationPair
    | LaplacePair
    | RandomizedResponsePair
    | TruncatedPair
)
DominatingPair = PricedPair | Free | Unbounded

PRICED_PAIRS: tuple[type, ...] = get_args(PricedPair)
"""Every pair that has a price between nothing and infinity."""


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
    # The whole data set is one batch for all values, so their multipliers join as z = (sum z_i^-2)^(-1/2).
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
                return _participation_pair(rate, mu)  # equation 7, j in {0, 1}
            if unit.relation is Relation.ADD_REMOVE:
                return SubsampledGaussianPair(rate, z)  # equation 3
            return SubsampledReplacePair(rate, z)  # equation 4: means at +1 and -1 are the worst
        case FixedSize():
            if revealed:
                return _participation_pair(sampling.rate, mu)
            # Equation 16 for an added unit, equations 5 and 6 for a replaced one, both with half the noise:
            # The unit takes the place of another one, so the sum moves by two bounds under either relation.
            added = unit.relation is Relation.ADD_REMOVE
            return SubsampledGaussianPair(sampling.rate, z / 2) if added else FixedSizeReplacePair(sampling.rate, z / 2)
        case ShuffledEpochs():
            return GaussianPair(mu)
        case WithReplacement(population, draws):
            return _multiplicity_pair(population, draws, mu)  # equation 7, j binomial
        case RandomAllocation(batches):
            if not revealed:
                return RandomAllocationPair(batches, sampling.drawn, z)
            return _participation_pair(sampling.drawn / batches, mu) if sampling.drawn < batches else GaussianPair(mu)
        case Cyclic(rate=rate):  # docs/theorems/banded.md, theorems 1 and 2
            return GaussianPair(mu) if rate == 1 else SubsampledGaussianPair(rate, z)
        case TruncatedPoisson(rate=rate):  # docs/theorems/sampling.md#truncated-poisson-batches, equation 1
            added = unit.relation is Relation.ADD_REMOVE
            whole = SubsampledGaussianPair(rate, z) if added else SubsampledReplacePair(rate, z)
            return TruncatedPair(whole, sampling.cut_chance) if sampling.cut_chance > 0 else whole
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
    """Its name in manifests as a word of a sentence."""
    return scheme_of(sampling).replace("poisson", "Poisson").removesuffix("s")
