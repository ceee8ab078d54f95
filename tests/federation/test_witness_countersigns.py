"""With a witness a second use is prevented: put back what you like, nothing is drawn for rounds that it has seen."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from calibrate.manifest.keys import Role, SigningKey, generate, save
from calibrate.manifest.show import render
from calibrate.manifest.verify import authenticate
from privfair.federation.countersign import SecondUse, SocketWitness, WitnessBook
from privfair.federation.sockets import SocketServer
from privfair.gate import Gate
from privfair.ledger import Ledger, Unavailable
from privfair.ledger.claim import Claim
from privfair.training import TrustInForce, execute, prepare
from privfair.transcript import Transcript
from tests.end_to_end.command_line import Outcome, config_file, privfair
from tests.privfair.small_runs import GAUSSIAN, Desk

pytestmark = pytest.mark.filterwarnings("ignore")
BLOCK = "block = 2"


class Killed(BaseException):
    """The process is gone at this point."""


@dataclass
class World:
    """A desk whose plan names a witness, and the witness in a thread of its own."""

    desk: Desk
    key: SigningKey
    socket: Path
    book: WitnessBook
    answered: list[bytes]

    @property
    def out(self) -> Path:
        return self.desk.folder / "run"

    def train(self, resume: bool = False) -> int:
        """Train to the end; the rounds that were charged."""
        prepared = prepare(self.desk.plan, self.desk.folder / "budget.json", TrustInForce(self.desk.trust))
        done = execute(prepared, self.out, self.desk.ledger, resume=resume, witness=self.socket)
        return done.record.rounds.charged

    def drawn(self) -> int:
        """Values that left the gate, by the transcript in the run folder."""
        path = self.out / "transcript.bin"
        return len(Transcript.read(path).releases()) if path.exists() else 0

    def copy(self) -> Callable[[], None]:
        """Remember ledger, anchor and run folder; the call puts all of it back."""
        kept = self.desk.folder.with_name("kept")
        shutil.copytree(self.desk.folder, kept)

        def restore() -> None:
            shutil.rmtree(self.desk.folder)
            shutil.copytree(kept, self.desk.folder)

        return restore


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    key, remembered = generate(), tmp_path / "witness"
    remembered.mkdir()
    plan = f'witness = "{key.key_id}"\n' + GAUSSIAN.format(rate=0.2, rounds=6, more=BLOCK)
    desk = Desk.at(tmp_path / "desk", plan)
    desk.budget()
    answered: list[bytes] = []
    book = WitnessBook(remembered, key)

    def answer(question: bytes) -> bytes:
        answered.append(question)
        return book.answer(question)

    server = SocketServer(tmp_path / "w.sock", answer, logging.getLogger("test"))
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield World(desk, key, tmp_path / "w.sock", book, answered)
    server.stop()
    thread.join()


def test_a_run_asks_once_per_block_and_to_begin(world: World) -> None:
    assert world.train() == 6
    assert len(world.answered) == 2 + 3


def test_ledger_anchor_and_folder_put_back_before_the_first_round_fail_before_noise(world: World) -> None:
    """Without a witness the second run ended with exit code 0."""
    restore = world.copy()
    world.train()
    restore()
    with pytest.raises(SecondUse, match="old copy"):
        world.train()
    assert world.drawn() == 0
    with Ledger.open(world.desk.ledger) as ledger:
        assert ledger.status().manifests == (), "nothing was claimed"
    assert not world.out.exists() or not any(world.out.glob("claim.token"))


def _die_at(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, call: int) -> None:
    """Let the process be gone before the given call of a method; calls are counted from 0."""
    method, calls = getattr(kind, name), iter(range(10**6))

    def dying(self: object, *words: object, **more: object) -> object:
        if next(calls) == call:
            raise Killed
        return method(self, *words, **more)

    monkeypatch.setattr(kind, name, dying)


def _interrupted(world: World, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, call: int) -> None:
    with monkeypatch.context() as patched:
        _die_at(patched, kind, name, call)
        with pytest.raises(Killed):
            world.train()


@pytest.mark.parametrize("round_number", [0, pytest.param(1, marks=pytest.mark.slow), 3])
def test_what_is_put_back_in_the_middle_of_a_run_fails_before_noise(
    world: World, monkeypatch: pytest.MonkeyPatch, round_number: int
) -> None:
    _interrupted(world, monkeypatch, Gate, "next_round", round_number)
    restore = world.copy()
    assert world.train(resume=True) == 6
    restore()
    before = world.drawn()
    with pytest.raises(SecondUse):
        world.train(resume=True)
    assert world.drawn() == before


def test_a_copy_that_runs_next_to_the_original_gets_no_block(world: World) -> None:
    """The fork is seen at its first block."""
    ask = SocketWitness(world.socket)
    first, other = [(2, "a" * 64)], [(2, "b" * 64)]
    for listed in (first, [*first, (4, "c" * 64)], [*first, (4, "c" * 64)]):
        ask.countersign(world.key.key_id, "d" * 64, "", listed)
    for fork in (first, other, [*first, (4, "e" * 64)], []):
        with pytest.raises(SecondUse):
            ask.countersign(world.key.key_id, "d" * 64, "", fork)
    ask.countersign(world.key.key_id, "d" * 64, "another party", other)


def test_an_answer_that_was_lost_is_given_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = world.book.answer

    def answer(question: bytes) -> bytes:
        assert lost(question) == lost(question)
        return lost(question)

    monkeypatch.setattr(world.book, "answer", answer)
    assert world.train() == 6


_KILLS = [(SocketWitness, "countersign", call) for call in range(5)] + [(Claim, "charge", call) for call in range(3)]


@pytest.mark.parametrize(
    ("kind", "name", "call"), [pytest.param(*one, marks=[pytest.mark.slow] if one[2] != 2 else []) for one in _KILLS]
)
def test_a_process_killed_around_a_countersignature_resumes_and_draws_no_round_twice(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, call: int
) -> None:
    _interrupted(world, monkeypatch, kind, name, call)
    charged = world.train(resume=True)
    assert charged == 6
    released = Transcript.read(world.out / "transcript.bin").releases()
    assert len({(one.round, one.party, one.name) for one in released}) == len(released)
    assert {one.round for one in released} <= set(range(6))


def test_an_unreachable_witness_keeps_the_token(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(100))
    countersign = SocketWitness.countersign

    def unreachable(self: SocketWitness, *words: object) -> None:
        if next(calls) == 2:
            raise Unavailable("witness", "no answer within 60 seconds", "start it")
        countersign(self, *words)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(SocketWitness, "countersign", unreachable)
        with pytest.raises(Unavailable):
            world.train()
    assert (world.out / "claim.token").exists()
    assert world.drawn() == 0
    assert world.train(resume=True) == 6


def _trained(world: World, place: Path, *more: object) -> Outcome:
    desk, where = world.desk, ("--ledger", world.desk.ledger, "--out", place / "out")
    return privfair("train", desk.plan, "--manifest", desk.folder / "budget.json", "--trust", desk.trust, *where, *more)


def test_another_witness_or_none_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no answer signed by"):
        SocketWitness(world.socket).countersign(generate().key_id, "d" * 64, "", ())
    with pytest.raises(Unavailable, match="no answer within"):
        SocketWitness(tmp_path / "none.sock", deadline=0.1).countersign(world.key.key_id, "d" * 64, "", ())
    refused = _trained(world, tmp_path)
    assert refused.code == 3
    assert "name its socket as `witness`" in refused.err


def test_the_commands_find_the_witness_in_the_configuration(world: World, tmp_path: Path) -> None:
    config = config_file(tmp_path, witness=world.socket)
    done = _trained(world, tmp_path, "--config", config)
    assert done.code == 0, done.err
    save(world.key, Role.AUDITOR, tmp_path / "witness.pem")
    site = tmp_path / "site.toml"
    site.write_text('role = "witness"\nfolder = "seen"\nsocket = "other.sock"\nkey = "witness.pem"\n')
    checked = privfair("serve", site, "--check")
    assert (checked.code, world.key.key_id in checked.out) == (0, True)


def test_what_a_witness_cannot_read_it_does_not_answer(world: World) -> None:
    for broken in (b"", b"{}", b"[]", b"x" * (2 << 20), b'{"manifest": 1, "party": "", "charges": []}'):
        assert world.book.answer(broken) == b""


def test_a_budget_shows_whether_a_second_use_is_prevented_or_detected(world: World, tmp_path: Path) -> None:
    def shown(desk: Desk) -> str:
        envelope = (desk.folder / "budget.json").read_bytes()
        return render(authenticate(envelope, TrustInForce(desk.trust).file, at=datetime.now(UTC)))

    assert f"second use is prevented: the witness {world.key.key_id}" in " ".join(shown(world.desk).split())
    plain = Desk.at(tmp_path / "plain", GAUSSIAN.format(rate=0.2, rounds=6, more=BLOCK))
    plain.budget()
    assert "detected, not prevented" in " ".join(shown(plain).split())
