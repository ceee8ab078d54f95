"""Where noise comes from: the protocol the gate draws through, and its trusted implementation."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrate.arrays import Floats
from privfair.noise.grid import Grid
from privfair.noise.lattice_sampler import discrete_gaussian, discrete_laplace
from privfair.noise.random_stream import SecureStream, WordStream
from privfair.noise.randomized_response import ResponseLaw, randomized_response

Categories = NDArray[np.int64]

EXACT_LABEL = "exact-discrete aes-256-ctr os-keyed"


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
        return NoiseScale(grid, grid.steps_up(scale))

    @property
    def exact(self) -> Fraction:
        return self.in_steps * self.grid.step


def publish_gaussian(values: ArrayLike, sigma: float | Fraction, stream: WordStream) -> Floats:
    """`values`, rounded toward zero onto a grid, plus exact discrete Gaussian noise of at least `sigma`.

    Guarantee: with D the L2 sensitivity of the *rounded* values (contributions rounded one by one keep
    their clip; for a rounded sum see `Grid.rounded_sensitivity`), any (eps, delta) proved for the
    continuous Gaussian with noise multiplier sigma / D holds up to `profile_slack`
    (docs/theorems/discrete-noise.md, Theorems 2 and 3); the unit is that of D.
    """
    scale = NoiseScale.at_least(sigma)
    steps = scale.grid.round_toward_zero(values)
    steps += discrete_gaussian(steps.shape, scale.in_steps, stream)  # an array of our own: no copy
    return scale.grid.to_floats(steps)


def publish_laplace(values: ArrayLike, scale: float | Fraction, stream: WordStream) -> Floats:
    """`values`, rounded toward zero onto a grid, plus exact discrete Laplace noise of at least `scale`.

    Guarantee: with D the L1 sensitivity of the rounded values this is purely (D / scale)-DP
    (docs/theorems/discrete-noise.md, Theorem 4); the unit is that of D.
    """
    used = NoiseScale.at_least(scale)
    steps = used.grid.round_toward_zero(values)
    return used.grid.to_floats(steps + discrete_laplace(steps.shape, used.in_steps, stream))


@final
class ExactNoise:
    """The default: exact discrete noise from a stream keyed by the operating system."""

    label = EXACT_LABEL

    def __init__(self) -> None:
        self._stream = SecureStream()

    def gaussian(self, values: ArrayLike, sigma: float | Fraction) -> Floats:
        """See `publish_gaussian`, whose guarantee this is."""
        return publish_gaussian(values, sigma, self._stream)

    def laplace(self, values: ArrayLike, scale: float | Fraction) -> Floats:
        """See `publish_laplace`, whose guarantee this is."""
        return publish_laplace(values, scale, self._stream)

    def randomized_response(self, categories: ArrayLike, k: int, epsilon: float | Fraction) -> Categories:
        """See `randomized_response.randomized_response`, whose guarantee this is."""
        return randomized_response(categories, ResponseLaw.for_epsilon(k, epsilon), self._stream)
