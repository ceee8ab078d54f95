"""Commands on a system without fcntl and POSIX names: accounting, training and audits work; guards say why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from calibrate.errors import Refused
from privfair import durable
from tests.end_to_end.other_system import ROOT, WINDOWS_LOCKS
from tests.privfair.small_runs import GAUSSIAN, write_silos

KEYS = [
    "keys generate --role privacy-officer --out officer.pem",
    "keys trust --key officer.pem.pub --role privacy-officer --out trust.json",
]
COMMANDS = [
    "check plan.toml",
    "ledger init ledger.db",
    "calibrate plan.toml",
    "budget sign plan.toml --key officer.pem --yes --out budget.json",
    "train plan.toml --budget budget.json --trust trust.json --ledger ledger.db --out run",
    "audit run ./run --trust trust.json --ledger ledger.db --reruns 1 --seconds 5 --out audit.json",
    "report run --audit audit.json --trust trust.json --out report.html",
    "ledger status ledger.db",
    "verify ledger.db",
]
REFUSED = [
    "serve site.toml",
    "ui --ledger ledger.db --inbox .",
    "train plan.toml --budget budget.json --sites sites.toml --trust trust.json --out far",
]


def run_elsewhere(folder: Path, commands: list[str]) -> dict[str, list[dict[str, str]]]:
    words = json.dumps([one.split() for one in commands])
    simulated = [sys.executable, "-m", "tests.end_to_end.other_system", str(folder)]
    done = subprocess.run(simulated, input=words, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, str]]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_everything_but_guards_and_pages_works_without_posix(tmp_path: Path) -> None:
    write_silos(tmp_path)
    (tmp_path / "plan.toml").write_text(GAUSSIAN.format(rate=0.2, rounds=3, more=""), encoding="utf-8")
    (tmp_path / "sites.toml").write_text('[guards.north]\nsocket = "north.sock"\n', encoding="utf-8")
    found = run_elsewhere(tmp_path, [*KEYS, *COMMANDS, *REFUSED])
    commands = [*KEYS, *COMMANDS, *REFUSED]
    codes = dict(zip(commands, (one["code"] for one in found["answers"]), strict=True))
    wanted = dict.fromkeys([*KEYS, *COMMANDS], 0) | dict.fromkeys(REFUSED, 2)
    assert codes == wanted, [one for one in found["answers"] if one["code"] not in (0, 2)]
    told = [" ".join(one["error"].split()) for one in found["answers"][-len(REFUSED) :]]
    assert [one for one in told if "unix sockets" not in one] == []
    assert found["locks"], "no lock was taken"


def test_the_lock_of_windows_excludes_others_and_leaves_the_file_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "fcntl", None)
    monkeypatch.setattr(durable, "msvcrt", WINDOWS_LOCKS, raising=False)
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with durable.locked(path), pytest.raises(Refused, match="in use"), durable.locked(path, busy="in use"):
        pass
    with durable.opened(path, os.O_RDWR) as descriptor:
        os.lseek(descriptor, 3, os.SEEK_SET)
        durable.lock_file(descriptor)
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 3
    assert path.read_bytes() == b"content"
