"""What the MMD-fair FedAvg paper claims about noisy predictions: Proposition 5.2 and Corollary 5.3.

Neither promises an epsilon; both say what noise does to the kernel, and that can be computed by quadrature.
"""

from __future__ import annotations

import math
from enum import Enum
from functools import partial
from typing import assert_never

import numpy as np

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, positive
from calibrate.privacy_unit import NoiseKind
from calibrate.theorems.theorem import (
    BoundComparison,
    Condition,
    Correction,
    Direction,
    Finding,
    Parameter,
    Setting,
    Theorem,
)

CITATION = "Rychener, Kuhn, Hu: Global Group Fairness in Federated Learning via Function Tracking"


_MOST_NODES = 200_000


class Kernel(Enum):
    """Kernels of the difference u = x - y, and the distance-induced one that the paper's experiments use.

    The box (1 where |u| <= 1) is not positive semi-definite; it is here to show that the conditions are tested.
    """

    GAUSSIAN = "gaussian"
    LAPLACIAN = "laplacian"
    BOX = "box"
    ENERGY = "energy"


class Amplitude(Enum):
    """Corollary 5.3 as printed (a Gaussian kernel, value 1 at 0), or with the amplitude it leaves out."""

    PRINTED = "printed"
    WITH_AMPLITUDE = "with-amplitude"


def kernel(kind: Kernel, x: Floats, y: Floats, width: float) -> Floats:
    """The kernel between scores x and y, elementwise, at this width."""
    u = (x - y) / width
    match kind:
        case Kernel.GAUSSIAN:
            return np.asarray(np.exp(-(u**2) / 2))
        case Kernel.LAPLACIAN:
            return np.asarray(np.exp(-np.abs(u)))
        case Kernel.BOX:
            return np.asarray(np.abs(u) <= 1, dtype=np.float64)
        case Kernel.ENERGY:
            return np.asarray((np.abs(x) + np.abs(y) - np.abs(x - y)) / width)
        case _:
            assert_never(kind)


def noise_law(kind: NoiseKind, scale: float, step: float) -> tuple[Floats, Floats]:
    """Nodes and weights of the noise; equally spaced, so the weights stay a positive definite sequence."""
    reach = {NoiseKind.GAUSSIAN: 9.0, NoiseKind.LAPLACE: 37.0}[kind]
    half = math.ceil(reach * scale / step)
    if half > _MOST_NODES:
        raise InvalidInput(
            "noise_scale", scale, "is too large for the kernel's width", "keep their ratio below a few thousand"
        )
    nodes: Floats = np.arange(-half, half + 1, dtype=np.float64) * (step / scale)
    density = np.exp(-(nodes**2) / 2) if kind is NoiseKind.GAUSSIAN else np.exp(-np.abs(nodes))
    return nodes * scale, density / density.sum()


def noisy_kernel(
    kind: Kernel, noise: NoiseKind, x: Floats, y: Floats, width: float, scale: float, step: float | None = None
) -> Floats:
    """kappa~(x, y) = E kappa(x, y + xi), by quadrature over the noise with the given step."""
    nodes, weights = noise_law(noise, scale, step or scale / 40)
    shifted = kernel(kind, x[..., None], y[..., None] + nodes, width)
    return np.asarray(shifted @ weights)


def _proposition_52(s: Setting) -> Finding:
    """The Gram matrix of kappa~ on equally spaced points: symmetric, and its smallest eigenvalue."""
    kind, noise = s.choice("kernel", Kernel), s.choice("noise", NoiseKind)
    width, scale = s.number("width"), s.number("noise_scale")
    points = np.linspace(-2, 2, 33) * max(width, scale)
    gram = noisy_kernel(kind, noise, points[:, None], points[None, :], width, scale)
    asymmetry = float(np.abs(gram - gram.T).max() / np.abs(gram).max())
    eigenvalues = np.linalg.eigvalsh((gram + gram.T) / 2)
    smallest = float(eigenvalues[0] / np.abs(eigenvalues).max())
    spectrum = _smallest_spectrum(kind, noise, width, scale) if _shift_invariant(kind) else None
    why = (
        f"the noisy {kind.value} kernel's Gram matrix on {len(points)} points has smallest eigenvalue"
        f" {smallest:.3g} of its largest, and is asymmetric by {asymmetry:.3g}"
    )
    if spectrum is not None:
        why += f"; its Fourier transform is at least {spectrum:.3g} of its largest value"
    found = min(smallest, -asymmetry) if asymmetry > 1e-12 else smallest
    quantity = "smallest relative eigenvalue of the noisy kernel (negative if it is not even symmetric)"
    details = {"smallest_eigenvalue": smallest, "asymmetry": asymmetry, "smallest_fourier_value": spectrum}
    return Finding(BoundComparison(quantity, 0.0, found, Direction.AT_LEAST), why, details=details)


def _smallest_spectrum(kind: Kernel, noise: NoiseKind, width: float, scale: float) -> float:
    """The smallest value of the discrete Fourier transform of kappa~(u), relative to its largest.

    The transform of a sampled function is its spectrum folded over, so a positive spectrum stays positive. The
    window holds both the kernel and the noise down to exp(-25).
    """
    length, step = 2048, 0.05 * max(width, scale)
    u = np.asarray(np.fft.fftfreq(length, d=1 / length) * step, dtype=np.float64)
    values = noisy_kernel(kind, noise, u, np.zeros(length), width, scale)
    spectrum = np.fft.fft(values).real
    return float(spectrum.min() / spectrum.max())


