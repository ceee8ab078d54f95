"""Splitting one joint noise multiplier between several values of a batch.

Several Gaussian values of one batch cost what one value with the joint multiplier z costs, where
z^-2 = sum of z_i^-2. Which z_i to take is free as far as privacy goes, and decides which value suffers.
With a_i the harm done per unit of noise variance and s_i the contribution bound, the total harm
sum a_i (s_i z_i)^2 is smallest (Lagrange, or Cauchy-Schwarz) for z_i^2 proportional to 1 / (s_i sqrt(a_i)):

    z_i = z * sqrt(sum_j s_j sqrt(a_j)) / sqrt(s_i sqrt(a_i)),   harm = z^2 * (sum_j s_j sqrt(a_j))^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from calibrate.errors import InvalidInput
from calibrate.releases import Gaussian, Together
from calibrate.validation import positive


@dataclass(frozen=True)
class SplitMultiplier:
    """One noise multiplier per value, in order, and the total harm of the split."""

    multipliers: tuple[float, ...]
    harm: float

    @property
    def release(self) -> Together:
        """The values as one release of a batch; its joint multiplier is the one that was split."""
        return Together(tuple(Gaussian(multiplier) for multiplier in self.multipliers))


def split_multiplier(
    joint_multiplier: float, weights: Sequence[float], bounds: Sequence[float] | None = None
) -> SplitMultiplier:
    """The split of `joint_multiplier` that minimises the sum of weight * (bound * multiplier)^2.

    `weights` say how much each value's noise variance hurts; `bounds` are the contribution bounds (default: 1).

    Guarantee: the split changes no privacy. Sampled or not, the values together are exactly as private as one
    Gaussian value with the joint multiplier (`releases.joint_gaussian`).
    """
    positive("joint noise multiplier", joint_multiplier)
    bounds = (1.0,) * len(weights) if bounds is None else tuple(bounds)
    if not weights or len(weights) != len(bounds):
        raise InvalidInput(
            "weights",
            tuple(weights),
            f"must be as many as the bounds ({len(bounds)}), at least one",
            "give one each",
        )
    for weight, bound in zip(weights, bounds, strict=True):
        positive("weight", weight)
        positive("contribution bound", bound)
    shares = [bound * math.sqrt(weight) for weight, bound in zip(weights, bounds, strict=True)]
    total = math.fsum(shares)
    multipliers = tuple(joint_multiplier * math.sqrt(total / share) for share in shares)
    return SplitMultiplier(multipliers, (joint_multiplier * total) ** 2)
