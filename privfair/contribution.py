"""What crosses the gate: a bounded contribution going in, a published value coming out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from calibrate.arrays import Floats
from calibrate.errors import positive
from privfair.rounding import RunningTotal


@dataclass(frozen=True)
class BoundedContribution:
    """A value computed from private data, with the bound it claims and what was measured on the batch.

    `bound` is the contribution bound of one unit, in the convention of `calibrate.releases`: the largest
    norm of one unit's part (add-remove, replace-one), or the largest distance between a record's two parts
    (replace-attribute). `measured` is the largest such norm or distance among the units of this very batch,
    taken where the clipping happens. `privfair.gate.Gate` says what becomes of a contribution that breaks its bound.
    """

    name: str
    values: Floats
    bound: float
    measured: float

    def __post_init__(self) -> None:
        positive(f"bound of {self.name}", self.bound)


@dataclass(frozen=True)
class Published:
    """A value that left the gate. Everything computed from published values alone is post-processing."""

    round: int
    party: str
    name: str
    values: Floats

    def __post_init__(self) -> None:
        self.values.setflags(write=False)


# Sums of rounds in a row, mixed by a signed strategy before the noise and taken apart after it.


@dataclass
class RecentRounds:
    """The vectors of the last rounds in a row, newest last: of a party's own sums at the gate, or of estimates of them.

    A round that does not follow the last one begins again, on both sides of the gate; rounds that a crash left
    behind therefore need no state to be kept. Every part of a column is shorter than the whole, so that forgetting
    costs no privacy (docs/theorems/banded.md, section 3).
    """

    strategy: tuple[float, ...]
    last: int | None = None
    vectors: list[Floats] = field(default_factory=list)

    def before(self, round_number: int) -> list[Floats]:
        """What the given round is mixed with, newest last."""
        return self.vectors if self.last == round_number - 1 else []

    def add(self, round_number: int, vector: Floats) -> None:
        """Remember the vector of a round, and forget those that no later round is mixed with."""
        self.vectors = [*self.before(round_number), vector][-(len(self.strategy) - 1) :]
        self.last = round_number

    def mix(self, round_number: int, values: Floats) -> Floats:
        """c_0 values + c_1 (the round before) + ...: what gets independent noise."""
        return self.strategy[0] * values + self._earlier(round_number, values)

    def unmix(self, round_number: int, values: Floats) -> Floats:
        """What `mix` was given, if it was given the same vectors before: one row of forward substitution."""
        return (values - self._earlier(round_number, values)) / self.strategy[0]

    def _earlier(self, round_number: int, like: Floats) -> Floats:
        return _weighted(self.strategy[1:], self.before(round_number), like)


def _weighted(weights: Sequence[float], vectors: Sequence[Floats], like: Floats) -> Floats:
    total = RunningTotal(np.zeros(np.shape(like)))
    for weight, vector in zip(weights, reversed(vectors), strict=False):
        total.add(weight * vector)
    return total.value
