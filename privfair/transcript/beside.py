"""What lies beside a transcript that keeps digests: states of the steps that are kept, and values not yet forgotten.

::

    transcript.kept/ROUND.state.npz    the state that a kept step started from; public, like every state
    transcript.kept/ROUND.recent       values of one round that is kept by its digests; forgotten after a checkpoint

Nothing here is believed: each value must have the digest that stands in the transcript, and so must each state.
A value is here, durably, before its digest is written there; so a run that was killed can go on from its checkpoint.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privfair.durable import replace_file, sync_folder, write_all
from privfair.transcript.frames import ValueKey
from privfair.transcript.header import TranscriptRefused

_ENTRY = struct.Struct("<HHQ")


@final
class BesideTranscript:
    """The folder beside the transcript at `path`."""

    def __init__(self, path: Path) -> None:
        self.folder = path.with_name(f"{path.stem}.kept")

    def create(self) -> None:
        self.folder.mkdir(exist_ok=True)
        sync_folder(self.folder.parent)

    def write(self, key: ValueKey, content: bytes) -> None:
        """Add one value, durably."""
        path = self._recent(key.round)
        new = not path.exists()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            write_all(descriptor, _ENTRY.pack(key.party, key.name, len(content)))
            write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            sync_folder(self.folder)

    def content(self, key: ValueKey) -> bytes | None:
        """A value as it was written; None where it was forgotten."""
        try:
            with self._recent(key.round).open("rb") as file:
                while len(front := file.read(_ENTRY.size)) == _ENTRY.size:
                    party, name, size = _ENTRY.unpack(front)
                    if (party, name) == (key.party, key.name):
                        return file.read(min(size, os.fstat(file.fileno()).st_size))
                    file.seek(size, os.SEEK_CUR)
        except FileNotFoundError:
            return None
        return None

    def forget(self, until: int) -> None:
        """Remove the values of all rounds up to this one, whose effect is in a durable checkpoint."""
        for path in self.folder.glob("*.recent"):
            if int(path.stem) <= until:
                path.unlink()

    def write_state(self, round_number: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        content = io.BytesIO()
        np.savez(content, **arrays)  # type: ignore[arg-type]
        replace_file(self._state(round_number), content.getvalue())

    def state(self, round_number: int) -> dict[str, NDArray[Any]] | None:
        """The arrays of a state; None where it was not kept."""
        path = self._state(round_number)
        try:
            with np.load(path, allow_pickle=False) as found:
                return {name: found[name] for name in found.files}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as broken:
            rule = f"is not a state ({type(broken).__name__})"
            raise TranscriptRefused(str(path), rule, "put an untouched copy of it back") from broken

    def _recent(self, round_number: int) -> Path:
        return self.folder / f"{round_number:012d}.recent"

    def _state(self, round_number: int) -> Path:
        return self.folder / f"{round_number:012d}.state.npz"
