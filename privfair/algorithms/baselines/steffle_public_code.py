"""What the SteFFLe authors' public code computes, which is not Algorithm 1. It shows what their figures rest on.

A replica from a reading of that code (its commit 0ebad1e), written anew. For two classes it differs from the paper in:

* W is 1 x 1 (for each block), so that of psi only -w^2 p + 2 w p [s is the first group] / sqrt(P_first) is left, with p
  the probability of the positive class: positive answers of one group are punished, and never the difference of two;
* the *first* group is the one that a silo's first record belongs to, so silos may mean different groups by it;
* lambda is inside the clip, and the clipped gradients in theta are **summed** over the batch, while the loss and the
  gradient in W are means over its real size. The noise there is that of Theorem 3.3 for a mean, so the sum's true
  sensitivity is about a batch size larger than the one the noise was chosen for.

There is no noise here: which noise would pay for the sum is not what that code adds, and no promise is made beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, UnsupportedCombination, positive
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.descent import Descent, DescentRule, tensor
from privfair.fairness import fermi
from privfair.fairness.fermi import Independence
from privfair.models.model import Features, Model, mean_over

G, H_THETA, H_W = "g", "h_theta", "h_W"
_WHY = (
    "SteFFLe's public code sums the fairness gradient over the batch where its noise is for a mean, and numbers groups "
    "by the first record of a silo"
)


@dataclass(frozen=True, eq=False)
class PublicCodeState:
    """`w` has one entry per block."""

    descent: Descent
    w: Tensor


@final
@dataclass(frozen=True, eq=False)
class StefflePublicCode(Algorithm[PublicCodeState]):
    """The public code's round; `clip` is its Lipschitz constant, `w_radius` its C. Nothing is protected.

    `first_shares` is P's entry of the group that comes first in the pooled records, block by block: it is used in all
    silos, also where another group comes first.
    """

    model: Model
    notion: Independence
    fairness: float
    rule: DescentRule
    w_step: float
    clip: float
    w_radius: float
    first_shares: tuple[float, ...]
    silos: tuple[str, ...]
    positive_class: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        positive("lipschitz", self.clip)
        positive("w-radius", self.w_radius)
        if self.model.classes != 2 or self.notion is Independence.EQUAL_OPPORTUNITY:
            raise UnsupportedCombination(
                f'variant = "public-code" for {self.notion.value} and {self.model.classes} classes',
                "the public code knows demographic parity and equalised odds for two classes",
                "use one of these, or leave the variant out",
            )
        if len(self.first_shares) != self.blocks:
            raise InvalidInput(
                "group-frequencies", self.first_shares, f"must be {self.blocks} blocks of shares", "list all of them"
            )

    @property
    def blocks(self) -> int:
        return self.notion.blocks(self.model.classes)

    def clear_values(self) -> tuple[ClearValue, ...]:
        gradient = ClearValue(G, "The gradient of the loss, which no attribute enters.", depends_on_unit=False)
        return (gradient, ClearValue(H_THETA, f"{_WHY}.", True), ClearValue(H_W, f"{_WHY}.", True))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {G: (self.model.size,), H_THETA: (self.model.size,), H_W: (self.blocks,)}

    def start(self) -> PublicCodeState:
        zero = torch.zeros(self.blocks, dtype=torch.float64)
        return PublicCodeState(self.rule.start(self.model.initial(self.seed)), zero)

    def contribution(self, state: PublicCodeState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        theta = state.descent.theta
        x, y, s = silo.columns(batch)
        if len(y) == 0:
            return Message(clear={name: np.zeros(shape) for name, shape in self.shapes().items()})
        first = (s == silo.s[0]).to(torch.float64)
        block = fermi.block_of(self.notion, y, self.positive_class)
        w, scale = state.w[block], self._scales[block]
        slopes = self.fairness * (2 * w * first * scale - w.square())
        answers = self.model.probabilities(theta, x)[:, self.positive_class].to(torch.float64)
        in_w = self.fairness * (2 * answers * first * scale - 2 * w * answers)
        return Message(
            clear={
                G: _floats(self.model.weighted_gradient(theta, x, y, mean_over(len(y))).total),
                H_THETA: self._summed(theta, x, slopes),
                H_W: _floats(torch.zeros_like(state.w).index_add_(0, block, in_w) / len(y)),
            }
        )

    def update(self, state: PublicCodeState, received: Received) -> PublicCodeState:
        """Plain means over silos, whatever their sizes; W is projected after its step."""
        mean = {
            name: tensor(np.mean([received[silo][name].values for silo in self.silos], axis=0))
            for name in (G, H_THETA, H_W)
        }
        w = state.w + self.w_step * mean[H_W]
        w = torch.sign(w) * w.abs().clamp_max(self.w_radius)
        return replace(state, descent=self.rule.advance(state.descent, mean[G] + mean[H_THETA]), w=w)

    def theta(self, state: PublicCodeState) -> Tensor:
        return self.rule.model(state.descent)

    @cached_property
    def _scales(self) -> Tensor:
        """P_first^(-1/2), block by block."""
        return torch.tensor(self.first_shares, dtype=torch.float64).rsqrt()

    def _summed(self, theta: Tensor, x: Features, slopes: Tensor) -> Floats:
        """The sum over the batch of each record's gradient of slope_i p_i, clipped to `clip`."""
        direction = torch.zeros(1, self.model.classes, dtype=torch.float64)
        direction[0, self.positive_class] = 1.0
        norms = self.model.probability_norms(theta, x, direction)[:, 0].to(torch.float64) * slopes.abs()
        clipped = slopes * (self.clip / norms.clamp_min(self.clip))
        return _floats(self.model.probability_gradient(theta, x, clipped[:, None] * direction))


def _floats(values: Tensor) -> Floats:
    return values.detach().numpy().astype(np.float64)
