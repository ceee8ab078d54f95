"""How a client's gradient is sent, and the clients' own models between two aggregations, which follow from it.

A gradient is a plain mean in the clear, or a sum of clipped ones for the gate's noise; with it may come the loss on the
same batch. A local step that is corrected by public numbers (a proximal term, control variates) needs nothing else from
the data: the correction is post-processing. So algorithms that differ in their corrections alone share this message,
and the server (or anyone) can follow every client's model from published gradients.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, positive
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors, State
from privfair.contribution import BoundedContribution, Published
from privfair.fairness.clipping import clipped_losses, mean_of_losses, sum_of_losses
from privfair.models.model import Model, Shrunk, WeightedGradient, clipped_to, mean_over, shrunk_by_class

PLAIN, NOISY = "gradient", "value_1"
"""The value's name in the clear, and the one a `gaussian` plan gives it."""


@final
@dataclass(frozen=True)
class ClippedSums:
    """Each record's gradient clipped to `clip`, added up, divided by the public expected batch size of its client.

    Guarantee: adding or removing a record moves a client's sum by at most `clip`, which a `gaussian` manifest prices.
    """

    clip: float
    expected: Mapping[str, float]
    limit: int | None = None
    """The most records of a batch, to which every batch is padded; None where batches have no limit."""
    class_weight: tuple[float, ...] = ()
    """How much the clipped gradients of each class count, relative to the largest; left out, all count alike."""

    def __post_init__(self) -> None:
        positive("clip", self.clip)
        for party, size in self.expected.items():
            positive(f"expected batch size of {party}", size)


@final
@dataclass(frozen=True)
class PlainMeans:
    """The batch's mean gradient as it is; nobody is protected."""


Sending = ClippedSums | PlainMeans


def clipped_sum(
    model: Model,
    theta: Tensor,
    silo: SiloTensors,
    batch: Tensor,
    clip: float,
    limit: int | None,
    class_weight: tuple[float, ...] = (),
) -> WeightedGradient:
    """The sum of the batch's gradients, each clipped to `clip`, then shrunk by the weight of its class.

    With a `limit` the batch is filled up with blank records of weight zero, so that every round computes on tensors of
    one shape, whatever was drawn. Blank records are no data: nothing of them depends on anybody.
    """
    x = silo.batch(batch)
    y = x.of(silo.y)
    if limit is None:
        weigh = shrunk_by_class(clipped_to(clip), class_weight, y, model.classes)
        return model.weighted_gradient(theta, x, y, weigh)
    taken, blank = len(batch), limit - len(batch)
    filled = torch.cat((x.tensor, silo.x.new_zeros((blank, *silo.x.shape[1:]))))
    y = torch.cat((y, y.new_zeros(blank)))
    padded = shrunk_by_class(clipped_to(clip), class_weight, y, model.classes)
    return model.weighted_gradient(theta, filled, y, Shrunk(padded, torch.arange(limit) < taken))


def gradient_message(sending: Sending, model: Model, theta: Tensor, silo: SiloTensors, batch: Tensor) -> Message:
    """What a client sends about its batch: the clipped sum for the gate, or a plain mean where nothing is promised."""
    if isinstance(sending, PlainMeans):
        x = silo.batch(batch)
        mean = model.weighted_gradient(theta, x, x.of(silo.y), mean_over(max(1, len(batch)))).total
        return Message(clear={PLAIN: mean.numpy().astype(np.float64)})
    found = clipped_sum(model, theta, silo, batch, sending.clip, sending.limit, sending.class_weight)
    total = found.total.numpy().astype(np.float64)
    return Message(noisy=(BoundedContribution(NOISY, total, sending.clip, found.largest_part),))


def published_gradient(sending: Sending, party: str, values: Mapping[str, Published]) -> Floats:
    """The (noisy) mean gradient that a client published."""
    if isinstance(sending, PlainMeans):
        return values[PLAIN].values
    if party not in sending.expected:
        raise InvalidInput(
            "expected", sorted(sending.expected), f"does not name {party}", "give every client's batch size"
        )
    return values[NOISY].values / sending.expected[party]


def gradient_shape(sending: Sending, model: Model) -> dict[str, tuple[int, ...]]:
    """The shape of that message, by the name of its value."""
    return {PLAIN if isinstance(sending, PlainMeans) else NOISY: (model.size,)}


def gradient_in_the_clear(sending: Sending) -> tuple[ClearValue, ...]:
    """Which values of that message leave without noise, with the reason that is signed."""
    if isinstance(sending, PlainMeans):
        return (ClearValue(PLAIN, "Plain gradients are sent; nobody is protected.", True),)
    return ()


