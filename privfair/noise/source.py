"""Where noise comes from: values rounded onto a grid, exact noise on it, exact answers at random, and seeded noise.

Everything published is a whole number of steps of a grid, whatever the data: the low bits of a floating-point sum,
which reveal its summands, do not exist. The step is a power of two, so that scaling is exact in binary floating
point and a published number of steps is exactly a double.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrate.arrays import Floats, Integers
from calibrate.discrete_noise import STEPS_PER_SCALE
from calibrate.errors import InvalidInput, count
from calibrate.privacy_unit import Norm
from privfair.noise.lattice_sampler import (
    SecureStream,
    WordStream,
    category_array,
    discrete_gaussian,
    discrete_laplace,
    exact_positive,
    exponential_enclosure,
    passes,
    real_array,
    uniform_below,
)

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
                "must be between 2^-900 and 2^900, far from overflow and underflow",
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

    def round_toward_zero(self, values: ArrayLike) -> NDArray[np.int64]:
        """Whole numbers of steps, none larger in size than the value it came from.

        Guarantee: every coordinate shrinks or stays, so no norm of a contribution grows; a sum of
        contributions that were each rounded has the sensitivity the clip promised, in integers, without
        rounding error.
        """
        doubles = self.within(values)
        doubles *= 2.0**self.fraction_bits  # exact, but for underflow of what is rounded to zero anyway
        return doubles.astype(np.int64)  # a cast drops the fraction: toward zero

    def within(self, values: ArrayLike) -> Floats:
        """A copy of the values in double precision; refused if one is too large for this grid."""
        doubles, most = real_array(values), self.largest
        largest = max(float(doubles.max()), -float(doubles.min())) if doubles.size else 0.0
        if largest > most:
            raise InvalidInput(
                "values",
                largest,
                f"must not exceed 2^52 grid steps = {most:g} in size",
                "publish a mean instead of a sum, clip harder, or use a coarser grid",
            )
        return doubles

    def add_noise(self, values: Floats, noise: Integers) -> None:
        """Round finite values within `largest` toward zero and add whole numbers of steps, in place: one dimension."""
        if passes is None:
            values[:] = self.to_floats((values * 2.0**self.fraction_bits).astype(np.int64) + noise)
        else:
            passes.add(values, noise, 2.0**self.fraction_bits, 2.0**-self.fraction_bits)

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


# The protocol that the gate draws through, and its trusted implementation.

Categories = NDArray[np.int64]

_VALUES_AT_ONCE = 30_000
"""Noise for them is drawn in one batch of the sampler."""

EXACT_LABEL = "exact-discrete aes-256-ctr os-keyed"
REHEARSED_LABEL = "REHEARSAL exact-discrete aes-256-ctr auditor-keyed"


class NoiseAdder(Protocol):
    """Adds noise. `label` says of which kind and is recorded in manifest and transcript."""

    @property
    def label(self) -> str: ...

    def gaussian(self, values: ArrayLike, sigma: float | Fraction) -> Floats: ...

    def laplace(self, values: ArrayLike, scale: float | Fraction) -> Floats: ...

    def randomized_response(self, categories: ArrayLike, k: int, epsilon: float | Fraction) -> Categories: ...


@dataclass(frozen=True)
class NoiseScale:
    """A scale as it is really used: a whole number of steps of a grid, never less than asked."""

    grid: Grid
    in_steps: int

    @staticmethod
    @lru_cache(maxsize=256, typed=True)
    def at_least(scale: float | Fraction) -> NoiseScale:
        """Exact arithmetic, so worth remembering: a run asks for the same few scales in every round."""
        grid = Grid.for_scale(scale)
        return NoiseScale(grid, math.ceil(exact_positive("scale", scale) / grid.step))

    @property
    def exact(self) -> Fraction:
        return self.in_steps * self.grid.step


# k-ary randomised response with an exact, rational probability of keeping the true category.

KEEP_BITS = 62
LARGEST_ALTERNATIVES = 1 << 15
SMALLEST_EPSILON = Fraction(1, 1 << 40)
_DIGITS = 60


@dataclass(frozen=True)
class ResponseLaw:
    """Keep the category with probability `keep`, else answer one of the k - 1 others uniformly."""

    k: int
    keep: Fraction

    def __post_init__(self) -> None:
        count("k", self.k, least=2)
        if not Fraction(1, self.k) <= self.keep < 1:
            raise InvalidInput("keep", self.keep, f"must be in [1/{self.k}, 1)", "ask for a law by its epsilon")

    @classmethod
    def for_epsilon(cls, k: int, epsilon: float | Fraction) -> ResponseLaw:
        """The likeliest truth that costs at most `epsilon`, on a grid of 2^-62.

        Guarantee: keep <= exp(eps) / (exp(eps) + k - 1), hence every answer is at most exp(eps) times
        likelier under one category than under another: pure (eps, 0)-DP for replacing one record's category
        (docs/theorems/discrete-noise.md, section "Randomised response").
        """
        return _law_for_epsilon(count("k", k, least=2), exact_positive("epsilon", epsilon))

    @property
    def odds(self) -> Fraction:
        """How much likelier an answer is under its own category than under another: exp of the true epsilon."""
        return self.keep * (self.k - 1) / (1 - self.keep)

    @property
    def epsilon(self) -> float:
        """The epsilon of this very law, from above, within a few units in the last place."""
        log = math.log1p(float(self.odds - 1)) if self.odds < 2 else math.log(self.odds)
        return log + 2.0**-50 * max(log, 2.0**-30)


@lru_cache(maxsize=128)
def _law_for_epsilon(k: int, epsilon: Fraction) -> ResponseLaw:
    if k > LARGEST_ALTERNATIVES:
        raise InvalidInput("k", k, "must be at most 2^15", "merge categories")
    if epsilon < SMALLEST_EPSILON:
        raise InvalidInput("epsilon", float(epsilon), "must be at least 2^-40", "publish nothing instead")
    # keep = 1 / (1 + (k - 1) exp(-eps)): the larger end of the enclosure gives the smaller probability.
    _, at_most = exponential_enclosure(epsilon, _DIGITS)
    keep = math.floor((1 << KEEP_BITS) / (1 + (k - 1) * at_most))
    return ResponseLaw(k, Fraction(min(keep, (1 << KEEP_BITS) - 1), 1 << KEEP_BITS))


def randomized_response(categories: ArrayLike, law: ResponseLaw, stream: WordStream) -> NDArray[np.int64]:
    """One noisy answer for every category, independently and exactly by `law`.

    Guarantee: pure DP with `law.epsilon` for replacing one category; the probabilities are exact rationals.
    """
    truth = category_array(categories, law.k)
    threshold = np.int64(law.keep * (1 << KEEP_BITS))
    kept = (stream.words(truth.size) >> np.uint64(64 - KEEP_BITS)).view(np.int64) < threshold
    # Adding 1 .. k-1 modulo k reaches each of the others once.
    other = (truth.ravel() + 1 + uniform_below(law.k - 1, truth.size, stream)) % law.k
    return np.where(kept, truth.ravel(), other).reshape(truth.shape)


@final
class ExactNoise:
    """The default: exact discrete noise from a stream keyed by the operating system; in a rehearsal by its auditor."""

    def __init__(self, entropy: Callable[[int], bytes] | None = None) -> None:
        self.label = EXACT_LABEL if entropy is None else REHEARSED_LABEL
        self._stream = SecureStream(entropy)

    def gaussian(self, values: ArrayLike, sigma: float | Fraction) -> Floats:
        """`values`, rounded toward zero onto a grid, plus exact discrete Gaussian noise of at least `sigma`.

        Guarantee: with D the L2 sensitivity of the *rounded* values (contributions rounded one by one keep
        their clip; for a rounded sum see `Grid.rounded_sensitivity`), any (eps, delta) proved for the
        continuous Gaussian with noise multiplier sigma / D holds up to `profile_slack`
        (docs/theorems/discrete-noise.md, Theorems 2 and 3); the unit is that of D.
        """
        return self._published(values, NoiseScale.at_least(sigma), discrete_gaussian)

    def laplace(self, values: ArrayLike, scale: float | Fraction) -> Floats:
        """`values`, rounded toward zero onto a grid, plus exact discrete Laplace noise of at least `scale`.

        Guarantee: with D the L1 sensitivity of the rounded values this is purely (D / scale)-DP
        (docs/theorems/discrete-noise.md, Theorem 4); the unit is that of D.
        """
        return self._published(values, NoiseScale.at_least(scale), discrete_laplace)

    def _published(self, values: ArrayLike, scale: NoiseScale, draw: Callable[..., Integers]) -> Floats:
        """Some thousand values at a time, so that they stay in the processor's cache."""
        doubles = scale.grid.within(values)
        flat = doubles.reshape(-1)  # may be another copy: what is returned is what got noise
        for start in range(0, flat.size, _VALUES_AT_ONCE):
            some = flat[start : start + _VALUES_AT_ONCE]
            scale.grid.add_noise(some, draw(some.size, scale.in_steps, self._stream))
        return flat.reshape(doubles.shape)

    def randomized_response(self, categories: ArrayLike, k: int, epsilon: float | Fraction) -> Categories:
        """See the function `randomized_response`, whose guarantee this is."""
        return randomized_response(categories, ResponseLaw.for_epsilon(k, epsilon), self._stream)


