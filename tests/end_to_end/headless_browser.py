"""Debian's chromium, headless and cut off from every network."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium")
AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
_ALONE = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--proxy-server=127.0.0.1:9",  # the discard port: nobody listens
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def dumped_page(page: Path, width: int, profile: Path) -> str:
    """The document as the browser has it after loading."""
    return _run(page, width, 900, profile, "--dump-dom", "--virtual-time-budget=2000").decode("utf-8")


def screenshot(page: Path, width: int, height: int, out: Path, profile: Path) -> Path:
    _run(page, width, height, profile, f"--screenshot={out}")
    return out


def _run(page: Path, width: int, height: int, profile: Path, *what: str) -> bytes:
    assert CHROMIUM is not None
    words = (f"--user-data-dir={profile}", f"--window-size={width},{height}", *what, page.as_uri())
    done = subprocess.run([CHROMIUM, *_ALONE, *words], capture_output=True, timeout=120, check=True)
    return done.stdout
