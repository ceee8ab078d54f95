"""Batches of an algorithm that draws its own parts: so many records of each group, so many clients."""

from __future__ import annotations

from typing import final

from calibrate.validation import count
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.phases import Drawing
from privfair.batch_randomness import Indexes, WordSource


@final
class DrawnParticipation:
    """One fresh draw a round, all of its randomness from the party's source; nothing of it is recorded."""

    def __init__(self, silo: SiloTensors, algorithm: Drawing, source: WordSource) -> None:
        self.party = silo.name
        self._silo = silo
        self._algorithm = algorithm
        self._source = source
        self._last: tuple[int, Indexes] | None = None

    def batch(self, round: int) -> Indexes:
        """The batch of this round; asking again for the same round gives the same batch."""
        if self._last is None or self._last[0] != round:
            count("round", round, least=0)
            self._last = (round, self._algorithm.draw(self._silo, self._source))
        return self._last[1]

    def require_order(self, round: int) -> None:
        """Every round is drawn afresh: there is no order to go on with."""
