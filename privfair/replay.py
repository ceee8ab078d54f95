"""From the transcript back to the states: `update` takes published values alone, so they can be redone.

Resuming uses it to get the state back after a crash, an auditor to know the model before every round.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from calibrate.errors import Refused
from privfair.algorithms.algorithm import Algorithm
from privfair.contribution import Published
from privfair.rounds import Position, Values
from privfair.transcript import Ending, Transcript

State = TypeVar("State")


@dataclass(frozen=True)
class Session:
    """Written before a process publishes anything: which rounds are its own, and at which step it goes on.

    `carried` are rounds of earlier sessions that were left incomplete; their values count for step `step`.
    """

    session: int
    first_round: int
    step: int
    carried: tuple[int, ...] = ()


FIRST_SESSION = Session(1, 0, 0)


def read_sessions(path: Path) -> tuple[Session, ...]:
    """The sessions of a run so far; an unfinished last line was followed by no publication and is left out."""
    sessions = []
    lines = path.read_text("utf-8").split("\n") if path.exists() else [""]
    for number, line in enumerate(lines[:-1], start=1):
        try:
            fields = json.loads(line)
            sessions.append(Session(**(fields | {"carried": tuple(fields["carried"])})))
        except (ValueError, TypeError, KeyError):
            raise Refused(f"{path}, line {number}: is not a session; put an untouched copy back") from None
    return tuple(sessions)


def session_line(session: Session) -> bytes:
    return json.dumps(asdict(session), sort_keys=True).encode() + b"\n"


def replay(
    algorithm: Algorithm[State],
    transcript: Transcript,
    sessions: tuple[Session, ...],
    start: Position[State] | None = None,
) -> Iterator[Position[State]]:
    """Every position of a run, in order, from `start` (default: the beginning) on.

    The last one may carry values of a round that was perhaps not finished: only the algorithm on its data
    can say (`privfair.rounds.completed`). A closed transcript ends with a finished round.
    """
    index = _Index(transcript)
    position = start or Position(algorithm.start(), 0, None, {})
    yield position
    for place, session in enumerate(sessions):
        following = sessions[place + 1] if place + 1 < len(sessions) else None
        rounds = index.between(session.first_round, None if following is None else following.first_round)
        if following is not None and position.round is not None and position.round >= following.first_round:
            continue
        if position.round is None or position.round < session.first_round:
            _require_agreement(session, position)
            position = Position(position.state, position.step, position.round, index.values(session.carried))
        carried = session.carried if position.carried else ()
        for round in rounds:
            if position.round is not None and round <= position.round:
                carried = ()
                continue
            if _unfinished(round, rounds[-1], following, transcript):
                carried = (*carried, round)
                position = Position(position.state, position.step, position.round, index.values(carried))
            else:
                state = algorithm.update(position.state, index.values((*carried, round)))
                position = Position(state, position.step + 1, round, {})
                carried = ()
            yield position


def _unfinished(round: int, last: int, following: Session | None, transcript: Transcript) -> bool:
    """Only the last round of a session can be: the next session says so, or nobody knows yet."""
    if round != last:
        return False
    if following is None:
        return transcript.ending is not Ending.CLOSED
    return round in following.carried


def _require_agreement(session: Session, position: Position[State]) -> None:
    if session.step != position.step:
        raise Refused(
            f"session {session.session} says it began at step {session.step}, the transcript leads to "
            f"{position.step}; put untouched copies of sessions.jsonl and the transcript back"
        )


class _Index:
    """The transcript's values by round."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._keys: dict[int, list[tuple[str, str]]] = {}
        header = transcript.header
        for key in transcript.keys:
            value = (header.parties[key.party], header.values[key.name].name)
            self._keys.setdefault(key.round, []).append(value)
        self._rounds = sorted(self._keys)

    def between(self, first: int, end: int | None) -> list[int]:
        upper = len(self._rounds) if end is None else bisect_left(self._rounds, end)
        return self._rounds[bisect_left(self._rounds, first) : upper]

    def values(self, rounds: tuple[int, ...]) -> Values:
        """What these rounds published, by party and name, as one step's values."""
        found: dict[str, dict[str, Published]] = {}
        for round in rounds:
            for party, name in self._keys.get(round, ()):
                values = np.asarray(self._transcript.value(round, party, name), dtype=np.float64)
                found.setdefault(party, {})[name] = Published(round, party, name, values)
        return found
