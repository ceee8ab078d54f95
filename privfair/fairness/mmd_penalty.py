"""The MMD penalty that a client can compute alone, once predictions of all clients were published.

A *cell* is a condition on the true class together with a group. With published scores Y_0, Y_1 of the two groups under
condition j, the penalty's gradient at a record of group a is 2 (+1 or -1) C_j'(S) grad S / P(cell), averaged over the
client's records: the weights alpha_k^a = P_k(a) / P(a) of the paper times the mean over the client's records of group a
are just that, and P_k cancels. So only the cells' overall shares are needed, never a client's own counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from privfair.fairness.compared_scores import score_gradient, score_values
from privfair.fairness.kernel_mmd import witness_derivative
from privfair.fairness.kernels import Kernel
from privfair.fairness.notions import MmdCriterion, Score
from privfair.models.model import Model, mean_over

GROUPS = 2


def conditions(criterion: MmdCriterion, classes: int, positive_class: int) -> tuple[int | None, ...]:
    """The true classes that are conditioned on, one after the other; None: all records together."""
    match criterion:
        case MmdCriterion.STATISTICAL_PARITY | MmdCriterion.RISK_PARITY:
            return (None,)
        case MmdCriterion.EQUAL_OPPORTUNITY:
            return (positive_class,)
        case MmdCriterion.EQUALISED_ODDS:
            return tuple(range(classes))
        case _:
            assert_never(criterion)


def cell_of_rows(given: tuple[int | None, ...], y: Tensor, s: Tensor) -> Tensor:
    """Each record's cell, group * conditions + condition; -1 for a record in none. Cells are disjoint."""
    if given == (None,):
        return s.clone()
    cell = torch.full_like(y, -1)
    for place, label in enumerate(given):
        inside = y == label
        cell[inside] = s[inside] * len(given) + place
    return cell


@dataclass(frozen=True, eq=False)
class TrackedPenalty:
    """lambda times the sum over conditions of f_j(theta; Y_0j, Y_1j), with the published scores held fixed."""

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

    def gradient(self, theta: Tensor, x: Tensor, y: Tensor, s: Tensor) -> Tensor:
        """The mean over these records of the gradients of their loss and of their part of the penalty."""
        task = self.model.weighted_gradient(theta, x, y, mean_over(max(1, len(y)))).total
        if self.weight == 0 or len(y) == 0:
            return task
        scores = score_values(self.score, self.model, theta, x, y, self.positive_class)
        slopes = torch.from_numpy(self.slopes(scores.numpy(), cell_of_rows(self.given, y, s).numpy()))
        return task + score_gradient(
            self.score, self.model, theta, x, y, self.positive_class, slopes * (self.weight / len(y))
        )

    def slopes(self, scores: Floats, cells: Floats) -> Floats:
        """The derivative of each record's part of the penalty in its own score, before the weight."""
        out = np.zeros(len(scores))
        for place in range(len(self.given)):
            for group, sign in ((0, 1.0), (1, -1.0)):
                cell = group * len(self.given) + place
                inside = cells == cell
                first, second = self.published[0][place], self.published[1][place]
                if inside.any() and len(first) and len(second):
                    slope = witness_derivative(scores[inside], first, second, self.kernel)
                    out[inside] = 2.0 * sign * slope / self.shares[cell]
        return out


def own_gradient(
    model: Model,
    score: Score,
    given: tuple[int | None, ...],
    positive_class: int,
    kernel: Kernel,
    weight: float,
    theta: Tensor,
    x: Tensor,
    y: Tensor,
    s: Tensor,
) -> Tensor:
    """The gradient of mean loss plus weight times the squared MMD between the groups among these very records.

    A condition under which one of the groups has no record here has no penalty.
    """
    scores = score_values(score, model, theta, x, y, positive_class).numpy()
    cells = cell_of_rows(given, y, s).numpy()
    shares = np.bincount(cells[cells >= 0], minlength=GROUPS * len(given)) / max(1, len(y))
    published = [
        [scores[cells == group * len(given) + place] for place in range(len(given))]
        for group in range(GROUPS)
    ]
    own = TrackedPenalty(model, score, given, positive_class, kernel, weight, published, shares)
    return own.gradient(theta, x, y, s)
