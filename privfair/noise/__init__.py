"""Noise that can be trusted. Only the gate imports this package: nothing else may draw noise.

`ExactNoise` is the default; `UnsafeSeededResearchNoise` is for experiments on public data and says so.
What is proved about it is in docs/theorems/discrete-noise.md, what it costs in docs/benchmarks/noise.md.
"""

from privfair.noise.lattice_sampler import discrete_gaussian, discrete_laplace
from privfair.noise.random_stream import SecureStream, WordStream
from privfair.noise.randomized_response import ResponseLaw, randomized_response
from privfair.noise.source import (
    EXACT_LABEL,
    UNSAFE_LABEL,
    ExactNoise,
    Grid,
    NoiseAdder,
    NoiseScale,
    UnsafeNoiseWarning,
    UnsafeSeededResearchNoise,
    publish_gaussian,
    publish_laplace,
)

__all__ = [
    "EXACT_LABEL",
    "UNSAFE_LABEL",
    "ExactNoise",
    "Grid",
    "NoiseAdder",
    "NoiseScale",
    "ResponseLaw",
    "SecureStream",
    "UnsafeNoiseWarning",
    "UnsafeSeededResearchNoise",
    "WordStream",
    "discrete_gaussian",
    "discrete_laplace",
    "publish_gaussian",
    "publish_laplace",
    "randomized_response",
]