def _shift_invariant(kind: Kernel) -> bool:
    """Whether kappa(x + c, y + c) = kappa(x, y), checked on points rather than believed."""
    x, y = np.linspace(-1, 1, 9)[:, None], np.linspace(-1, 1, 9)[None, :]
    moved = kernel(kind, x + 4.0, y + 4.0, 1.0)  # exact in binary, so that the box keeps its edges
    return bool(np.allclose(moved, kernel(kind, x, y, 1.0), rtol=0, atol=1e-12))


def _positive(kind: Kernel) -> bool:
    """Whether the kernel itself has no negative eigenvalue, on equally spaced points."""
    points = np.linspace(-3, 3, 41)
    eigenvalues = np.linalg.eigvalsh(kernel(kind, points[:, None], points[None, :], 1.0))
    return bool(eigenvalues[0] > -1e-9 * eigenvalues[-1])


def _bounded(kind: Kernel) -> bool:
    """Whether kappa(z, z) stays put as z grows; |kappa(x, y)| is at most the larger of kappa(x, x), kappa(y, y)."""
    z = np.array([0.0, 1e3, 1e6])
    return bool(np.ptp(kernel(kind, z, z, 1.0)) < 1e-12)


def _corollary_53(s: Setting) -> Finding:
    width, scale = s.number("width"), s.number("noise_scale")
    wide = math.hypot(width, scale)
    u = np.linspace(0, 6 * wide, 121)
    noisy = _gaussian_twice(u, width, scale)
    found = float(noisy[0])
    shape = float(np.abs(noisy / found - np.exp(-((u / wide) ** 2) / 2)).max())
    printed = s.choice("reading", Amplitude) is Amplitude.PRINTED
    claimed = 1.0 if printed else width / wide
    why = (
        f"the variance does grow, to {wide**2:.4g} (the shape agrees to {shape:.1g}), but the kernel's value at 0"
        f" falls from 1 to {found:.6g}"
    )
    details = {"variance": wide**2, "amplitude": found, "shape_gap": shape} | _kernel_to_choose(width, scale)
    quantity = "the noisy Gaussian kernel's value at 0"
    return Finding(BoundComparison(quantity, claimed, found, Direction.EXACTLY), why, details=details)


def _gaussian_twice(u: Floats, width: float, scale: float) -> Floats:
    """Gaussian kernel, Gaussian noise; the step resolves the narrower of the two to rounding."""
    step = min(scale / 40, width / 3)
    return noisy_kernel(Kernel.GAUSSIAN, NoiseKind.GAUSSIAN, u, np.zeros_like(u), width, scale, step)


def _kernel_to_choose(width: float, scale: float) -> dict[str, object]:
    """The kernel whose noisy version is exactly the Gaussian kernel of this width; there is one if width > noise."""
    if width <= scale:
        return {"kernel_to_choose": None}
    narrow = math.sqrt(width**2 - scale**2)
    u = np.linspace(0, 6 * width, 121)
    noisy = _gaussian_twice(u, narrow, scale) * width / narrow
    gap = float(np.abs(noisy - np.exp(-((u / width) ** 2) / 2)).max())
    return {"kernel_to_choose": {"width": narrow, "amplitude": width / narrow, "gap": gap}}


_WIDTH = Parameter("width", 1.0, "the kernel's width s", positive, ("s",))
_NOISE = Parameter("noise_scale", 0.5, "the noise's standard deviation or scale t", positive, ("t",))

_claim = partial(Theorem, citation=CITATION)

THEOREMS = (
    _claim(
        id="mmd.proposition-5.2",
        place="Section 5.2, Proposition 5.2",
        formula="kappa~ = kappa * mu_DP is positive semi-definite if kappa is",
        parameters=(
            Parameter("kernel", Kernel.GAUSSIAN, "the kernel"),
            Parameter("noise", NoiseKind.GAUSSIAN, "the noise law"),
            _WIDTH,
            _NOISE,
        ),
        conditions=(
            Condition(
                lambda s: f"the {s.choice('kernel', Kernel).value} kernel is a function of x - y",
                lambda s: _shift_invariant(s.choice("kernel", Kernel)),
            ),
            Condition(
                lambda s: f"the {s.choice('kernel', Kernel).value} kernel is positive semi-definite",
                lambda s: _positive(s.choice("kernel", Kernel)),
            ),
            Condition(
                lambda s: f"the {s.choice('kernel', Kernel).value} kernel is bounded",
                lambda s: _bounded(s.choice("kernel", Kernel)),
            ),
        ),
        compute=_proposition_52,
        proof="Bochner: the Fourier transform is multiplied by a non-negative one (docs/theorems/fpfl-and-mmd.md)",
    ),
    _claim(
        id="mmd.corollary-5.3",
        place="Section 5.2, Corollary 5.3",
        formula="Gaussian kernel + Gaussian noise = Gaussian kernel with larger variance",
        parameters=(_WIDTH, _NOISE, Parameter("reading", Amplitude.PRINTED, "with or without the amplitude")),
        compute=_corollary_53,
        domain={"noise_scale": (5.0, 0.5), "width": (1.0, 0.2)},
        correction=Correction(
            "a constant factor is left out: the kernel is Gaussian of the stated variance, times its amplitude",
            ("reading", Amplitude.WITH_AMPLITUDE),
        ),
    ),
)
