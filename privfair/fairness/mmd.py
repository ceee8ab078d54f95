"""Maximum mean discrepancy of scores: kernels, what noise makes of them, and the penalty that a client computes alone.

A kernel here is v(x - y). Adding independent symmetric noise to y turns it, in expectation, into v convolved with
the noise law (Proposition 5.2 of the MMD paper). The amplitude changes along with the width. The closed forms are
proved in docs/theorems/fpfl-and-mmd.md#kernels-of-noisy-scores.

A *cell* is a condition on the true class together with a group. With published scores Y_0, Y_1 of the two groups under
condition j, the penalty's gradient at a record of group a is 2 (+1 or -1) C_j'(S) grad S / P(cell), averaged over the
client's records: the weights alpha_k^a = P_k(a) / P(a) of the paper times the mean over the client's records of group a
are just that, and P_k cancels. So only the cells' overall shares are needed, never a client's own counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrate.arrays import AnyFloats, Floats
from calibrate.errors import InvalidInput, UnsupportedCombination, positive
from privfair.fairness.constraints import KernelKind, MmdCriterion, Score, score_gradient, score_values
from privfair.models.model import Model, class_means


class _Positive:
    """All numbers of a noise law or a kernel must be greater than zero."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            positive(name, value)


@dataclass(frozen=True)
class GaussianSmoothing(_Positive):
    """N(0, deviation^2)."""

    deviation: float


@dataclass(frozen=True)
class LaplaceSmoothing(_Positive):
    """Density exp(-|u| / scale) / (2 scale)."""

    scale: float


Noise = GaussianSmoothing | LaplaceSmoothing


@dataclass(frozen=True)
class GaussianKernel(_Positive):
    """amplitude * exp(-u^2 / (2 width^2))."""

    width: float
    amplitude: float = 1.0

    def values(self, u: AnyFloats) -> AnyFloats:
        return np.asarray(self.amplitude * np.exp(-(u**2) / (2 * self.width**2)))

    def derivative(self, u: AnyFloats) -> AnyFloats:
        return -u / self.width**2 * self.values(u)


@dataclass(frozen=True)
class LaplaceKernel(_Positive):
    """amplitude * exp(-|u| / width)."""

    width: float
    amplitude: float = 1.0

    def values(self, u: AnyFloats) -> AnyFloats:
        return self.amplitude * np.exp(-np.abs(u) / self.width)

    def derivative(self, u: AnyFloats) -> AnyFloats:
        """Zero at the kink, the middle of the two one-sided derivatives."""
        return -np.sign(u) / self.width * self.values(u)


@dataclass(frozen=True)
class EnergyKernel(_Positive):
    """-amplitude * |u|, whose MMD^2 is the energy distance.

    It is unbounded and only conditionally positive definite (for weights that sum to zero, as in an MMD).
    """

    amplitude: float = 1.0

    def values(self, u: AnyFloats) -> AnyFloats:
        return -self.amplitude * np.abs(u)

    def derivative(self, u: AnyFloats) -> AnyFloats:
        return -self.amplitude * np.sign(u)


@dataclass(frozen=True)
class SharpenedGaussianKernel(_Positive):
    """w - scale^2 w'' for the Gaussian w = amplitude * exp(-u^2 / (2 width^2)): Laplace noise turns it into w."""

    width: float
    scale: float
    amplitude: float = 1.0

    def values(self, u: AnyFloats) -> AnyFloats:
        ratio = (self.scale / self.width) ** 2
        return GaussianKernel(self.width, self.amplitude).values(u) * (1 + ratio - ratio * (u / self.width) ** 2)

    def derivative(self, u: AnyFloats) -> AnyFloats:
        ratio = (self.scale / self.width) ** 2
        gaussian = GaussianKernel(self.width, self.amplitude).values(u)
        return -u / self.width**2 * gaussian * (1 + 3 * ratio - ratio * (u / self.width) ** 2)


WantedKernel = GaussianKernel | LaplaceKernel | EnergyKernel
Kernel = WantedKernel | SharpenedGaussianKernel


