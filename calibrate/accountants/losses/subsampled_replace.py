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

from calibrate.accountants.losses.law import LARGEST_LOSS, Atom, Buckets, Nodes
from calibrate.accountants.losses.line import (
    log_mixed_ratio,
    log_normal_density,
    mixture_buckets,
    normal_reach,
    trapezoid,
)
from calibrate.arrays import Floats


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
        return mixture_buckets(
            self.position(edges), {0.0: 1 - q, 1.0: q}, {0.0: 1 - q, -1.0: q}, self.noise_multiplier
        )

    def nodes(self, largest_tilt: float) -> Nodes:
        # The slope of the loss is at most (1 + q) / z^2 for x >= 0, which bounds how far a tilt moves the mode.
        z = self.noise_multiplier
        x, spacing = trapezoid(0.0, 1 + largest_tilt * (1 + self.rate), z)
        losses = self.loss(x)
        return Nodes(log_normal_density(x, z) + self._log_ratio(x) + math.log(spacing), losses)
