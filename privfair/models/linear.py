"""Logistic regression: everything in closed form, one matrix product each way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor
from torch.nn import functional

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, count
from privfair.models.layers import coefficients_of, refuse_the_infinite, underflow, weigh_parts
from privfair.models.model import (
    EXACT,
    ClippedTo,
    Weigh,
    WeightedGradient,
    cross_entropy,
    in_working_precision,
    through_softmax,
)
from privfair.rounding import sum_in_blocks

# The clipped step of two-class logistic regression, in numpy: the same formulas at half of torch's overhead.
#
# At a few hundred records and features the arithmetic takes some ten microseconds; the rest of a step is the cost of
# calling the library, which numpy keeps lower. All of it is float64, whatever the features' type.

_SIGN = np.array((1.0, -1.0))
"""By class: whether a growing score speaks against it."""


def binary_weighted_gradient(theta: Tensor, x: Tensor, y: Tensor, weigh: Weigh) -> WeightedGradient:
    """sum_i c_i grad_i for the scores x theta[:-1] + theta[-1] of class 1; tensors in the CPU's memory.

    Guarantee: a record's loss, norm, coefficient and residual are functions of the record and of theta alone, to the
    last bit, as long as its coefficient is.
    """
    features = x.numpy() if x.dtype is EXACT else x.numpy().astype(np.float64)
    weights, labels = theta.numpy(), y.numpy()
    if np.bitwise_or.reduce(labels) not in (0, 1):  # a negative label sets the sign bit, a larger one a higher bit
        raise InvalidInput("y", _strangest(labels), "must be class 0 or 1", "number the classes 0 and 1")
    sign = _SIGN.take(labels)
    # By how much the score speaks against the true class: losses and residuals then never cancel. Row by row, not as
    # one product: a matrix library may round a record otherwise when another one joins the batch.
    against: Floats = np.vecdot(features, weights[:-1])
    against += weights.item(-1)
    against *= sign
    losses = np.logaddexp(0.0, against)
    residual = expit(against)
    norms = np.vecdot(features, features)
    norms += 1.0
    np.sqrt(norms, out=norms)
    norms *= residual
    coefficients = _weigh(weigh, norms, losses)
    residual *= sign
    residual *= coefficients

    def sum_of(rows: slice) -> Floats:
        total = np.empty(len(weights))
        np.dot(residual[rows], features[rows], out=total[:-1])
        total[-1] = np.add.reduce(residual[rows])
        return total

    wrap = torch.from_numpy
    total = sum_in_blocks(len(residual), sum_of)
    return WeightedGradient(wrap(total), wrap(norms), wrap(losses), wrap(coefficients))


def _weigh(weigh: Weigh, norms: Floats, losses: Floats) -> Floats:
    if not isinstance(weigh, ClippedTo):
        return coefficients_of(weigh, torch.from_numpy(norms), torch.from_numpy(losses)).numpy()
    coefficients = weigh.of_array(norms)
    if not math.isfinite(norms.dot(norms)):  # the coefficients are then finite too
        refuse_the_infinite(torch.from_numpy(norms), torch.from_numpy(coefficients))
    return coefficients


def _strangest(labels: NDArray[np.int64]) -> int:
    return int(labels[np.abs(labels - 0.5).argmax()])


_ROWS = 256
_SOFTPLUS_IS_LINEAR = 40.0
"""exp(-40) is below half a unit in the last place of 40, in double precision too."""


@final
@dataclass(frozen=True)
class LogisticRegression:
    """Linear scores with an intercept. Two classes need one score: theta has features + 1 entries.

    For more classes theta is a (features + 1) x classes matrix, flattened. The gradient of a record is an outer
    product of its extended features (x, 1) with its residual, so norms factor and clipping costs nothing.
    """

    features: int
    classes: int = 2

    def __post_init__(self) -> None:
        count("features", self.features)
        count("classes", self.classes, least=2)

    @property
    def size(self) -> int:
        return (self.features + 1) * (1 if self.classes == 2 else self.classes)

    def initial(self, seed: int) -> Tensor:
        """Zero: the loss is convex, so the seed does not matter."""
        return torch.zeros(self.size, dtype=EXACT)

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        if self.classes > 2:
            return self._scores(theta, flat)
        return functional.pad(self._score(theta, flat)[:, None], (1, 0))

    def probabilities(self, theta: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(self.logits(theta, x), dim=1)

    def weighted_gradient(self, theta: Tensor, x: Tensor, y: Tensor, weigh: Weigh) -> WeightedGradient:
        flat = x if x.ndim == 2 else x.flatten(1)
        if self.classes == 2 and x.is_cpu and not (x.requires_grad or theta.requires_grad):
            return binary_weighted_gradient(theta, flat, y, weigh)
        if self.classes == 2:
            losses, residual = _binary_cross_entropy(self._score(theta, flat), y)
        else:
            losses, residual = cross_entropy(self._scores(theta, flat), y)
        return weigh_parts(_LinearParts(flat, residual.to(EXACT)), losses, weigh)

    def probability_gradient(self, theta: Tensor, x: Tensor, coefficients: Tensor) -> Tensor:
        flat = x.flatten(1)
        pulled = through_softmax(self.probabilities(theta, flat), coefficients.to(flat.dtype))
        right = self._free(pulled).to(EXACT)
        return sum_in_blocks(len(flat), lambda rows: _sum(flat[rows].to(EXACT), right[rows]))

    def probability_norms(self, theta: Tensor, x: Tensor, directions: Tensor) -> Tensor:
        flat = x.flatten(1)
        pulled = through_softmax(self.probabilities(theta, flat), directions.to(flat.dtype)[:, None, :])
        free = self._free(pulled).to(EXACT)
        lengths = free.abs() if self.classes == 2 else torch.linalg.vector_norm(free, dim=2)
        return lengths.T * _extended_norms(flat.to(EXACT))[:, None]

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        matrix = theta.reshape(self.features + 1, -1)
        return {"weight": matrix[:-1].T, "bias": matrix[-1]}

    def _score(self, theta: Tensor, flat: Tensor) -> Tensor:
        vector = in_working_precision(theta, flat)
        return torch.mv(flat, vector[:-1]).add_(vector[-1])

    def _scores(self, theta: Tensor, flat: Tensor) -> Tensor:
        matrix = in_working_precision(theta, flat).reshape(self.features + 1, self.classes)
        return torch.addmm(matrix[-1], flat, matrix[:-1].T.contiguous().T)

    def _free(self, in_scores: Tensor) -> Tensor:
        """Of two classes' scores only the second is free; the first is zero."""
        return in_scores[..., 1] if self.classes == 2 else in_scores


