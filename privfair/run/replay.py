"""From the transcript back to the states: `update` takes published values alone, so they can be redone.

Resuming uses it to get the state back after a crash, an auditor to know the model before every round.
"""

from __future__ import annotations

import io
import json
import zipfile
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from calibrate.errors import Refused
from privfair.algorithms.algorithm import Algorithm
from privfair.contribution import Published
from privfair.ledger.anchor import replace_file
from privfair.round_loop import Position, Values
from privfair.transcript import Ending, Transcript

# The state of a run on disk, as plain arrays (npz without pickle), put in place at one stroke.
#
# A checkpoint only saves time: whatever it holds follows from the transcript, and it never says what is spent.
# That is the ledger's to know, so an old checkpoint put back gives an old model and no new rounds.

State = TypeVar("State")

_STATE = "state."


def save_checkpoint(path: Path, manifest_digest: str, algorithm: Algorithm[State], position: Position[State]) -> None:
    """Write a position between two steps; the transcript must be durable up to its round before."""
    arrays = {f"{_STATE}{name}": values for name, values in algorithm.checkpoint(position.state).items()}
    content = io.BytesIO()
    np.savez(
        content,
        manifest=np.array(manifest_digest),
        step=np.array(position.step),
        round=np.array(-1 if position.round is None else position.round),
        **arrays,
    )
    replace_file(path, content.getvalue())


def load_checkpoint(path: Path, manifest_digest: str, algorithm: Algorithm[State]) -> Position[State] | None:
    """The position saved there; None if there is none. Damage and other runs' checkpoints are refused."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as found:
            if str(found["manifest"]) != manifest_digest:
                raise Refused(
                    f"checkpoint {path} belongs to another manifest; delete it, the run is rebuilt without it"
                )
            arrays = {name.removeprefix(_STATE): found[name] for name in found.files if name.startswith(_STATE)}
            step, round = int(found["step"]), int(found["round"])
            state = algorithm.restore(arrays)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as broken:
        raise Refused(
            f"checkpoint {path} cannot be read ({broken}); delete it, the run is rebuilt without it"
        ) from broken
    return Position(state, step, None if round < 0 else round, {})


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
    can say (`privfair.round_loop.completed`). A closed transcript ends with a finished round.
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
