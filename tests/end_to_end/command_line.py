"""Runs the real entry point in this process: same parsing, same exit codes, without a second of start-up."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from privfair.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def privfair(*words: object) -> Outcome:
    """What `privfair WORDS...` does."""
    out, err = StringIO(), StringIO()
    code = 0
    with patch.object(sys, "argv", ["privfair", *map(str, words)]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


def config_file(folder: Path, **keys: object) -> Path:
    """A user's configuration with these keys, for --config."""
    path = folder / "config.toml"
    path.write_text("".join(f"{key} = {json.dumps(str(value))}\n" for key, value in keys.items()), encoding="utf-8")
    return path
