"""Revealed batches: the observer sees how often the unit took part, and a Gaussian release of that strength.

Given multiplicity j the loss is N(mu_j^2/2, mu_j^2) under P, and 0 where mu_j = 0; the multiplicity itself
has one distribution under both P and Q and adds nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from calibrate.accountants.losses.law import LARGEST_LOSS, Atom, Buckets, Nodes
from calibrate.accountants.losses.line import normal_masses, normal_reach
from calibrate.arrays import Floats

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
