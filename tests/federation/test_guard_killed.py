"""A guard that meets a fault at any durable operation: its successor sends the same bytes, and draws nothing twice."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from privfair.algorithms.algorithm import Received
from privfair.federation.coordinator import RoundsSpent
from privfair.federation.guard import Guard
from privfair.federation.registries import SitesKey
from privfair.federation.remote import RemoteParties
from privfair.federation.step_log import StepLog
from privfair.federation.wire import decode
from privfair.ledger import Ledger
from privfair.run.folder import RunFolder
from privfair.run.prepare import PreparedRun
from privfair.transcript import Ending, Transcript
from tests.fault_injection.faults import Fault, Shim
from tests.federation.sites import Sites

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.true_noise]
STEPS = 2
PARTIES = {"steffle, shuffled": "north", "mmd-fedavg": "central"}


@dataclass
class MortalGuard:
    """A guard in a forked process; when it dies, or its disk fails, it is started again and asked again."""

    run: PreparedRun
    folder: Path
    shim: Shim
    sites_key: SitesKey | None = None
    deaths: int = 0
    operations: list[str] = field(default_factory=list)
    _child: int = 0
    _line: socket.socket | None = None

    def __call__(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        ((party, message),) = messages.items()
        while True:
            if self._line is None:
                self._start()
            answer = self._ask(message)
            if answer is not None and not (self.deaths == 0 and _needs_its_operator(answer)):
                return {party: answer}
            self.stop()
            (self.folder / "own" / "halted").unlink(missing_ok=True)  # as its operator does
            self.deaths += 1
            assert self.deaths < 4, "its successor must not die"
            self.shim = Shim()

    def stop(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
            os.waitpid(self._child, 0)

    def _ask(self, message: bytes) -> bytes | None:
        assert self._line is not None
        try:
            self._line.sendall(struct.pack("<I", len(message)) + message)
            return _read(self._line)
        except OSError:
            return None

    def _start(self) -> None:
        self._line, there = socket.socketpair()
        self._line.settimeout(240)
        self._child = os.fork()
        if self._child == 0:
            self._line.close()
            try:
                self._serve(there)
            finally:
                os._exit(1)
        there.close()

    def _serve(self, line: socket.socket) -> None:
        kinds = self.folder / "kinds"
        self.shim.install()
        with Ledger.open(self.folder / "ledger.db") as ledger:
            own, log = RunFolder(self.folder / "own"), logging.getLogger("killed")
            guard = Guard(self.run, own, ledger, log, sites_key=self.sites_key)
            while (message := _read(line)) is not None:
                answer = guard.answer(message)
                line.sendall(struct.pack("<I", len(answer)) + answer)
            guard.close()
        counted = "\n".join(self.shim.kinds)
        if self.shim.fault is None:
            kinds.write_text(counted)
        os._exit(0)


def _needs_its_operator(answer: bytes) -> bool:
    """Whether it is a refusal that ends with a restart, as after an error of the disk."""
    return decode(answer).fields.get("code") in ("fault", "halted", "refused")


def _read(line: socket.socket) -> bytes | None:
    front = line.recv(4, socket.MSG_WAITALL)
    if len(front) < 4:
        return None
    (length,) = struct.unpack("<I", front)
    found = line.recv(length, socket.MSG_WAITALL) if length else b""
    return found if len(found) == length else None


@pytest.fixture(scope="module", params=PARTIES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PreparedRun:
    sites = Sites.at(tmp_path_factory.mktemp("k"), request.param)
    sites.desk.budget()
    return sites.prepare(PARTIES[request.param])


def mortal_guard(run: PreparedRun, folder: Path, shim: Shim, sites_key: SitesKey | None = None) -> MortalGuard:
    """A guard that was never started, in a fresh folder."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "own").mkdir(parents=True)
    Ledger.create(folder / "ledger.db").close()
    return MortalGuard(run, folder, shim, sites_key)


