"""Whatever the server asks, and how: nothing beyond one release per step and the signed rounds leaves a guard."""

from __future__ import annotations

import logging
import random
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.errors import CheckFailed, Refused
from privfair.contribution import Published
from privfair.federation import wire
from privfair.federation.guard import Guard
from privfair.federation.sockets import SocketServer, frame
from privfair.federation.wire import Code, MessageKind, decode
from privfair.ledger import Ledger
from privfair.run.folder import RunFolder
from privfair.run.prepare import PreparedRun
from privfair.transcript import Transcript
from tests.federation.sites import Sites

pytestmark = pytest.mark.filterwarnings("ignore")
OTHER = "ab" * 32


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    sites = Sites.at(tmp_path_factory.mktemp("h"), "steffle, shuffled")
    sites.desk.budget()
    return sites


@pytest.fixture(scope="module")
def north(sites: Sites) -> PreparedRun:
    return sites.prepare("north")


@dataclass
class Asked:
    """A guard in this process, its folder, and what it publishes."""

    guard: Guard
    run: PreparedRun
    folder: Path
    ledger: Ledger

    @property
    def digest(self) -> str:
        return self.run.manifest.digest

    def state(self, shift: float = 0.0) -> dict[str, Any]:
        start = self.run.algorithm.checkpoint(self.run.algorithm.start())
        return {name: values + (shift if name == "theta" else 0.0) for name, values in start.items()}

    def contribute(self, step: int, shift: float = 0.0) -> bytes:
        return self.guard.answer(wire.ask_contribution(self.digest, step, self.state(shift)))

    def released(self) -> int:
        return len(Transcript.read(self.folder / "transcript.bin").releases())

    def again(self) -> Asked:
        """The same guard, started again."""
        self.guard.close()
        return Asked(_open(self.run, self.folder, self.ledger), self.run, self.folder, self.ledger)


def _open(run: PreparedRun, folder: Path, ledger: Ledger, **options: Any) -> Guard:
    return Guard(run, RunFolder(folder), ledger, logging.getLogger("test"), **options)


@pytest.fixture
def asked(north: PreparedRun, tmp_path: Path) -> Iterator[Asked]:
    folder = tmp_path / "north"
    folder.mkdir()
    with Ledger.create(tmp_path / "ledger.db") as ledger:
        found = Asked(_open(north, folder, ledger), north, folder, ledger)
        yield found
        found.guard.close()


def _refused(answer: bytes) -> tuple[str, str]:
    message = decode(answer)
    assert message.kind is MessageKind.REFUSED
    assert not message.arrays
    assert set(message.fields) == {"error", "code"}, "a refusal carries no text"
    return str(message.fields["error"]), str(message.fields["code"])


def test_asked_twice_it_sends_the_same_bytes(asked: Asked) -> None:
    assert asked.contribute(0) == asked.contribute(0)
    released = asked.released()
    assert asked.contribute(1) != asked.contribute(0)
    assert asked.released() == 2 * released


def test_another_state_for_an_answered_step_is_refused(asked: Asked) -> None:
    asked.contribute(0)
    asked.contribute(1, 0.5)
    before = asked.released()
    for step, shift in ((0, 1.0), (1, 1.0), (0, 0.5)):
        assert _refused(asked.contribute(step, shift)) == ("StepRefused", "step")
    assert asked.released() == before


def test_steps_out_of_order_are_refused(asked: Asked) -> None:
    for step in (1, 2, 10**6, 2**62):
        assert _refused(asked.contribute(step)) == ("StepRefused", "step")
    assert asked.contribute(0) == asked.contribute(0)
    assert asked.released() == len(asked.run.algorithm.shapes())


