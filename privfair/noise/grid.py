"""The power-of-two grid on which noisy values live.

Everything published is a whole number of steps, whatever the data: the low bits of a floating-point sum,
which give its summands away, do not exist. The step is a power of two, so that scaling is exact in
binary floating point and a published number of steps is exactly a double.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrate.discrete_noise import STEPS_PER_SCALE
from calibrate.errors import InvalidInput, count
from calibrate.privacy_unit import Norm
from privfair.noise.lattice_sampler import exact_positive, real_array

LARGEST_STEPS = 1 << 52
"""Largest size of a value in steps; with noise of at most as much the sum is still exact in a double."""

_LARGEST_STEP_EXPONENT = 900


@dataclass(frozen=True)
class Grid:
    """Whole multiples of 2^-fraction_bits."""

    fraction_bits: int

    def __post_init__(self) -> None:
        if isinstance(self.fraction_bits, bool) or not isinstance(self.fraction_bits, int):
            raise InvalidInput("fraction_bits", self.fraction_bits, "must be a whole number", "give an int")
        if abs(self.fraction_bits) > _LARGEST_STEP_EXPONENT:
            raise InvalidInput(
                "grid step",
                f"2^{-self.fraction_bits}",
                "must lie between 2^-900 and 2^900, far from overflow and underflow",
                "rescale the values and their noise",
            )

    @classmethod
    def for_scale(cls, scale: float | Fraction, steps_per_scale: int = STEPS_PER_SCALE) -> Grid:
        """The coarsest grid on which `scale` (sigma, or a Laplace scale) spans at least `steps_per_scale` steps."""
        exact = exact_positive("scale", scale) / count("steps_per_scale", steps_per_scale)
        exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
        if _power_of_two(exponent) > exact:
            exponent -= 1
        return cls(-exponent)

    @property
    def step(self) -> Fraction:
        return _power_of_two(-self.fraction_bits)

    @property
    def largest(self) -> float:
        """The largest size of a value that noise can be added to: 2^52 steps."""
        return math.ldexp(LARGEST_STEPS, -self.fraction_bits)  # a power of two: exact

    def steps_up(self, scale: float | Fraction) -> int:
        """`scale` in steps, rounded up to a whole number: noise never gets smaller than asked."""
        return math.ceil(exact_positive("scale", scale) / self.step)

    def round_toward_zero(self, values: ArrayLike) -> NDArray[np.int64]:
        """Whole numbers of steps, none larger in size than the value it came from.

        Guarantee: every coordinate shrinks or stays, so no norm of a contribution grows; a sum of
        contributions that were each rounded has the sensitivity the clip promised, in integers, without
        rounding error.
        """
        doubles = real_array(values)
        most = self.largest
        largest = max(float(doubles.max()), -float(doubles.min())) if doubles.size else 0.0
        if largest > most:
            raise InvalidInput(
                "values",
                largest,
                f"must not exceed 2^52 grid steps = {most:g} in size",
                "publish a mean instead of a sum, clip harder, or use a coarser grid",
            )
        doubles *= 2.0**self.fraction_bits  # exact, but for underflow of what is rounded to zero anyway
        return doubles.astype(np.int64)  # a cast drops the fraction: toward zero

    def to_floats(self, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Whole numbers of steps as doubles, exactly; beyond 2^53 steps they are cut to 2^53.

        The cut looks only at the noisy sum, so it is post-processing; noise takes a value there with
        probability far below 2^-1000.
        """
        limit = 2 * LARGEST_STEPS
        beyond = steps.size and (int(steps.max()) > limit or int(steps.min()) < -limit)
        within = np.clip(steps, -limit, limit) if beyond else steps
        return np.asarray(within * 2.0**-self.fraction_bits)

    def rounded_sensitivity(self, bound: float | Fraction, dimension: int, norm: Norm) -> Fraction:
        """The sensitivity left when a whole sum of sensitivity `bound` is rounded, rather than each contribution.

        Two vectors at distance `bound` may be rounded apart by less than one step more in each coordinate:
        bound + step * sqrt(dimension) in L2, bound + step * dimension in L1. Rounded up.
        """
        match norm:
            case Norm.L1:
                growth = Fraction(count("dimension", dimension))
            case Norm.L2:
                growth = Fraction(math.isqrt(count("dimension", dimension) << 40) + 1, 1 << 20)
        return exact_positive("bound", bound) + self.step * growth


def _power_of_two(exponent: int) -> Fraction:
    return Fraction(2) ** exponent
