"""A function in the user's own Python file beside a plan: found, bound by its digest where one is given, loaded."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.errors import InvalidInput


@dataclass(frozen=True)
class UserFunction:
    """`function` of `file`; `place` is the plan's table that names it, for messages."""

    place: str
    folder: Path
    file: str | None
    function: str
    sha256: str | None = None

    def require_beside(self, example: str) -> None:
        """Refuse a file elsewhere: the run folder keeps a copy beside its plan."""
        if self.file is None or Path(self.file).name != self.file or not self.file.endswith(".py"):
            raise InvalidInput(
                f"[{self.place}] file",
                self.file,
                "must be a .py file in the plan's own folder",
                f'write file = "{example}"',
            )

    def source(self) -> bytes:
        """The file's bytes, which must have the signed digest if the plan names one."""
        path = self.folder / str(self.file)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InvalidInput(
                f"[{self.place}] file",
                str(path),
                f"cannot be read ({error.strerror})",
                "put it beside the plan",
            ) from error
        if self.sha256 is not None and hashlib.sha256(content).hexdigest() != self.sha256:
            raise InvalidInput(
                f"[{self.place}] sha256",
                self.sha256,
                f"is not the digest of {path}",
                "use the file that was signed",
            )
        return content

    def load(self, remedy: str) -> Callable[..., Any]:
        """Run the file and take the function out of it."""
        path = self.folder / str(self.file)
        self.source()
        name = f"privfair_module_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found: Callable[..., Any] | None = getattr(module, self.function, None)
        if not callable(found):
            raise InvalidInput(f"[{self.place}] function", self.function, f"is not defined in {path}", remedy)
        return found
