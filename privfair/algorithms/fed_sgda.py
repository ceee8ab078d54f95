"""Noisy federated descent-ascent for a min-max loss of one's own: Algorithm 2 of the SteFFLe paper.

    min over theta, max over w in a ball, of the mean over records of f(theta, w; record)

Each round every silo sends two noisy sums over one batch: of the records' gradients in theta and in w, each clipped.
The unit is a whole record here: f may depend on features, class and group alike. A `gaussian` plan with two values
prices it:

    privfair calibrate gaussian --sampling-rate Q --rounds T --noise 1 --noise 1 --relation replace-one ...

Two things differ from print. Algorithm 2 draws batches with replacement, for which no amplification is proved: draw
them by Poisson sampling, or use the full batch. And the Lipschitz constants of its Theorem C.2 are not assumed but
enforced by clipping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from calibrate.errors import InvalidInput, positive
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.descent import Descent, DescentRule, tensor
from privfair.contribution import BoundedContribution
from privfair.models.exact import folded_squares, root
from privfair.rounding import ROUNDING_SLACK, RunningTotal, terms_per_block

OF_THETA, OF_W = "value_1", "value_2"
"""The names a `gaussian` plan gives to its two values."""

RecordLoss = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""f(theta, w, x, y, s) of one record: a scalar tensor, written in torch operations that `torch.func` can follow."""


@dataclass(frozen=True, eq=False)
class FedSgdaState:
    descent: Descent
    w: Tensor


@final
@dataclass(frozen=True, eq=False)
class FedSgda(Algorithm[FedSgdaState]):
    """The algorithm for one run and one loss.

    Guarantee: none of its own, the manifest prices the noise. Each record's part of either value has norm at most
    `clip`, the bound a `gaussian` plan signs: gradients in theta are clipped to `theta_clip`, those in w to `w_clip`,
    and both are sent in units in which that is `clip`. Unit: one record. The loss is the user's own: that one record's
    pass gives the same numbers whenever it is made is an assumption; a gradient that is not finite counts as zero.

    `expected` is the public expected number of records in all batches of a round together; the server divides by it.
    `w` stays in the ball of radius `w_radius` around its start.
    """

    loss: RecordLoss
    theta_start: Tensor
    w_start: Tensor
    theta_clip: float
    w_clip: float
    expected: float
    w_step: float
    w_radius: float
    rule: DescentRule
    clip: float = 1.0
    chunk: int = 1024
    """Records whose gradients are held in memory at once."""

    def __post_init__(self) -> None:
        for name in ("theta_clip", "w_clip", "expected", "w_step", "w_radius", "clip"):
            positive(name, getattr(self, name))
        for name in ("theta_start", "w_start"):
            if getattr(self, name).ndim != 1:
                raise InvalidInput(name, tuple(getattr(self, name).shape), "must be a flat vector", "call .flatten()")

    def clear_values(self) -> tuple[ClearValue, ...]:
        return ()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {OF_THETA: tuple(self.theta_start.shape), OF_W: tuple(self.w_start.shape)}

    def start(self) -> FedSgdaState:
        theta, w = self.theta_start.to(torch.float64), self.w_start.to(torch.float64)
        return FedSgdaState(self.rule.start(theta), w)

    def contribution(self, state: FedSgdaState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        theta, w = state.descent.theta, state.w
        of_one = grad(self.loss, argnums=(0, 1))
        totals = [RunningTotal(torch.zeros_like(theta)), RunningTotal(torch.zeros_like(w))]
        largest, at_once = [0.0, 0.0], min(self.chunk, terms_per_block(len(batch)))
        for rows in torch.split(batch, at_once) if len(batch) else ():
            # One record per pass: vectorised over records, a library rounds a record by its place.
            found = [of_one(theta, w, silo.x[row].to(theta.dtype), silo.y[row], silo.s[row]) for row in rows]
            gradients = [torch.stack(of_value) for of_value in zip(*found, strict=True)]
            for place, (parts, limit) in enumerate(zip(gradients, (self.theta_clip, self.w_clip), strict=True)):
                clipped = self._clip(parts, limit)
                totals[place].add(clipped.sum(dim=0))
                largest[place] = max(largest[place], float(root(folded_squares(clipped)).max()))
        return Message(
            noisy=tuple(
                BoundedContribution(name, total.value.numpy(), self.clip, measured)
                for name, total, measured in zip((OF_THETA, OF_W), totals, largest, strict=True)
            )
        )

    def update(self, state: FedSgdaState, received: Received) -> FedSgdaState:
        of_theta = self._mean(received, OF_THETA, self.theta_clip)
        of_w = self._mean(received, OF_W, self.w_clip)
        start = self.w_start.to(torch.float64)
        moved = state.w + self.w_step * of_w - start
        inside = moved * (self.w_radius / torch.linalg.vector_norm(moved).clamp_min(self.w_radius))
        return replace(state, descent=self.rule.advance(state.descent, of_theta), w=start + inside)

    def theta(self, state: FedSgdaState) -> Tensor:
        return self.rule.model(state.descent)

    def _clip(self, parts: Tensor, limit: float) -> Tensor:
        """Each record's gradient clipped to `limit`, in units in which that is `clip`, with room for rounding."""
        parts = torch.where(torch.isfinite(parts).all(dim=1, keepdim=True), parts, 0.0)
        norms = root(folded_squares(parts))
        factors = (limit / norms).clamp_max(1.0) * (self.clip / limit / (1.0 + ROUNDING_SLACK))
        clipped: Tensor = parts * factors[:, None]
        return clipped

    def _mean(self, received: Received, name: str, limit: float) -> Tensor:
        total = np.sum([values[name].values for values in received.values()], axis=0)
        return tensor(total * (limit / self.clip / self.expected))
