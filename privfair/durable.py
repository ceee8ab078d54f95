"""Files that are on disk when the call returns, locks on them, and files that a person named, with errors to match."""

from __future__ import annotations

import errno
import os
import time
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from calibrate.errors import InvalidInput, Refused

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

OTHER_VERSION = "read it with the version of privfair that wrote it, which run.json names"
"""The remedy for a file of a run whose format is of another version; nothing is guessed."""


_BINARY: int = getattr(os, "O_BINARY", 0)
"""Windows would change line ends in a descriptor that was opened without it."""
_LOCKED_BYTE = 0x7FFFFFFE
"""Where Windows locks: a byte far behind what files hold, because a locked one can't be read there."""
_LOCK_SECONDS = 0.05


def open_file(path: Path, flags: int, mode: int = 0o644) -> int:
    """The descriptor of a file whose bytes are read and written as they are, on every system."""
    return os.open(path, flags | _BINARY, mode)


@contextmanager
def opened(path: Path, flags: int, mode: int = 0o644) -> Iterator[int]:
    """The descriptor of a file or folder during the block."""
    descriptor = open_file(path, flags, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make a creation or a rename in `folder` survive a power cut; Windows has no call for it, and keeps a journal."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """os.write may write less than it was given; this does not."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def write_new_file(path: Path, content: bytes, mode: int) -> None:
    """Create `path`, which must not exist, with `content`, durably."""
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode) as descriptor:
        write_all(descriptor, content)
        os.fsync(descriptor)
    sync_folder(path.parent)


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` in place of `path` at one stroke: a reader sees the old bytes or the new ones.

    Raises FileExistsError for a device or folder in its place: a rename would put a plain file there for everybody.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "exists and is not a regular file", str(path))
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with opened(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        write_all(descriptor, content)
        os.fsync(descriptor)
    os.replace(beside, path)
    sync_folder(path.parent)


LARGEST_DOCUMENT = 1 << 26
"""Bytes of a plan, budget, report or any other file that is read as a whole."""
LARGEST_FILE = 1 << 34
"""Bytes of a model, a transcript or a ledger."""
_PART = 1 << 20
_FREE_BYTES = 1 << 28
_LARGEST_RATIO = 100
_MOST_MEMBERS = 10_000


def read_named(
    path: Path, argument: str, remedy: str = "check the path and its permissions", most: int = LARGEST_DOCUMENT
) -> bytes:
    """The content of a file that `argument` names; refused if it cannot be read or has more than `most` bytes.

    Of an endless device no more than that is read.
    """
    content = bytearray()
    try:
        with path.open("rb") as file:
            while len(content) <= most and (part := file.read(_PART)):
                content += part
    except OSError as error:
        raise InvalidInput(argument, str(path), f"cannot be read ({error.strerror})", remedy) from error
    if len(content) > most:
        raise InvalidInput(argument, str(path), f"has more than {most} bytes", "name the right file")
    return bytes(content)


def require_bounded_archive(path: Path, argument: str) -> None:
    """Refuse a zip archive (npz, pt, csv.zip) that would unpack to far more than it is; other files pass.

    Its members may hold 256 MiB together, or 100 times the bytes of the archive, and be 10,000 at most.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    unpacked, most = sum(one.file_size for one in members), max(_FREE_BYTES, _LARGEST_RATIO * path.stat().st_size)
    if unpacked > most or len(members) > _MOST_MEMBERS:
        rule = f"unpacks to {unpacked} bytes in {len(members)} members; the limits are {most} and {_MOST_MEMBERS}"
        raise InvalidInput(argument, str(path), rule, "pack the data again, or name the right file")


def read_toml(path: Path, argument: str) -> dict[str, object]:
    """The tables of a TOML file that `argument` names; refused with the reason if it is none."""
    try:
        return tomllib.loads(read_named(path, argument).decode())
    except (ValueError, RecursionError) as broken:  # neither TOML nor UTF-8, or nested far too deeply
        raise InvalidInput(argument, str(path), f"is not TOML: {broken}", "fix the file") from None


def write_named(path: Path, content: bytes) -> None:
    """Write a whole file that --out names, or nothing: a crash leaves the old content."""
    if path.exists() and not path.is_file():
        raise InvalidInput("--out", str(path), "exists and is not a regular file", "name a file")
    try:
        replace_file(path, content)
    except OSError as error:
        with suppress(OSError):
            path.with_name(f".{path.name}.{os.getpid()}").unlink()
        raise InvalidInput(
            "--out", str(path), f"cannot be written ({error.strerror})", "choose another place"
        ) from error


def lock_file(descriptor: int, *, wait: bool = False) -> None:
    """Lock an open file against other processes until it is closed.

    Raises BlockingIOError if another process has the lock, unless the call is to `wait` for it.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    place = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        while True:
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                return
            except OSError as busy:
                if not wait:
                    raise BlockingIOError(errno.EAGAIN, "is locked by another process") from busy
            time.sleep(_LOCK_SECONDS)
    finally:
        os.lseek(descriptor, place, os.SEEK_SET)


@contextmanager
def locked(path: Path, *, busy: str | None = None, mode: int = 0o644) -> Iterator[None]:
    """Hold the lock of the file at `path`, which is made if it does not exist, during the block.

    Where another process has it, the call waits, or is refused with the sentence `busy`.
    """
    with opened(path, os.O_RDWR | os.O_CREAT, mode) as descriptor:
        try:
            lock_file(descriptor, wait=busy is None)
        except BlockingIOError:
            raise Refused(str(busy)) from None
        yield


def lock_next_to(path: Path) -> Path:
    """The file whose lock guards `path`: not itself, because `replace_file` puts another file in its place."""
    return path.with_name(f"{path.name}.lock")