# From the kernel's name in a plan to the kernel.


def kernel_of(kind: KernelKind, width: float) -> WantedKernel:
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


# Maximum mean discrepancy between two samples of scores, and the kernel that noise on the scores leaves.
#
# Predictions that are published with noise y + xi make an MMD with the convolved kernel, not with the kernel one
# wrote down. `kernel_before_noise` answers with which kernel one must compute so that, in expectation over the noise,
# the wanted kernel comes out; tests/privfair/convolved_kernels.py has the closed forms of all convolutions.

_BLOCK = 2**22
"""Kernel values held at once, so that two samples of 10^5 scores need no matrix of 10^10."""


def kernel_before_noise(wanted: WantedKernel, noise: Noise) -> Kernel:
    """The kernel to compute with, so that noise on the scores turns it exactly into `wanted`.

    Guarantee: `kernel_before_noise(wanted, noise)` convolved with the law of `noise` is `wanted`. Choosing a kernel is
    post-processing of published scores and costs no privacy. It costs variance: the amplitude grows as the noise
    approaches the wanted width.
    """
    if not isinstance(wanted, GaussianKernel):
        raise UnsupportedCombination(
            f"{type(wanted).__name__} wanted after {type(noise).__name__}",
            "noise rounds off every kink, and this kernel has one at zero",
            'ask for a Gaussian kernel, or write correction = "none": the laws are then compared after the noise',
        )
    width, amplitude = wanted.width, wanted.amplitude
    match noise:
        case GaussianSmoothing(deviation):
            if deviation >= width:
                raise InvalidInput(
                    "width",
                    width,
                    f"must exceed the noise's deviation {deviation}, because noise only ever widens a kernel",
                    "ask for a wider kernel or publish with less noise",
                )
            # noise of deviation t turns exp(-u^2 / (2 s^2)) into (s / r) exp(-u^2 / (2 r^2)) with r^2 = s^2 + t^2
            narrower = math.sqrt((width - deviation) * (width + deviation))
            return GaussianKernel(narrower, amplitude * width / narrower)
        case LaplaceSmoothing(scale):
            return SharpenedGaussianKernel(width, scale, amplitude)


def mmd_squared_v(x: NDArray[Any], y: NDArray[Any], kernel: Kernel) -> float:
    """The V-statistic: MMD^2 of the two empirical laws, never negative (up to rounding), biased upwards."""
    x, y = _sample("x", x), _sample("y", y)
    return _mean(x, x, kernel) + _mean(y, y, kernel) - 2 * _mean(x, y, kernel)


def witness_derivative(z: NDArray[Any], x: NDArray[Any], y: NDArray[Any], kernel: Kernel) -> Floats:
    """The derivative of the witness by z: all that a client's gradient of the fairness term needs."""
    z, x, y = _sample("z", z), _sample("x", x), _sample("y", y)
    return _row_means(z, x, kernel.derivative) - _row_means(z, y, kernel.derivative)


def _sample(argument: str, values: NDArray[Any]) -> Floats:
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample) or not np.isfinite(sample).all():
        raise InvalidInput(
            argument, sample.shape, "must be a list of finite scores, at least one", "check the group's size"
        )
    return sample


