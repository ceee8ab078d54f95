"""Run commands of privfair in one process that behaves, where privfair can notice, as Windows does.

    python -m tests.end_to_end.other_system FOLDER < commands.json

No fcntl, resource, pwd or grp, no POSIX names, no unix sockets; a descriptor that privfair opens must be binary,
folders can't be opened, and an open file can't be removed or replaced. Prints one exit code per command.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import signal
import socket
import stat
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[2]
BINARY = 1 << 40
PACKAGES = tuple(str(ROOT / package) + os.sep for package in ("calibrate", "privfair", "audit"))
_open, _unlink, _replace, _flock = os.open, os.unlink, os.replace, fcntl.flock
_LOCKED: set[int] = set()


def _locking(descriptor: int, mode: int, count: int) -> None:
    assert (mode, count) == (2, 1)
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == 0x7FFFFFFE, "a locked byte can't be read: it must be far behind"
    try:
        _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "Permission denied") from None
    _LOCKED.add(descriptor)


WINDOWS_LOCKS = SimpleNamespace(LK_NBLCK=2, locking=_locking)


def _opened(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
    if sys._getframe(1).f_code.co_filename.startswith(PACKAGES) and path != os.devnull:
        assert flags & BINARY, f"{path} is opened without O_BINARY"
    if not more and os.path.isdir(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)
    return _open(path, flags & ~BINARY, mode, **more)


def _require_closed(path: Any, more: dict[str, Any]) -> None:
    if more.get("dir_fd") is not None or not os.path.isfile(path):
        return
    meant = os.stat(path)
    for number in os.listdir("/proc/self/fd"):
        try:
            found = os.fstat(int(number))
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and (found.st_ino, found.st_dev) == (meant.st_ino, meant.st_dev):
            raise PermissionError(errno.EACCES, "the file is in use", str(path))


def _unlinked(path: Any, **more: Any) -> None:
    _require_closed(path, more)
    _unlink(path, **more)


def _replaced(source: Any, target: Any, **more: Any) -> None:
    _require_closed(source, more)
    _require_closed(target, more)
    _replace(source, target, **more)


def become_another_system() -> None:
    """Take away what Windows lacks, for this process; packages that ask for the system at import are loaded before."""
    for package in ("pandas", "pyarrow", "sklearn.ensemble", "sqlalchemy.dialects.sqlite", "torch"):
        import_module(package)
    for name in ("fcntl", "resource", "pwd", "grp"):
        sys.modules[name] = None  # type: ignore[assignment]
    sys.modules["msvcrt"] = WINDOWS_LOCKS  # type: ignore[assignment]
    for home, names in (
        (os, "O_DIRECTORY getuid geteuid uname fork killpg mkfifo"),
        (socket, "AF_UNIX SO_PEERCRED"),
        (signal, "SIGKILL SIGHUP"),
    ):
        for name in names.split():
            delattr(home, name)
    os.O_BINARY = BINARY  # type: ignore[attr-defined]
    os.open, os.unlink, os.remove = _opened, _unlinked, _unlinked  # type: ignore[assignment]
    os.replace, os.rename = _replaced, _replaced  # type: ignore[assignment]


def run_commands(commands: list[list[str]]) -> list[dict[str, Any]]:
    """Exit code and output of each."""
    from privfair.cli import main

    found = []
    for words in commands:
        sys.argv = ["privfair", *words]
        out, error = io.StringIO(), io.StringIO()
        try:
            with redirect_stdout(out), redirect_stderr(error):
                main()
        except SystemExit as stop:
            found.append({"code": stop.code, "out": out.getvalue(), "error": error.getvalue()})
    return found


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    become_another_system()
    answers = run_commands(json.load(sys.stdin))
    json.dump({"answers": answers, "locks": len(_LOCKED)}, sys.stdout)
