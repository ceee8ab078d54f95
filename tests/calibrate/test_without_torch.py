"""Calibration needs no torch, and neither do its tests: they run in a Python that cannot import it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("torch is blocked", name=name)

sys.meta_path.insert(0, NoTorch())
import pytest

sys.exit(pytest.main(sys.argv[1:]))
"""


def _pytest(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _WITHOUT_TORCH, "-q", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=_HERE.parents[1], capture_output=True, text=True, check=False)


def test_the_tests_of_calibrate_are_collected_without_torch() -> None:
    done = _pytest("--collect-only", str(_HERE))
    assert done.returncode == 0, done.stdout[-2000:]
    assert "test_solve_noise.py::" in done.stdout


def test_a_file_of_them_runs_without_torch() -> None:
    done = _pytest(str(_HERE / "test_filters.py"))
    assert done.returncode == 0, done.stdout[-2000:]
    assert " passed" in done.stdout