def _fresh(run: PreparedRun, folder: Path, shim: Shim) -> tuple[MortalGuard, RemoteParties]:
    guard = mortal_guard(run, folder, shim)
    parties = RemoteParties(run.manifest.digest, (run.silos[0].name,), guard)
    parties.expect({name: tuple(shape) for name, shape in run.algorithm.shapes().items()})
    return guard, parties


def _ask(run: PreparedRun, parties: RemoteParties, step: int, before: list[Received]) -> Received:
    """A step of an aggregator follows from the ones before; of one silo among three any state is as good as another."""
    state = run.algorithm.start()
    for received in before[:step] if len(run.document.data.silos) == 1 else ():
        state = run.algorithm.update(state, received)
    arrays = {
        name: values + 0.01 * step if name == "theta" and len(run.document.data.silos) > 1 else values
        for name, values in run.algorithm.checkpoint(state).items()
    }
    received = parties.contribute(step, arrays)
    return parties.reply(step, received) if run.algorithm.replies else received


def _go(run: PreparedRun, guard: MortalGuard, parties: RemoteParties) -> list[Received]:
    """Every step, then the end; twice, to see that the second time nothing is new."""
    answers: list[Received] = []
    try:
        for step in range(STEPS):
            answers.append(_ask(run, parties, step, answers))
    except RoundsSpent:
        pass
    first = parties.finish()
    for step, before in enumerate(answers):
        for party, values in _ask(run, parties, step, answers).items():
            assert values.keys() == before[party].keys()
            for name, value in values.items():
                assert value.round == before[party][name].round
                np.testing.assert_array_equal(value.values, before[party][name].values)
    assert parties.finish() == first
    guard.stop()
    return answers


def _require_whole(run: PreparedRun, folder: Path, answers: list[Received]) -> None:
    transcript, log = Transcript.read(folder / "own" / "transcript.bin"), StepLog.read(folder / "own" / "steps.jsonl")
    assert transcript.ending is Ending.CLOSED
    with Ledger.open(folder / "ledger.db") as ledger:
        assert not transcript.verify_against(ledger).unrecorded
        assert ledger.manifest_status(run.manifest.digest).charged <= run.document.rounds
    (party,) = transcript.header.parties
    for step, answered in log.steps.items():
        names = Counter(
            spec.name
            for spec in transcript.header.values
            for number in answered.rounds
            if transcript.holds(number, party, spec.name)
        )
        assert not [name for name, times in names.items() if times > 1], f"step {step} published a value twice"
    for answer in answers:
        for name, value in answer[party].items():
            np.testing.assert_array_equal(transcript.value(value.round, party, name), value.values)


def _operations(run: PreparedRun, folder: Path) -> list[str]:
    guard, parties = _fresh(run, folder, Shim())
    _require_whole(run, folder, _go(run, guard, parties))
    assert guard.deaths == 0
    return (folder / "kinds").read_text().split("\n")


def _kill_at(run: PreparedRun, folder: Path, fault: Fault, at: int) -> None:
    guard, parties = _fresh(run, folder, Shim(fault, at))
    try:
        _require_whole(run, folder, _go(run, guard, parties))
        assert guard.deaths == 1
    finally:
        guard.stop()


@pytest.mark.parametrize("run", ["steffle, shuffled"], indirect=True)
def test_a_guard_killed_now_and_then_goes_on(run: PreparedRun, tmp_path: Path) -> None:
    count = len(_operations(run, tmp_path / "t"))
    for at in range(3, count - 3, max(1, count // 4)):
        _kill_at(run, tmp_path / "t", Fault.KILL, at)


@pytest.mark.slow
def test_a_guard_killed_all_over_its_durable_operations_goes_on(run: PreparedRun, tmp_path: Path) -> None:
    kinds = _operations(run, tmp_path / "t")
    for at, kind in enumerate(kinds, 1):
        fault = Fault.KILL if at % 2 else Fault.TORN
        if fault.differs_at(kind) and at % 3 != 2:
            _kill_at(run, tmp_path / "t", fault, at)
        elif at % 2:
            _kill_at(run, tmp_path / "t", Fault.ERROR, at)
