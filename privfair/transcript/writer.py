"""Writing a transcript while the run goes on."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from calibrate.errors import InvalidInput, count
from privfair.durable import sync_folder, write_all
from privfair.transcript.frames import MAGIC, SEED, FrameKind, ValueKey, encode_frame, end_payload, value_payload
from privfair.transcript.header import (
    TranscriptHeader,
    TranscriptRefused,
    ValueSpec,
    encode_header,
    published_bytes,
    release_digest,
)
from privfair.transcript.reader import Ending, Transcript


class TranscriptWriter:
    """Appends what leaves the gate, one whole frame per value, straight to the operating system.

    A killed process loses nothing that `append` returned from; a power cut may lose what was appended
    since the last `sync`. Sync before the ledger's records are written, then every recorded release is
    in the transcript. One writer per file: a second one is refused.
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

    @classmethod
    def create(cls, path: Path, header: TranscriptHeader) -> TranscriptWriter:
        """Begin a new file with its header, durably; an existing file is never written over."""
        path = Path(path)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        writer = cls(descriptor, path, header)
        try:
            _lock(descriptor, path)
            write_all(descriptor, MAGIC)
            writer._write(FrameKind.HEADER, encode_header(header))
            writer.sync()
            os.link(beside, path)  # a transcript has its whole header from the moment it has its name
            sync_folder(path.parent)
        except BaseException as error:
            writer.close()
            if isinstance(error, FileExistsError):
                raise _refused(path, "there is a file already", "resume it, or choose another place") from error
            raise
        finally:
            os.unlink(beside)
        return writer

    @classmethod
    def resume(cls, path: Path) -> TranscriptWriter:
        """Go on after a crash: an unfinished frame at the end is cut off, whole ones stay for good."""
        path = Path(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            _lock(descriptor, path)
            found = Transcript.read(path)
            if found.ending is Ending.CLOSED:
                raise _refused(path, "the transcript is closed", "begin a new run with a new manifest")
            writer = cls(descriptor, path, found.header)
            writer._digest = bytes.fromhex(found.digest)
            writer._written = set(found.keys)
            os.ftruncate(descriptor, found.whole_bytes)
            os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return writer

    def append(self, round_number: int, party: str, name: str, values: NDArray[np.floating]) -> str:
        """Add one published value and return its release digest, the one to record in the ledger."""
        key, spec = self._locate(round_number, party, name)
        if key in self._written:
            raise _refused(
                self.path,
                f"{name!r} of {party!r} in round {round_number} is there already",
                "send the published bytes again, never draw new ones",
            )
        content = published_bytes(spec, values)
        self._write(FrameKind.VALUE, value_payload(key, content))
        self._written.add(key)
        return release_digest(self.header.manifest_digest, key.round, party, spec, content)

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
            raise _refused(self.path, "the writer is closed or failed before", "resume the transcript")
        if os.getpid() != self._process:
            raise _refused(self.path, "the writer was inherited by a fork", "publish from one process")
        frame, digest = encode_frame(kind, payload, self._digest)
        self._broken = True  # unless the whole frame gets out, what follows would stand after half a one
        write_all(self._descriptor, frame)
        self._broken = False
        self._digest = digest


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _refused(path, "another process is writing it", "let that one finish, or stop it") from error


def _refused(path: Path, rule: str, remedy: str) -> TranscriptRefused:
    return TranscriptRefused(str(path), rule, remedy)
