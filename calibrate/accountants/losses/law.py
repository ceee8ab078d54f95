"""What a privacy-loss law must be able to say about itself.

A law is one *ordered* pair (P, Q): the distribution, under P, of the loss L = log dP/dQ. It consists of a
few atoms and a continuous part. Two questions are asked of it:

* the certified grid asks for the P- and Q-mass of loss buckets, with a bound on the rounding error of each;
* the contour integral asks for quadrature nodes, from which the cumulants of L follow.

The first is a proof obligation, the second only steers a search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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


@dataclass(frozen=True)
class Nodes:
    """Quadrature for the continuous part: the integral of f(L) dP is the sum of exp(log_weights) f(losses).

    `losses` ascend. The rule is accurate for f(L) = exp(s L) with 0 <= Re s <= the tilt it was made for.
    """

    log_weights: Floats
    losses: Floats


class PrivacyLossLaw(Protocol):
    """One ordered dominating pair, seen through its loss."""

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """Loss values that carry positive mass."""
        ...

    @property
    def unbounded_mass(self) -> float:
        """P-mass whose loss is treated as infinite on the upper side and dropped on the lower."""
        ...

    @property
    def largest(self) -> float:
        """The essential supremum of the loss; infinity where it has none."""
        ...

    def span(self, log_mass: float) -> tuple[float, float]:
        """Loss values outside which the continuous part has P-mass at most exp(log_mass) on either side."""
        ...

    def buckets(self, edges: Floats) -> Buckets:
        """Masses of the continuous part in the loss intervals between ascending `edges`."""
        ...

    def nodes(self, largest_tilt: float) -> Nodes:
        """Quadrature nodes good for every tilt up to `largest_tilt`."""
        ...
