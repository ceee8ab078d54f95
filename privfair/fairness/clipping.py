"""FedFDP's fair clipping of records and losses, and the fairness parameter that its analysis suggests.

`optimal_fairness` is Section VI of the FedFDP paper: the minimiser over lambda of the convergence bound of Theorem 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrate.errors import InvalidInput
from calibrate.roots import find_root
from privfair.models.model import Weigh, clipped_after
from privfair.rounding import ROUNDING_SLACK, sum_in_blocks

# Fair clipping: FedFDP's factor of a record's loss and the clip, in one coefficient; and the loss's own clip.
#
# The factor 1 + lambda (loss - mean loss) is negative for a record far below the mean, and the published mean is
# noisy, so that happens. Equation 13 of the paper, min(factor, C / norm), leaves such a record unbounded; here the
# *size* of factor times gradient is clipped and the sign kept (docs/theorems/fedfdp.md, "Equation 13").


def fair_clipping(fairness: float, mean_loss: float, clip: float) -> Weigh:
    """sign(f) min(|f|, clip / norm) with f = 1 + fairness (loss - mean_loss).

    Guarantee: no record's part is longer than `clip`, whatever its loss and whatever the published mean, so
    adding or removing a record moves the sum by at most `clip`. With fairness = 0 it is ordinary clipping.
    """
    if not 0 <= fairness < float("inf"):
        raise InvalidInput("fairness", fairness, "must be a finite number of at least 0", "0 is plain clipping")
    return clipped_after(lambda losses: 1.0 + fairness * (losses - mean_loss), clip)


def clipped_losses(losses: Tensor, current: float, signed: float) -> Tensor:
    """Losses cut to [0, current], then stretched so that `current` becomes the signed bound.

    The gate's noise is fixed by the signed bound; stretching before and shrinking after it (`mean_of_losses`) makes
    the noise on the loss proportional to the current clip, which is what adapting it is for.

    Guarantee: each entry lies in [0, signed], and below it by the slack that pays for rounding in the sum. A loss that
    is not a number counts as zero.
    """
    if not 0 < current <= signed:
        raise InvalidInput("loss clip", current, f"must lie in (0, {signed}]", "adapt within the signed bound")
    return torch.nan_to_num(losses, 0.0, current).clamp(0.0, current) / current * (signed / (1.0 + ROUNDING_SLACK))


def sum_of_losses(clipped: Tensor) -> float:
    """The sum of clipped losses; adding or removing a record moves it by at most the signed bound."""
    return float(sum_in_blocks(len(clipped), lambda rows: clipped[rows].sum()))


def mean_of_losses(published_sum: float, current: float, signed: float, expected: float) -> float:
    """The published sum of stretched losses as a mean, brought back to [0, current], where the exact one lies."""
    mean = published_sum * (1.0 + ROUNDING_SLACK) * current / signed / expected
    return min(max(mean, 0.0), current)


def next_loss_clip(mean: float, headroom: float, floor: float, signed: float) -> float:
    """The next round's loss clip, from the mean already published: nothing new is released.

    The paper takes the mean itself (headroom = 1). Clipped at c, losses have a mean of at most c, so that clip only
    ever shrinks, and at zero it stays there for good. With headroom > 1 a clip that cuts every loss grows again by
    that factor per round, and the floor keeps it positive.
    """
    return min(max(headroom * mean, floor), signed)


@dataclass(frozen=True)
class ConvergenceConstants:
    """What Theorem 1 assumes about losses, gradients and noise; named as in the paper."""

    smoothness: float
    """L: every F_i is L-smooth."""
    strong_convexity: float
    """mu: every F_i is mu-strongly convex."""
    gradient_bound: float
    """G: no record's gradient is longer."""
    heterogeneity: float
    """Gamma = F* - sum_i p_i F_i*."""
    lowest_excess: float
    """Q_0: no record's loss is closer to, or further below, the mean loss."""
    highest_excess: float
    """Q_1: no record's loss is further above the mean loss."""
    start_distance: float
    """E |w_1 - w*|^2."""
    noise_multiplier: float
    clip: float
    dimension: int
    smallest_batch: float

    @property
    def noise_term(self) -> float:
        """2 sigma^2 C^2 d / B^2."""
        return 2 * (self.noise_multiplier * self.clip / self.smallest_batch) ** 2 * self.dimension


@dataclass(frozen=True)
class OptimalFairness:
    """lambda* with the polynomial it is a root of, and whether the analysis speaks of this setting at all."""

    value: float
    cubic: tuple[float, float, float, float]
    """2 a1 a5, 3 a1 + a2 a5, 2 a2, a3 - a4 a5."""
    conditions: tuple[tuple[str, bool], ...]


def coefficients(constants: ConvergenceConstants) -> tuple[float, float, float, float, float]:
    """a_1 .. a_5 as printed.

    The paper's places differ by a factor on A: 1/mu^2 in Theorem 1, 1/mu in Equation 17, 4/mu^2 in the appendix's
    induction with beta = 2/mu. P(lambda) is that factor times A(lambda) / (1 + a5 lambda), plus a constant: the
    start distance enters numerator and denominator alike. So none of this moves lambda*, and the a_i are taken
    as printed. The reading 2 C_t - 1 of the denominator (beta = 2/mu) does matter and is kept; a5 = 2 Q_0 is it.
    """
    squared, q0, q1 = constants.gradient_bound**2, constants.lowest_excess, constants.highest_excess
    drift = 2 * constants.smoothness * constants.heterogeneity
    start = constants.start_distance
    return (
        squared * q1**3,
        6 * squared * q1**2,
        9 * q1 * squared + drift * q1 + 2 * q0 * start,
        4 * squared + drift + constants.noise_term + start,
        2 * q0,
    )


def optimal_fairness(constants: ConvergenceConstants) -> OptimalFairness:
    """The minimiser of the bound on lambda >= 0: the cubic's only positive root, or 0 if the bound rises from there.

    With Q_0 <= 0, that is as soon as one record's loss is not above the mean, the numerator rises and the
    denominator does not: the bound is smallest at lambda = 0. The paper's derivation silently takes Q_0 > 0.
    """
    a1, a2, a3, a4, a5 = coefficients(constants)
    cubic = (2 * a1 * a5, 3 * a1 + a2 * a5, 2 * a2, a3 - a4 * a5)
    falling = constants.lowest_excess > 0 and cubic[3] < 0
    value = _positive_root(cubic) if falling else 0.0
    reach = (1 + constants.highest_excess * value) * constants.gradient_bound
    conditions = (
        (
            "0 < mu <= L: the losses are smooth and strongly convex",
            0 < constants.strong_convexity <= constants.smoothness,
        ),
        (
            "0 < Q_0 <= Q_1: every record's loss exceeds the mean loss",
            0 < constants.lowest_excess <= constants.highest_excess,
        ),
        ("a_3 < a_4 a_5: the bound falls at lambda = 0", falling),
        ("(1 + Q_1 lambda) G <= C: the clip never acts", reach <= constants.clip),
    )
    return OptimalFairness(value, cubic, conditions)


def _positive_root(cubic: tuple[float, float, float, float]) -> float:
    """Negative at 0 and always rising: one sign change, bracketed by doubling."""
    high = 1.0
    while _value(cubic, high) < 0:
        high *= 2
    return find_root(lambda x: _value(cubic, x), 0.0, high, 1e-15, 1e-14)


def _value(cubic: tuple[float, float, float, float], x: float) -> float:
    return ((cubic[0] * x + cubic[1]) * x + cubic[2]) * x + cubic[3]
