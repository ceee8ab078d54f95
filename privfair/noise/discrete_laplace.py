"""The discrete Laplace (two-sided geometric) law: P[Y = y] proportional to exp(-|y| / scale)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod

from calibrate.arrays import Floats, Integers
from privfair.noise.arguments import exact_positive, whole_shape
from privfair.noise.lattice_sampler import block_table, sample
from privfair.noise.random_stream import WordStream


@dataclass(frozen=True)
class LaplaceExponent:
    """phi(y) = y / scale, with an exact rational scale."""

    scale: Fraction

    @cached_property
    def _approximate_rate(self) -> float:
        return float(1 / self.scale)

    def exact(self, size: int) -> Fraction:
        return size / self.scale

    def approximate(self, size: Floats) -> Floats:
        return size * self._approximate_rate


def discrete_laplace(
    shape: int | tuple[int, ...], scale_in_steps: Fraction | int, stream: WordStream
) -> Integers:
    """Independent whole numbers with P[Y = y] exactly proportional to exp(-|y| / scale).

    Guarantee: added to a whole vector of L1 sensitivity D it is purely (D / scale)-DP: shifting y by v
    changes the probability by a factor of at most exp(|v| / scale), coordinate by coordinate. The unit of D
    is one step; exactness is argued in docs/theorems/discrete-noise.md.
    """
    dimensions = whole_shape(shape)
    table = block_table(LaplaceExponent(exact_positive("scale_in_steps", scale_in_steps)))
    return sample(table, prod(dimensions), stream).reshape(dimensions)
