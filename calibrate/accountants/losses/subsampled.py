"""A Poisson-subsampled Gaussian under replace-one: the unit's vector turns into its opposite.

P = (1-q) N(0, z^2) + q N(1, z^2), Q = (1-q) N(0, z^2) + q N(-1, z^2). Reflecting x exchanges P and Q, so one
direction is enough. The loss is log r(x) - log r(-x) with r of the subsampled Gaussian. Solving the quadratic
equation exp(loss) r(-x) = r(x) for exp(x / z^2) gives

    x = z^2 (loss/2 + asinh((1-q)/q * exp(1/(2 z^2)) * sinh(loss/2))),

which has no cancellation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from calibrate.accountants.losses.law import (
    LARGEST_LOSS,
    Atom,
    Buckets,
    Nodes,
    exponent_of_mixed_ratio,
    log_mixed_ratio,
    log_normal_density,
    mixture_buckets,
    normal_masses,
    normal_reach,
    trapezoid,
)
from calibrate.arrays import Floats

# The two directions of a Poisson-subsampled Gaussian under add-remove.
#
# With z the noise multiplier, r(x) = 1 - q + q exp((2x - 1) / (2 z^2)) is the likelihood ratio of the mixture
# M = (1-q) N(0, z^2) + q N(1, z^2) to N(0, z^2). Removing a unit compares M with N(0, z^2): the loss is
# log r(x). Adding one compares N(0, z^2) with M: the loss is -log r(x), written below in the mirrored
# variable y = -x so that it increases.


@dataclass(frozen=True)
class SubsampledRemoval:
    """P = (1-q) N(0, z^2) + q N(1, z^2), Q = N(0, z^2), with 0 < q < 1."""

    rate: float
    noise_multiplier: float

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return ()

    @property
    def unbounded_mass(self) -> float:
        return 0.0

    @property
    def largest(self) -> float:
        return math.inf

    def loss(self, x: Floats) -> Floats:
        return log_mixed_ratio((2 * x - 1) / (2 * self.noise_multiplier**2), self.rate)

    def position(self, loss: Floats) -> Floats:
        """The x at which the loss takes the given values; -infinity at and below its infimum."""
        return 0.5 + self.noise_multiplier**2 * exponent_of_mixed_ratio(loss, self.rate)

    def span(self, log_mass: float) -> tuple[float, float]:
        reach = normal_reach(log_mass) * self.noise_multiplier
        low, high = self.loss(np.array([-reach, 1 + reach]))
        return float(low), min(LARGEST_LOSS, float(high))

    def buckets(self, edges: Floats) -> Buckets:
        q = self.rate
        return mixture_buckets(self.position(edges), {0.0: 1 - q, 1.0: q}, {0.0: 1.0}, self.noise_multiplier)

    def nodes(self, largest_tilt: float) -> Nodes:
        z = self.noise_multiplier
        x, spacing = trapezoid(0.0, 1 + largest_tilt, z)
        losses = self.loss(x)
        return Nodes(log_normal_density(x, z) + losses + math.log(spacing), losses)


@dataclass(frozen=True)
class SubsampledAddition:
    """P = N(0, z^2), Q = (1-q) N(0, z^2) + q N(-1, z^2) (mirrored), with 0 < q < 1; bounded above."""

    rate: float
    noise_multiplier: float

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return ()

    @property
    def unbounded_mass(self) -> float:
        return 0.0

    @property
    def largest(self) -> float:
        return -math.log1p(-self.rate)

    def loss(self, y: Floats) -> Floats:
        return -log_mixed_ratio(-(2 * y + 1) / (2 * self.noise_multiplier**2), self.rate)

    def position(self, loss: Floats) -> Floats:
        """The y at which the loss takes the given values; infinity at and above its supremum."""
        return -0.5 - self.noise_multiplier**2 * exponent_of_mixed_ratio(-loss, self.rate)

    def span(self, log_mass: float) -> tuple[float, float]:
        reach = normal_reach(log_mass) * self.noise_multiplier
        low, high = self.loss(np.array([-reach, reach]))
        return max(-LARGEST_LOSS, float(low)), float(high)

    def buckets(self, edges: Floats) -> Buckets:
        q = self.rate
        return mixture_buckets(self.position(edges), {0.0: 1.0}, {0.0: 1 - q, -1.0: q}, self.noise_multiplier)

    def nodes(self, largest_tilt: float) -> Nodes:
        # exp(tilt * loss) moves the mode by tilt times the posterior of taking part, which is below q for y >= 0.
        z = self.noise_multiplier
        y, spacing = trapezoid(0.0, largest_tilt * self.rate, z)
        return Nodes(log_normal_density(y, z) + math.log(spacing), self.loss(y))


# Revealed batches: the observer sees how often the unit took part, and a Gaussian release of that strength.
#
# Given multiplicity j the loss is N(mu_j^2/2, mu_j^2) under P, and 0 where mu_j = 0; the multiplicity itself
# has one distribution under both P and Q and adds nothing.

_REACH = 9.5


@dataclass(frozen=True)
class MixedGaussianLoss:
    """With probability w_j a Gaussian loss with parameter mu_j > 0; else loss 0 (`idle`), or dropped.

    `unbounded_mass` is the weight of components too rare to matter at any delta, kept apart so that they
    cannot dominate the cumulants; the upper side counts it as infinite loss.
    """

    components: tuple[tuple[float, float], ...]
    idle: float
    unbounded_mass: float

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
    def largest(self) -> float:
        return math.inf

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

    def nodes(self, largest_tilt: float) -> Nodes:
        """One equidistant grid that resolves the narrowest component serves them all."""
        if not self.components:
            return Nodes(np.empty(0), np.empty(0))
        spacing = 0.25 * min(mu for _, mu in self.components)
        low = min(mu**2 / 2 - _REACH * mu for _, mu in self.components)
        high = max((0.5 + largest_tilt) * mu**2 + _REACH * mu for _, mu in self.components)
        losses = low + spacing * np.arange(math.ceil((high - low) / spacing) + 1, dtype=np.float64)
        weights, mus = np.array(self.components).T
        offsets = (losses[:, None] - mus**2 / 2) / mus
        log_densities = -0.5 * offsets**2 + np.log(weights / (mus * math.sqrt(2 * math.pi)))
        return Nodes(logsumexp(log_densities, axis=1) + math.log(spacing), losses)


@dataclass(frozen=True)
class SubsampledReplacement:
    """P = (1-q) N(0, z^2) + q N(1, z^2), Q = (1-q) N(0, z^2) + q N(-1, z^2), with 0 < q < 1."""

    rate: float
    noise_multiplier: float

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return ()

    @property
    def unbounded_mass(self) -> float:
        return 0.0

    @property
    def largest(self) -> float:
        return math.inf

    def _log_ratio(self, x: Floats) -> Floats:
        return log_mixed_ratio((2 * x - 1) / (2 * self.noise_multiplier**2), self.rate)

    def loss(self, x: Floats) -> Floats:
        return self._log_ratio(x) - self._log_ratio(-x)

    def position(self, loss: Floats) -> Floats:
        """The x at which the loss takes the given values."""
        log_factor = math.log1p(-self.rate) - math.log(self.rate) + 0.5 / self.noise_multiplier**2
        size = np.abs(loss) / 2
        with np.errstate(divide="ignore", over="ignore"):
            log_argument = log_factor + np.log(np.sinh(size))
            moderate = np.arcsinh(np.exp(np.minimum(log_argument, 300.0)))
        far = log_argument + math.log(2)  # asinh(s) = log(2 s) up to s^-2 / 4
        steps = size + np.where(log_argument <= 300.0, moderate, far)
        return self.noise_multiplier**2 * np.sign(loss) * steps

    def span(self, log_mass: float) -> tuple[float, float]:
        reach = normal_reach(log_mass) * self.noise_multiplier
        low, high = self.loss(np.array([-reach, 1 + reach]))
        return max(-LARGEST_LOSS, float(low)), min(LARGEST_LOSS, float(high))

    def buckets(self, edges: Floats) -> Buckets:
        q = self.rate
        return mixture_buckets(self.position(edges), {0.0: 1 - q, 1.0: q}, {0.0: 1 - q, -1.0: q}, self.noise_multiplier)

    def nodes(self, largest_tilt: float) -> Nodes:
        # The slope of the loss is at most (1 + q) / z^2 for x >= 0, which bounds how far a tilt moves the mode.
        z = self.noise_multiplier
        x, spacing = trapezoid(0.0, 1 + largest_tilt * (1 + self.rate), z)
        losses = self.loss(x)
        return Nodes(log_normal_density(x, z) + self._log_ratio(x) + math.log(spacing), losses)
