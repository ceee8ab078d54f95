"""A run over guards, gathered for an audit: each site's files next to the coordinator's, and what they amount to.

::

    RUN/                    what the coordinator left: plan, budget, model, receipts
    RUN/parties/NAME/       what each site handed over: transcript, steps, batches, receipt; no token, no log, no record
    RUN/transcript.bin      all parties' values by step;  RUN/batches.bin  likewise, where batches count as known

Nothing that is gathered is believed: transcripts must be the ones that the coordinator has receipts for, and whoever
audits compares each with its ledger.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from calibrate.errors import InvalidInput, Refused
from privfair.batches.participation import BatchHeader, BatchRecord, BatchWriter
from privfair.batches.randomness import Indexes
from privfair.federation.step_log import StepLog
from privfair.run.folder import RunFolder
from privfair.run.record import FIRST_SESSION, RunRecord, Session, append_session
from privfair.transcript import NotedState, PartOfRun, Transcript, merged_identity

_HANDED_OVER = ("transcript.bin", "steps.jsonl", "batches.bin", "receipts.json")
_KEPT = "transcript.kept"
"""The folder next to a transcript that keeps digests; only there if the budget says so."""
STEPS = "steps.jsonl"


@dataclass(frozen=True, eq=False)
class SitePart:
    """What one site handed over, opened."""

    name: str
    folder: RunFolder
    transcript: Transcript
    steps: StepLog
    batches: BatchRecord | None

    @classmethod
    def read(cls, name: str, path: Path) -> SitePart:
        """The folder of a guard, or a copy of what it hands over; damage and other parties' files are refused."""
        folder = RunFolder(path)
        for needed in (folder.transcript, path / STEPS):
            if not needed.is_file():
                rule = f"has no {needed.name}"
                raise InvalidInput(f"folder of {name}", str(path), rule, "name the --folder of its guard, or a copy")
        transcript = Transcript.read(folder.transcript)
        if transcript.header.parties != (name,):
            found = ", ".join(transcript.header.parties)
            raise InvalidInput(f"folder of {name}", str(path), f"is of {found}", "name each site's own folder")
        batches = BatchRecord.read(folder.batches) if folder.batches.exists() else None
        return cls(name, folder, transcript, StepLog.read(path / STEPS), batches)

    @property
    def part(self) -> PartOfRun:
        return PartOfRun(self.transcript, self.steps.step_of_round)

    def drawn(self) -> dict[int, Indexes]:
        """By round of its ledger, the batch of each step that published something; none for secret batches."""
        if self.batches is None:
            return {}
        published = {key.round for key in self.transcript.keys}
        last = [answered.rounds[-1] for answered in self.steps.steps.values()]
        return {number: self.batches.batch(number, self.name) for number in last if number in published}


def parties_of(run: Path) -> tuple[SitePart, ...]:
    """The sites' parts of a gathered run, in the order of its transcript; none if it was not gathered."""
    place = Path(run) / "parties"
    if not place.is_dir():
        return ()
    names = Transcript.read(RunFolder(run).transcript).header.parties
    return tuple(SitePart.read(name, place / name) for name in names)


class Gathered(TypedDict):
    """Whose files were merged, and the digest of the transcript of all."""

    run: str
    parties: dict[str, dict[str, str | int]]
    transcript: str


def gather_run(run: Path, sites: Mapping[str, Path]) -> Gathered:
    """Put the sites' folders (by party) into the coordinator's run folder, and merge them; what was gathered.

    `run` is the --out of `privfair train --guards`. A run that was gathered before is gathered again.
    """
    folder = RunFolder.existing(run)
    record = RunRecord.read(folder.summary) if folder.summary.exists() else None
    if record is None or not record.transcripts:
        raise InvalidInput(
            "RUN", str(run), "is not a finished run over guards", "name the --out of `privfair train --guards`"
        )
    transcripts = record.transcripts
    if set(sites) != set(transcripts):
        rule = f"must be one for each of {', '.join(transcripts)}"
        raise InvalidInput("folders", sorted(sites), rule, "give NAME=FOLDER for each party")
    parts = [SitePart.read(name, sites[name]) for name in transcripts]
    for part in parts:
        if part.transcript.digest != transcripts[part.name]:
            raise Refused(
                f"the transcript of {part.name!r} is not the one that the run has a receipt for; ask the site for the "
                "folder of its guard"
            )
    _take(folder, parts)
    _merge(folder, parts, record.rounds.steps)
    return {
        "run": str(run),
        "parties": {
            part.name: {"transcript": part.transcript.digest, "steps": len(part.steps.steps)} for part in parts
        },
        "transcript": Transcript.read(folder.transcript).digest,
    }


def is_merged_from(merged: Transcript, parts: tuple[SitePart, ...]) -> bool:
    """Whether a merged transcript holds these parts' values, all of them and no others."""
    header, listed = merged.header, [part.part for part in parts]
    if (header.ledger, header.claim_hash) != merged_identity(listed):
        return False
    if header.retention is not None and not all(
        merged.states.get(step) == NotedState(step, step, state.digest)
        for part in listed
        for step, state in ((part.step_of(state.round), state) for state in part.transcript.states.values())
    ):
        return False
    expected = {one[:3]: _comparable(one[3]) for part in listed for one in part.values_by_step()}
    itself = PartOfRun(merged, {key.round: key.round for key in merged.keys})
    return {one[:3]: _comparable(one[3]) for one in itself.values_by_step()} == expected


def _comparable(values: NDArray[np.floating] | str) -> bytes | str:
    return values if isinstance(values, str) else values.tobytes()


def _take(folder: RunFolder, parts: list[SitePart]) -> None:
    for part in parts:
        place = folder.path / "parties" / part.name
        place.mkdir(parents=True, exist_ok=True)
        for name in _HANDED_OVER:
            source = part.folder.path / name
            if source.exists() and not (place / name).exists():
                shutil.copyfile(source, place / name)
        if (part.folder.path / _KEPT).is_dir() and not (place / _KEPT).exists():
            shutil.copytree(part.folder.path / _KEPT, place / _KEPT)
        for schema in part.folder.path.glob("*.toml"):
            if schema.name not in ("plan.toml", "policy.toml") and not (folder.path / schema.name).exists():
                shutil.copyfile(schema, folder.path / schema.name)


def _merge(folder: RunFolder, parts: list[SitePart], steps: int) -> None:
    for stale in (folder.transcript, folder.batches, folder.sessions):
        stale.unlink(missing_ok=True)
    shutil.rmtree(folder.path / _KEPT, ignore_errors=True)
    Transcript.merge(folder.transcript, [part.part for part in parts])
    append_session(folder.sessions, FIRST_SESSION)
    if any(part.steps.last >= steps for part in parts):
        # Some party answered a step that another had no round left for: its values stay without an update.
        append_session(folder.sessions, Session(2, steps + 1, steps, (steps,)))
    records = [part.batches for part in parts]
    first = records[0]
    if first is None or any(record is None for record in records):
        return
    header = BatchHeader(
        first.header.manifest_digest, tuple(part.name for part in parts), first.header.sampling, first.header.randomness
    )
    writer = BatchWriter.create(folder.batches, header)
    try:
        for part in parts:
            for number, units in part.drawn().items():
                writer.write_round(part.steps.step_of_round[number], part.name, units)
        writer.sync()
    finally:
        writer.close()