# Reproducible noise for experiments on public data. It protects no one.

UNSAFE_LABEL = "UNSAFE-seeded-research-noise numpy-pcg64 floating-point stream-per-party"


class UnsafeNoiseWarning(UserWarning):
    """Noise that protects no one is in use."""


@final
class UnsafeSeededResearchNoise:
    """Noise that anyone who knows the seed can subtract, added in floating point. Never for data about people.

    It makes no privacy guarantee: the seed repeats, the generator is predictable, and low bits leak.
    It warns when made, and its label goes into manifest and transcript. Each party has its own stream, which
    follows from the seed, the party's name and the session: another session of an interrupted run repeats nothing.
    """

    label = UNSAFE_LABEL

    def __init__(self, seed: int, party: str = "", session: int = 1) -> None:
        key = (count("session", session), *party.encode())
        self._generator = np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(count("seed", seed, least=0), spawn_key=key))
        )
        warnings.warn(
            f"{UNSAFE_LABEL}: reproducible noise protects no one; use ExactNoise for data about people",
            UnsafeNoiseWarning,
            stacklevel=2,
        )

    def gaussian(self, values: ArrayLike, sigma: float | Fraction) -> Floats:
        exact = real_array(values)
        return exact + self._generator.normal(0.0, float(exact_positive("sigma", sigma)), size=exact.shape)

    def laplace(self, values: ArrayLike, scale: float | Fraction) -> Floats:
        exact = real_array(values)
        return exact + self._generator.laplace(0.0, float(exact_positive("scale", scale)), size=exact.shape)

    def randomized_response(self, categories: ArrayLike, k: int, epsilon: float | Fraction) -> Categories:
        law = ResponseLaw.for_epsilon(k, epsilon)
        truth = category_array(categories, law.k)
        kept = self._generator.random(truth.shape) < float(law.keep)
        other = (truth + 1 + self._generator.integers(0, law.k - 1, truth.shape)) % law.k
        return np.where(kept, truth, other)
