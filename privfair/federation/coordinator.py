"""The coordinator's half of a round: the state, the update, and parties that it can only ask.

It sees no record, no ledger and no noise: an import contract keeps gate, noise, ledger and data out of this module.
A *step* is one update of the state. A *round* is a number of a ledger: charged, spent once, never used again. Without
interruptions step and round agree; a crash leaves rounds behind that no step uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from privfair.algorithms.algorithm import Algorithm, Received
from privfair.federation.party import Parties, RoundsSpent

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class Position(Generic[State]):
    """Where a run stands between two steps."""

    state: State
    step: int = 0
    """Updates made so far."""
    round: int | None = None
    """The last round with a value in the state; None before the first update."""
    carried: Received = field(default_factory=dict)
    """What an interrupted attempt at the next step already published; parties send it again, never draw it again."""


def run_steps(
    algorithm: Algorithm[State], parties: Parties, position: Position[State], until: int
) -> Iterator[Position[State]]:
    """Step by step up to `until` updates, or as far as the parties' signed rounds reach.

    Each of `parties` sees the state's public arrays and, where the algorithm replies, what all
    of them published in this step.
    """
    while position.step < until:
        try:
            received = _ask(algorithm, parties, position)
        except RoundsSpent:
            return
        rounds = [value.round for values in received.values() for value in values.values()]
        state = algorithm.update(position.state, received)
        position = Position(state, position.step + 1, max(rounds, default=position.round))
        yield position


def _ask(algorithm: Algorithm[State], parties: Parties, position: Position[State]) -> Received:
    received = parties.contribute(position.step, algorithm.checkpoint(position.state))
    return parties.reply(position.step, received) if algorithm.replies else received
