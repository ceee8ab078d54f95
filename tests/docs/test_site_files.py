"""The files with which a site runs its guard are read by the tools that they are for, where these are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

SITE = Path(__file__).parents[2] / "docs" / "examples" / "site"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (SITE / "privfair-guard.service").read_text(encoding="utf-8")
    unit = tmp_path / "privfair-guard.service"
    unit.write_text(text.replace("/opt/privfair/bin/privfair", "/bin/true"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []
    assert done.returncode == 0, done.stderr


def test_the_guards_container_has_no_network_no_root_and_no_writable_root() -> None:
    services = yaml.safe_load((SITE / "compose.yaml").read_text(encoding="utf-8"))["services"]
    guard, node = services["guard"], services["supernode"]
    assert (guard["network_mode"], guard["read_only"], guard["cap_drop"]) == ("none", True, ["ALL"])
    shared = {one.split(":")[0] for one in guard["volumes"]} & {one.split(":")[0] for one in node["volumes"]}
    assert shared == {"socket"}
    lines = (SITE / "Containerfile").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("USER ") and line != "USER 0" for line in lines)
