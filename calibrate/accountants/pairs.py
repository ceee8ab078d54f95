"""The closed set of dominating pairs: what one release is worth to the strongest observer.

A pair (P, Q) dominates a release when, for every pair of neighbouring data sets and every e, the release's
hockey-stick divergence at e^e is at most that of (P, Q). Dominating pairs compose (also adaptively), so an
accountant needs nothing else. Every scale convention of `releases` is already resolved here: a multiplier of
a pair is the noise over the distance between the means that the pair itself has.

`support.dominating_pairs` says which pair belongs to which release; the proofs are in
docs/theorems/certified-accountant.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

from calibrate.errors import InvalidInput, count, positive, rate


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

    `batches` are the rounds of an epoch, of which the first `drawn` are made (docs/theorems/random-allocation.md).
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
)
DominatingPair = PricedPair | Free | Unbounded

PRICED_PAIRS: tuple[type, ...] = get_args(PricedPair)
"""Every pair that has a price between nothing and infinity."""
