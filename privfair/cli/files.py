"""Reading and writing files named on the command line, with errors that say which and why."""

from __future__ import annotations

import os
from pathlib import Path

from calibrate.errors import InvalidInput


def read_bytes(path: Path, argument: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            argument, str(path), f"cannot be read ({error.strerror})", "check the path and its permissions"
        ) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or nothing: a crash leaves the old content."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InvalidInput(
            "--out", str(path), f"cannot be written ({error.strerror})", "choose another place"
        ) from error
