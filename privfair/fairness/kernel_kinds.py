"""From the kernel's name in a plan to the kernel."""

from __future__ import annotations

from typing import assert_never

from privfair.fairness.kernels import EnergyKernel, GaussianKernel, Kernel, LaplaceKernel
from privfair.fairness.notions import KernelKind


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
