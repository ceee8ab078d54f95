"""Engines carry bytes and nothing else: whatever one does to the messages, the run is the run in one process."""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from calibrate.errors import InvalidInput, Refused
from privfair.contribution import Published
from privfair.federation.coordinator import state_digest
from privfair.federation.guard import Guard
from privfair.federation.guard_socket import relayed
from privfair.federation.remote import RemoteParties, ResendingTransport
from privfair.federation.sockets import GuardUnreachable, SocketTransport
from privfair.federation.trial import (
    Trial,
    TrialStopped,
    require_flower,
    require_nvflare,
    run_flower_app,
    run_nvflare_job,
    submit_app,
    write_app,
    write_job,
)
from privfair.federation.wire import (
    Code,
    MessageKind,
    WireMessage,
    WireRefused,
    ask_contribution,
    decode,
    encode,
    published_steps,
)
from privfair.ledger import Ledger
from privfair.run.federated import train_over
from privfair.run.folder import RunFolder
from tests.federation.sites import AGGREGATED, ROOT, Sites, desk_in_one_place

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


@pytest.mark.slow
@pytest.mark.parametrize("plan", sorted(AGGREGATED))
def test_a_party_alone_answers_several_steps_at_once_with_the_same_values(
    plan: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Three steps in two messages, one of them resumed by a coordinator that forgot everything."""
    folder = tmp_path_factory.mktemp("m")
    desk = desk_in_one_place(folder / "one", plan)
    expected = desk.train(desk.budget(research_noise=True)).run
    sites = Sites.at(folder / "s", plan)
    sites.desk.budget(research_noise=True)
    asked: list[str] = []
    with sites.guards() as transport:

        def counted(messages: Mapping[str, bytes]) -> Mapping[str, bytes]:
            asked.extend(decode(message).kind.value for message in messages.values())
            if len(asked) == 3:
                raise KeyboardInterrupt  # after the first message, which two steps are in
            return transport(messages)

        with pytest.raises(KeyboardInterrupt):
            train_over(counted, sites.signed(), folder / "run", steps_per_message=2)
        (folder / "run" / "checkpoint.npz").unlink()
        train_over(counted, sites.signed(), folder / "run", resume=True, steps_per_message=2)
    last = ["contribute", "reply", "finish"] if plan == "mmd-fedavg" else ["contribute", "finish"]
    assert asked == ["hello", "contribute", "contribute", "hello", "contribute", *last]
    _same_model(folder / "run", expected)


def _published(*values: tuple[str, str]) -> dict[str, dict[str, Published]]:
    found: dict[str, dict[str, Published]] = {}
    for party, name in values:
        found.setdefault(party, {})[name] = Published(0, party, name, np.ones(2))
    return found


def test_what_a_party_says_of_several_steps_is_not_believed_unless_it_fits() -> None:
    """Of another state, of another party, of lengths that do not add up: refused before anything is used."""
    state = {"theta": np.zeros(2)}
    good = published_steps([(state_digest(state), _published(("one", "g"))["one"])] * 2)
    parties = RemoteParties("run", ("one",), lambda _: {"one": good}, steps_per_message=2, updates=3)
    parties.expect({"g": (2,)})
    assert parties.contribute(0, state)["one"]["g"].values.tolist() == [1.0, 1.0]
    assert parties.reply(0, {}) == {}
    with pytest.raises(Refused, match="answered for another state"):
        parties.contribute(1, {"theta": np.ones(2)})
    fields = decode(good).fields
    for spoilt in ({"lengths": [1, 2]}, {"lengths": [2, 0]}, {"lengths": 2}, {"states": []}, {"lengths": []}):
        answer = encode(WireMessage(MessageKind.PUBLISHED, {**fields, **spoilt}, decode(good).arrays))
        other = RemoteParties("run", ("one",), lambda _, answer=answer: {"one": answer}, 2, 3)
        with pytest.raises(WireRefused, match="step"):
            other.contribute(0, state)
    foreign = published_steps([("0", _published(("two", "g"))["two"])])
    with pytest.raises(WireRefused, match="not its own"):
        RemoteParties("run", ("one",), lambda _: {"one": foreign}, 2, 3).contribute(0, state)


def test_several_steps_at_once_are_refused_where_several_parties_publish() -> None:
    with pytest.raises(InvalidInput, match=r"--steps-per-message.*one party.*step before.*local-steps"):
        RemoteParties("run", ("north", "south"), lambda _: {}, steps_per_message=2)


def test_a_guard_of_several_parties_answers_one_step_at_a_time(tmp_path: Path) -> None:
    """Whatever the other side asks: the next state is not this guard's to know; and steps have an end."""
    sites = Sites.at(tmp_path / "s", "pay-once")
    sites.desk.budget(research_noise=True)
    run, folder = sites.prepare("north"), RunFolder(tmp_path / "g")
    folder.path.mkdir()
    with Ledger.open(sites.ledger("north")) as ledger:
        guard = Guard(run, folder, ledger, logging.getLogger("test"))
        state = run.algorithm.checkpoint(run.algorithm.start())
        asked = {steps: ask_contribution(run.manifest.digest, 0, state, steps) for steps in (2, 0, 10**9)}
        answers = {steps: decode(guard.answer(question)) for steps, question in asked.items()}
        guard.close()
    assert {answer.kind for answer in answers.values()} == {MessageKind.REFUSED}
    assert answers[2].fields["code"] == Code.STEP.value
    assert answers[0].fields["code"] == answers[10**9].fields["code"] == Code.MALFORMED.value


def test_a_late_answer_is_never_taken_for_an_answer_to_this_question() -> None:
    arriving = [[("north", relayed(b"before", b"old"))], [("north", relayed(b"now", b"new")), ("east", b"")]]
    assert ResendingTransport(lambda _: arriving.pop(0))({"north": b"now"}) == {"north": b"new"}


def test_an_engine_that_carries_nothing_is_given_up_with_the_remedy() -> None:
    with pytest.raises(GuardUnreachable, match=r"'north' came back in 3 tries.*--resume"):
        ResendingTransport(lambda _: (), tries=3)({"north": b"now"})


def test_relays_import_nothing_of_privfair(tmp_path: Path) -> None:
    """A site's SuperNode or client needs its engine alone, and can do nothing but carry."""
    write_app(tmp_path / "flower")
    write_job(tmp_path / "nvflare", {}, 3)
    for engine, place, relay, others in (
        ("flwr", tmp_path / "flower", "client_app.py", {"numpy"}),
        ("nvflare", tmp_path / "nvflare" / "app" / "custom", "relay.py", {"os"}),
    ):
        package = place / "privfair_relay"
        text = (package / relay).read_text() + (package / "guard_socket.py").read_text()
        imported = [line.split()[1] for line in text.splitlines() if line.startswith(("import ", "from "))]
        expected = {"__future__", "hashlib", "socket", "struct", "privfair_relay", engine, *others}
        assert {name.partition(".")[0] for name in imported} == expected
        code = "import sys; sys.modules['privfair'] = None; from privfair_relay.guard_socket import carry"
        subprocess.run([sys.executable, "-c", code], cwd=place, check=True, env={"PYTHONPATH": str(place)})


@pytest.mark.parametrize("require", [require_flower, require_nvflare])
def test_without_its_package_an_engine_is_refused_with_the_remedy(
    require: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privfair.federation.trial.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"privfair\[train,(flower|nvflare)\]"):
        require()


def test_a_job_of_nvflare_names_the_coordinator_and_a_relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a simulation that left no receipts is no run, whatever it ended with."""
    given = list[list[str]]()

    @contextmanager
    def started(words: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[object]:
        given.append(words)
        server = json.loads((Path(words[2]) / "app" / "config" / "config_fed_server.json").read_text())
        (workflow,) = server["workflows"]
        assert workflow["path"] == "privfair.federation.nvflare.coordinator.Coordinate"
        settings = workflow["args"]["settings"]
        assert (settings["steps-per-message"], settings["resume"], settings["root"]) == (3, True, "")
        assert Path(environment["PRIVFAIR_GUARD_SOCKET"].replace("{site}", "north")).readlink() == tmp_path / "n.sock"
        yield SimpleNamespace(wait=lambda: 0)

    monkeypatch.setattr("privfair.federation.trial._started", started)
    monkeypatch.setattr("privfair.federation.trial.find_spec", lambda name: object())
    trial = Trial(tmp_path / "p.toml", tmp_path / "b.json", tmp_path / "t.json", None, {}, tmp_path, {}, 3)
    with pytest.raises(TrialStopped, match=r"nvflare\.log"):
        run_nvflare_job(trial, {"north": tmp_path / "n.sock"}, tmp_path / "run", (), True, tmp_path)
    assert given[0][-4:] == ["-c", "north", "-t", "1"]


def test_flowers_coordinator_is_given_what_the_trial_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a run of Flower that left no receipts is no run, whatever `flwr run` says."""
    out, given = tmp_path / "run", list[str]()

    def flwr(words: list[str], env: Mapping[str, str], **_: object) -> subprocess.CompletedProcess[bytes]:
        given.extend(words)
        assert (Path(words[2]) / "privfair_relay" / "server_app.py").exists()
        assert "127.0.0.1:9" in (Path(env["FLWR_HOME"]) / "config.toml").read_text()
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr("privfair.federation.trial.subprocess.run", flwr)
    trial = Trial(tmp_path / "p.toml", tmp_path / "b.json", tmp_path / "t.json", None, {}, tmp_path, {}, 3)
    with pytest.raises(TrialStopped, match=r"superlink\.log"):
        run_flower_app("127.0.0.1:9", trial, out, [tmp_path / "test.csv"], True, tmp_path)
    config = tomllib.loads(given[-1].replace("' ", "'\n").replace("3 ", "3\n"))
    assert config["plan"] == str(tmp_path / "p.toml")
    assert config["out"] == str(out)
    assert config["root"] == ""
    assert json.loads(config["test-files"]) == [str(tmp_path / "test.csv")]
    assert (config["steps-per-message"], config["resume"]) == (3, True)
    monkeypatch.setattr(
        "privfair.federation.trial.subprocess.run", lambda words, **_: subprocess.CompletedProcess(words, 1)
    )
    with pytest.raises(TrialStopped, match=r"flwr-run\.log"):
        submit_app("127.0.0.1:9", tmp_path, {}, {}, tmp_path)


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
