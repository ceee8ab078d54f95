"""A device or pipe named as a place to write stays what it is: a rename would put a plain file there for everybody."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from calibrate.errors import InvalidInput
from privfair.durable import replace_file, write_named


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Not a regular file, and anybody may make one."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_command_does_not_replace_a_pipe(pipe: Path) -> None:
    with pytest.raises(InvalidInput, match="not a regular file"):
        write_named(pipe, b"content")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_run_does_not_replace_a_pipe(pipe: Path) -> None:
    with pytest.raises(FileExistsError, match="not a regular file"):
        replace_file(pipe, b"content")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
