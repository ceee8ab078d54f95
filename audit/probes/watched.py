"""An algorithm that does what it always does, while somebody writes down what it is asked and what it sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from calibrate.arrays import Floats
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.phases import Drawing, Replying
from privfair.batch_randomness import Indexes, WordSource


@dataclass
class WatchedSending:
    step: int
    party: str
    batch: Tensor
    values: dict[str, np.ndarray]


@dataclass
class Watch:
    """The notes: every state a step began with, and every message."""

    states: list[Any] = field(default_factory=list)
    sent: list[WatchedSending] = field(default_factory=list)

    def note(self, state: Any, step: int, party: str, batch: Tensor, message: Message) -> None:
        if step == len(self.states):
            self.states.append(state)
        values = {part.name: np.array(part.values) for part in message.noisy}
        values |= {name: np.array(given) for name, given in (message.randomized or {}).items()}
        values |= {name: np.array(given) for name, given in (message.clear or {}).items()}
        if self.sent and (self.sent[-1].step, self.sent[-1].party) == (step, party):
            self.sent[-1].values |= values
            return
        for earlier in self.sent:
            if (earlier.step, earlier.party) == (step, party):
                earlier.values |= values
                return
        self.sent.append(WatchedSending(step, party, batch.clone(), values))


@dataclass(frozen=True, eq=False)
class _Watched:
    """Hands every question on to the algorithm and notes the messages."""

    inner: Any
    watch: Watch

    def clear_values(self) -> tuple[ClearValue, ...]:
        return self.inner.clear_values()  # type: ignore[no-any-return]

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.inner.shapes()  # type: ignore[no-any-return]

    def start(self) -> Any:
        return self.inner.start()

    def contribution(self, state: Any, round: int, silo: SiloTensors, batch: Tensor) -> Message:
        message: Message = self.inner.contribution(state, round, silo, batch)
        self.watch.note(state, round, silo.name, batch, message)
        return message

    def update(self, state: Any, received: Received) -> Any:
        return self.inner.update(state, received)

    def theta(self, state: Any) -> Tensor:
        return self.inner.theta(state)  # type: ignore[no-any-return]

    def checkpoint(self, state: Any) -> dict[str, Floats]:
        return self.inner.checkpoint(state)  # type: ignore[no-any-return]

    def restore(self, arrays: Mapping[str, Floats]) -> Any:
        return self.inner.restore(arrays)


class _Replies(_Watched):
    def reply(self, state: Any, round: int, silo: SiloTensors, batch: Tensor, received: Received) -> Message:
        message: Message = self.inner.reply(state, round, silo, batch, received)
        self.watch.note(state, round, silo.name, batch, message)
        return message


class _Draws(_Watched):
    def draw(self, silo: SiloTensors, source: WordSource) -> Indexes:
        return self.inner.draw(silo, source)  # type: ignore[no-any-return]


class _DrawsAndReplies(_Replies, _Draws):
    pass


def watched(algorithm: Algorithm[Any], watch: Watch) -> Algorithm[Any]:
    """The algorithm with the same phases as before, and `watch` filled in as it is used."""
    match isinstance(algorithm, Replying), isinstance(algorithm, Drawing):
        case True, True:
            return _DrawsAndReplies(algorithm, watch)
        case True, False:
            return _Replies(algorithm, watch)
        case False, True:
            return _Draws(algorithm, watch)
        case _:
            return _Watched(algorithm, watch)
