"""Batches of a sensitive silo: whatever records the holders of features drew in the round, perhaps none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from privfair.batch_randomness import Indexes
from privfair.batch_record import BatchWriter
from privfair.participation import Participation


@final
class AskedParticipation:
    """One sensitive silo's rows, round by round, which follow from the holders' batches.

    Guarantee: none of its own. A record takes part exactly as often as its holder draws it, so the holders' sampling
    is the one to price; batches count as known, so nothing is lost by asking for records by number.
    """

    def __init__(
        self,
        party: str,
        numbers: Indexes,
        holders: Sequence[tuple[Participation, Indexes]],
        writer: BatchWriter | None = None,
    ) -> None:
        self.party = party
        self._holders = tuple(holders)
        self._writer = writer
        total = 1 + max(int(held.max()) for held in (numbers, *(own for _, own in self._holders)))
        self._row = np.full(total, -1, dtype=np.int64)
        self._row[numbers] = np.arange(len(numbers))
        self._last: tuple[int, Indexes] | None = None

    def batch(self, round: int) -> Indexes:
        """The rows asked for in this round, in ascending order; asking again gives the same."""
        if self._last is None or self._last[0] != round:
            drawn = [own[participation.batch(round)] for participation, own in self._holders]
            rows = self._row[np.concatenate(drawn)]
            # A record drawn twice by its holder (with replacement) counts twice here as well.
            self._last = (round, np.sort(rows[rows >= 0]))
            if self._writer is not None:
                self._writer.round(round, self.party, self._last[1])
        return self._last[1]

    def require_order(self, round: int) -> None:
        """Nothing is drawn here, so there is no order to go on with."""
