"""Noise that can be trusted. Only the gate imports this package: nothing else may draw noise.

`ExactNoise` is the default; `UnsafeSeededResearchNoise` is for experiments on public data and says so.
What is proved about it is in docs/theorems/discrete-noise.md, what it costs in docs/benchmarks.md.
"""

from privfair.noise.source import (
    ExactNoise,
    Grid,
    NoiseAdder,
    NoiseScale,
    UnsafeNoiseWarning,
    UnsafeSeededResearchNoise,
)

__all__ = ["ExactNoise", "Grid", "NoiseAdder", "NoiseScale", "UnsafeNoiseWarning", "UnsafeSeededResearchNoise"]
