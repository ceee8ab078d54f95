"""Each named value a silo may publish, and the noise it carries.

`sensitivity` is the contribution bound of one unit (see `calibrate.releases`): the noise multiplier is
relative to it, so the standard deviation is `sigma = noiseMultiplier * sensitivity`. Under replace-one the sum
moves by twice that bound and the accountants charge the 2; it is not folded into `sensitivity`.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from calibrate.manifest.fields import Count, Name, Positive, StrictModel, Text

_RELATIVE_ROUNDING = 1e-12
"""sigma and its two factors are doubles; a smaller sigma than this slack explains is less noise than priced."""

MOST_VALUES_WITHOUT_SHAPE = 1 << 24
"""How many values one publication may have if its shape is not signed; the slack of discrete noise counts them."""

Shape = tuple[Annotated[int, Field(ge=0, le=2**53 - 1)], ...]


class NoiseSampler(Enum):
    """Which sampler draws the noise; the gate uses the one named here and no other."""

    DISCRETE_GRID = "discrete-grid"
    """Exact discrete noise on a power-of-two grid, from a stream keyed by the operating system."""
    CATEGORICAL = "categorical"
    """Randomised response, from the same stream."""
    SEEDED_RESEARCH_ONLY = "seeded-research-only"
    """Reproducible floating-point noise: whoever has the seed can subtract it. Protects nobody."""


class NoiseSource(Enum):
    """Where the randomness of all noise comes from: the labels of the engine's noise sources."""

    OPERATING_SYSTEM = "exact-discrete aes-256-ctr os-keyed"
    SEEDED_RESEARCH_ONLY = "UNSAFE-seeded-research-noise numpy-pcg64 floating-point"
    """Reproducible noise; a document that names it promises privacy to nobody, whatever its guarantee says."""


class _Published(StrictModel):
    """What the gate needs to know of every release."""

    name: Name
    publications: Count
    """How often it may be published: at most once a round."""
    shape: Shape | None = None

    @property
    def values_at_most(self) -> int:
        """How many numbers one publication has at most."""
        return MOST_VALUES_WITHOUT_SHAPE if self.shape is None else math.prod(self.shape)


class GaussianNoise(_Published):
    mechanism: Literal["gaussian"] = "gaussian"
    norm: Literal["L2"] = "L2"
    sensitivity: Positive
    clip: Positive | None = None
    """The per-unit clipping norm the sensitivity was derived from, where clipping is what bounds it."""
    noise_multiplier: Positive
    sigma: Positive
    sampler: NoiseSampler

    @model_validator(mode="after")
    def _noise_is_as_priced(self) -> GaussianNoise:
        _check_scale("sigma", self.sigma, self.noise_multiplier, self.sensitivity)
        return self


class LaplaceNoise(_Published):
    mechanism: Literal["laplace"] = "laplace"
    norm: Literal["L1"] = "L1"
    sensitivity: Positive
    clip: Positive | None = None
    noise_multiplier: Positive
    """The scale of the Laplace law divided by the L1 bound."""
    scale: Positive
    sampler: NoiseSampler

    @model_validator(mode="after")
    def _noise_is_as_priced(self) -> LaplaceNoise:
        _check_scale("scale", self.scale, self.noise_multiplier, self.sensitivity)
        return self


class RandomizedCategory(_Published):
    """One category per unit, kept with probability e^eps / (e^eps + categories - 1)."""

    mechanism: Literal["randomized-response"] = "randomized-response"
    epsilon: Positive
    categories: Annotated[int, Field(ge=2, le=2**31)]
    sampler: NoiseSampler


class InTheClear(_Published):
    """Published without noise, with the reason why that is acceptable, or the admission that it is not."""

    mechanism: Literal["none"] = "none"
    why: Text
    depends_on_unit: bool


Mechanism = Annotated[
    GaussianNoise | LaplaceNoise | RandomizedCategory | InTheClear, Field(discriminator="mechanism")
]


def _check_scale(name: str, scale: float, multiplier: float, sensitivity: float) -> None:
    priced = multiplier * sensitivity
    if not abs(scale - priced) <= _RELATIVE_ROUNDING * priced:
        raise ValueError(f"{name} = {scale} is not noiseMultiplier * sensitivity = {priced}")
