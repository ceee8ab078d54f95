"""The two directions of a Poisson-subsampled Gaussian under add-remove.

With z the noise multiplier, r(x) = 1 - q + q exp((2x - 1) / (2 z^2)) is the likelihood ratio of the mixture
M = (1-q) N(0, z^2) + q N(1, z^2) to N(0, z^2). Removing a unit compares M with N(0, z^2): the loss is
log r(x). Adding one compares N(0, z^2) with M: the loss is -log r(x), written below in the mirrored
variable y = -x so that it increases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibrate.accountants.losses.law import LARGEST_LOSS, Atom, Buckets, Nodes
from calibrate.accountants.losses.line import (
    exponent_of_mixed_ratio,
    log_mixed_ratio,
    log_normal_density,
    mixture_buckets,
    normal_reach,
    trapezoid,
)
from calibrate.arrays import Floats


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
