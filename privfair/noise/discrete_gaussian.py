"""The discrete Gaussian of Canonne, Kamath and Steinke: P[Y = y] proportional to exp(-y^2 / (2 sigma^2))."""

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
class GaussianExponent:
    """phi(y) = y^2 / (2 sigma^2), with sigma an exact rational."""

    sigma: Fraction

    @property
    def scale(self) -> Fraction:
        return self.sigma

    @cached_property
    def _per_square(self) -> Fraction:
        return 1 / (2 * self.sigma**2)

    @cached_property
    def _approximate_per_square(self) -> float:
        return float(self._per_square)

    def exact(self, size: int) -> Fraction:
        return self._per_square * size**2

    def approximate(self, size: Floats) -> Floats:
        return size * size * self._approximate_per_square


def discrete_gaussian(
    shape: int | tuple[int, ...], sigma_in_steps: Fraction | int, stream: WordStream
) -> Integers:
    """Independent whole numbers with P[Y = y] exactly proportional to exp(-y^2 / (2 sigma^2)).

    Guarantee: the distribution is exact (given uniform words and the accuracy of exp stated in
    docs/theorems/discrete-noise.md, section "The sampler is exact"). Added to a whole vector of L2
    sensitivity D it is (D^2 / (2 sigma^2))-zCDP (Canonne, Kamath and Steinke 2020, Theorem 4, and additivity
    over coordinates); the unit of D is one step.
    """
    dimensions = whole_shape(shape)
    table = block_table(GaussianExponent(exact_positive("sigma_in_steps", sigma_in_steps)))
    return sample(table, prod(dimensions), stream).reshape(dimensions)
