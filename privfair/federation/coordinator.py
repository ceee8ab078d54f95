"""The coordinator's half of a round: the state, the update, and parties that it can only ask.

A party is one silo as the coordinator sees it: in process, behind a socket or behind an engine, the same calls. The
coordinator sees no record, no ledger and no noise: an import contract keeps gate, noise, ledger and data out of this
module. A *step* is one update of the state. A *round* is a number of a ledger: charged, spent once, never used again.
Without interruptions step and round agree; a crash leaves rounds behind that no step uses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from pydantic import JsonValue

from calibrate.arrays import Floats
from calibrate.errors import Refused
from privfair.algorithms.algorithm import Algorithm, Message, Received
from privfair.contribution import Published

State = TypeVar("State")
PublicState = Mapping[str, Floats]
"""`Algorithm.checkpoint(state)`: public, because it follows from published values alone. Never changed after it is
handed out."""


class RoundsSpent(Refused):
    """No signed round is left for another release; what was published stays published."""


class StepRefused(Refused):
    """A step is answered once: for one state, and in order."""


@dataclass(frozen=True)
class PublicFacts:
    """What model and algorithm are built from, and what a prediction needs; it follows from the signed schema."""

    feature_shape: tuple[int, ...]
    """The shape of one record's features."""
    classes: int
    groups: int
    clients: tuple[tuple[str, int], ...] = ()
    """Whose records a central party holds, one client after the other: names and sizes."""
    sensitive: tuple[str, ...] = ()
    """The parties that hold nothing but attributes."""
    encoding: Mapping[str, JsonValue] = field(default_factory=dict)
    """How a record becomes features, as `encoding.json` has it."""

    @property
    def numeric(self) -> int | None:
        """How many of the first features are numeric columns; None where they are of no table."""
        return None if self.encoding.get("schema") is None else len(self._columns("numeric"))

    @property
    def category_shares(self) -> tuple[float, ...]:
        """For each indicator of a categorical column, one over the number of that column's values."""
        lists = (column.get("values") for column in self._columns("categorical"))
        sizes = (len(values) for values in lists if isinstance(values, list))
        return tuple(1 / size for size in sizes for _ in range(size))

    def _columns(self, kind: str) -> list[dict[str, JsonValue]]:
        schema = self.encoding.get("schema")
        columns = schema.get(kind) if isinstance(schema, dict) else None
        return [one for one in columns if isinstance(one, dict)] if isinstance(columns, list) else []


@dataclass(frozen=True)
class Greeting:
    """Who answers, under which manifest and ledger, and how far it is."""

    party: str
    manifest: str
    ledger: str
    session: int
    """How often the claim was taken up; 1 for a run that was never interrupted."""
    step: int
    """The step to be asked for next."""
    facts: PublicFacts | None = None
    """What is public of its data; None where the coordinator knows it anyway."""


@dataclass(frozen=True)
class Receipt:
    """What a party says when it has ended its part: its transcript's digest, which its ledger now holds."""

    party: str
    manifest: str
    ledger: str
    transcript: str
    statement: Mapping[str, JsonValue] = field(default_factory=dict)
    """What its ledger says about the run: charges, releases, where its chain ended."""
    signed: str | None = None
    """The statement in an envelope that the silo's own key signed; None if it has no key."""


class Parties(Protocol):
    """All silos of a run, to be asked at once: in this process, over sockets, or by an engine."""

    def contribute(self, step: int, state: PublicState) -> Received:
        """What each published for this step, by silo in the manifest's order."""
        ...

    def reply(self, step: int, received: Received) -> Received:
        """All values of this step, those computed from `received` included."""
        ...


class Party(Protocol):
    """A silo that can be asked for published values and for nothing else."""

    @property
    def name(self) -> str: ...

    def hello(self) -> Greeting: ...

    def contribute(self, step: int, state: PublicState) -> Mapping[str, Published]:
        """The values of this step. Asked again with the same state: the same values; with another: refused."""
        ...

    def reply(self, step: int, received: Received) -> Mapping[str, Published]:
        """All values of this step, those computed from `received` included; asked again, the same."""
        ...

    def finish(self) -> Receipt:
        """End the run on this side; nothing is published after it."""
        ...


def state_digest(arrays: PublicState) -> str:
    """SHA-256 over names, shapes and numbers, whatever their order."""
    hasher = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        hasher.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        hasher.update(array.tobytes())
    return hasher.hexdigest()


def digest_of_values(received: Received) -> str:
    """SHA-256 over all published values of a step, with their rounds."""
    return state_digest(
        {f"{v.round} {party} {name}": v.values for party, values in received.items() for name, v in values.items()}
    )


@dataclass(frozen=True, eq=False)
class Position(Generic[State]):
    """Where a run is between two steps."""

    state: State
    step: int = 0
    """Updates made so far."""
    round: int | None = None
    """The last round with a value in the state; None before the first update."""
    carried: Received = field(default_factory=dict)
    """What an interrupted attempt at the next step already published; parties send it again, never draw it again."""


class RunObserver:
    """Looks on while a run goes its steps, and decides nothing: metrics, checkpoints, progress, an audit's watch."""

    def on_message(self, step: int, state: Any, party: str, batch: object, message: Message) -> None:
        """Before the gate: the state a party was asked with, its batch, and what it is about to send."""

    def on_published(self, step: int, party: str, values: Mapping[str, Published]) -> None:
        """After the gate: all values that the party published in this step so far."""

    def on_step(self, position: Position[Any]) -> None:
        """After the update with what all parties published."""

    def on_end(self, position: Position[Any], stopped: BaseException | None) -> None:
        """After the last step of this process; `stopped` is what interrupted it."""


def train_until(
    algorithm: Algorithm[State],
    parties: Parties,
    position: Position[State],
    until: int,
    observers: Sequence[RunObserver] = (),
) -> Position[State]:
    """All steps up to `until` updates, or until the signed rounds are used, with observers; where it ended."""
    reached = position
    try:
        for reached in run_steps(algorithm, parties, position, until):
            for observer in observers:
                observer.on_step(reached)
    except (KeyboardInterrupt, Refused) as stopped:
        for observer in observers:
            observer.on_end(reached, stopped)
        raise
    for observer in observers:
        observer.on_end(reached, None)
    return reached


def run_steps(
    algorithm: Algorithm[State], parties: Parties, position: Position[State], until: int
) -> Iterator[Position[State]]:
    """Step by step up to `until` updates, or until the parties' signed rounds are used.

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
