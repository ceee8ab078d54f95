"""`privfair desk` as a process: it prints an address that opens it, on this machine alone, until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from privfair.ledger import Ledger
from tests.end_to_end.command_line import privfair

ROOT = Path(__file__).parents[2]


def test_a_missing_ledger_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    refused = privfair("ui", "--ledger", tmp_path / "none.db", "--inbox", tmp_path)
    assert refused.code in (2, 3)
    assert "none.db" in refused.err
    assert privfair("ui", "--ledger", tmp_path / "none.db", "--inbox", tmp_path / "nowhere").code == 2


@pytest.mark.slow
def test_the_printed_address_opens_the_desk_until_it_is_stopped(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "ledger.db").close()
    words = ("ui", "--ledger", str(tmp_path / "ledger.db"), "--inbox", str(tmp_path), "--json")
    code = "import sys; from privfair.cli import main; sys.argv = ['privfair', *sys.argv[1:]]; main()"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    desk = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    )
    try:
        assert desk.stdout is not None
        said = json.loads("".join(iter(lambda: desk.stdout.readline(), "}\n")) + "}")  # type: ignore[union-attr]
        assert said["read_only"] is True
        address = urlsplit(said["address"])
        assert address.hostname == "127.0.0.1"
        with httpx.Client(base_url=f"http://{address.netloc}", timeout=120, trust_env=False) as client:
            assert client.get("/").status_code == 403
            assert client.get(said["address"]).status_code == 303
            assert "Nothing was claimed" in client.get("/ledger").text
            assert "server" not in client.get("/").headers
        taken = privfair("ui", "--ledger", tmp_path / "ledger.db", "--inbox", tmp_path, "--port", address.port)
        assert taken.code == 2
        assert "--port" in taken.err
        desk.send_signal(signal.SIGINT)
        assert desk.wait(120) in (0, 130, -signal.SIGINT)
    finally:
        desk.kill()
        desk.wait()
