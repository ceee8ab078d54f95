"""Reading a transcript: what an observer of the silos saw, as arrays, and whether the ledger agrees."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import rfc8785
from numpy.typing import NDArray

from privfair.ledger import ClaimState, Ledger, Release
from privfair.transcript.storage import (
    DIGEST_SIZE,
    BesideTranscript,
    Frame,
    FrameKind,
    NotedState,
    TranscriptHeader,
    ValueKey,
    decode_header,
    first_frame,
    following_frames,
    largest_payload,
    most_bytes,
    read_end,
    read_state,
    read_value_key,
    refused,
    release_digest,
    unpack,
)


class Ending(Enum):
    """CLOSED by its writer; OPEN when the run is under way or was killed; TORN when the last frame is unfinished."""

    CLOSED = "closed"
    OPEN = "open"
    TORN = "torn"


@dataclass(frozen=True)
class Agreement:
    """A transcript and a ledger that do not contradict each other.

    `unrecorded` are values whose records a crash kept out of the ledger, though their rounds are charged;
    `Claim.reconcile` adds them.
    """

    recorded: int
    unrecorded: tuple[Release, ...]


@dataclass(frozen=True, eq=False)
class PartOfRun:
    """One party's transcript, and which step of the run each of its rounds was for."""

    transcript: Transcript
    step_of_round: Mapping[int, int]

    def values_by_step(self) -> Iterator[tuple[int, str, str, NDArray[np.floating] | str]]:
        """Step, party, name and values, or their digest where no more is kept, in the order of publication.

        A round that no step claims is refused.
        """
        header = self.transcript.header
        for key in self.transcript.keys:
            step = self.step_of(key.round)
            party, name = header.parties[key.party], header.values[key.name].name
            if self.transcript.keeps(key):
                yield step, party, name, self.transcript.value(key.round, party, name)
            else:
                yield step, party, name, self.transcript.release(key).digest

    def step_of(self, round_number: int) -> int:
        """The step that a round was for."""
        if round_number not in self.step_of_round:
            raise refused(self.transcript.path, f"no step claims its round {round_number}")
        return self.step_of_round[round_number]


def merged_identity(parts: Sequence[PartOfRun]) -> tuple[str, str]:
    """What the header of a merged transcript says in the place of ledger and claim: digests over those of all parts."""
    listed = [
        {
            "parties": list(part.transcript.header.parties),
            "ledger": part.transcript.header.ledger,
            "claim": part.transcript.header.claim_hash,
            "transcript": part.transcript.digest,
        }
        for part in parts
    ]
    ledgers = [one["ledger"] for one in listed]
    return hashlib.sha256(rfc8785.dumps(ledgers)).hexdigest(), hashlib.sha256(rfc8785.dumps(listed)).hexdigest()


