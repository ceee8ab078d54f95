"""Two things an algorithm may do beyond the common protocol: answer what was just published, and draw its own batch.

Some algorithms need two messages in one round: MMD-fair FedAvg publishes noisy predictions, and the clients' updates
are computed from these *published* predictions, never from the exact ones. And some batches are not a draw from all
units alike: so many records of each group, and so many clients.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from privfair.algorithms.algorithm import Message, Received, SiloTensors
from privfair.batch_randomness import Indexes, WordSource


@runtime_checkable
class Replying(Protocol):
    """An algorithm with a second message a round, under other names than the first."""

    def reply(self, state: Any, round: int, silo: SiloTensors, batch: Tensor, received: Received) -> Message:
        """What the silo sends after `received` was published in this very round; pure."""
        ...


@runtime_checkable
class Drawing(Protocol):
    """An algorithm whose batch has parts that are drawn apart from one another."""

    def draw(self, silo: SiloTensors, source: WordSource) -> Indexes:
        """A fresh batch; all its randomness comes from `source`."""
        ...
