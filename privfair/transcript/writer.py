"""Writing a transcript during a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.errors import InvalidInput, count
from privfair.durable import lock_file, open_file, opened, sync_folder, write_all
from privfair.transcript.reader import Ending, Transcript
from privfair.transcript.storage import (
    MAGIC,
    SEED,
    VERSION,
    BesideTranscript,
    FrameKind,
    NotedState,
    TranscriptHeader,
    ValueKey,
    ValueSpec,
    encode_frame,
    encode_header,
    end_payload,
    pack,
    published_bytes,
    refused,
    release_digest,
    state_payload,
    value_payload,
)


class TranscriptWriter:
    """Appends what leaves the gate, one whole frame per value, straight to the operating system.

    A killed process loses nothing that `append` returned from; a power cut may lose what was appended
    since the last `sync`. Sync before the ledger's records are written, then every recorded release is
    in the transcript. One writer per file: a second one is refused.

    With a `retention` in the header, a value that is not to be kept goes to the folder next to the transcript, durably,
    then its digest into it; `forget` removes it there.
    """

    def __init__(self, descriptor: int, path: Path, header: TranscriptHeader) -> None:
        self.path = path
        self.header = header
        self._descriptor = descriptor
        self._digest = SEED
        self._written: set[ValueKey] = set()
        self._parties = {party: number for number, party in enumerate(header.parties)}
        self._names = {spec.name: number for number, spec in enumerate(header.values)}
        self._broken = False
        self._process = os.getpid()
        self._beside = BesideTranscript(path)
        self._noted: set[int] = set()

    @classmethod
    def create(cls, path: Path, header: TranscriptHeader) -> TranscriptWriter:
        """Begin a new file with its header, durably; an existing file is never written over."""
        path = Path(path)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        frame, _ = encode_frame(FrameKind.HEADER, encode_header(header), SEED)
        try:
            with opened(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
                write_all(descriptor, MAGIC + frame)
                os.fsync(descriptor)
            if header.retention is not None:
                BesideTranscript(path).create()
            os.link(beside, path)  # a transcript has its whole header from the moment it has its name
            sync_folder(path.parent)
        except FileExistsError as error:
            raise refused(path, "there is a file already", "resume it, or choose another place") from error
        finally:
            beside.unlink(missing_ok=True)
        return TranscriptWriter.resume(path)

    @classmethod
    def resume(cls, path: Path) -> TranscriptWriter:
        """Resume after a crash: an unfinished frame at the end is cut off, whole ones stay for good."""
        path = Path(path)
        descriptor = open_file(path, os.O_WRONLY | os.O_APPEND)
        try:
            _lock(descriptor, path)
            found = Transcript.read(path)
            if found.header.version != VERSION:
                why = "it was begun when rounding could make what a record contributes depend on other records"
                raise refused(path, why, "begin a new run with a new manifest; this one can be read and audited")
            if found.ending is Ending.CLOSED:
                raise refused(path, "the transcript is closed", "begin a new run with a new manifest")
            writer = cls(descriptor, path, found.header)
            writer._digest = bytes.fromhex(found.digest)
            writer._written, writer._noted = set(found.keys), set(found.states)
            os.ftruncate(descriptor, found.whole_bytes)
            os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return writer

    def append(
        self, round_number: int, party: str, name: str, values: NDArray[np.floating], *, keep: bool = True
    ) -> str:
        """Add one published value and return its release digest, the one to record in the ledger.

        Where `keep` is false and the header has a retention, the value is kept by this digest.
        """
        key, spec = self._locate(round_number, party, name)
        if key in self._written:
            raise refused(
                self.path,
                f"{name!r} of {party!r} in round {round_number} is there already",
                "send the published bytes again, never draw new ones",
            )
        raw = published_bytes(spec, values)
        digest = release_digest(self.header.manifest_digest, key.round, party, spec, raw)
        packed = pack(spec, raw)
        if self.header.retention is not None and packed.on_grid is False:
            raise refused(
                self.path,
                f"{name!r} of {party!r} in round {round_number} is not on its grid",
                "look for what changed it after its noise was drawn; later only its digest is left",
            )
        if self.header.retention is not None and not keep:
            self._beside.write(key, packed.content)
            self._write_value(FrameKind.DIGEST, key, bytes.fromhex(digest))
        else:
            self._write_value(FrameKind.VALUE, key, packed.content)
        return digest

    def append_digest(self, round_number: int, party: str, name: str, digest: str) -> None:
        """Add what is known of a value that another process published and of which only the digest was kept."""
        self._write_value(FrameKind.DIGEST, self._locate(round_number, party, name)[0], bytes.fromhex(digest))

    def note_state(self, state: NotedState, arrays: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Say what a round's values are computed from, before they are; `arrays` are kept next to the transcript."""
        if state.round in self._noted:
            return
        if arrays is not None:
            self._beside.write_state(state.round, arrays)
        self._write(FrameKind.STATE, state_payload(state))
        self._noted.add(state.round)

    def forget(self, until: int) -> None:
        """Let go of values up to this round that are kept by their digests; a durable checkpoint has their effect."""
        if self.header.retention is not None:
            self._beside.forget(until)

    def sync(self) -> None:
        """Make everything appended so far survive a power cut."""
        os.fsync(self._descriptor)

    def finish(self) -> str:
        """Write the end, durably, close the file and return the digest of the whole transcript."""
        self._write(FrameKind.END, end_payload(len(self._written)))
        self.sync()
        self.close()
        return self._digest.hex()

    def close(self) -> None:
        """Close the file without an end, so that it can be resumed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._broken = True

    def __enter__(self) -> TranscriptWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_value(self, kind: FrameKind, key: ValueKey, content: bytes) -> None:
        self._write(kind, value_payload(key, content))
        self._written.add(key)

    def _locate(self, round_number: int, party: str, name: str) -> tuple[ValueKey, ValueSpec]:
        count("round", round_number, least=0)
        if party not in self._parties:
            raise InvalidInput("party", party, "is not in the header", f"use one of {self.header.parties}")
        if name not in self._names:
            raise InvalidInput("name", name, "is not in the header", f"use one of {tuple(self._names)}")
        number = self._names[name]
        return ValueKey(int(round_number), self._parties[party], number), self.header.values[number]

    def _write(self, kind: FrameKind, payload: bytes) -> None:
        if self._broken:
            raise refused(self.path, "the writer is closed or failed before", "resume the transcript")
        if os.getpid() != self._process:
            raise refused(self.path, "the writer was inherited by a fork", "publish from one process")
        frame, digest = encode_frame(kind, payload, self._digest)
        self._broken = True  # unless the whole frame gets out, what follows would stand after half a one
        write_all(self._descriptor, frame)
        self._broken = False
        self._digest = digest


def _lock(descriptor: int, path: Path) -> None:
    try:
        lock_file(descriptor)
    except BlockingIOError as error:
        raise refused(path, "another process is writing it", "let that one finish, or stop it") from error