class Transcript:
    """The whole frames of a transcript file, verified; numbers are read from the file when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                empty = os.fstat(file.fileno()).st_size == 0
                self._map = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise refused(path, f"it cannot be read ({error.strerror})") from error
        self._beside = BesideTranscript(path)
        self._index()

    @classmethod
    def read(cls, path: Path) -> Transcript:
        """Verify the file at `path` and index it; damage is refused, an unfinished end is left out."""
        return cls(Path(path))

    @classmethod
    def merge(cls, path: Path, parts: Sequence[PartOfRun]) -> Transcript:
        """Write the transcripts of several parties as one at `path`, where each round is a step of the run.

        The round numbers of a party come from its ledger; only the steps are common. The merged header names no ledger
        but the digest of all of them, with their claims and transcripts (`merged_identity`): verify each part against
        its own ledger, and then that the merged one consists of these parts.
        """
        from privfair.transcript.writer import TranscriptWriter

        first = parts[0].transcript.header
        for part in parts:
            header = part.transcript.header
            if replace(header, ledger=first.ledger, claim_hash=first.claim_hash, parties=first.parties) != first:
                raise refused(part.transcript.path, "it is of another run than the others", "gather one run's parts")
        ledgers, sources = merged_identity(parts)
        names = tuple(party for part in parts for party in part.transcript.header.parties)
        header = replace(first, ledger=ledgers, claim_hash=sources, parties=names)
        with TranscriptWriter.create(path, header) as writer:
            for part in parts:
                for number, state in part.transcript.states.items():
                    step, arrays = part.step_of(number), part.transcript.kept_state(number)
                    writer.note_state(NotedState(step, step, state.digest), arrays)
            for step, party, name, values in sorted(
                (one for part in parts for one in part.values_by_step()), key=lambda one: (one[0], names.index(one[1]))
            ):
                if isinstance(values, str):
                    writer.append_digest(step, party, name, values)
                else:
                    writer.append(step, party, name, values)
            if all(part.transcript.ending is Ending.CLOSED for part in parts):
                writer.finish()
        return cls.read(path)

    def _index(self) -> None:
        content = memoryview(self._map)
        first = first_frame(content)
        if first is None or first.kind is not FrameKind.HEADER:
            raise refused(self.path, "it has no whole header")
        self.header: TranscriptHeader = decode_header(bytes(content[first.start : first.end]))
        self._places: dict[ValueKey, slice] = {}
        """Where in the file its numbers lie, or its digest."""
        self._thin: set[ValueKey] = set()
        self._of_round: dict[int, list[ValueKey]] = {}
        self._found: dict[ValueKey, Release] = {}
        self.states: dict[int, NotedState] = {}
        """By round; only where values are kept by their digests."""
        last, ended = first, False
        largest = largest_payload(most_bytes(spec) for spec in self.header.values)
        for frame in following_frames(content, first, largest):
            last = frame
            if ended or frame.kind is FrameKind.HEADER:
                raise refused(self.path, "a frame stands where none may be")
            if frame.kind is FrameKind.END:
                ended = True
                if read_end(content[frame.start : frame.end]) != len(self._places):
                    raise refused(self.path, "its end counts other values than it holds")
            elif frame.kind is FrameKind.STATE:
                state = read_state(content[frame.start : frame.end])
                if self.states.setdefault(state.round, state) is not state:
                    raise refused(self.path, f"round {state.round} has two states")
            else:
                self._index_value(content, frame)
        self.digest = last.digest.hex()
        self.whole_bytes = last.next
        self.torn_bytes = len(content) - self.whole_bytes
        if ended and self.torn_bytes:
            raise refused(self.path, "bytes follow its end")
        self.ending = Ending.CLOSED if ended else Ending.TORN if self.torn_bytes else Ending.OPEN

    def _index_value(self, content: memoryview, frame: Frame) -> None:
        key, front = read_value_key(content[frame.start : frame.end])
        if key.party >= len(self.header.parties) or key.name >= len(self.header.values):
            raise refused(self.path, f"round {key.round} holds a value the header does not declare")
        if key in self._places:
            raise refused(self.path, f"round {key.round} holds one value twice")
        self._places[key] = slice(frame.start + front, frame.end)
        self._of_round.setdefault(key.round, []).append(key)
        if frame.kind is FrameKind.DIGEST:
            if self.header.retention is None or frame.end - frame.start - front != DIGEST_SIZE:
                raise refused(self.path, f"round {key.round} holds a digest where none may be")
            self._thin.add(key)

    @property
    def keys(self) -> tuple[ValueKey, ...]:
        """Every value in the order of publication."""
        return tuple(self._places)

    def keys_of(self, rounds: Sequence[int]) -> tuple[ValueKey, ...]:
        """The values of these rounds."""
        return tuple(key for number in rounds for key in self._of_round.get(number, ()))

    def keeps(self, key: ValueKey) -> bool:
        """Whether the transcript itself holds this value's numbers, not its digest alone."""
        return key not in self._thin

    def kept_state(self, round_number: int) -> dict[str, NDArray[Any]] | None:
        """The state stored next to the transcript that this round started from, not yet compared with its digest."""
        return self._beside.state(round_number)

    def rounds(self, party: str, name: str) -> NDArray[np.int64]:
        """The rounds of which the transcript keeps `name` of `party`, rising."""
        return np.array([key.round for key in self._series(party, name)], dtype=np.int64)

    def values(self, party: str, name: str) -> NDArray[np.floating]:
        """All that is kept of what `party` published as `name`, stacked in the order of `rounds`."""
        keys = self._series(party, name)
        spec = self.header.values[self._name(name)]
        stacked = np.empty((len(keys), *spec.shape), dtype=spec.format.value)
        for place, key in enumerate(keys):
            stacked[place] = self._array(key)
        return stacked

    def holds(self, round_number: int, party: str, name: str) -> bool:
        """Whether `party` published `name` in this round."""
        return ValueKey(round_number, self._party(party), self._name(name)) in self._places

    def value(self, round_number: int, party: str, name: str) -> NDArray[np.floating]:
        """One published value, for sending the very same bytes again."""
        key = ValueKey(round_number, self._party(party), self._name(name))
        if key not in self._places:
            raise refused(self.path, f"{party!r} published no {name!r} in round {round_number}", "ask for another")
        return self._array(key)

    def arrays(self) -> Mapping[tuple[str, str], NDArray[np.floating]]:
        """All series, by (party, name)."""
        pairs = product(self.header.parties, (spec.name for spec in self.header.values))
        return {(party, name): self.values(party, name) for party, name in pairs}

    def releases(self) -> tuple[Release, ...]:
        """Every value with the digest by which the ledger knows it, in the order of publication."""
        return tuple(self.release(key) for key in self._places)

    def verify_against(self, ledger: Ledger) -> Agreement:
        """Refuse a transcript that is not the one this ledger's claim produced.

        Checked: ledger and claim entry are the header's; each value's round is charged and its digest is
        the recorded one; each recorded release is here; a closed claim names this transcript's digest
        and left nothing unrecorded.
        """
        manifest = self.header.manifest_digest
        if ledger.anchor().ledger != self.header.ledger:
            raise refused(self.path, "it was written under another ledger", "name the ledger of this run")
        status = ledger.manifest_status(manifest)
        if status.claim_hash != self.header.claim_hash:
            raise refused(self.path, "it was written under another claim", "name the ledger of this run")
        if status.transcript_digest not in (None, self.digest):
            raise refused(self.path, "the claim was closed over another transcript")
        recorded = {release[:3]: release.digest for release in ledger.releases(manifest)}
        unrecorded = []
        for release in self.releases():
            subject = f"{release.name!r} of {release.party!r} in round {release.round}"
            if release.round >= status.charged:
                raise refused(self.path, f"{subject} was never charged", "treat the run as a breach")
            digest = recorded.pop(release[:3], None)
            if digest is None:
                unrecorded.append(release)
            elif digest != release.digest:
                raise refused(self.path, f"{subject} is not what the ledger recorded")
        if recorded:
            number, party, name = min(recorded)
            raise refused(self.path, f"{name!r} of {party!r} in round {number} was released and is not here")
        if unrecorded and status.state is ClaimState.CLOSED:
            raise refused(
                self.path, f"the closed claim never recorded round {unrecorded[0].round}", "name the right ledger"
            )
        return Agreement(len(self._places) - len(unrecorded), tuple(unrecorded))

    def release(self, key: ValueKey) -> Release:
        """One value with its digest."""
        if key not in self._found:
            digest = self._map[self._places[key]].hex() if key in self._thin else self._digest(key, self._raw(key))
            name = self.header.values[key.name].name
            self._found[key] = Release(key.round, self.header.parties[key.party], name, digest)
        return self._found[key]

    def _digest(self, key: ValueKey, raw: bytes) -> str:
        party, spec = self.header.parties[key.party], self.header.values[key.name]
        return release_digest(self.header.manifest_digest, key.round, party, spec, raw)

    def _series(self, party: str, name: str) -> list[ValueKey]:
        wanted = (self._party(party), self._name(name))
        keys = (key for key in self._places if (key.party, key.name) == wanted and self.keeps(key))
        return sorted(keys, key=lambda key: key.round)

    def _array(self, key: ValueKey) -> NDArray[np.floating]:
        spec = self.header.values[key.name]
        return np.frombuffer(bytearray(self._raw(key)), spec.format.value).reshape(spec.shape)

    def _raw(self, key: ValueKey) -> bytes:
        """The exact bytes of a value; of one that is kept by its digest, as long as it was not forgotten."""
        spec = self.header.values[key.name]
        if key not in self._thin:
            return unpack(spec, memoryview(self._map)[self._places[key]])
        content = self._beside.content(key)
        subject = f"{spec.name!r} of {self.header.parties[key.party]!r} in round {key.round}"
        if content is None:
            rule = f"of {subject} only the digest is kept (retention {self.header.retention})"
            raise refused(self.path, rule, "restore checkpoint.npz and the folder next to the transcript")
        raw = unpack(spec, memoryview(content))
        if self._digest(key, raw) != self.release(key).digest:
            raise refused(self._beside.folder, f"{subject} is not what was published", "put an untouched copy back")
        return raw

    def _party(self, party: str) -> int:
        if party not in self.header.parties:
            raise refused(self.path, f"no party {party!r}", f"use one of {self.header.parties}")
        return self.header.parties.index(party)

    def _name(self, name: str) -> int:
        names = tuple(spec.name for spec in self.header.values)
        if name not in names:
            raise refused(self.path, f"no value {name!r}", f"use one of {names}")
        return names.index(name)
