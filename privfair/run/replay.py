"""From the transcript back to the states: `update` takes published values alone, so they can be redone.

Resuming uses it to get the state back after a crash, an auditor to know the model before every round.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from calibrate.errors import Refused
from privfair.algorithms.algorithm import Algorithm, Received
from privfair.contribution import Published
from privfair.federation.coordinator import Position, state_digest
from privfair.run.record import Session
from privfair.transcript import Ending, Transcript

State = TypeVar("State")


def replay(
    algorithm: Algorithm[State],
    transcript: Transcript,
    sessions: tuple[Session, ...],
    start: Position[State] | None = None,
) -> Iterator[Position[State]]:
    """Every position of a run, in order, from `start` (default: the beginning) on.

    The last one may carry values of a round that was possibly not finished: only its parties can say, and they publish
    what is missing when they are asked for that step. A closed transcript ends with a finished round.
    """
    published = _PublishedRounds(transcript)
    steps, left = rounds_of_steps(published.rounds, sessions, closed=transcript.ending is Ending.CLOSED)
    position = start or Position(algorithm.start())
    if position.step == len(steps) + 1 and left:
        steps, left = [*steps, left], ()  # the checkpoint knows that the last round was finished
    if position.step > len(steps):
        raise Refused(
            f"the checkpoint is of step {position.step}, the transcript leads to {len(steps)}; put the transcript "
            "back, or delete the checkpoint: the run is rebuilt without it"
        )
    yield position
    for rounds in steps[position.step :]:
        state = algorithm.update(position.state, published.values(rounds))
        position = Position(state, position.step + 1, rounds[-1])
        yield position
    if left:
        yield replace(position, carried=published.values(left))


@dataclass(frozen=True, eq=False)
class KeptStep(Generic[State]):
    """A step that was kept in full: the state it started from, and what it published."""

    step: int
    round: int
    state: State
    received: Received
    follows: str | None
    """The digest of the state that the next step started from; None after the last one."""


def kept_steps(
    algorithm: Algorithm[State], transcript: Transcript, sessions: tuple[Session, ...]
) -> Iterator[KeptStep[State]]:
    """The finished steps that a transcript with a retention keeps, in order; a state unlike its digest is refused."""
    published, steps = _PublishedRounds(transcript), finished_steps(transcript, sessions)
    for step, rounds in enumerate(steps):
        if not all(transcript.keeps(key) for key in transcript.keys_of(rounds)):
            continue
        arrays, noted = transcript.kept_state(rounds[-1]), transcript.states.get(rounds[-1])
        if arrays is None or noted is None:
            continue
        if (state_digest(arrays), step) != (noted.digest, noted.step):
            raise Refused(f"the state kept for round {rounds[-1]} is not what was published from; restore it")
        after = None if step + 1 == len(steps) else transcript.states.get(steps[step + 1][-1])
        follows = None if after is None else after.digest
        yield KeptStep(step, rounds[-1], algorithm.restore(arrays), published.values(rounds), follows)


def last_position(
    algorithm: Algorithm[State], transcript: Transcript, sessions: tuple[Session, ...]
) -> Position[State] | None:
    """Where a run ended, redone from its beginning; where digests are kept, from its last step, or None."""
    if transcript.header.retention is None:
        (position,) = deque(replay(algorithm, transcript, sessions), maxlen=1)
        return position
    last = deque(kept_steps(algorithm, transcript, sessions), maxlen=1)
    if not last or last[0].step + 1 < len(finished_steps(transcript, sessions)):
        return None
    (kept,) = last
    return Position(algorithm.update(kept.state, kept.received), kept.step + 1, kept.round)


def finished_steps(transcript: Transcript, sessions: tuple[Session, ...]) -> list[tuple[int, ...]]:
    """For each finished step the rounds that published its values."""
    published = {key.round for key in transcript.keys}
    return rounds_of_steps(published, sessions, closed=transcript.ending is Ending.CLOSED)[0]


def rounds_of_steps(
    published: Iterable[int], sessions: tuple[Session, ...], *, closed: bool
) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """For each finished step the rounds that published its values, and the rounds of a step possibly not finished.

    Within a session each round is a step, except for the last one: if the next session carries it, it was left
    incomplete; after the last session of an open transcript no one knows yet.
    """
    steps: list[tuple[int, ...]] = []
    left: tuple[int, ...] = ()
    unread = sorted(published)
    for place, session in enumerate(sessions):
        following = sessions[place + 1] if place + 1 < len(sessions) else None
        if session.step != len(steps):
            raise Refused(
                f"session {session.session} says it began at step {session.step}, the transcript leads to "
                f"{len(steps)}; put untouched copies of sessions.jsonl and the transcript back"
            )
        end = len(unread) if following is None else bisect_left(unread, following.first_round)
        own, unread = unread[:end], unread[end:]
        if own and own[0] < session.first_round:
            raise _nobodys_round(own[0])
        left = session.carried
        for round_number in own:
            left = (*left, round_number)
            unknown = following is None and not closed
            carried_on = following is not None and round_number in following.carried
            if round_number != own[-1] or not (unknown or carried_on):
                steps.append(left)
                left = ()
    if unread:
        raise _nobodys_round(unread[0])
    return steps, left


def _nobodys_round(round_number: int) -> Refused:
    return Refused(
        f"the transcript has round {round_number}, which no session published; put untouched copies of sessions.jsonl "
        "and the transcript back"
    )


class _PublishedRounds:
    """The transcript's values by round."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self.rounds = sorted({key.round for key in transcript.keys})

    def values(self, rounds: tuple[int, ...]) -> Received:
        """What these rounds published, by party and name, as one step's values."""
        found: dict[str, dict[str, Published]] = {}
        header = self._transcript.header
        for key in self._transcript.keys_of(rounds):
            party, name = header.parties[key.party], header.values[key.name].name
            values = np.asarray(self._transcript.value(key.round, party, name), dtype=np.float64)
            found.setdefault(party, {})[name] = Published(key.round, party, name, values)
        return found
