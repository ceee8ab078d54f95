"""A shim that counts the durable operations of a training process and lets the k-th one fail, or be its last.

Durable operations are what reaches the disk or the database: `os.write`, `os.fsync`, `os.replace`, `os.link` and a
database's commit. The shim is installed in a forked child, so that a kill is the end of a real process.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

KILLED = 137


class Fault(Enum):
    """What happens at the k-th operation."""

    KILL = "killed before it"
    TORN = "killed in the middle of it"
    """Half of a write is on disk; any other operation is done, and then the process ends."""
    FULL = "disk full at"
    ERROR = "I/O error at"
    LOST = "connection lost after"
    """The database committed, and the process is told that it did not."""

    def differs_at(self, kind: str) -> bool:
        """Half of a write can be on disk; of other operations there is no half, so two faults are enough there.

        An answer can be lost only of a commit.
        """
        if self is Fault.LOST:
            return kind == "commit"
        return self in (Fault.KILL, Fault.ERROR) or kind == "write"


@dataclass
class Shim:
    """Counts from 1; `fault` None only counts."""

    fault: Fault | None = None
    at: int = 0
    counted: int = 0
    kinds: list[str] = field(default_factory=list)

    def install(self) -> None:
        for name in ("write", "fsync", "replace", "link"):
            setattr(os, name, self._wrap(name, getattr(os, name)))
        event.listen(Engine, "commit", self._before_commit)

    def _wrap(self, name: str, right: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **options: Any) -> Any:
            if not self._due(name):
                return right(*arguments, **options)
            match self.fault:
                case Fault.TORN:
                    if name == "write":
                        descriptor, content = arguments
                        right(descriptor, bytes(content)[: len(content) // 2])
                    else:
                        right(*arguments, **options)
                    os._exit(KILLED)
                case Fault.FULL | Fault.ERROR:
                    if name == "write" and self.fault is Fault.FULL:
                        descriptor, content = arguments
                        right(descriptor, bytes(content)[: len(content) // 2])
                    number = errno.ENOSPC if self.fault is Fault.FULL else errno.EIO
                    raise OSError(number, os.strerror(number))
                case _:
                    os._exit(KILLED)

        return operation

    def _before_commit(self, connection: Any) -> None:
        if not self._due("commit"):
            return
        if self.fault in (Fault.TORN, Fault.LOST):
            connection.connection.commit()
        if self.fault in (Fault.KILL, Fault.TORN):
            os._exit(KILLED)
        why = "database or disk is full" if self.fault is Fault.FULL else "disk I/O error"
        raise OperationalError("COMMIT", {}, sqlite3.OperationalError(why))

    def _due(self, name: str) -> bool:
        self.counted += 1
        self.kinds.append(name)
        return self.fault is not None and self.counted == self.at
