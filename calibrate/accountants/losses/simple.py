"""Loss laws without secret sampling: Gaussian, Laplace, randomised response, and Gaussians on revealed batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from calibrate.accountants.losses.law import (
    DEVIATIONS_COVERED,
    LARGEST_LOSS,
    UNIT_ROUNDOFF,
    Atom,
    Buckets,
    Nodes,
    PrivacyLossLaw,
    log_normal_density,
    mixture_buckets,
    normal_masses,
    normal_reach,
    trapezoid,
)
from calibrate.arrays import Floats

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
