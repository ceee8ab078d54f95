"""Which step a guard answered in which rounds, and for which question: on disk before any noise is drawn for it.

One line per event::

    {"step": 3, "round": 5, "state": "<SHA-256 of the state it was asked with>", "at": "2026-03-01T09:30:00Z"}
    {"step": 3, "received": "<SHA-256 of what it replied to>", "first": ["gradient"]}

The transcript holds the values by round; together they say what was published for which step. A process that is killed
leaves at most one unfinished line, for which nothing was published.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import final

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from calibrate.errors import Refused
from privfair.contribution import Published
from privfair.durable import open_file, sync_folder, write_all
from privfair.transcript import Transcript


@dataclass(frozen=True)
class AnsweredStep:
    """One step of one party."""

    step: int
    state: str
    """Digest of the state it was last begun with."""
    rounds: tuple[int, ...]
    """Rounds of the ledger that were opened for it; more than one after an interruption."""
    received: str | None = None
    """Digest of what it replied to."""
    first: tuple[str, ...] = ()
    """Names of the first message, where a reply followed."""


class _Begun(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    step: int
    round: int
    state: str
    at: str


class _Replied(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    step: int
    received: str
    first: tuple[str, ...]


_LINE: TypeAdapter[_Begun | _Replied] = TypeAdapter(_Begun | _Replied)


@final
class StepLog:
    """The log of one guard, read back and continued."""

    def __init__(self, path: Path, *, writing: bool = True) -> None:
        self.steps: dict[int, AnsweredStep] = {}
        self._days: dict[str, int] = {}
        self._descriptor = -1
        content = path.read_bytes() if path.exists() else b""
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                self._add(_LINE.validate_json(line))
            except (ValidationError, KeyError):
                raise Refused(f"{path}, line {number}: is not a step; put an untouched copy back") from None
        if writing:
            self._descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.ftruncate(self._descriptor, whole)
            sync_folder(path.parent)

    @classmethod
    def read(cls, path: Path) -> StepLog:
        """The log as it is, to be looked at."""
        return cls(path, writing=False)

    @property
    def step_of_round(self) -> dict[int, int]:
        """Which step each round was opened for."""
        return {number: answered.step for answered in self.steps.values() for number in answered.rounds}

    @property
    def last(self) -> int:
        """The last step that was begun; -1 before the first."""
        return max(self.steps, default=-1)

    def rounds_on(self, day: datetime) -> int:
        """Rounds that were opened on this day, in UTC."""
        return self._days.get(f"{day.astimezone(UTC):%Y-%m-%d}", 0)

    def begin(self, step: int, round_number: int, state: str) -> None:
        """A round was opened for a step; nothing is published in it yet."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._append(_Begun(step=step, round=round_number, state=state, at=now))

    def reply(self, step: int, received: str, first: tuple[str, ...]) -> None:
        """A step is about to be replied to, after these names."""
        self._append(_Replied(step=step, received=received, first=first))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, line: _Begun | _Replied) -> None:
        """Durable at once: after a power cut, too, every value in the transcript belongs to a step."""
        write_all(self._descriptor, json.dumps(line.model_dump(mode="json")).encode() + b"\n")
        os.fsync(self._descriptor)
        self._add(line)

    def _add(self, line: _Begun | _Replied) -> None:
        before = self.steps.get(line.step)
        if isinstance(line, _Begun):
            day = line.at[:10]
            self._days[day] = self._days.get(day, 0) + 1
            rounds = (line.round,) if before is None else (*before.rounds, line.round)
            received, first = (None, ()) if before is None else (before.received, before.first)
            self.steps[line.step] = AnsweredStep(line.step, line.state, rounds, received, first)
        else:
            before = self.steps[line.step]
            self.steps[line.step] = AnsweredStep(line.step, before.state, before.rounds, line.received, line.first)


def values_of_step(transcript: Transcript, party: str, answered: AnsweredStep) -> Mapping[str, Published]:
    """What a party published for a step, from the transcript."""
    found: dict[str, Published] = {}
    for spec in transcript.header.values:
        for round_number in answered.rounds:
            if transcript.holds(round_number, party, spec.name):
                values = np.asarray(transcript.value(round_number, party, spec.name), dtype=np.float64)
                found[spec.name] = Published(round_number, party, spec.name, values)
    return found