@final
@dataclass(frozen=True, eq=False)
class LocalModels:
    """The global model, and one row per client while local steps are under way."""

    theta: Tensor
    local: Tensor | None = None
    inner: int = 0
    """Local steps since the last aggregation."""

    def of(self, place: int) -> Tensor:
        return self.theta if self.local is None else self.local[place]

    def rows(self, clients: int) -> Tensor:
        """Every client's model, as a copy."""
        return self.theta.repeat(clients, 1) if self.local is None else self.local.clone()


def place_of(party: str, weights: Mapping[str, float]) -> int:
    """A client's row; clients stand in the order of their weights."""
    if party not in weights:
        raise InvalidInput("client", party, f"is none of {', '.join(weights)}", "give it a weight")
    return tuple(weights).index(party)


def weighted_mean(weights: Mapping[str, float], rows: Tensor) -> Tensor:
    """The weighted mean of the clients' rows."""
    return torch.tensor(tuple(weights.values()), dtype=rows.dtype) @ rows


class LocalSteps(Algorithm[State]):
    """Clients that step along their published gradients and are averaged now and then; a base class.

    What is sent, and so what is private, is the same for all of them; they differ in what the server makes of it.
    """

    model: Model
    weights: Mapping[str, float]
    sending: Sending

    @abstractmethod
    def local_models(self, state: State) -> LocalModels:
        """The global model and the clients' own."""

    def clear_values(self) -> tuple[ClearValue, ...]:
        return gradient_in_the_clear(self.sending)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return gradient_shape(self.sending, self.model)

    def contribution(self, state: State, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        theta = self.local_models(state).of(place_of(silo.name, self.weights))
        return gradient_message(self.sending, self.model, theta, silo, batch)

    def theta(self, state: State) -> Tensor:
        return self.local_models(state).theta

    def gradients(self, received: Received, like: Tensor) -> Tensor:
        """The (noisy) mean gradients that the clients published, one row per client, in the precision of `like`."""
        found = [published_gradient(self.sending, party, received[party]) for party in self.weights]
        return torch.from_numpy(np.stack(found)).to(like.dtype)


GRADIENT, LOSS = "gradient", "loss"
"""As a FedFDP plan names its two values of one batch."""


@final
@dataclass(frozen=True)
class ClippedPairs:
    """Gradients clipped to `clip`, losses to [0, loss_clip], both added up over one batch.

    Guarantee: adding or removing a record moves the two sums by at most `clip` and `loss_clip`, which is what a FedFDP
    manifest prices as one joint release.
    """

    clip: float
    loss_clip: float
    expected: Mapping[str, float]

    def __post_init__(self) -> None:
        positive("clip", self.clip)
        positive("loss-clip", self.loss_clip)
        for party, size in self.expected.items():
            positive(f"expected batch size of {party}", size)


PairSending = ClippedPairs | PlainMeans


def pair_message(sending: PairSending, model: Model, theta: Tensor, silo: SiloTensors, batch: Tensor) -> Message:
    """Gradient and loss of a batch: clipped sums for the gate, or plain means without a promise."""
    x = silo.batch(batch)
    y = x.of(silo.y)
    if isinstance(sending, PlainMeans):
        found = model.weighted_gradient(theta, x, y, mean_over(max(1, len(batch))))
        loss = float(found.losses.sum()) / max(1, len(batch))
        return Message(clear={GRADIENT: found.total.numpy().astype(np.float64), LOSS: np.array([loss])})
    found = model.weighted_gradient(theta, x, y, clipped_to(sending.clip))
    losses = clipped_losses(found.losses, sending.loss_clip, sending.loss_clip)
    largest = float(losses.max()) if len(batch) else 0.0
    total = found.total.numpy().astype(np.float64)
    return Message(
        noisy=(
            BoundedContribution(GRADIENT, total, sending.clip, found.largest_part),
            BoundedContribution(LOSS, np.array([sum_of_losses(losses)]), sending.loss_clip, largest),
        )
    )


def published_pair(sending: PairSending, party: str, values: Mapping[str, Published]) -> tuple[Floats, float]:
    """The (noisy) mean gradient and mean loss that a client published."""
    gradient, loss = values[GRADIENT].values, float(values[LOSS].values[0])
    if isinstance(sending, PlainMeans):
        return gradient, loss
    expected = sending.expected[party]
    return gradient / expected, mean_of_losses(loss, sending.loss_clip, sending.loss_clip, expected)


def pair_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """The shapes of gradient and loss."""
    return {GRADIENT: (model.size,), LOSS: (1,)}


def pair_in_the_clear(sending: PairSending) -> tuple[ClearValue, ...]:
    """Which of gradient and loss leave without noise, with the reason that is signed."""
    if not isinstance(sending, PlainMeans):
        return ()
    why = "Plain gradients and losses are sent; nobody is protected."
    return (ClearValue(GRADIENT, why, True), ClearValue(LOSS, why, True))
