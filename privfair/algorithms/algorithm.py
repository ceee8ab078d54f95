"""What an algorithm is: a pure contribution on the silo's side, an update from published values alone.

`contribution` sees private data and changes nothing, so an audit can call it on neighbouring data. `update` sees
only what left the gate, so that everything after the gate is post-processing shows in its signature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from calibrate.arrays import Floats
from privfair.batches.randomness import Indexes, WordSource
from privfair.contribution import BoundedContribution, Published

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class SiloTensors:
    """One silo's training records as tensors; a unit's number is its row (or its user, see `unit_of_row`)."""

    name: str
    x: Tensor
    y: Tensor
    s: Tensor
    unit_of_row: Tensor | None = None
    """For user-level privacy: which user each row belongs to; None where a unit is a record."""
    client_of_row: Tensor | None = None
    """For a party that collects several clients' records: which client each row is from; units stay records."""
    record_numbers: Tensor | None = None
    """Where attributes are held apart from records: each row's number among the records of all holders."""

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class ClearValue:
    """A value sent without noise: why that is acceptable, and whether the protected unit can influence it."""

    name: str
    why: str
    depends_on_unit: bool


@dataclass(frozen=True, eq=False)
class Message:
    """What a silo wants to send in one round; the gate decides."""

    noisy: tuple[BoundedContribution, ...] = ()
    randomized: Mapping[str, NDArray[np.int64]] | None = None
    """Categories to be sent through randomised response, by name."""
    clear: Mapping[str, Floats] | None = None


Received = Mapping[str, Mapping[str, Published]]
"""By silo, then by name: what the gate let out this round."""


class Algorithm(Protocol[State]):
    """One final class an algorithm; its parameters are fixed at construction."""

    def clear_values(self) -> tuple[ClearValue, ...]:
        """Everything sent without noise."""
        ...

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every published value, by name."""
        ...

    def start(self) -> State: ...

    def contribution(self, state: State, round: int, silo: SiloTensors, batch: Tensor) -> Message:
        """What the silo sends, computed on the rows (or users) `batch`; pure.

        `round` counts the updates made so far. Which values are sent may depend on it and on the state, never on
        the records.
        """
        ...

    def update(self, state: State, received: Received) -> State:
        """The next state, from published values alone."""
        ...

    def theta(self, state: State) -> Tensor:
        """The model's parameter vector."""
        ...

    def checkpoint(self, state: State) -> dict[str, Floats]:
        """The state as named arrays; it holds published values and what follows from them, nothing private."""
        ...

    def restore(self, arrays: Mapping[str, Floats]) -> State: ...


# Two things an algorithm may do beyond the common protocol: answer what was just published, and draw its own batch.
#
# Some algorithms need two messages in one round: MMD-fair FedAvg publishes noisy predictions, and the
# clients' updates
# are computed from these *published* predictions, never from the exact ones. And some batches are not a draw from all
# units alike: so many records of each group, and so many clients.


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
