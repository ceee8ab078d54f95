"""How much of each record's gradient is taken: plain mean, clipping, clipping after a factor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrate.errors import InvalidInput
from calibrate.validation import count, positive

Weigh = Callable[[Tensor, Tensor], Tensor]
"""From gradient norms and losses of the records of a batch to their coefficients; float64 throughout."""

ROUNDING_SLACK = 2.0**-21
"""By how much (relatively) parts are held under their bound, so that rounding can't carry a sum over its sensitivity.

Three things round. A norm is off by at most about (values summed + 3) u, with u = 2^-53; its coefficient by 3 u; both
are below 1e-9 up to eight million parameters. And the sum over n records, in whatever order, is off by at most
(n + 3) u times the sum of the parts' norms, n times the bound: the sums of two neighbouring batches then differ by at
most bound * (1 + 2 n (n + 3) u), which 2^-21 covers up to n = 46,000 records in a batch.
"""

SMALLEST_BOUND = 1e-100
"""With norms whose squares are finite, no coefficient then falls among the subnormal numbers, which round coarsely."""


def mean_over(size: int) -> Weigh:
    """Every record with weight 1/size: the plain mean, whatever the batch's real size."""
    share = 1.0 / count("size", size)
    return lambda norms, losses: torch.full_like(norms, share)


@final
@dataclass(frozen=True)
class ClippedTo:
    """min(1, reach / norm); a zero gradient keeps its weight of one. Made by `clipped_to`."""

    reach: float

    def __call__(self, norms: Tensor, losses: Tensor) -> Tensor:
        return torch.div(torch.tensor(self.reach, dtype=norms.dtype), norms.clamp_min(self.reach))

    def of_array(self, norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same coefficients for a numpy array, with less overhead."""
        return self.reach / np.maximum(norms, self.reach)


def clipped_to(bound: float) -> ClippedTo:
    """min(1, bound / norm), nudged down by `ROUNDING_SLACK`.

    Guarantee: no record's part c_i grad_i is longer than `bound`, rounding included, and adding or removing a record
    moves the computed sum of up to 46,000 parts by at most `bound` (docs/models.md, "What rounding can do").
    """
    if positive("bound", bound) < SMALLEST_BOUND:
        raise InvalidInput(
            "bound",
            bound,
            f"must be at least {SMALLEST_BOUND:g} for rounding to be under control",
            "clip less",
        )
    return ClippedTo(bound / (1.0 + ROUNDING_SLACK))


def clipped_after(factor: Callable[[Tensor], Tensor], bound: float) -> Weigh:
    """The gradient times a factor of the record's loss, then clipped: sign(f) min(|f|, bound / norm).

    The factor may be negative or larger than one. Clipping before multiplying would let it carry a part over the
    bound by any amount; the guarantee is that of `clipped_to`.
    """
    reach = clipped_to(bound).reach

    def weigh(norms: Tensor, losses: Tensor) -> Tensor:
        factors = factor(losses).to(norms.dtype)
        longest = torch.div(torch.tensor(reach, dtype=norms.dtype), norms)
        return torch.copysign(torch.minimum(factors.abs(), longest), factors)

    return weigh
