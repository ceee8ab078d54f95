"""What a privacy-loss law must be able to say about itself, and the laws without secret sampling.

A law is one *ordered* pair (P, Q): the distribution, under P, of the loss L = log dP/dQ. It consists of a
few atoms and a continuous part. Two questions are asked of it:

* the certified grid asks for the P- and Q-mass of loss buckets, with a bound on the rounding error of each;
* the contour integral asks for quadrature nodes, from which the cumulants of L follow.

The first is a proof obligation, the second only steers a search. Here are the laws of Gaussian and Laplace noise, of
randomised response, and of Gaussians on revealed batches; those of secret batches are in `sampled_losses`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri_exp

from calibrate.arrays import Floats

UNIT_ROUNDOFF = 2.0**-53

LARGEST_LOSS = 600.0
"""Loss beyond this is counted as infinite (upper side) or dropped (lower side); exp() stays finite below it."""


@dataclass(frozen=True)
class Atom:
    """A single loss value with its P-mass (its Q-mass is exp(-loss) times that)."""

    loss: float
    mass: float


@dataclass(frozen=True)
class Buckets:
    """Masses of the continuous part between consecutive edges; each error bounds the rounding of one entry.

    `below` and `above` bound, from above, the P-mass outside the edges.
    """

    p: Floats
    q: Floats
    p_error: Floats
    q_error: Floats
    below: float
    above: float


def at_ends(mass: Floats, share: Floats, uncertain: Floats | float = 0.0) -> Floats:
    """Masses at the ends of cells: `share` above, the rest below, and `uncertain` mass at both."""
    ends = np.zeros(len(mass) + 1)
    ends[:-1] += mass - share + uncertain
    ends[1:] += share + uncertain
    return ends


def connected_dots(buckets: Buckets, edges: Floats) -> Floats:
    """Masses at the edges whose profile connects the dots of the buckets' own (equation 8), rounded up.

    A share of each bucket goes to its upper edge, the rest to the lower one, so that P- and Q-mass are kept. Losses
    below the first edge are raised to it: the profile only rises.
    """
    mass = buckets.p + buckets.p_error
    excess = mass - (buckets.q - buckets.q_error) * np.exp(edges[:-1]) + edge_error(edges) * mass
    masses = at_ends(mass, np.clip(excess / -np.expm1(-np.diff(edges)), 0.0, mass))
    masses[0] += buckets.below
    return masses


def edge_error(edges: Floats) -> Floats:
    """Relative error of an excess over the lower edge because of the rounding of exp(edge) and of the widths."""
    return 8 * UNIT_ROUNDOFF * (1 + np.maximum(np.abs(edges[1:]), np.abs(edges[:-1])))


@dataclass(frozen=True)
class Nodes:
    """Quadrature for the continuous part: the integral of f(L) dP is the sum of exp(log_weights) f(losses).

    `losses` ascend. The rule is accurate for f(L) = exp(s L) with 0 <= Re s <= the tilt it was made for.
    """

    log_weights: Floats
    losses: Floats


class PrivacyLossLaw(ABC):
    """One ordered dominating pair, seen through its loss; without atoms and unbounded unless a law says otherwise."""

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """Loss values that carry positive mass."""
        return ()

    @property
    def unbounded_mass(self) -> float:
        """P-mass whose loss is treated as infinite on the upper side and dropped on the lower."""
        return 0.0

    @property
    def largest(self) -> float:
        """The essential supremum of the loss; infinity where it has none."""
        return math.inf

    @abstractmethod
    def span(self, log_mass: float) -> tuple[float, float]:
        """Loss values outside which the continuous part has P-mass at most exp(log_mass) on either side."""

    @abstractmethod
    def buckets(self, edges: Floats) -> Buckets:
        """Masses of the continuous part in the loss intervals between ascending `edges`."""

    @abstractmethod
    def nodes(self, largest_tilt: float, largest_loss: float = math.inf) -> Nodes:
        """Quadrature nodes good for every tilt up to `largest_tilt`; losses above `largest_loss` may be left out.

        How many there are must not grow faster than the logarithm of the tilt once `largest_loss` is finite.
        """


@dataclass(frozen=True)
class EitherLoss(PrivacyLossLaw):
    """With probability `chance` the loss of `other`, else that of `usual`: the observer sees which. No atoms."""

    usual: PrivacyLossLaw
    other: PrivacyLossLaw
    chance: float

    @property
    def largest(self) -> float:
        return max(self.usual.largest, self.other.largest)

    def span(self, log_mass: float) -> tuple[float, float]:
        low, high = self.usual.span(log_mass - math.log(2))
        if log_mass - math.log(2 * self.chance) < 0:
            below, above = self.other.span(log_mass - math.log(2 * self.chance))
            low, high = min(low, below), max(high, above)
        return low, high

    def buckets(self, edges: Floats) -> Buckets:
        usual, other = self.usual.buckets(edges), self.other.buckets(edges)

        def mixed(one: Any, more: Any) -> Any:
            return ((1 - self.chance) * one + self.chance * more) * (1 + 4 * UNIT_ROUNDOFF)

        return Buckets(
            p=mixed(usual.p, other.p),
            q=mixed(usual.q, other.q),
            p_error=mixed(usual.p_error, other.p_error) + 8 * UNIT_ROUNDOFF * mixed(usual.p, other.p),
            q_error=mixed(usual.q_error, other.q_error) + 8 * UNIT_ROUNDOFF * mixed(usual.q, other.q),
            below=float(mixed(usual.below, other.below)),
            above=float(mixed(usual.above, other.above)),
        )

    def nodes(self, largest_tilt: float, largest_loss: float = math.inf) -> Nodes:
        parts = (self.usual.nodes(largest_tilt, largest_loss), self.other.nodes(largest_tilt, largest_loss))
        shares = (math.log1p(-self.chance) if self.chance < 1 else -math.inf, math.log(self.chance))
        losses = np.concatenate([part.losses for part in parts])
        weights = np.concatenate([part.log_weights + share for part, share in zip(parts, shares, strict=True)])
        order = np.argsort(losses)
        return Nodes(weights[order], losses[order])


# Gaussian mixtures on the line: interval masses with error bounds, and trapezoidal nodes.
#
# Several laws are a pair of Gaussian mixtures of one common deviation whose likelihood ratio increases in x.
# An interval of losses is then an interval of x, and its masses are differences of normal distribution functions.

Mixture = Mapping[float, float]
"""Mean -> weight."""

DEVIATIONS_COVERED = 9.5
"""Deviations beyond the tilted centres that quadrature covers; the rest is below 1e-20."""

_ROUNDINGS = 6.0
"""ndtr(u) is taken to be right to this many units u (1 + u^2); tests measure it against 60 digits."""


def normal_masses(x: Floats, mean: float, deviation: float) -> tuple[Floats, Floats, float, float]:
    """Mass of N(mean, deviation^2) between consecutive x, the error of each, and the mass below and above.

    Differences are taken of whichever tail is smaller, so that both tails keep their relative precision.
    """
    u = np.clip((x - mean) / deviation, -38.0, 38.0)
    right = u > 0
    tail = ndtr(np.where(right, -u, u))
    tail[np.isinf(x)] = 0.0
    both_left = ~right[1:]
    both_right = right[:-1]
    mass = np.where(
        both_left, tail[1:] - tail[:-1], np.where(both_right, tail[:-1] - tail[1:], 1.0 - tail[1:] - tail[:-1])
    )
    wobble = _ROUNDINGS * UNIT_ROUNDOFF * tail * (1.0 + u * u)
    error = wobble[1:] + wobble[:-1] + 4 * UNIT_ROUNDOFF * np.abs(mass)
    below = 1.0 - tail[0] if right[0] else tail[0] + wobble[0]
    above = tail[-1] + wobble[-1] if right[-1] else 1.0 - tail[-1]
    return np.maximum(mass, 0.0), error, float(below), float(above)


def mixture_buckets(x: Floats, p: Mixture, q: Mixture, deviation: float) -> Buckets:
    """Masses of two mixtures between consecutive ascending x."""
    masses = {mean: normal_masses(x, mean, deviation) for mean in {*p, *q}}

    def mixed(mixture: Mixture, part: int) -> Floats:
        return np.asarray(sum(weight * masses[mean][part] for mean, weight in mixture.items()))

    return Buckets(
        p=mixed(p, 0),
        q=mixed(q, 0),
        p_error=mixed(p, 1),
        q_error=mixed(q, 1),
        below=float(mixed(p, 2)),
        above=float(mixed(p, 3)),
    )


def trapezoid(high: float, deviation: float, last: float = math.inf) -> tuple[Floats, float]:
    """Equidistant x from 0 to `high` with `DEVIATIONS_COVERED` deviations on both sides, and their spacing.

    Beyond `last` no x is needed, except what resolves the deviation there.

    The trapezoidal rule converges geometrically here; the spacing resolves the Gaussian (deviation), the
    logarithmic singularities of the likelihood ratio, which lie pi * deviation^2 away from the real line, and
    the oscillation of exp(i t L) at the frequencies that the contour integral needs.
    """
    spacing = min(0.125 * deviation, 0.175 * deviation**2)
    start, stop = -DEVIATIONS_COVERED * deviation, min(high + DEVIATIONS_COVERED * deviation, last + deviation)
    count = math.ceil((stop - start) / spacing) + 1
    return start + spacing * np.arange(count, dtype=np.float64), spacing


def log_normal_density(x: Floats, deviation: float) -> Floats:
    """Logarithm of the density of N(0, deviation^2)."""
    return -0.5 * (x / deviation) ** 2 - math.log(deviation * math.sqrt(2 * math.pi))


def normal_reach(log_mass: float) -> float:
    """How many deviations leave at most exp(log_mass) in one tail of the normal law."""
    return -float(ndtri_exp(min(log_mass, math.log(0.5))))


def log_mixed_ratio(exponent: Floats, rate: float) -> Floats:
    """log(1 - rate + rate * exp(exponent)) without cancellation near 0 and without overflow."""
    moderate = np.minimum(exponent, 30.0)
    near = np.log1p(rate * np.expm1(moderate))
    far = math.log(rate) + exponent + np.log1p((1 - rate) / rate * np.exp(-np.maximum(exponent, 30.0)))
    return np.where(exponent <= 30.0, near, far)


def exponent_of_mixed_ratio(loss: Floats, rate: float) -> Floats:
    """The inverse of `log_mixed_ratio`; -infinity at and below its infimum log(1 - rate)."""
    floor = math.log1p(-rate) if rate < 1 else -math.inf
    above_floor = loss - floor
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inner = np.expm1(np.minimum(loss, 30.0)) / rate
        near_zero = np.log1p(np.maximum(inner, -1.0))
        near_floor = floor + np.log(np.expm1(np.clip(above_floor, 0.0, 30.0))) - math.log(rate)
        far = loss - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-np.maximum(loss, 30.0)))
    moderate = np.where(inner > -0.5, near_zero, near_floor)
    exponent = np.where(loss <= 30.0, moderate, far)
    return np.where(above_floor <= 0, -np.inf, exponent)


# The loss of a Gaussian mechanism: under P it is N(mu^2/2, mu^2), under Q N(-mu^2/2, mu^2).


@dataclass(frozen=True)
class GaussianLoss(PrivacyLossLaw):
    """P = N(mu, 1), Q = N(0, 1); the loss at x is mu x - mu^2 / 2."""

    mu: float

    def span(self, log_mass: float) -> tuple[float, float]:
        reach, centre = normal_reach(log_mass), self.mu**2 / 2
        return centre - self.mu * reach, min(LARGEST_LOSS, centre + self.mu * reach)

    def buckets(self, edges: Floats) -> Buckets:
        return mixture_buckets(edges / self.mu + self.mu / 2, {self.mu: 1.0}, {0.0: 1.0}, 1.0)

    def nodes(self, largest_tilt: float, largest_loss: float = math.inf) -> Nodes:
        offset, spacing = trapezoid(largest_tilt * self.mu, 1.0, largest_loss / self.mu - self.mu / 2)
        return Nodes(
            log_weights=log_normal_density(offset, 1.0) + math.log(spacing), losses=self.mu * offset + self.mu**2 / 2
        )


# The loss of a Laplace mechanism: bounded by 1/b, with an atom at either end.
#
# P = Laplace(1, b), Q = Laplace(0, b). At x in (0, 1) the loss is (2x - 1)/b; everything below 0 has loss -1/b,
# everything above 1 has loss 1/b.

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(10)


@dataclass(frozen=True)
class LaplaceLoss(PrivacyLossLaw):
    """P = Laplace(1, scale), Q = Laplace(0, scale)."""

    scale: float

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return (Atom(-self.largest, math.exp(-self.largest) / 2), Atom(self.largest, 0.5))

    @property
    def largest(self) -> float:
        return 1 / self.scale

    def span(self, log_mass: float) -> tuple[float, float]:
        return -self.largest, self.largest

    def buckets(self, edges: Floats) -> Buckets:
        x = (np.clip(edges, -self.largest, self.largest) * self.scale + 1) / 2
        growth = np.diff(x) / self.scale
        p = np.exp(-(1 - x[1:]) / self.scale) / 2 * -np.expm1(-growth)
        q = np.exp(-x[:-1] / self.scale) / 2 * -np.expm1(-growth)
        # growth is a difference of x / scale <= 1 / scale, so its absolute error is a few units of that.
        wobble = 8 * UNIT_ROUNDOFF * (1 + self.largest)
        p_error = np.where(growth > 0, wobble * (p + np.exp(-(1 - x[1:]) / self.scale) / 2), 0.0)
        q_error = np.where(growth > 0, wobble * (q + np.exp(-x[:-1] / self.scale) / 2), 0.0)
        below = math.exp(-self.largest) * math.expm1(x[0] / self.scale) / 2 * (1 + 1e-12)
        above = (1 - math.exp(-(1 - x[-1]) / self.scale)) / 2 if edges[-1] < self.largest else 0.0
        return Buckets(p, q, p_error, q_error, below=below, above=above)

    def nodes(self, largest_tilt: float, largest_loss: float = math.inf) -> Nodes:
        """Panels that double away from the upper end, where a tilt concentrates the mass."""
        finest = min(1.0, self.scale / (1 + 2 * largest_tilt))
        doublings = np.arange(math.ceil(math.log2(1 / finest)) + 1)
        ends = np.concatenate(([1.0], 1 - np.minimum(1.0, finest * 2.0**doublings)))[::-1]
        width = np.diff(ends)[:, None]
        from_end = (1 - ends[1:, None]) + width * (1 - _POINTS) / 2
        log_density = -from_end / self.scale - math.log(2 * self.scale)
        log_weights = np.log(_WEIGHTS * width / 2) + log_density
        return Nodes(log_weights.ravel(), ((1 - 2 * from_end) / self.scale).ravel())


@dataclass(frozen=True)
class RandomizedResponseLoss(PrivacyLossLaw):
    """The truth is category 1 under P and 2 under Q; each other category is equally likely under both."""

    epsilon: float
    categories: int

    @property
    def atoms(self) -> tuple[Atom, ...]:
        lie = 1 / (math.exp(self.epsilon) + self.categories - 1)
        ends = (Atom(-self.epsilon, lie), Atom(self.epsilon, math.exp(self.epsilon) * lie))
        return ends if self.categories == 2 else (*ends, Atom(0.0, (self.categories - 2) * lie))

    @property
    def largest(self) -> float:
        return self.epsilon

    def span(self, log_mass: float) -> tuple[float, float]:
        return 0.0, 0.0

    def buckets(self, edges: Floats) -> Buckets:
        nothing = np.zeros(len(edges) - 1)
        return Buckets(nothing, nothing, nothing, nothing, below=0.0, above=0.0)

    def nodes(self, largest_tilt: float, largest_loss: float = math.inf) -> Nodes:
        return Nodes(np.empty(0), np.empty(0))


# Revealed batches: the observer sees how often the unit took part, and a Gaussian release of that strength.
#
# Given multiplicity j the loss is N(mu_j^2/2, mu_j^2) under P, and 0 where mu_j = 0; the multiplicity itself
# has one distribution under both P and Q and adds nothing (docs/theorems/certified-accountant.md, equation 7).


@dataclass(frozen=True)
class MixedGaussianLoss(PrivacyLossLaw):
    """With probability w_j a Gaussian loss with parameter mu_j > 0; else loss 0 (`idle`), or dropped.

    `rare` is the weight of components too rare to matter at any delta, kept apart so that they cannot dominate
    the cumulants; the upper side counts it as infinite loss.
    """

    components: tuple[tuple[float, float], ...]
    idle: float
    rare: float

    @classmethod
    def of(cls, components: tuple[tuple[float, float], ...], negligible: float = 1e-46) -> MixedGaussianLoss:
        kept = tuple((w, mu) for w, mu in components if mu > 0 and w > negligible)
        idle = math.fsum(w for w, mu in components if mu == 0)
        rare = math.fsum(w for w, mu in components if mu > 0 and w <= negligible)
        return cls(kept, idle, rare)

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return (Atom(0.0, self.idle),) if self.idle > 0 else ()

    @property
    def unbounded_mass(self) -> float:
        return self.rare

    def span(self, log_mass: float) -> tuple[float, float]:
        low, high = 0.0, 0.0
        for weight, mu in self.components:
            reach = mu * normal_reach(log_mass - math.log(weight * len(self.components)))
            low, high = min(low, mu**2 / 2 - reach), max(high, mu**2 / 2 + reach)
        return max(-LARGEST_LOSS, low), min(LARGEST_LOSS, high)

    def buckets(self, edges: Floats) -> Buckets:
        totals = [np.zeros(len(edges) - 1) for _ in range(4)]
        below = above = 0.0
        for weight, mu in self.components:
            p, p_error, p_below, p_above = normal_masses(edges, mu**2 / 2, mu)
            q, q_error, _, _ = normal_masses(edges, -(mu**2) / 2, mu)
            for total, part in zip(totals, (p, q, p_error, q_error), strict=True):
                total += weight * part
            below, above = below + weight * p_below, above + weight * p_above
        p_total, q_total, p_errors, q_errors = totals
        return Buckets(p_total, q_total, p_errors, q_errors, below, above)

    def nodes(self, largest_tilt: float, largest_loss: float = math.inf) -> Nodes:
        """One equidistant grid that resolves the narrowest component serves them all."""
        if not self.components:
            return Nodes(np.empty(0), np.empty(0))
        spacing = 0.25 * min(mu for _, mu in self.components)
        low = min(mu**2 / 2 - DEVIATIONS_COVERED * mu for _, mu in self.components)
        high = max((0.5 + largest_tilt) * mu**2 + DEVIATIONS_COVERED * mu for _, mu in self.components)
        high = min(high, max(largest_loss, 0.0) + spacing)
        losses = low + spacing * np.arange(math.ceil((high - low) / spacing) + 1, dtype=np.float64)
        weights, mus = np.array(self.components).T
        offsets = (losses[:, None] - mus**2 / 2) / mus
        log_densities = -0.5 * offsets**2 + np.log(weights / (mus * math.sqrt(2 * math.pi)))
        return Nodes(logsumexp(log_densities, axis=1) + math.log(spacing), losses)
