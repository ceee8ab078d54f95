"""From priced pairs to the loss laws to compose, per side of the certificate and per direction.

A neighbouring step can be looked at from either of its two data sets. For a symmetric pair that makes no
difference; otherwise both directions are composed, each alone, because the data sets stay the same throughout
a composition. The upper side may use larger laws than the lower side (fixed-size batches).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from calibrate.accountants.losses import (
    EitherLoss,
    GaussianLoss,
    LaplaceLoss,
    MixedGaussianLoss,
    PrivacyLossLaw,
    RandomizedResponseLoss,
)
from calibrate.accountants.registry import PairCounts
from calibrate.accountants.sampled_losses import (
    LargerOfBothDirections,
    RandomAllocationLoss,
    SubsampledAddition,
    SubsampledRemoval,
    SubsampledReplacement,
)
from calibrate.accountants.support import (
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
    TruncatedPair,
    Unbounded,
)


class Side(Enum):
    """Which end of the interval is being certified."""

    UPPER = "upper"
    LOWER = "lower"


@dataclass(frozen=True)
class Composition:
    """Independent losses that add up: distinct laws, each with its count."""

    terms: tuple[tuple[PrivacyLossLaw, int], ...]

    @property
    def steps(self) -> int:
        return sum(count for _, count in self.terms)

    @property
    def largest(self) -> float:
        """No total loss exceeds this."""
        return sum(count * law.largest for law, count in self.terms)


def compositions(pairs: PairCounts, side: Side) -> tuple[Composition, ...]:
    """What to compose for one side: one composition if every pair is symmetric, else one per direction.

    Expects no Unbounded pair; all Gaussian pairs are first joined into one, exactly.
    """
    joined = _join_gaussians(pairs.counts)
    directed = [(_laws_of(pair, side), count) for pair, count in joined]
    forward = Composition(tuple((laws[0], count) for laws, count in directed))
    backward = Composition(tuple((laws[1], count) for laws, count in directed))
    return (forward,) if forward == backward else (forward, backward)


def _join_gaussians(counts: tuple[tuple[DominatingPair, int], ...]) -> tuple[tuple[DominatingPair, int], ...]:
    """Gaussian losses add up to a Gaussian loss: mu^2 adds."""
    others = tuple((pair, count) for pair, count in counts if not isinstance(pair, GaussianPair))
    squares = math.fsum(count * pair.mu**2 for pair, count in counts if isinstance(pair, GaussianPair))
    return others if squares == 0 else ((GaussianPair(math.sqrt(squares)), 1), *others)


def _laws_of(pair: DominatingPair, side: Side) -> tuple[PrivacyLossLaw, PrivacyLossLaw]:
    match pair:
        case GaussianPair(mu):
            return _symmetric(GaussianLoss(mu))
        case SubsampledGaussianPair(rate, z):
            return _both_directions(rate, z)
        case SubsampledReplacePair(rate, z):
            return _symmetric(GaussianLoss(2 / z) if rate == 1 else SubsampledReplacement(rate, z))
        case FixedSizeReplacePair(rate, z):
            # One direction alone is attained by a real data set (after equation 6), so it is a lower bound.
            if side is Side.LOWER or rate == 1:
                return _both_directions(rate, z)
            return _symmetric(LargerOfBothDirections(rate, z))  # equation 6, an upper bound only
        case TruncatedPair(whole, chance):
            usual, cut = _laws_of(whole, side), _laws_of(pair.cut, side)
            if side is Side.LOWER:
                return usual
            return EitherLoss(usual[0], cut[0], chance), EitherLoss(usual[1], cut[1], chance)
        case RandomAllocationPair(batches, drawn, z):
            upper = side is Side.UPPER
            removal = RandomAllocationLoss(z, batches, drawn, True, upper)
            return removal, RandomAllocationLoss(z, batches, drawn, False, upper)
        case MixedGaussianPair(components):
            return _symmetric(MixedGaussianLoss.of(components))  # equation 7
        case LaplacePair(scale):
            return _symmetric(LaplaceLoss(scale))
        case RandomizedResponsePair(epsilon, categories):
            return _symmetric(RandomizedResponseLoss(epsilon, categories))
        case Free() | Unbounded():
            raise AssertionError("free and unbounded pairs have no loss law to compose")
        case _:
            assert_never(pair)


def _symmetric(law: PrivacyLossLaw) -> tuple[PrivacyLossLaw, PrivacyLossLaw]:
    return law, law


def _both_directions(rate: float, z: float) -> tuple[PrivacyLossLaw, PrivacyLossLaw]:
    if rate == 1:
        return _symmetric(GaussianLoss(1 / z))
    return SubsampledRemoval(rate, z), SubsampledAddition(rate, z)  # equation 3 and its mirror image
