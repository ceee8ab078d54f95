"""FedFDP: fair clipping in several clients; gradient and loss of one batch are one release. Without a clip: FedFair."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, positive
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.fair_options import FedFdpOptions, LossClipRule
from privfair.contribution import BoundedContribution
from privfair.fairness.clipping import clipped_losses, fair_clipping, mean_of_losses, next_loss_clip
from privfair.models.model import Model, mean_over

GRADIENT, LOSS = "gradient", "loss"


@dataclass(frozen=True)
class FedFdpClips:
    """The signed bounds of one record's part of the two sums."""

    gradient: float
    loss: float

    def __post_init__(self) -> None:
        positive("clip", self.gradient)
        positive("loss-clip", self.loss)


@dataclass(frozen=True, eq=False)
class FedFdpState:
    """All of it follows from published values."""

    theta: Tensor
    """The global model of the last aggregation."""
    local: Tensor | None
    """Each client's model between two aggregations, one row a client; None right after one."""
    inner: int
    """Local steps since the last aggregation."""
    mean_loss: float
    """The global mean loss that Delta is taken against."""
    loss_clips: tuple[float, ...]
    """In the order of the weights; without meaning for FedFair."""


@final
@dataclass(frozen=True, eq=False)
class FedFdp(Algorithm[FedFdpState]):
    """Ling et al. (arXiv:2402.16028), Algorithm 2, with the repairs of docs/theorems/fedfdp.md.

    Guarantee: with `clips` each record adds a vector of norm at most `clips.gradient` to the published sum of
    gradients and a number in [0, `clips.loss`] to the sum of losses, both on one batch; that is what a FedFDP
    manifest prices. Sums are divided by the public expected batch size, an empty batch sends noise alone,
    and every noisy local step is a round of its own. Unit: one record, added or removed.

    The loss is taken where the gradient is, in the same pass over the batch (the paper: after the step, on the same
    batch), so both are one message. Without `clips` it is FedFair (Algorithm 1): plain means, the factor of the
    whole batch, no privacy.
    """

    model: Model
    options: FedFdpOptions
    weights: Mapping[str, float]
    """p_i: each client's share of all records, which is public."""
    expected: Mapping[str, float]
    """Each client's expected batch size, which is public."""
    clips: FedFdpClips | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if set(self.weights) != set(self.expected) or not self.weights:
            raise InvalidInput(
                "expected", sorted(self.expected), f"must name {sorted(self.weights)}", "name every client"
            )
        for party, size in self.expected.items():
            positive(f"expected batch size of {party}", size)
        if not math.isclose(math.fsum(self.weights.values()), 1.0, rel_tol=1e-9):
            raise InvalidInput("weights", dict(self.weights), "must sum to 1", "give shares of all records")
        if self.clips is not None and self.options.loss_floor > self.clips.loss:
            raise InvalidInput(
                "loss-floor", self.options.loss_floor, f"exceeds the loss clip {self.clips.loss}", "lower it"
            )

    def clear_values(self) -> tuple[ClearValue, ...]:
        if self.clips is not None:
            return ()
        why = "FedFair sends plain gradients and losses; it is a baseline without privacy."
        return (ClearValue(GRADIENT, why, True), ClearValue(LOSS, why, True))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {GRADIENT: (self.model.size,), LOSS: (1,)}

    def start(self) -> FedFdpState:
        guessing = math.log(self.model.classes)
        mean = guessing if self.options.initial_loss is None else self.options.initial_loss
        if self.clips is None:
            return FedFdpState(self.model.initial(self.seed), None, 0, mean, (1.0,) * len(self.weights))
        signed = (self.clips.loss,) * len(self.weights)
        return FedFdpState(self.model.initial(self.seed), None, 0, min(mean, self.clips.loss), signed)

    def contribution(self, state: FedFdpState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        place = self._place(silo.name)
        theta = state.theta if state.local is None else state.local[place]
        if self.clips is None:
            return self._in_the_clear(theta, state.mean_loss, silo, batch)
        weigh = fair_clipping(self.options.fairness, state.mean_loss, self.clips.gradient)
        found = self.model.weighted_gradient(theta, silo.x[batch], silo.y[batch], weigh)
        losses = clipped_losses(found.losses, state.loss_clips[place], self.clips.loss)
        gradient = found.total.numpy().astype(np.float64)
        largest = float(losses.max()) if len(batch) else 0.0
        return Message(
            noisy=(
                BoundedContribution(GRADIENT, gradient, self.clips.gradient, found.largest_part),
                BoundedContribution(LOSS, np.array([float(losses.sum())]), self.clips.loss, largest),
            )
        )

    def update(self, state: FedFdpState, received: Received) -> FedFdpState:
        parties = tuple(self.weights)
        local = state.theta.repeat(len(parties), 1) if state.local is None else state.local.clone()
        means, clips = [], []
        for place, party in enumerate(parties):
            values = received[party]
            size = 1.0 if self.clips is None else self.expected[party]
            step = torch.from_numpy(values[GRADIENT].values / size).to(local.dtype)
            local[place] -= self.options.learning_rate * step
            mean = self._mean_loss(float(values[LOSS].values[0]), state.loss_clips[place], size)
            means.append(mean)
            clips.append(self._next_clip(mean, state.loss_clips[place]))
        following = replace(state, local=local, inner=state.inner + 1, loss_clips=tuple(clips))
        return following if following.inner < self.options.local_steps else self._aggregated(following, means)

    def theta(self, state: FedFdpState) -> Tensor:
        return state.theta

    def checkpoint(self, state: FedFdpState) -> dict[str, Floats]:
        arrays = {
            "theta": state.theta.numpy().astype(np.float64),
            "inner": np.array(state.inner, dtype=np.float64),
            "mean_loss": np.array(state.mean_loss),
            "loss_clips": np.array(state.loss_clips),
        }
        if state.local is not None:
            arrays["local"] = state.local.numpy().astype(np.float64)
        return arrays

    def restore(self, arrays: Mapping[str, Floats]) -> FedFdpState:
        dtype = self.model.initial(self.seed).dtype
        local = torch.from_numpy(np.array(arrays["local"])).to(dtype) if "local" in arrays else None
        return FedFdpState(
            torch.from_numpy(np.array(arrays["theta"])).to(dtype),
            local,
            int(arrays["inner"]),
            float(arrays["mean_loss"]),
            tuple(float(clip) for clip in arrays["loss_clips"]),
        )

    def _place(self, party: str) -> int:
        if party not in self.weights:
            raise InvalidInput("client", party, f"is none of {', '.join(self.weights)}", "give it a weight")
        return tuple(self.weights).index(party)

    def _in_the_clear(self, theta: Tensor, mean_loss: float, silo: SiloTensors, batch: Tensor) -> Message:
        """(1 + lambda Delta) times the mean gradient, Delta of the whole batch (Equation 8), and the mean loss."""
        mean = mean_over(max(1, len(batch)))
        found = self.model.weighted_gradient(theta, silo.x[batch], silo.y[batch], mean)
        loss = float(found.losses.mean()) if len(batch) else mean_loss
        factor = 1.0 + self.options.fairness * (loss - mean_loss)
        gradient = factor * found.total.numpy().astype(np.float64)
        return Message(clear={GRADIENT: gradient, LOSS: np.array([loss])})

    def _mean_loss(self, published: float, current: float, size: float) -> float:
        return published if self.clips is None else mean_of_losses(published, current, self.clips.loss, size)

    def _next_clip(self, mean: float, current: float) -> float:
        if self.clips is None or self.options.loss_clip_rule is LossClipRule.SIGNED:
            return current
        return next_loss_clip(mean, self.options.loss_headroom, self.options.loss_floor, self.clips.loss)

    def _aggregated(self, state: FedFdpState, means: list[float]) -> FedFdpState:
        assert state.local is not None
        shares = torch.tensor(tuple(self.weights.values()), dtype=state.local.dtype)
        mean_loss = math.fsum(p * mean for p, mean in zip(self.weights.values(), means, strict=True))
        return FedFdpState(shares @ state.local, None, 0, mean_loss, state.loss_clips)
