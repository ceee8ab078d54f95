"""The entry point as a process: `python -m privfair`, a pipe that its reader closes, completion in a shell."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.architecture.tree import ROOT

PRIVFAIR = [sys.executable, "-m", "privfair"]


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def test_python_m_privfair_is_the_command_line() -> None:
    done = subprocess.run([*PRIVFAIR, "--help"], env=_environment(), capture_output=True, text=True, check=True)
    assert "Usage: privfair" in done.stdout


@pytest.mark.parametrize("words", [("theorems",), ("theorems", "--json"), ("--help",)])
def test_a_pipe_that_its_reader_closes_ends_the_command_quietly(words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [*PRIVFAIR, *words], env=_environment(), stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", ["privfair ", "privfair ledger "])
def test_completion_in_a_shell_ends_quietly(words: str) -> None:
    asked = _environment(_PRIVFAIR_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split())))
    done = subprocess.run(PRIVFAIR, env=asked, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("plain,init" if "ledger" in words else "plain,train") in done.stdout
