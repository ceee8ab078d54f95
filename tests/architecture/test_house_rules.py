"""The rules of the house, checked by the tools that know them: lint, format, types, import directions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "command",
    [("-m", "ruff", "check", "."), ("-m", "ruff", "format", "--check", "."), ("-m", "mypy")],
    ids=["ruff", "format", "mypy"],
)
def test_tool_is_content(command: tuple[str, ...]) -> None:
    done = _run(sys.executable, *command)
    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_go_one_way() -> None:
    done = _run(str(Path(sys.executable).with_name("lint-imports")))
    assert done.returncode == 0, done.stdout + done.stderr


def test_help_imports_nothing_heavy() -> None:
    """`privfair --help` must answer at once, so nothing heavy may be loaded before a command needs it."""
    heavy = ("numpy", "scipy", "torch", "dp_accounting", "prv_accountant", "matplotlib", "pandas", "rich", "pydantic")
    code = (
        "import sys; from privfair.cli import cli; cli.main(['--help'], standalone_mode=False); "
        f"print('LOADED', [m for m in {heavy!r} if m in sys.modules])"
    )
    done = _run(sys.executable, "-c", code)
    assert "Commands" in done.stdout
    assert "LOADED []" in done.stdout


def test_no_file_is_longer_than_600_lines() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {count}"
        for package in ("calibrate", "privfair", "audit", "tests")
        for path in sorted((ROOT / package).rglob("*.py"))
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 600
    ]
    assert not long, "split these files: " + ", ".join(long)
