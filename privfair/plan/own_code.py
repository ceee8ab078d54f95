"""The user's own Python files next to a plan: read once, bound by their digest, and run from exactly those bytes.

A file is compiled from the bytes that were hashed; the import system, and with it any `.pyc` next to the file, is never
asked. Anyone who signs a budget signs the digest of each such file, and training refuses any other.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from calibrate.errors import InvalidInput, PrivfairError
from privfair.durable import read_named


@dataclass(frozen=True)
class UserFunction:
    """One function of the user's file."""

    place: str
    """The plan's table that names the file, for messages."""
    path: Path
    function: str
    source: bytes = field(repr=False)
    """The file as it was when the plan was read; nothing else is ever run."""

    @classmethod
    def read(
        cls, place: str, folder: Path, file: str | None, function: str, sha256: str | None, example: str
    ) -> UserFunction:
        """Read `file`, which must be in the plan's own `folder` and have the digest `sha256` if one is given.

        A file elsewhere is refused, because the run folder keeps a copy next to its plan.
        """
        if file is None or Path(file).name != file or not file.endswith(".py"):
            rule = "must be a .py file in the plan's own folder"
            raise InvalidInput(f"[{place}] file", file, rule, f'write file = "{example}"')
        path = folder / file
        found = cls(place, path, function, read_named(path, f"[{place}] file", "put it next to the plan"))
        if sha256 is not None and found.sha256 != sha256:
            rule = f"is not the digest of {path}"
            raise InvalidInput(f"[{place}] sha256", sha256, rule, "use the file that was signed")
        return found

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def sha256(self) -> str:
        """The digest of the bytes that would run."""
        return hashlib.sha256(self.source).hexdigest()

    def load(self, remedy: str) -> Callable[..., Any]:
        """Run the file and take the function out of it; `remedy` says which function is wanted."""
        found: Callable[..., Any] | None = getattr(self.run(), self.function, None)
        if not callable(found):
            rule = f"is not defined in {self.path}"
            raise InvalidInput(f"[{self.place}] function", self.function, rule, remedy)
        return found

    def run(self) -> ModuleType:
        """Run the file, from exactly the bytes that were read, as its own module."""
        module = ModuleType(f"privfair_own_code_{self.sha256[:16]}")
        module.__file__ = str(self.path)
        sys.modules[module.__name__] = module  # dataclasses look their own module up
        with self.running("to be loaded"):
            exec(compile(self.source, str(self.path), "exec", dont_inherit=True), vars(module))
        return module

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Turn whatever the user's code raises, an exit included, into a sentence that names file and line."""
        try:
            yield
        except PrivfairError:
            raise
        except (Exception, SystemExit) as error:
            rule = f"fails {what} ({self._line(error)}{_first_line(error)})"
            raise InvalidInput(f"[{self.place}] file", str(self.path), rule, "fix it and try again") from error

    def _line(self, error: BaseException) -> str:
        """Where in the file it went wrong, if anywhere."""
        if isinstance(error, SyntaxError):
            return f"line {error.lineno}: "
        number, frame = None, error.__traceback__
        while frame is not None:
            if frame.tb_frame.f_code.co_filename == str(self.path):
                number = frame.tb_lineno
            frame = frame.tb_next
        return "" if number is None else f"line {number}: "


def _first_line(error: BaseException) -> str:
    lines = (error.msg if isinstance(error, SyntaxError) else str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
