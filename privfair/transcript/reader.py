"""Reading a transcript: what an observer of the silos saw, as arrays, and whether the ledger agrees."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType

import numpy as np
import rfc8785
from numpy.typing import NDArray

from privfair.ledger import ClaimState, Ledger, Release
from privfair.transcript.frames import (
    Frame,
    FrameKind,
    ValueKey,
    first_frame,
    following_frames,
    largest_payload,
    read_end,
    read_value_key,
)
from privfair.transcript.header import TranscriptHeader, TranscriptRefused, decode_header, release_digest

_RESTORE = "put an untouched copy of the transcript back"


class Ending(Enum):
    """CLOSED by its writer; OPEN when the run goes on or was killed; TORN when the last frame is unfinished."""

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

    def values_by_step(self) -> Iterator[tuple[int, str, str, NDArray[np.floating]]]:
        """Step, party, name and values, in the order of publication; a round that no step claims is refused."""
        header = self.transcript.header
        for key in self.transcript.keys:
            if key.round not in self.step_of_round:
                raise _refused(self.transcript.path, f"no step claims its round {key.round}", _RESTORE)
            party, name = header.parties[key.party], header.values[key.name].name
            yield self.step_of_round[key.round], party, name, self.transcript.value(key.round, party, name)


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
            raise _refused(path, f"it cannot be read ({error.strerror})", _RESTORE) from error
        self._index()

    @classmethod
    def read(cls, path: Path) -> Transcript:
        """Verify the file at `path` and index it; damage is refused, an unfinished end is left out."""
        return cls(Path(path))

    @classmethod
    def merge(cls, path: Path, parts: Sequence[PartOfRun]) -> Transcript:
        """Write the transcripts of several parties as one at `path`, where each round is a step of the run.

        A party's own rounds are numbers of its own ledger; only the steps are common. The merged header names no ledger
        but the digest of all of them, with their claims and transcripts (`merged_identity`): verify each part against
        its own ledger, and then that the merged one is made of these parts.
        """
        from privfair.transcript.writer import TranscriptWriter

        first = parts[0].transcript.header
        for part in parts:
            header = part.transcript.header
            if (header.manifest_digest, header.values, header.noise_source) != (
                first.manifest_digest,
                first.values,
                first.noise_source,
            ):
                raise _refused(part.transcript.path, "it is of another run than the others", "gather one run's parts")
        ledgers, sources = merged_identity(parts)
        names = tuple(party for part in parts for party in part.transcript.header.parties)
        header = TranscriptHeader(first.manifest_digest, ledgers, sources, first.noise_source, names, first.values)
        with TranscriptWriter.create(path, header) as writer:
            for step, party, name, values in sorted(
                (one for part in parts for one in part.values_by_step()), key=lambda one: (one[0], names.index(one[1]))
            ):
                writer.append(step, party, name, values)
            if all(part.transcript.ending is Ending.CLOSED for part in parts):
                writer.finish()
        return cls.read(path)

    def _index(self) -> None:
        content = memoryview(self._map)
        first = first_frame(content)
        if first is None or first.kind is not FrameKind.HEADER:
            raise _refused(self.path, "it has no whole header", _RESTORE)
        self.header: TranscriptHeader = decode_header(bytes(content[first.start : first.end]))
        self._places: dict[ValueKey, int] = {}
        last, ended = first, False
        largest = largest_payload(spec.size for spec in self.header.values)
        for frame in following_frames(content, first, largest):
            last = frame
            if ended or frame.kind is FrameKind.HEADER:
                raise _refused(self.path, "a frame stands where none may be", _RESTORE)
            if frame.kind is FrameKind.END:
                ended = True
                if read_end(content[frame.start : frame.end]) != len(self._places):
                    raise _refused(self.path, "its end counts other values than it holds", _RESTORE)
            else:
                self._index_value(content, frame)
        self.digest = last.digest.hex()
        self.whole_bytes = last.next
        self.torn_bytes = len(content) - self.whole_bytes
        if ended and self.torn_bytes:
            raise _refused(self.path, "bytes follow its end", _RESTORE)
        self.ending = Ending.CLOSED if ended else Ending.TORN if self.torn_bytes else Ending.OPEN

    def _index_value(self, content: memoryview, frame: Frame) -> None:
        key, front = read_value_key(content[frame.start : frame.end])
        if key.party >= len(self.header.parties) or key.name >= len(self.header.values):
            raise _refused(self.path, f"round {key.round} holds a value the header does not declare", _RESTORE)
        if frame.end - frame.start - front != self.header.values[key.name].size:
            raise _refused(self.path, f"round {key.round} holds a value of another size", _RESTORE)
        if key in self._places:
            raise _refused(self.path, f"round {key.round} holds one value twice", _RESTORE)
        self._places[key] = frame.start + front

    @property
    def keys(self) -> tuple[ValueKey, ...]:
        """Every value in the order of publication."""
        return tuple(self._places)

    @property
    def complete_rounds(self) -> tuple[int, ...]:
        """Rounds in which every declared party published every declared value."""
        counts: dict[int, int] = {}
        for key in self._places:
            counts[key.round] = counts.get(key.round, 0) + 1
        whole = len(self.header.parties) * len(self.header.values)
        return tuple(sorted(number for number, count in counts.items() if count == whole))

    def rounds(self, party: str, name: str) -> NDArray[np.int64]:
        """The rounds in which `party` published `name`, rising."""
        return np.array([key.round for key in self._series(party, name)], dtype=np.int64)

    def values(self, party: str, name: str) -> NDArray[np.floating]:
        """All that `party` published as `name`, stacked along the first axis in the order of `rounds`."""
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
            raise _refused(self.path, f"{party!r} published no {name!r} in round {round_number}", "ask for another")
        return self._array(key).copy()

    def arrays(self) -> Mapping[tuple[str, str], NDArray[np.floating]]:
        """All series, by (party, name)."""
        return MappingProxyType(
            {
                (party, spec.name): self.values(party, spec.name)
                for party in self.header.parties
                for spec in self.header.values
            }
        )

    def releases(self) -> tuple[Release, ...]:
        """Every value with the digest by which the ledger knows it, in the order of publication."""
        return tuple(self._release(key) for key in self._places)

    def verify_against(self, ledger: Ledger) -> Agreement:
        """Refuse a transcript that is not the one this ledger's claim produced.

        Checked: ledger and claim entry are the header's; each value's round is charged and its digest is
        the recorded one; each recorded release is here; a closed claim names this transcript's digest
        and left nothing unrecorded.
        """
        manifest = self.header.manifest_digest
        if ledger.anchor().ledger != self.header.ledger:
            raise _refused(self.path, "it was written under another ledger", "name the ledger of this run")
        status = ledger.manifest_status(manifest)
        if status.claim_hash != self.header.claim_hash:
            raise _refused(self.path, "it was written under another claim", "name the ledger of this run")
        if status.transcript_digest not in (None, self.digest):
            raise _refused(self.path, "the claim was closed over another transcript", _RESTORE)
        recorded = {release[:3]: release.digest for release in ledger.releases(manifest)}
        unrecorded = []
        for release in self.releases():
            subject = f"{release.name!r} of {release.party!r} in round {release.round}"
            if release.round >= status.charged:
                raise _refused(self.path, f"{subject} was never charged", "treat the run as a breach")
            digest = recorded.pop(release[:3], None)
            if digest is None:
                unrecorded.append(release)
            elif digest != release.digest:
                raise _refused(self.path, f"{subject} is not what the ledger recorded", _RESTORE)
        if recorded:
            number, party, name = min(recorded)
            raise _refused(self.path, f"{name!r} of {party!r} in round {number} was released and is not here", _RESTORE)
        if unrecorded and status.state is ClaimState.CLOSED:
            raise _refused(
                self.path, f"the closed claim never recorded round {unrecorded[0].round}", "name the right ledger"
            )
        return Agreement(len(self._places) - len(unrecorded), tuple(unrecorded))

    def _release(self, key: ValueKey) -> Release:
        spec = self.header.values[key.name]
        party = self.header.parties[key.party]
        content = self._array(key).tobytes()
        digest = release_digest(self.header.manifest_digest, key.round, party, spec, content)
        return Release(key.round, party, spec.name, digest)

    def _series(self, party: str, name: str) -> list[ValueKey]:
        wanted = (self._party(party), self._name(name))
        keys = (key for key in self._places if (key.party, key.name) == wanted)
        return sorted(keys, key=lambda key: key.round)

    def _array(self, key: ValueKey) -> NDArray[np.floating]:
        spec = self.header.values[key.name]
        flat = np.frombuffer(self._map, spec.format.value, spec.size // spec.format.size, self._places[key])
        return flat.reshape(spec.shape)

    def _party(self, party: str) -> int:
        if party not in self.header.parties:
            raise _refused(self.path, f"no party {party!r}", f"use one of {self.header.parties}")
        return self.header.parties.index(party)

    def _name(self, name: str) -> int:
        names = tuple(spec.name for spec in self.header.values)
        if name not in names:
            raise _refused(self.path, f"no value {name!r}", f"use one of {names}")
        return names.index(name)


def _refused(path: Path, rule: str, remedy: str) -> TranscriptRefused:
    return TranscriptRefused(str(path), rule, remedy)
