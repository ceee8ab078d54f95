"""What crosses the gate: a bounded contribution going in, a published value coming out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, positive


@dataclass(frozen=True)
class BoundedContribution:
    """A value computed from private data, with the bound it claims and what was measured on the batch.

    `bound` is the contribution bound of one unit, in the convention of `calibrate.releases`: the largest
    norm of one unit's part (add-remove, replace-one), or the largest distance between a record's two parts
    (replace-attribute). `measured` is the largest such norm or distance among the units of this very batch,
    taken where the clipping happens; the gate refuses a contribution whose units break their bound.
    """

    name: str
    values: Floats
    bound: float
    measured: float

    def __post_init__(self) -> None:
        positive(f"bound of {self.name}", self.bound)
        if math.isnan(self.measured) or self.measured < 0:
            raise InvalidInput(
                f"measured norm of {self.name}",
                self.measured,
                "must be a number of at least 0",
                "measure the largest norm of a unit's part",
            )


@dataclass(frozen=True)
class Published:
    """A value that left the gate. Everything computed from published values alone is post-processing."""

    round: int
    party: str
    name: str
    values: Floats

    def __post_init__(self) -> None:
        self.values.setflags(write=False)