def _row_means(x: Floats, y: Floats, function: Callable[[AnyFloats], AnyFloats]) -> Floats:
    rows = max(1, _BLOCK // len(y))
    parts = [function(x[i : i + rows, np.newaxis] - y).mean(axis=1) for i in range(0, len(x), rows)]
    return np.concatenate(parts)


def _mean(x: Floats, y: Floats, kernel: Kernel) -> float:
    return float(_row_means(x, y, kernel.values).mean())


def conditions(criterion: MmdCriterion, classes: int, positive_class: int) -> tuple[int | None, ...]:
    """What is conditioned on (`Strata`), one after the other: true classes, or sides of a cut; None: all together."""
    match criterion:
        case MmdCriterion.STATISTICAL_PARITY | MmdCriterion.RISK_PARITY:
            return (None,)
        case MmdCriterion.EQUAL_OPPORTUNITY:
            return (positive_class,)
        case MmdCriterion.PREDICTIVE_EQUALITY:
            return tuple(label for label in range(classes) if label != positive_class)
        case MmdCriterion.CONDITIONAL_PARITY:
            return (0, 1)
        case MmdCriterion.EQUALISED_ODDS:
            return tuple(range(classes))
        case _:
            assert_never(criterion)


@dataclass(frozen=True)
class Strata:
    """What a condition speaks of: a record's true class, or on which side of a public cut one of its features lies."""

    feature: int | None = None
    cut: float = 0.5

    def require(self, criterion: MmdCriterion) -> None:
        """Refuse a feature without the criterion that needs one, and the other way round."""
        if (criterion is MmdCriterion.CONDITIONAL_PARITY) != (self.feature is not None):
            rule = f"must be given for {MmdCriterion.CONDITIONAL_PARITY.value}, and for nothing else"
            raise InvalidInput("condition-feature", self.feature, rule, "give the number of a feature, or drop it")

    def of(self, x: Tensor, y: Tensor) -> Tensor:
        """Each record's stratum: a function of the record alone."""
        if self.feature is None:
            return y
        flat = x.flatten(1)
        if self.feature >= flat.shape[1]:
            rule = f"must be below {flat.shape[1]}, the number of features"
            raise InvalidInput("condition-feature", self.feature, rule, "number features from 0")
        return (flat[:, self.feature] > self.cut).to(y.dtype)


_BY_CLASS = Strata()


def cell_of_rows(given: tuple[int | None, ...], stratum: Tensor, s: Tensor) -> Tensor:
    """Each record's cell, group * conditions + condition; -1 for a record in none. Cells are disjoint."""
    if given == (None,):
        return s.clone()
    cell = torch.full_like(stratum, -1)
    for place, label in enumerate(given):
        inside = stratum == label
        cell[inside] = s[inside] * len(given) + place
    return cell


@dataclass(frozen=True, eq=False)
class TrackedPenalty:
    """lambda times the sum over conditions j and pairs of groups of f_j(theta; Y_aj, Y_bj), published scores fixed.

    Two groups make one pair. With more, every pair counts: the sum is zero only where all laws agree.
    """

    model: Model
    score: Score
    given: tuple[int | None, ...]
    positive_class: int
    kernel: Kernel
    weight: float
    published: Sequence[Sequence[Floats]]
    """By group, then by condition: scores."""
    shares: Floats
    """(groups * conditions,), each positive."""
    class_weight: tuple[float, ...] = ()
    """How often each class counts in the loss; left out, all count alike."""
    strata: Strata = _BY_CLASS

    def gradient(self, theta: Tensor, x: Tensor, y: Tensor, s: Tensor) -> Tensor:
        """The mean over these records of the gradients of their loss and of their part of the penalty."""
        mean = class_means(self.class_weight, y, self.model.classes, max(1, len(y)))
        task = self.model.weighted_gradient(theta, x, y, mean).total
        if self.weight == 0 or len(y) == 0:
            return task
        scores = score_values(self.score, self.model, theta, x, y, self.positive_class)
        slopes = torch.from_numpy(
            self.slopes(scores.numpy(), cell_of_rows(self.given, self.strata.of(x, y), s).numpy())
        )
        return task + score_gradient(
            self.score, self.model, theta, x, y, self.positive_class, slopes * (self.weight / len(y))
        )

    def slopes(self, scores: Floats, cells: Floats) -> Floats:
        """The derivative of each record's part of the penalty in its own score, before the weight."""
        out = np.zeros(len(scores))
        for place in range(len(self.given)):
            for group, own in enumerate(self.published):
                cell = group * len(self.given) + place
                inside = cells == cell
                if not inside.any() or len(own[place]) == 0:
                    continue
                for number, other in enumerate(self.published):
                    if number != group and len(other[place]):
                        slope = witness_derivative(scores[inside], own[place], other[place], self.kernel)
                        out[inside] += 2.0 * slope / self.shares[cell]
        return out
