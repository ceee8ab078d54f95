"""FERMI: the chi-square dependence of predictions and groups, as a maximum over a matrix W.

For one record with class probabilities F and group s the SteFFLe paper (Theorem D.1, after Lowy et al. 2022) has

    psi = -Tr(W diag(F) W^T) + 2 Tr(W F s^T P^(-1/2)) - 1,

with W of shape groups x classes and P the diagonal of group frequencies. The mean of psi over all records is
concave in W, its maximum is the chi-square divergence, and it is linear in F: a record's gradient in theta is that of
<slope, F> with

    slope_j = attribute part  2 W_sj / sqrt(P_s)      (the only place where s occurs)
            + common part    -sum_r W_rj^2.

For equalised odds and equal opportunity there is one W and one P for each block of records (`Independence`).
Everywhere: `w` is (blocks, groups, classes), `frequencies` is (blocks, groups).
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

import torch
from torch import Tensor

from calibrate.errors import count

# Which independence is asked of the predictions, and which records it speaks of.


class Independence(Enum):
    """Predictions independent of the group: for everybody, within each class, or within one class."""

    DEMOGRAPHIC_PARITY = "demographic-parity"
    EQUALISED_ODDS = "equalised-odds"
    EQUAL_OPPORTUNITY = "equal-opportunity"

    def blocks(self, classes: int) -> int:
        """The number of record sets within which independence is asked for, each with its own W.

        A record is in at most one block, and its class alone says in which: the class is not protected under
        attribute privacy, so the blocks reveal nothing.
        """
        match self:
            case Independence.DEMOGRAPHIC_PARITY | Independence.EQUAL_OPPORTUNITY:
                return 1
            case Independence.EQUALISED_ODDS:
                return count("classes", classes, least=2)
            case _:
                assert_never(self)


OUTSIDE = -1
"""The block of a record of which the notion does not speak."""


def block_of(notion: Independence, y: Tensor, positive: int = 1) -> Tensor:
    """The block of each record, from its class alone."""
    match notion:
        case Independence.DEMOGRAPHIC_PARITY:
            return torch.zeros_like(y)
        case Independence.EQUALISED_ODDS:
            return y
        case Independence.EQUAL_OPPORTUNITY:
            return torch.where(y == positive, 0, OUTSIDE)
        case _:
            assert_never(notion)


def attribute_slopes(w: Tensor, frequencies: Tensor) -> Tensor:
    """2 P^(-1/2) W: what a record of each group adds to its slope because of its group."""
    return 2.0 * w / frequencies.sqrt()[:, :, None]


def common_slopes(w: Tensor) -> Tensor:
    """-sum_r W_rj^2, the part of the slope that no attribute enters; (blocks, classes)."""
    return -w.square().sum(dim=1)


def joint_distribution(probabilities: Tensor, membership: Tensor, block: Tensor, blocks: int) -> Tensor:
    """sum_i 1[block] membership_i F_i^T, one groups x classes matrix a block.

    `membership` is (records, groups): one-hot for known groups, debiased for randomised ones.
    """
    parts = [membership[block == b].T @ probabilities[block == b].to(membership.dtype) for b in range(blocks)]
    return torch.stack(parts)


def weight_gradient(w: Tensor, joint: Tensor, predicted: Tensor, frequencies: Tensor) -> Tensor:
    """The gradient in W of the sum of psi.

    `joint` is `joint_distribution` of the records, `predicted` their summed class probabilities (blocks, classes).
    """
    return 2.0 * joint / frequencies.sqrt()[:, :, None] - 2.0 * w * predicted[:, None, :]


def independence_point(frequencies: Tensor, classes: int) -> Tensor:
    """The W at which predictions independent of the group maximise psi: every column is sqrt(P).

    Here the attribute part of the slope is the same for all groups, so nothing about s is sent at all. SteFFLe's W
    is measured from this point: the distance between a record's two messages depends on W - this point alone.
    """
    return frequencies.sqrt()[:, :, None].expand(-1, -1, classes).clone()


def project_blocks(deviation: Tensor, radius: float) -> Tensor:
    """Each block onto the Frobenius ball of this radius, rounding included."""
    norms = torch.linalg.vector_norm(deviation, dim=(1, 2), keepdim=True)
    inside = radius * (1.0 - 2.0**-40)
    projected: Tensor = deviation * (inside / norms.clamp_min(inside))
    return projected


def largest_w_distance(probabilities: Tensor, block: Tensor, frequencies: Tensor) -> float:
    """The largest distance between two records' parts of the W-gradient that differ in the group alone.

    Replacing a by b changes 2 P^(-1/2) e_s F^T by 2 (e_a / sqrt(P_a) - e_b / sqrt(P_b)) F^T, of Frobenius norm
    2 sqrt(1/P_a + 1/P_b) |F|: largest for the two rarest groups.
    """
    inside = block != OUTSIDE
    if not bool(inside.any()):
        return 0.0
    rarest = frequencies.sort(dim=1).values[:, :2].reciprocal().sum(dim=1).sqrt()
    lengths = torch.linalg.vector_norm(probabilities[inside].to(rarest.dtype), dim=1)
    return float((2.0 * rarest[block[inside]] * lengths).max())
