"""Fixed-size batches under replace-one: the pointwise larger of two profiles, as one symmetric loss law.

Let R be the removal pair ((1-q) N(0, z^2) + q N(1, z^2), N(0, z^2)) and A its mirror image. For e >= 0 the
profile of R is the larger one, for e < 0 that of A. The larger curve is the profile of a pair of its own:

* its positive losses are those of R (x > 1/2 under the mixture),
* its negative losses are those of A (x > 1/2 under N(0, z^2), loss -log r(x)),
* what is missing to total mass one sits at loss 0: (1-q) (2 Phi(1/(2z)) - 1), under P and Q alike.

Composing this law bounds every replace-one composition from above (docs/theorems/certified-accountant.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import erf

from calibrate.accountants.losses.law import Atom, Buckets, Nodes, log_normal_density
from calibrate.accountants.losses.subsampled import SubsampledAddition, SubsampledRemoval
from calibrate.arrays import Floats

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(10)


@dataclass(frozen=True)
class LargerOfBothDirections:
    """The symmetric law whose profile is the pointwise maximum of a removal pair's and its mirror's."""

    rate: float
    noise_multiplier: float

    @property
    def _positive(self) -> SubsampledRemoval:
        return SubsampledRemoval(self.rate, self.noise_multiplier)

    @property
    def _negative(self) -> SubsampledAddition:
        return SubsampledAddition(self.rate, self.noise_multiplier)

    @property
    def atoms(self) -> tuple[Atom, ...]:
        half_distance = 1 / (2 * self.noise_multiplier)
        return (Atom(0.0, (1 - self.rate) * float(erf(half_distance / math.sqrt(2)))),)

    @property
    def unbounded_mass(self) -> float:
        return 0.0

    @property
    def largest(self) -> float:
        return math.inf

    def span(self, log_mass: float) -> tuple[float, float]:
        return self._negative.span(log_mass)[0], self._positive.span(log_mass)[1]

    def buckets(self, edges: Floats) -> Buckets:
        right = _within(self._positive.buckets(np.maximum(edges, 0.0)), edges[1:] > 0)
        left = _within(self._negative.buckets(np.minimum(edges, 0.0)), edges[:-1] < 0)
        not_positive = float(self._positive.buckets(np.zeros(2)).below)
        return Buckets(
            p=left.p + right.p,
            q=left.q + right.q,
            p_error=left.p_error + right.p_error,
            q_error=left.q_error + right.q_error,
            below=left.below + (max(0.0, right.below - not_positive) + 1e-15 if edges[0] > 0 else 0.0),
            above=right.above if edges[-1] >= 0 else 1.0,
        )

    def nodes(self, largest_tilt: float) -> Nodes:
        z = self.noise_multiplier
        x, log_weights = _half_line(1 + largest_tilt + 9.5 * z, min(z, z * z))
        losses = self._positive.loss(x)
        log_null = log_normal_density(x, z) + log_weights
        return Nodes(
            log_weights=np.concatenate((log_null[::-1], log_null + losses)),
            losses=np.concatenate((-losses[::-1], losses)),
        )


def _within(buckets: Buckets, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Buckets:
    """Buckets that collapsed to a point carry neither mass nor error."""
    return replace(
        buckets,
        p=np.where(wanted, buckets.p, 0.0),
        q=np.where(wanted, buckets.q, 0.0),
        p_error=np.where(wanted, buckets.p_error, 0.0),
        q_error=np.where(wanted, buckets.q_error, 0.0),
    )


def _half_line(reach: float, panel: float) -> tuple[Floats, Floats]:
    """Gauss-Legendre panels from x = 1/2, where the loss is 0, to x = 1/2 + reach; points and log weights."""
    panels = math.ceil(reach / panel)
    width = reach / panels
    starts = 0.5 + width * np.arange(panels)
    x = (starts[:, None] + width * (1 + _POINTS) / 2).ravel()
    return x, np.tile(np.log(_WEIGHTS * width / 2), panels)
