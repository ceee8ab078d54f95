"""What noise on scores makes of a kernel, in closed form (docs/theorems/fpfl-and-mmd.md#kernels-of-noisy-scores), and
the witness.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import erf, erfc, erfcx

from calibrate.arrays import AnyFloats
from calibrate.errors import UnsupportedCombination
from privfair.fairness.mmd import (
    EnergyKernel,
    GaussianKernel,
    GaussianSmoothing,
    Kernel,
    LaplaceKernel,
    LaplaceSmoothing,
    Noise,
    SharpenedGaussianKernel,
)


@dataclass(frozen=True)
class GaussianLaplaceKernel:
    """amplitude * (exp(-u^2 / (2 width^2)) convolved with the Laplace density of the given scale)."""

    width: float
    scale: float
    amplitude: float = 1.0

    def values(self, u: AnyFloats) -> AnyFloats:
        return self._weight * (self._tail(u) + self._tail(-u))

    def derivative(self, u: AnyFloats) -> AnyFloats:
        # Each tail is exp(-+u / scale) times a Gaussian tail; the Gaussian densities cancel in the difference.
        return self._weight * (self._tail(-u) - self._tail(u)) / self.scale

    @property
    def _weight(self) -> float:
        return self.amplitude * self.width * math.sqrt(2 * math.pi) / (4 * self.scale)

    def _tail(self, u: AnyFloats) -> AnyFloats:
        """exp(ratio^2 / 2 - u / scale) * erfc(z), in the one of two forms that cannot overflow."""
        ratio = self.width / self.scale
        z = (ratio - u / self.width) / math.sqrt(2)
        scaled = np.exp(-(u**2) / (2 * self.width**2)) * erfcx(np.maximum(z, 0.0))
        # For z < 0 the exponent is below -ratio^2 / 2; the minimum only silences the branch not taken.
        direct = np.exp(np.minimum(ratio**2 / 2 - u / self.scale, 0.0)) * erfc(z)
        return np.asarray(np.where(z >= 0, scaled, direct))


@dataclass(frozen=True)
class TwoLaplaceKernel:
    """amplitude * (exp(-|u| / width) convolved with the Laplace density of the given scale)."""

    width: float
    scale: float
    amplitude: float = 1.0

    def values(self, u: AnyFloats) -> AnyFloats:
        # (w e^{-a/w} - b e^{-a/b}) / (w - b), written so that w -> b does not divide zero by zero.
        a = np.abs(u)
        return self.amplitude * self.width / (self.width + self.scale) * (np.exp(-a / self.width) + self._bridge(a))

    def derivative(self, u: AnyFloats) -> AnyFloats:
        a = np.abs(u)
        # d/da of (w e^{-a/w} - b e^{-a/b}) / (w - b) is -(e^{-a/w} - e^{-a/b}) / (w - b).
        slope = -self._bridge(a) / self.scale
        return self.amplitude * self.width / (self.width + self.scale) * np.sign(u) * slope

    def _bridge(self, a: AnyFloats) -> AnyFloats:
        """scale * (e^{-a/width} - e^{-a/scale}) / (width - scale), also for equal widths."""
        x = a * abs(1 / self.scale - 1 / self.width)
        with np.errstate(invalid="ignore", divide="ignore"):
            shape = np.where(x == 0, 1.0, -np.expm1(-x) / x)
        return np.asarray(np.exp(-a / max(self.width, self.scale)) * shape * a / self.width)


@dataclass(frozen=True)
class SmoothedEnergyKernel:
    """-amplitude * E|u + noise|: what noise makes of the energy kernel."""

    noise: Noise
    amplitude: float = 1.0

    def values(self, u: AnyFloats) -> AnyFloats:
        match self.noise:
            case GaussianSmoothing(deviation):
                bump = deviation * math.sqrt(2 / math.pi) * np.exp(-(u**2) / (2 * deviation**2))
                return np.asarray(-self.amplitude * (bump + u * erf(u / (deviation * math.sqrt(2)))))
            case LaplaceSmoothing(scale):
                a = np.abs(u)
                return -self.amplitude * (a + scale * np.exp(-a / scale))

    def derivative(self, u: AnyFloats) -> AnyFloats:
        match self.noise:
            case GaussianSmoothing(deviation):
                return -self.amplitude * erf(u / (deviation * math.sqrt(2)))
            case LaplaceSmoothing(scale):
                return self.amplitude * np.sign(u) * np.expm1(-np.abs(u) / scale)


AnyKernel = Kernel | GaussianLaplaceKernel | TwoLaplaceKernel | SmoothedEnergyKernel


def convolve(kernel: AnyKernel, noise: Noise) -> AnyKernel:
    """The kernel E v(u + xi): what `kernel` becomes when one of its two points carries the noise.

    For bounded kernels this is Proposition 5.2 of the MMD paper; for a Gaussian kernel of width s and noise of
    deviation t it is Gaussian of width sqrt(s^2 + t^2) and its amplitude shrinks by s / sqrt(s^2 + t^2). The
    energy kernel is unbounded and outside that proposition; it is covered by the note in docs/theorems.
    """
    match kernel, noise:
        case GaussianKernel(width, amplitude), GaussianSmoothing(deviation):
            wider = math.hypot(width, deviation)
            return GaussianKernel(wider, amplitude * width / wider)
        case GaussianKernel(width, amplitude), LaplaceSmoothing(scale):
            return GaussianLaplaceKernel(width, scale, amplitude)
        case LaplaceKernel(width, amplitude), GaussianSmoothing(deviation):
            # The kernel is 2 * width * (Laplace density), and the density's partner is a Gaussian density.
            density = deviation * math.sqrt(2 * math.pi)
            return GaussianLaplaceKernel(deviation, width, amplitude * 2 * width / density)
        case LaplaceKernel(width, amplitude), LaplaceSmoothing(scale):
            return TwoLaplaceKernel(width, scale, amplitude)
        case EnergyKernel(amplitude), (GaussianSmoothing() | LaplaceSmoothing()):
            return SmoothedEnergyKernel(noise, amplitude)
        case SharpenedGaussianKernel(width, scale, amplitude), LaplaceSmoothing(other) if scale == other:
            return GaussianKernel(width, amplitude)
        case _:
            raise UnsupportedCombination(
                f"{type(kernel).__name__} with {type(noise).__name__}",
                "no closed form of the convolution is implemented",
                "use a Gaussian, Laplace or energy kernel",
            )


def witness(z: AnyFloats, x: AnyFloats, y: AnyFloats, kernel: AnyKernel) -> AnyFloats:
    """C(z; x, y): mean of v(z - x) minus mean of v(z - y), for each entry of z."""
    one, other = (np.mean(kernel.values(z[:, None] - sample), axis=1) for sample in (x, y))
    return np.asarray(one - other)
