"""Fair clipping: FedFDP's factor of a record's loss and the clip, in one coefficient; and the loss's own clip.

The factor 1 + lambda (loss - mean loss) is negative for a record far below the mean, and the published mean is noisy,
so that happens. Equation 13 of the paper, min(factor, C / norm), leaves such a record unbounded; here the *size* of
factor times gradient is clipped and the sign kept (docs/theorems/fedfdp.md, "Equation 13").
"""

from __future__ import annotations

import torch
from torch import Tensor

from calibrate.errors import InvalidInput
from privfair.models.weighing import ROUNDING_SLACK, Weigh, clipped_after


def fair_clipping(fairness: float, mean_loss: float, clip: float) -> Weigh:
    """sign(f) min(|f|, clip / norm) with f = 1 + fairness (loss - mean_loss).

    Guarantee: no record's part is longer than `clip`, whatever its loss and whatever the published mean, so
    adding or removing a record moves the sum by at most `clip`. With fairness = 0 it is ordinary clipping.
    """
    if not 0 <= fairness < float("inf"):
        raise InvalidInput(
            "fairness", fairness, "must be a finite number of at least 0", "0 is plain clipping"
        )
    return clipped_after(lambda losses: 1.0 + fairness * (losses - mean_loss), clip)


def clipped_losses(losses: Tensor, current: float, signed: float) -> Tensor:
    """Losses cut to [0, current], then stretched so that `current` becomes the signed bound.

    The gate's noise is fixed by the signed bound; stretching before and shrinking after it (`mean_of_losses`) makes
    the noise on the loss proportional to the current clip, which is what adapting it is for.

    Guarantee: each entry lies in [0, signed], and below it by the slack that pays for rounding in the sum.
    """
    if not 0 < current <= signed:
        raise InvalidInput(
            "loss clip", current, f"must lie in (0, {signed}]", "adapt within the signed bound"
        )
    if bool(torch.isnan(losses).any()):
        raise InvalidInput("losses", "nan", "must be numbers", "lower the step size: the model diverged")
    return losses.clamp(0.0, current) / current * (signed / (1.0 + ROUNDING_SLACK))


def mean_of_losses(published_sum: float, current: float, signed: float, expected: float) -> float:
    """The published sum of stretched losses as a mean, brought back to [0, current], where the exact one lies."""
    mean = published_sum * (1.0 + ROUNDING_SLACK) * current / signed / expected
    return min(max(mean, 0.0), current)


def next_loss_clip(mean: float, headroom: float, floor: float, signed: float) -> float:
    """The next round's loss clip, from the mean already published: nothing new is released.

    The paper takes the mean itself (headroom = 1). Clipped at c, losses have a mean of at most c, so that clip only
    ever shrinks, and at zero it stays there for good. With headroom > 1 a clip that cuts every loss grows again by
    that factor a round, and the floor keeps it positive.
    """
    return min(max(headroom * mean, floor), signed)
