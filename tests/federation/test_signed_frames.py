"""Guards know who asks and coordinators who answers: no stray, replayed or altered frame changes or costs anything."""

from __future__ import annotations

import logging
import random
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from calibrate.errors import Refused, TrustRefused
from calibrate.manifest.keys import KeyAlgorithm, Role, SigningKey, generate, save
from calibrate.manifest.trust import Revocation, TrustedKey, TrustFile
from privfair.federation import wire
from privfair.federation.guard import Guard, GuardOptions
from privfair.federation.remote import EngineNodes
from privfair.federation.signed_frames import CallerRefused, CoordinatorSeal, GuardSeal, sealed
from privfair.federation.sockets import SocketServer, SocketTransport, frame
from privfair.federation.wire import MessageKind, decode
from privfair.ledger import Ledger
from privfair.run.federated import train_over
from privfair.run.folder import RunFolder
from privfair.run.open_run import TrustInForce
from privfair.run.record import Status
from privfair.transcript import Transcript
from tests.end_to_end.command_line import privfair
from tests.federation.sites import Sites

pytestmark = pytest.mark.filterwarnings("ignore")
LOG = logging.getLogger("test of signed frames")
LOG.setLevel(logging.CRITICAL)  # thousands of refusals
STRANGER = generate()
HOSTILE_FRAMES = 10_000


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    sites = Sites.at(tmp_path_factory.mktemp("k"), "steffle, full batches")
    sites.trust_keys()
    sites.desk.budget()
    return sites


