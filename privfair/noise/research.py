"""Reproducible noise for experiments on public data. It protects nobody."""

from __future__ import annotations

import warnings
from fractions import Fraction
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from calibrate.arrays import Floats
from calibrate.errors import count
from privfair.noise.lattice_sampler import category_array, exact_positive, real_array
from privfair.noise.randomized_response import ResponseLaw
from privfair.noise.source import Categories

UNSAFE_LABEL = "UNSAFE-seeded-research-noise numpy-pcg64 floating-point stream-per-party"


class UnsafeNoiseWarning(UserWarning):
    """Noise that protects nobody is in use."""


@final
class UnsafeSeededResearchNoise:
    """Noise that whoever knows the seed can subtract, added in floating point. Never for data about people.

    It makes no privacy guarantee: the seed repeats, the generator is predictable, and low bits leak.
    It warns when made, and its label goes into manifest and transcript. Each party has a stream of its own, which
    follows from the seed, the party's name and the session: another session of an interrupted run repeats nothing.
    """

    label = UNSAFE_LABEL

    def __init__(self, seed: int, party: str = "", session: int = 1) -> None:
        key = (count("session", session), *party.encode())
        self._generator = np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(count("seed", seed, least=0), spawn_key=key))
        )
        warnings.warn(
            f"{UNSAFE_LABEL}: reproducible noise protects nobody; use ExactNoise for data about people",
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