@final
@dataclass(frozen=True, eq=False)
class _LinearParts:
    """Gradients (x_i, 1) residual_i^T, laid out as theta is; a residual is a number or a row.

    Features become float64 some rows at a time: at once, a large batch would be written to memory and read again.
    """

    left: Tensor
    right: Tensor

    def norms(self) -> Tensor:
        if self.right.ndim == 1:
            return self.right.abs().mul_(_extended_norms(self.left))
        lengths = torch.linalg.vector_norm(self.right, dim=1).square_().add_(underflow(self.right)).sqrt_()
        norms: Tensor = lengths.mul_(_extended_norms(self.left))
        return norms

    def weighted(self, coefficients: Tensor) -> Tensor:
        right = self.right * (coefficients if self.right.ndim == 1 else coefficients[:, None])
        return sum_in_blocks(len(right), lambda rows: self._sum_of(self.left[rows], right[rows]))

    def _sum_of(self, left: Tensor, right: Tensor) -> Tensor:
        """Of one block of records."""
        if len(right) <= _ROWS:
            return _sum(left.to(EXACT), right)
        total = right.new_zeros((left.shape[1] + 1) * right[0].numel())
        for rows in _blocks(len(right)):
            total += _sum(left[rows].to(EXACT), right[rows])
        return total


def _blocks(length: int) -> list[slice]:
    """All rows, some at a time; one empty block where there are none."""
    return [slice(at, at + _ROWS) for at in range(0, max(1, length), _ROWS)]


def _sum(left: Tensor, right: Tensor) -> Tensor:
    """The sum of the outer products of (left_i, 1) with right_i, flattened."""
    if right.ndim == 1:
        return torch.cat((right @ left, right.sum(dim=0, keepdim=True)))
    # Narrow times wide is twice as fast as its transpose.
    return torch.cat(((right.T @ left).T, right.sum(dim=0, keepdim=True))).reshape(-1)


def _binary_cross_entropy(score: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and residuals of one free score; by the sign of the margin, so nothing cancels."""
    # Through a table, as in numpy: a label that is neither 0 nor 1 must not become a factor.
    sign = score.new_tensor((1.0, -1.0)).gather(0, y)
    against = sign * score
    losses = functional.softplus(against, threshold=_SOFTPLUS_IS_LINEAR)
    return losses, against.sigmoid_().mul_(sign)


def _extended_norms(x: Tensor) -> Tensor:
    """Of (x_i, 1), in double precision."""
    parts = [torch.linalg.vector_norm(x[rows], dim=1, dtype=EXACT) for rows in _blocks(len(x))]
    norms: Tensor = torch.cat(parts).square_().add_(1.0).sqrt_()
    return norms
