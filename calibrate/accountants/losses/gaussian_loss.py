"""The loss of a Gaussian mechanism: under P it is N(mu^2/2, mu^2), under Q N(-mu^2/2, mu^2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibrate.accountants.losses.law import LARGEST_LOSS, Atom, Buckets, Nodes
from calibrate.accountants.losses.line import log_normal_density, mixture_buckets, normal_reach, trapezoid
from calibrate.arrays import Floats


@dataclass(frozen=True)
class GaussianLoss:
    """P = N(mu, 1), Q = N(0, 1); the loss at x is mu x - mu^2 / 2."""

    mu: float

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return ()

    @property
    def unbounded_mass(self) -> float:
        return 0.0

    @property
    def largest(self) -> float:
        return math.inf

    def span(self, log_mass: float) -> tuple[float, float]:
        reach, centre = normal_reach(log_mass), self.mu**2 / 2
        return centre - self.mu * reach, min(LARGEST_LOSS, centre + self.mu * reach)

    def buckets(self, edges: Floats) -> Buckets:
        return mixture_buckets(edges / self.mu + self.mu / 2, {self.mu: 1.0}, {0.0: 1.0}, 1.0)

    def nodes(self, largest_tilt: float) -> Nodes:
        offset, spacing = trapezoid(0.0, largest_tilt * self.mu, 1.0)
        return Nodes(
            log_weights=log_normal_density(offset, 1.0) + math.log(spacing),
            losses=self.mu * offset + self.mu**2 / 2,
        )
