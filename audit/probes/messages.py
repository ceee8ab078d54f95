"""What a silo would send in one round, without noise: one message, or two where the algorithm replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from audit.probes.scene import Moment, Scene
from privfair.algorithms.algorithm import Message, Received, SiloTensors
from privfair.algorithms.phases import Replying
from privfair.contribution import Published

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Sent:
    """One round's values by name, apart by how they leave the gate."""

    noisy: Arrays
    randomised: Arrays
    clear: Arrays
    seen: Received
    """What the reply was computed from; handed on, so that both of two neighbours answer the same words."""

    @property
    def values(self) -> dict[str, np.ndarray]:
        return {**self.noisy, **self.randomised, **self.clear}


def sent(
    scene: Scene, moment: Moment, silo: SiloTensors, batch: Tensor, seen: Received | None = None
) -> Sent:
    """The production `contribution()`, and `reply()` to what was seen (default: this very message, without noise)."""
    algorithm = scene.algorithm
    first = algorithm.contribution(moment.state, moment.step, silo, batch)
    messages = [first]
    given: Received = {} if seen is None else seen
    if isinstance(algorithm, Replying):
        given = given or {silo.name: _published(first, silo.name)}
        messages.append(algorithm.reply(moment.state, moment.step, silo, batch, given))
    noisy: dict[str, Any] = {}
    randomised: dict[str, Any] = {}
    clear: dict[str, Any] = {}
    for message in messages:
        noisy |= {part.name: np.array(part.values) for part in message.noisy}
        randomised |= {name: np.array(values) for name, values in (message.randomized or {}).items()}
        clear |= {name: np.array(values) for name, values in (message.clear or {}).items()}
    return Sent(noisy, randomised, clear, given)


def _published(message: Message, party: str) -> dict[str, Published]:
    values = {part.name: part.values for part in message.noisy}
    values |= {name: given.astype(np.float64) for name, given in (message.randomized or {}).items()}
    values |= dict(message.clear or {})
    return {name: Published(0, party, name, np.array(given)) for name, given in values.items()}