@dataclass
class World:
    """Guards with keys in this process, and the wire between them and a coordinator."""

    sites: Sites
    guards: Mapping[str, Guard]
    folder: Path

    def carry(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        return {name: self.guards[name].answer(content) for name, content in frames.items()}

    @property
    def run(self) -> str:
        return self.sites.signed().manifest.digest

    def seal(self) -> CoordinatorSeal:
        return CoordinatorSeal(self.sites.signed().trust, self.sites.keys["coordinator"])

    def state(self, shift: float = 0.0) -> dict[str, Any]:
        run = self.sites.prepare("north")
        start = run.algorithm.checkpoint(run.algorithm.start())
        return {name: values + (shift if name == "theta" else 0.0) for name, values in start.items()}

    def spent(self, party: str = "north") -> tuple[int, int]:
        """Releases in the transcript, and entries of the ledger."""
        path = self.folder / party / "transcript.bin"
        with Ledger.open(self.folder / f"{party}.db") as ledger:
            entries = ledger.status().entries
        return len(Transcript.read(path).releases()) if path.exists() else 0, entries


@pytest.fixture
def world(sites: Sites, tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        guards = {}
        for party in sites.parties:
            ledger = stack.enter_context(Ledger.create(tmp_path / f"{party}.db"))
            (tmp_path / party).mkdir()
            trust, folder = TrustInForce(sites.desk.trust), RunFolder(tmp_path / party)
            guards[party] = Guard(sites.prepare(party), folder, ledger, LOG, trust=trust, key=sites.keys[party])
            stack.callback(guards[party].close)
        yield World(sites, guards, tmp_path)


@pytest.fixture
def trust_restored(sites: Sites) -> Iterator[None]:
    before = sites.desk.trust.read_bytes()
    yield
    sites.desk.trust.write_bytes(before)


def _code(answer: bytes) -> str:
    message = decode(answer)
    assert message.kind is MessageKind.REFUSED
    return str(message.fields["code"])


def test_every_frame_of_a_run_with_keys_is_signed(world: World) -> None:
    crossed: list[bytes] = []

    def carry(frames: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = world.carry(frames)
        crossed.extend((*frames.values(), *answers.values()))
        return answers

    done = train_over(carry, world.sites.signed(), world.folder / "run", key=world.sites.keys["coordinator"])
    assert (done.status, done.rounds.charged) == (Status.FINISHED, 4)
    assert {content[:3] for content in crossed} == {b"PFQ", b"PFA"}


def test_an_unsigned_question_takes_no_step_and_an_honest_one_does(world: World) -> None:
    """Before keys, one stray message with another state took the step, and honest questions were refused."""
    before = world.spent()
    stray = world.guards["north"].answer(wire.ask_contribution(world.run, 0, world.state(0.5)))
    assert _code(stray) == "caller"
    assert world.spent() == before
    assert not world.guards["north"].knows_caller
    answers = sealed(world.carry, world.seal())({"north": wire.ask_contribution(world.run, 0, world.state())})
    assert decode(answers["north"]).kind is MessageKind.PUBLISHED


def _hostile(world: World, honest: list[bytes], chance: random.Random) -> bytes:
    """One frame that no coordinator sent: noise, a changed frame, or a question signed by another key."""
    real = bytearray(chance.choice(honest))
    shift = chance.uniform(-1, 1)
    question = wire.ask_contribution(world.run, chance.randrange(3), world.state(shift))
    kind = chance.randrange(7)
    if kind == 0:
        return chance.randbytes(chance.randrange(300))
    if kind == 1:
        return question
    if kind == 2:
        real[chance.randrange(len(real))] ^= 1 << chance.randrange(8)
    elif kind == 3:
        del real[chance.randrange(len(real)) :]
    elif kind == 4:
        real += chance.randbytes(1 + chance.randrange(9))
    elif kind == 5:  # a true front and signature before another message
        real[-len(question) :] = question
    else:
        other = chance.choice((world.sites.keys["south"], STRANGER))
        trust = TrustFile(keys=(TrustedKey.of(other.public, Role.COORDINATOR, datetime(2020, 1, 1, tzinfo=UTC)),))
        signed = bytearray(CoordinatorSeal(trust, other).ask(question))
        if chance.random() < 0.5:
            signed[4:36] = bytes.fromhex(world.sites.keys["coordinator"].key_id)
        return bytes(signed)
    return bytes(real)


def test_ten_thousand_hostile_frames_publish_nothing_and_take_no_step(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, guard, seal = random.Random(20), world.guards["north"], world.seal()
    states = {shift: world.state(shift) for shift in (0.0, 0.25)}
    questions = [wire.ask_contribution(world.run, 0, states[0.0]), wire.ask_hello(world.run)]
    honest = [seal.ask(question) for question in questions]
    answers = [guard.answer(content) for content in honest]
    before = world.spent()
    monkeypatch.setattr(World, "run", world.run)
    monkeypatch.setattr(World, "state", lambda _, shift=0.0: states[0.25 if shift else 0.0])
    for _ in range(HOSTILE_FRAMES):
        content = _hostile(world, honest, chance)
        if content not in honest:
            assert _code(guard.answer(content)) == "caller"
    assert [guard.answer(content) for content in honest] == answers, "replayed frames get what they got before"
    assert world.spent() == before
    step = seal.ask(wire.ask_contribution(world.run, 1, states[0.25]))
    assert decode(seal.open("north", step, guard.answer(step))).kind is MessageKind.PUBLISHED


@pytest.mark.parametrize("relay", ["flip", "swap", "replay", "unsigned", "spent", "cut"])
def test_a_relay_changes_and_reorders_nothing_unnoticed(world: World, relay: str) -> None:
    old: list[dict[str, bytes]] = []

    def carry(frames: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = world.carry(frames)
        old.append(dict(answers))
        north = answers["north"]
        match relay:
            case "flip":
                answers["north"] = north[:-1] + bytes([north[-1] ^ 1])
            case "swap":
                answers["north"], answers["south"] = answers["south"], north
            case "replay":
                answers = old[0]
            case "unsigned":
                answers["north"] = north[-len(north) + struct.calcsize("<3sB32s32sH") + 64 :]
            case "spent":  # would end a run early, as if no signed round were left
                answers["north"] = wire.refusal("RoundsSpent", wire.Code.SPENT)
            case _:
                answers["north"] = north[:70]
        return answers

    ask = sealed(carry, world.seal())
    hello = dict.fromkeys(world.sites.parties, wire.ask_hello(world.run))
    if relay == "replay":
        ask(hello)
    with pytest.raises(CallerRefused, match="north"):
        ask(hello)


def test_a_guards_key_signs_for_its_own_party_only(sites: Sites) -> None:
    trust = TrustInForce(sites.desk.trust)
    with pytest.raises(TrustRefused, match="guard:north"):
        GuardSeal("north", trust, sites.keys["south"])
    with pytest.raises(TrustRefused, match=r"site\.toml"):
        GuardSeal("north", trust, None)
    with pytest.raises(TrustRefused, match=r"guards\.toml"):
        CoordinatorSeal(trust.file, sites.keys["north"])


def _changed(sites: Sites, name: str, **changes: object) -> None:
    """The trust file with another entry for one key."""
    trust, key_id = TrustInForce(sites.desk.trust).file, sites.keys[name].key_id
    keys = tuple(key.model_copy(update=changes) if key.key_id == key_id else key for key in trust.keys)
    sites.desk.trust.write_bytes(trust.model_copy(update={"keys": keys, "sequence": trust.sequence + 1}).to_bytes())


NOW = datetime.now(UTC).replace(microsecond=0)
NOT_IN_FORCE: dict[str, dict[str, object]] = {
    "expired": {"valid_from": NOW - timedelta(days=9), "valid_until": NOW - timedelta(days=1)},
    "a guard's clock that is a day behind": {"valid_from": NOW + timedelta(days=1)},
    "revoked": {"revoked": Revocation(at=NOW, why="lost")},
}


@pytest.mark.usefixtures("trust_restored")
@pytest.mark.parametrize("case", NOT_IN_FORCE)
def test_a_coordinators_key_that_ends_in_the_middle_costs_nothing_and_a_new_file_continues(
    world: World, case: str
) -> None:
    ask, trust = sealed(world.carry, world.seal()), world.sites.desk.trust.read_bytes()
    question = {"north": wire.ask_contribution(world.run, 0, world.state())}
    first, before = ask(question), world.spent()
    _changed(world.sites, "coordinator", **NOT_IN_FORCE[case])
    with pytest.raises(CallerRefused, match="not list this coordinator's key"):
        ask({"north": wire.ask_contribution(world.run, 1, world.state(0.5))})
    assert world.spent() == before
    world.sites.desk.trust.write_bytes(_followed(trust, world.sites))
    assert ask(question) == first, "the same guard takes the key again as soon as the file lists it"


def _followed(trust: bytes, sites: Sites) -> bytes:
    sequence = TrustInForce(sites.desk.trust).file.sequence + 1
    return TrustFile.model_validate_json(trust).model_copy(update={"sequence": sequence}).to_bytes()


@pytest.mark.usefixtures("trust_restored")
def test_a_guards_key_that_has_expired_stops_the_coordinator_by_name(world: World) -> None:
    _changed(world.sites, "north", **NOT_IN_FORCE["expired"])
    with pytest.raises(CallerRefused, match=r"answer of 'north' is not signed by its guard.*not valid since"):
        train_over(world.carry, world.sites.signed(), world.folder / "run", key=world.sites.keys["coordinator"])
    assert world.spent()[0] == 0


def test_engines_find_guards_by_their_signatures(world: World) -> None:
    """A node that greets in north's place without its key is not taken for north."""
    liar = wire.encode(wire.WireMessage(MessageKind.GREETING, {"party": "north"}))

    def exchange(frames: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        for node, content in frames.items():
            yield node, bytes(32) + (liar if node == 0 else world.guards["north"].answer(content))

    nodes = EngineNodes(exchange, lambda: (0, 1), deadline=600)
    nodes.find(world.run, ("north",), world.seal())
    assert nodes._nodes == {"north": 1}


def test_signatures_of_both_kinds_are_taken(world: World) -> None:
    key = generate(KeyAlgorithm.ECDSA_P256)
    trust = TrustFile(keys=(TrustedKey.of(key.public, Role.COORDINATOR, NOW),))
    assert CoordinatorSeal(trust, key).ask(b"x").endswith(b"x")


def test_services_keys_sign_no_budget(sites: Sites) -> None:
    assert TrustInForce(sites.desk.trust).file.roles == (Role.PRIVACY_OFFICER,)


def _serving(path: Path, known: Callable[[], bool], answered: list[bytes]) -> tuple[SocketServer, threading.Thread]:
    def answer(message: bytes) -> bytes:
        answered.append(message)
        return message

    server = SocketServer(path, answer, LOG, known=known)
    thread = threading.Thread(target=server.serve)
    thread.start()
    return server, thread


def test_newcomers_do_not_evict_a_known_coordinator(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Eighty newcomers cut an idle coordinator's connection off before."""
    path, answered = tmp_path_factory.mktemp("e") / "s", list[bytes]()
    server, thread = _serving(path, lambda: answered[-1] == b"coordinator", answered)
    with socket.socket(socket.AF_UNIX) as coordinator, ExitStack() as stack:
        coordinator.connect(str(path))
        coordinator.settimeout(240)
        coordinator.sendall(frame(b"coordinator"))
        assert coordinator.recv(100) == frame(b"coordinator")
        for _ in range(80):
            newcomer = stack.enter_context(socket.socket(socket.AF_UNIX))
            newcomer.settimeout(240)
            newcomer.connect(str(path))
            newcomer.sendall(frame(b"newcomer"))
            newcomer.recv(100)
        coordinator.sendall(frame(b"coordinator"))
        assert coordinator.recv(100) == frame(b"coordinator")
    server.stop()
    thread.join()


def test_without_keys_a_socket_is_for_its_own_user_alone(sites: Sites, tmp_path: Path) -> None:
    for shared, mode in ((False, 0o600), (True, 0o660)):
        server = SocketServer(tmp_path / "s", bytes, LOG, shared=shared)
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == mode
        server.close()
    with sites.guards(GuardOptions()) as transport:
        assert isinstance(transport, SocketTransport)
        assert stat.S_IMODE(sites.socket("north").stat().st_mode) == 0o660
        seal = CoordinatorSeal(sites.signed().trust, sites.keys["coordinator"])
        hello = dict.fromkeys(sites.parties, wire.ask_hello(sites.signed().manifest.digest))
        assert {decode(one).kind for one in sealed(transport, seal)(hello).values()} == {MessageKind.GREETING}


def test_a_guards_key_is_trusted_with_its_party(tmp_path: Path) -> None:
    key: SigningKey = generate()
    save(key, Role.GUARD, tmp_path / "guard.pem")
    words = ("keys", "trust", "--key", str(tmp_path / "guard.pem"), "--out", str(tmp_path / "trust.json"), "--role")
    assert "guard:PARTY" in privfair(*words, "guard").err
    assert "guard:PARTY" in privfair(*words, "auditor:north").err
    assert privfair(*words, "guard:north").code == 0
    (entry,) = TrustInForce(tmp_path / "trust.json").file.keys
    assert (entry.role, entry.party) == (Role.GUARD, "north")
    with pytest.raises(Refused, match="must name its party"):
        TrustedKey.of(key.public, Role.GUARD, NOW)
