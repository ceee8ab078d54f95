"""How a client's gradient is sent: a plain mean in the clear, or a sum of clipped ones for the gate's noise.

A local step that is corrected by public numbers (a proximal term, control variates) needs nothing else from the data:
the correction is post-processing. So algorithms that differ in their corrections alone share this message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from calibrate.validation import positive
from privfair.algorithms.algorithm import ClearValue, Message, SiloTensors
from privfair.contribution import BoundedContribution, Published
from privfair.models.model import Model, clipped_to, mean_over

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

    def __post_init__(self) -> None:
        positive("clip", self.clip)
        for party, size in self.expected.items():
            positive(f"expected batch size of {party}", size)


@final
@dataclass(frozen=True)
class PlainMeans:
    """The batch's mean gradient as it is; nobody is protected."""


Sending = ClippedSums | PlainMeans


def gradient_message(
    sending: Sending, model: Model, theta: Tensor, silo: SiloTensors, batch: Tensor
) -> Message:
    x, y = silo.x[batch], silo.y[batch]
    if isinstance(sending, PlainMeans):
        mean = model.weighted_gradient(theta, x, y, mean_over(max(1, len(batch)))).total
        return Message(clear={PLAIN: mean.numpy().astype(np.float64)})
    found = model.weighted_gradient(theta, x, y, clipped_to(sending.clip))
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
    return {PLAIN if isinstance(sending, PlainMeans) else NOISY: (model.size,)}


def gradient_in_the_clear(sending: Sending) -> tuple[ClearValue, ...]:
    if isinstance(sending, PlainMeans):
        return (ClearValue(PLAIN, "Plain gradients are sent; nobody is protected.", True),)
    return ()
