"""Kernels of one real difference, their derivatives, and what noise on the points makes of them.

A kernel here is v(x - y). Adding independent symmetric noise to y turns it, in expectation, into v convolved with
the noise law (Proposition 5.2 of the MMD paper). The amplitude changes along with the width. The closed forms are
proved in docs/theorems/convolved-kernels.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from scipy.special import erf, erfc, erfcx

from calibrate.arrays import AnyFloats
from calibrate.errors import positive
from privfair.fairness.constraints import KernelKind


@dataclass(frozen=True)
class GaussianSmoothing:
    """N(0, deviation^2)."""

    deviation: float

    def __post_init__(self) -> None:
        positive("deviation", self.deviation)


@dataclass(frozen=True)
class LaplaceSmoothing:
    """Density exp(-|u| / scale) / (2 scale)."""

    scale: float

    def __post_init__(self) -> None:
        positive("scale", self.scale)


Noise = GaussianSmoothing | LaplaceSmoothing


@dataclass(frozen=True)
class GaussianKernel:
    """amplitude * exp(-u^2 / (2 width^2))."""

    width: float
    amplitude: float = 1.0

    def __post_init__(self) -> None:
        positive("width", self.width)
        positive("amplitude", self.amplitude)

    def values(self, u: AnyFloats) -> AnyFloats:
        return np.asarray(self.amplitude * np.exp(-(u**2) / (2 * self.width**2)))

    def derivative(self, u: AnyFloats) -> AnyFloats:
        return -u / self.width**2 * self.values(u)


@dataclass(frozen=True)
class LaplaceKernel:
    """amplitude * exp(-|u| / width)."""

    width: float
    amplitude: float = 1.0

    def __post_init__(self) -> None:
        positive("width", self.width)
        positive("amplitude", self.amplitude)

    def values(self, u: AnyFloats) -> AnyFloats:
        return self.amplitude * np.exp(-np.abs(u) / self.width)

    def derivative(self, u: AnyFloats) -> AnyFloats:
        """Zero at the kink, the middle of the two one-sided derivatives."""
        return -np.sign(u) / self.width * self.values(u)


@dataclass(frozen=True)
class EnergyKernel:
    """-amplitude * |u|, whose MMD^2 is the energy distance.

    It is unbounded and only conditionally positive definite (for weights that sum to zero, as in an MMD).
    """

    amplitude: float = 1.0

    def __post_init__(self) -> None:
        positive("amplitude", self.amplitude)

    def values(self, u: AnyFloats) -> AnyFloats:
        return -self.amplitude * np.abs(u)

    def derivative(self, u: AnyFloats) -> AnyFloats:
        return -self.amplitude * np.sign(u)


@dataclass(frozen=True)
class GaussianLaplaceKernel:
    """amplitude * (exp(-u^2 / (2 width^2)) convolved with the Laplace density of the given scale)."""

    width: float
    scale: float
    amplitude: float = 1.0

    def __post_init__(self) -> None:
        positive("width", self.width)
        positive("scale", self.scale)
        positive("amplitude", self.amplitude)

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

    def __post_init__(self) -> None:
        positive("width", self.width)
        positive("scale", self.scale)
        positive("amplitude", self.amplitude)

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

    def __post_init__(self) -> None:
        positive("amplitude", self.amplitude)

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


@dataclass(frozen=True)
class SharpenedGaussianKernel:
    """w - scale^2 w'' for the Gaussian w = amplitude * exp(-u^2 / (2 width^2)): Laplace noise turns it into w."""

    width: float
    scale: float
    amplitude: float = 1.0

    def __post_init__(self) -> None:
        positive("width", self.width)
        positive("scale", self.scale)
        positive("amplitude", self.amplitude)

    def values(self, u: AnyFloats) -> AnyFloats:
        ratio = (self.scale / self.width) ** 2
        return self._gaussian(u) * (1 + ratio - ratio * (u / self.width) ** 2)

    def derivative(self, u: AnyFloats) -> AnyFloats:
        ratio = (self.scale / self.width) ** 2
        return -u / self.width**2 * self._gaussian(u) * (1 + 3 * ratio - ratio * (u / self.width) ** 2)

    def _gaussian(self, u: AnyFloats) -> AnyFloats:
        return np.asarray(self.amplitude * np.exp(-(u**2) / (2 * self.width**2)))


Kernel = (
    GaussianKernel
    | LaplaceKernel
    | EnergyKernel
    | GaussianLaplaceKernel
    | TwoLaplaceKernel
    | SmoothedEnergyKernel
    | SharpenedGaussianKernel
)


# From the kernel's name in a plan to the kernel.


def kernel_of(kind: KernelKind, width: float) -> Kernel:
    """The kernel of that kind with amplitude 1; the energy kernel has no width."""
    match kind:
        case KernelKind.GAUSSIAN:
            return GaussianKernel(width)
        case KernelKind.LAPLACE:
            return LaplaceKernel(width)
        case KernelKind.ENERGY:
            return EnergyKernel()
        case _:
            assert_never(kind)
