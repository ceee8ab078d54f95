"""Engines carry bytes and nothing else: whatever one does to the messages, the run is the run in one process."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from calibrate.errors import InvalidInput
from privfair.federation.remote import ResendingTransport, relayed
from privfair.federation.sockets import GuardUnreachable, SocketTransport
from privfair.federation.trial import require_flower, write_app
from privfair.run.federated import train_over
from tests.federation.sites import ROOT, Sites, desk_in_one_place

pytestmark = pytest.mark.filterwarnings("ignore")


class HostileEngine:
    """Delivers twice, loses, keeps back and reorders, by a seed; what was kept back comes with a later question."""

    def __init__(self, transport: SocketTransport, seed: int) -> None:
        self._transport = transport
        self._random = random.Random(seed)
        self._late: list[tuple[str, bytes]] = []
        self.lost = self.repeated = self.delayed = 0

    def send(self, messages: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        arrived = self._late
        self._late = []
        for name, message in messages.items():
            if self._random.random() < 0.2:
                self.lost += 1
                continue
            times = self._random.choice([1, 1, 2, 3])
            self.repeated += times - 1
            for _ in range(times):
                answer = (name, relayed(message, self._transport({name: message})[name]))
                kept_back = self._random.random() < 0.3
                self.delayed += kept_back
                (self._late if kept_back else arrived).append(answer)
        self._random.shuffle(arrived)
        yield from arrived


def _same_model(found: Path, expected: Path) -> None:
    with np.load(expected / "checkpoint.npz") as ours, np.load(found / "checkpoint.npz") as theirs:
        names = [name for name in ours.files if name.startswith("state.")]
        assert names
        for name in names:
            np.testing.assert_array_equal(theirs[name], ours[name])
    assert (found / "model.json").read_bytes() == (expected / "model.json").read_bytes()


def test_an_engine_that_repeats_loses_and_reorders_changes_no_value(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("e")
    desk = desk_in_one_place(folder / "one", "steffle, shuffled")
    expected = desk.train(desk.budget(research_noise=True)).run
    sites = Sites.at(folder / "s", "steffle, shuffled")
    sites.desk.budget(research_noise=True)
    with sites.guards() as transport:
        engine = HostileEngine(transport, seed=4)
        train_over(ResendingTransport(engine.send, tries=60), sites.signed(), folder / "run", engine="hostile")
    assert min(engine.lost, engine.repeated, engine.delayed) > 0
    _same_model(folder / "run", expected)


def test_a_late_answer_is_never_taken_for_an_answer_to_this_question() -> None:
    arriving = [[("north", relayed(b"before", b"old"))], [("north", relayed(b"now", b"new")), ("east", b"")]]
    assert ResendingTransport(lambda _: arriving.pop(0))({"north": b"now"}) == {"north": b"new"}


def test_an_engine_that_carries_nothing_is_given_up_with_the_remedy() -> None:
    with pytest.raises(GuardUnreachable, match=r"'north' came back in 3 tries.*--resume"):
        ResendingTransport(lambda _: (), tries=3)({"north": b"now"})


def test_the_relay_of_flower_imports_nothing_of_privfair(tmp_path: Path) -> None:
    """A site's SuperNode needs Flower alone, and can do nothing but carry."""
    write_app(tmp_path / "app")
    text = (tmp_path / "app" / "privfair_relay" / "client_app.py").read_text()
    imported = [line.split()[1] for line in text.splitlines() if line.startswith(("import ", "from "))]
    expected = {"__future__", "hashlib", "socket", "struct", "numpy", "flwr"}
    assert {name.partition(".")[0] for name in imported} == expected


def test_without_flower_the_engine_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privfair.federation.trial.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"privfair\[train,flower\]"):
        require_flower()


@pytest.mark.slow
def test_a_trial_on_one_machine_is_the_run_in_one_process(tmp_path_factory: pytest.TempPathFactory) -> None:
    """`privfair federation run` in a process of its own; Flower's half of it: test_guards_equal_one_process.py."""
    folder = tmp_path_factory.mktemp("t")
    desk = desk_in_one_place(folder / "one", "steffle, shuffled")
    expected = desk.train(desk.budget(research_noise=True)).run
    sites = Sites.at(folder / "s", "steffle, shuffled")
    sites.desk.budget(research_noise=True)
    words = ["federation", "run", str(sites.desk.plan), "--engine", "guards", "--manifest", str(sites.manifest)]
    words += ["--trust", str(sites.desk.trust), "--folder", str(folder / "sites"), "--out", str(folder / "run")]
    words += [word for name in sites.parties for word in ("--data", f"{name}={sites.folder / name}.csv")]
    code = "from privfair.cli import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    ended = subprocess.run([sys.executable, "-c", code, *words, "--json"], env=environment, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()
    assert json.loads(ended.stdout)["engine"] == "guards"
    _same_model(folder / "run", expected)
    receipts = json.loads((folder / "run" / "receipts.json").read_text())
    assert set(receipts["parties"]) == {"north", "south", "west"}