@pytest.mark.parametrize("plan", ["pay-once", "fair-plugin, distilled"])
def test_a_server_that_forgets_the_responses_gets_no_second_ones(
    plan: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two independent responses of one attribute would be twice the promise: refused, and nothing is sent."""
    folder = tmp_path_factory.mktemp("r")
    sites = Sites.at(folder / "s", plan)
    sites.desk.budget()
    run = sites.prepare("north")
    (folder / "north").mkdir()
    with Ledger.create(folder / "ledger.db") as ledger:
        asked = Asked(_open(run, folder / "north", ledger), run, folder / "north", ledger)
        assert decode(asked.contribute(0)).kind is MessageKind.PUBLISHED
        assert asked.released() == 1
        assert _refused(asked.contribute(1)) == ("GateRefused", "refused")
        assert asked.released() == 1
        asked.guard.close()


def test_a_state_of_another_run_is_refused(asked: Asked) -> None:
    question = wire.ask_contribution(OTHER, 0, asked.state())
    assert _refused(asked.guard.answer(question)) == ("WireRefused", "other-run")
    assert _refused(asked.guard.answer(wire.ask_hello(OTHER))) == ("WireRefused", "other-run")
    assert asked.released() == 0


def test_rounds_beyond_the_signed_ones_are_refused(asked: Asked) -> None:
    signed, names = asked.run.document.rounds, len(asked.run.algorithm.shapes())
    answers = [asked.contribute(step) for step in range(signed)]
    assert {decode(answer).kind for answer in answers} == {MessageKind.PUBLISHED}
    for step in (signed, signed, signed + 1):
        error, code = _refused(asked.contribute(step))
        assert (error, code) in {("RoundsSpent", "spent"), ("StepRefused", "step")}
    assert asked.released() == signed * names
    assert asked.contribute(signed - 1) == answers[-1], "a late repetition still finds the same bytes"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_states_that_are_not_finite_are_refused_and_bind_nothing(asked: Asked, bad: float) -> None:
    assert _refused(asked.contribute(0, bad)) == ("StateRefused", "state")
    assert decode(asked.contribute(0)).kind is MessageKind.PUBLISHED, "an honest state is still answered"


def test_states_of_another_shape_or_name_are_refused(asked: Asked) -> None:
    whole = asked.state()
    short = {**whole, "theta": whole["theta"][:-1]}
    for state in (short, {}, {"theta": np.zeros(0)}):
        answer = asked.guard.answer(wire.ask_contribution(asked.digest, 0, state))
        assert _refused(answer)[1] in ("state", "halted"), state
    assert asked.released() == 0


@pytest.mark.parametrize(
    "error",
    [RuntimeError("a record made this fail"), CheckFailed("a norm is infinite"), Refused("too few records")],
    ids=lambda error: type(error).__name__,
)
def test_a_contribution_that_fails_is_the_last_until_the_operator_clears_the_halt(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Whether it fails may depend on records: one answer for every class of error, and none after a restart."""

    def fail(*_: object) -> None:
        raise error

    halted, greeting = ("GuardHalted", "halted"), wire.ask_hello(asked.digest)
    with monkeypatch.context() as patched:
        patched.setattr(type(asked.run.algorithm), "contribution", fail)
        assert _refused(asked.contribute(0)) == halted
    assert str(error) in caplog.text, "the operator sees the cause"
    successor = asked
    for restarts in range(3):
        successor = successor.again() if restarts else asked
        assert decode(successor.guard.answer(greeting)).kind is MessageKind.GREETING
        assert {_refused(successor.contribute(step)) for step in (0, 0)} == {halted}
        assert _refused(successor.guard.answer(wire.ask_reply(asked.digest, 0, {}))) == halted
    assert successor.released() == 0
    file = asked.folder / "halted"
    assert str(error) not in file.read_text()
    assert f"delete {file}" in caplog.text
    file.unlink()
    assert _refused(successor.contribute(0)) == halted, "a restart belongs to clearing"
    resumed = successor.again()
    assert decode(resumed.contribute(0)).kind is MessageKind.PUBLISHED
    resumed.guard.close()


def test_a_refusal_that_no_record_decides_halts_nothing(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.max.replace(tzinfo=UTC)

    with monkeypatch.context() as patched:
        patched.setattr("privfair.gate.datetime", Later)
        assert _refused(asked.contribute(0)) == ("GateRefused", "refused"), "the manifest has expired"
    assert not (asked.folder / "halted").exists()
    assert decode(asked.contribute(0)).kind is MessageKind.PUBLISHED


@pytest.mark.parametrize("number", [1.1e9, -1e308])
def test_states_beyond_all_training_are_refused_before_a_record_is_touched(asked: Asked, number: float) -> None:
    """Whether a product with them overflows would be an answer about records without noise."""
    assert _refused(asked.contribute(0, number)) == ("StateRefused", "state")
    assert decode(asked.contribute(0)).kind is MessageKind.PUBLISHED, "an honest state is still answered"
    values = {"south": {"g": Published(0, "south", "g", np.full(3, number))}}
    assert _refused(asked.guard.answer(wire.ask_reply(asked.digest, 0, values))) == ("StateRefused", "state")


def test_answers_sent_as_questions_and_questions_without_a_step_are_malformed(asked: Asked) -> None:
    run = {"run": asked.digest}
    bad: list[wire.WireMessage] = [
        wire.WireMessage(MessageKind.PUBLISHED, run),
        wire.WireMessage(MessageKind.CONTRIBUTE, run),
        wire.WireMessage(MessageKind.CONTRIBUTE, {**run, "step": -1}),
        wire.WireMessage(MessageKind.CONTRIBUTE, {**run, "step": True}),
        wire.WireMessage(MessageKind.REPLY, {**run, "step": 0}),
        wire.WireMessage(MessageKind.REPLY, {**run, "step": 0, "of": [["north", "x"]]}, {"0": np.zeros(1)}),
        wire.WireMessage(MessageKind.REPLY, {**run, "step": 0, "of": [["a", "x", 0]]}, {"0": np.full(1, np.nan)}),
    ]
    for message in bad:
        assert _refused(asked.guard.answer(wire.encode(message)))[1] == "malformed"
    assert _refused(asked.guard.answer(wire.ask_reply(asked.digest, 0, {})))[1] == "step"


def _broken_messages() -> dict[str, bytes]:
    good = wire.ask_contribution(OTHER, 0, {"theta": np.arange(3.0)})
    head = b'{"kind":"hello","fields":{},"arrays":%s}'

    def with_head(content: bytes, numbers: bytes = b"") -> bytes:
        return struct.pack("<3sBI", b"PFG", 1, len(content)) + content + numbers

    return {
        "empty": b"",
        "shorter than its front": good[:7],
        "cut off": good[:-1],
        "one byte more": good + b"x",
        "other magic": b"XXX" + good[3:],
        "a pickle": b"\x80\x04\x95" + bytes(40),
        "an archive": b"PK\x03\x04" + bytes(40),
        "head longer than the message": struct.pack("<3sBI", b"PFG", 1, 1 << 31) + good[8:],
        "head is not JSON": with_head(b"{" * 4000),
        "head nested too deep": with_head(b"[" * 100_000),
        "head with NaN": with_head(b'{"kind":"hello","fields":{"run":NaN},"arrays":[]}'),
        "head of another kind": with_head(b'{"kind":"shell","fields":{},"arrays":[]}'),
        "head with more fields": with_head(b'{"kind":"hello","fields":{},"arrays":[],"x":1}'),
        "fields are a list": with_head(b'{"kind":"hello","fields":[],"arrays":[]}'),
        "arrays of negative size": with_head(head % b'[["a",[-1]]]'),
        "arrays of huge size": with_head(head % b'[["a",[999999999999]]]'),
        "sizes that overflow": with_head(head % b'[["a",[268435456,268435456,268435456]]]'),
        "the same array twice": with_head(head % b'[["a",[1]],["a",[1]]]', bytes(16)),
        "an array without a shape": with_head(head % b'["a"]'),
        "too many arrays": with_head(head % (b"[" + b",".join(b'["%d",[0]]' % n for n in range(5000)) + b"]")),
    }


@pytest.mark.parametrize("name", _broken_messages())
def test_broken_messages_are_refused_and_the_guard_goes_on(asked: Asked, name: str) -> None:
    assert _refused(asked.guard.answer(_broken_messages()[name]))[1] == "malformed"
    assert decode(asked.guard.answer(wire.ask_hello(asked.digest))).kind is MessageKind.GREETING


def test_whatever_is_changed_in_a_message_one_step_is_published_once(asked: Asked) -> None:
    """Bytes flipped, cut off, put in, and numbers at the edge of what a number can be; 40,000 were tried by hand."""
    chance, good = (
        random.Random(5),
        [
            wire.ask_hello(asked.digest),
            wire.ask_contribution(asked.digest, 0, asked.state()),
            wire.ask_contribution(asked.digest, 0, asked.state(), steps=3),
            wire.ask_reply(asked.digest, 0, {}),
        ],
    )
    allowed = {"WireRefused", "StepRefused", "StateRefused", None}
    for _ in range(1500):
        message = bytearray(chance.choice(good))
        for _ in range(chance.choice((1, 1, 2, 5))):
            at = chance.randrange(len(message))
            match chance.randrange(4):
                case 0:
                    message[at] = chance.randrange(256)
                case 1:
                    del message[at + 1 :]
                case 2:
                    message[at:at] = chance.randbytes(chance.randrange(1, 9))
                case _:
                    message[at : at + 8] = struct.pack("<d", chance.choice((1e308, -1e308, np.nan, 1e9, -1.0)))
        assert decode(asked.guard.answer(bytes(message))).fields.get("error") in allowed
    releases = Transcript.read(asked.folder / "transcript.bin").releases()
    assert {release.round for release in releases} <= {0}
    assert decode(asked.guard.answer(wire.ask_hello(asked.digest))).kind is MessageKind.GREETING


def test_another_version_is_told_apart(asked: Asked) -> None:
    question = bytearray(wire.ask_hello(asked.digest))
    question[3] = 2
    assert _refused(asked.guard.answer(bytes(question)))[1] == "version"


def test_a_killed_guards_successor_sends_the_same_bytes_and_refuses_another_state(asked: Asked) -> None:
    first, second = asked.contribute(0), asked.contribute(1, 0.25)
    successor = asked.again()
    assert successor.contribute(1, 0.25) == second
    assert successor.contribute(0) == first
    assert _refused(successor.contribute(1)) == ("StepRefused", "step")
    assert decode(successor.contribute(2)).kind is MessageKind.PUBLISHED
    greeting = wire.read_greeting(decode(successor.guard.answer(wire.ask_hello(asked.digest))))
    assert (greeting.session, greeting.step) == (2, 3)
    successor.guard.close()


def test_a_finished_guard_gives_the_same_receipt_and_publishes_nothing_more(asked: Asked) -> None:
    first = asked.contribute(0)
    receipt = asked.guard.answer(wire.ask_finish(asked.digest))
    assert asked.guard.answer(wire.ask_finish(asked.digest)) == receipt
    assert asked.contribute(0) == first
    assert _refused(asked.contribute(1)) == ("StepRefused", "step")
    successor = asked.again()
    assert successor.guard.answer(wire.ask_finish(asked.digest)) == receipt
    assert successor.contribute(0) == first
    assert _refused(successor.contribute(1)) == ("StepRefused", "step")
    assert successor.released() == len(asked.run.algorithm.shapes())


def test_hostile_frames_at_the_socket_stop_nobody(sites: Sites) -> None:
    """2 GiB announced, half a frame, noise, a thousand connections: an honest question is answered beside them."""
    run = sites.signed().manifest.digest
    with sites.guards() as transport:
        path = str(sites.socket("south"))
        hung: list[socket.socket] = []
        for _ in range(100):
            one = socket.socket(socket.AF_UNIX)
            one.connect(path)
            one.sendall(struct.pack("<I", 1000) + b"half")
            hung.append(one)
        with socket.socket(socket.AF_UNIX) as huge:
            huge.connect(path)
            huge.settimeout(240)
            huge.sendall(struct.pack("<I", (1 << 31) - 1) + b"x" * 4096)
            answer = bytearray()
            while part := _received(huge):
                answer += part
            assert _refused(bytes(answer[4:])) == ("WireRefused", "too-long")
        with socket.socket(socket.AF_UNIX) as noise:
            noise.connect(path)
            noise.settimeout(240)
            noise.sendall(struct.pack("<I", 50) + bytes(range(50)))
            assert _refused(_received(noise)[4:])[1] == "malformed"
        question = wire.ask_hello(run)
        answers = transport(dict.fromkeys(sites.parties, question))
        assert {decode(answer).kind for answer in answers.values()} == {MessageKind.GREETING}
        for one in hung:
            one.close()


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


def test_a_thousand_questions_at_once_keep_nobody_waiting(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One connection asks a thousand times before it reads, another once: the second is answered after one turn."""
    path, answered = tmp_path_factory.mktemp("t") / "s", list[bytes]()

    def answer(message: bytes) -> bytes:
        answered.append(message)
        return message * 100

    server = SocketServer(path, answer, logging.getLogger("test"))
    thread = threading.Thread(target=server.serve)
    with socket.socket(socket.AF_UNIX) as greedy, socket.socket(socket.AF_UNIX) as modest:
        for one in (greedy, modest):
            one.connect(str(path))
            one.settimeout(240)
        greedy.sendall(frame(b"again") * 1000)
        modest.sendall(frame(b"once"))
        thread.start()
        assert modest.recv(4096) == frame(b"once" * 100)
        assert answered.index(b"once") <= 2
        whole = bytearray()
        while len(whole) < 1000 * len(frame(b"again" * 100)):
            whole += greedy.recv(1 << 16)
        assert bytes(whole) == frame(b"again" * 100) * 1000
        server.stop()
        thread.join()


def test_unfinished_frames_of_many_connections_have_one_limit(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may be as long as a message; all together may not be as long as sixty-four of them."""
    monkeypatch.setattr("privfair.federation.sockets._MOST_HELD", 100_000)
    path = tmp_path_factory.mktemp("m") / "s"
    server = SocketServer(path, lambda message: message, logging.getLogger("test"))
    thread = threading.Thread(target=server.serve)
    thread.start()
    hung = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    with socket.socket(socket.AF_UNIX) as honest:
        for one in hung:
            one.connect(str(path))
            one.settimeout(240)
            one.sendall(struct.pack("<I", 60_000) + bytes(40_000))
        honest.connect(str(path))
        honest.settimeout(240)
        honest.sendall(frame(b"here"))
        assert honest.recv(100) == frame(b"here")
        for one in hung[:2]:
            assert _received(one) == b"", "the first ones were cut off"
    for one in hung:
        one.close()
    server.stop()
    thread.join()


def test_what_is_refused_is_told_in_the_silos_own_log_alone(sites: Sites) -> None:
    for path in (sites.folder / "south").iterdir():
        assert path.stat().st_mode & 0o077 == 0, f"{path.name} can be read by others"
    log = (sites.folder / "south" / "guard.log").read_text()
    assert "announced a frame of 2147483647 bytes" in log
    assert "it does not begin like a message" in log


def test_codes_are_few_and_carry_no_numbers() -> None:
    assert all(code.value.replace("-", "").isalpha() for code in Code)
