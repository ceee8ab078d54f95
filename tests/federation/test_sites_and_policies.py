"""What a plan for several sites refuses, what a site's own policy refuses, what other users of its machine can't."""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import create_engine
from sqlalchemy.exc import ProgrammingError

from calibrate.errors import CheckFailed, InvalidInput, PrivfairError, Refused
from privfair.federation import wire
from privfair.federation.guard import Guard
from privfair.federation.policy import Policy, PolicyRefused, read_policy
from privfair.federation.remote import GuardRefused, RemoteParties, read_guards
from privfair.federation.signed_frames import CoordinatorSeal, sealed
from privfair.federation.sockets import GuardUnreachable, SocketTransport
from privfair.federation.wire import Code, MessageKind, decode
from privfair.ledger import Ledger
from privfair.models import linear
from privfair.run.federated import train_over
from privfair.run.folder import RunFolder
from privfair.run.open_run import TrustInForce
from privfair.run.prepare import prepare_site
from privfair.training import prepare, train_with_guards
from tests.end_to_end.command_line import privfair
from tests.federation.sites import Sites
from tests.postgres_server import NotInstalled, postgres_server

pytestmark = pytest.mark.filterwarnings("ignore")
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    sites = Sites.at(tmp_path_factory.mktemp("p"), "pay-once")
    sites.desk.budget()
    return sites


def test_a_plan_of_sites_is_not_trained_in_one_process(sites: Sites) -> None:
    with pytest.raises(InvalidInput, match="--guards"):
        prepare(sites.desk.plan, sites.manifest, TrustInForce(sites.desk.trust))


def _refuses(sites: Sites, folder: Path, old: str, new: str, schema: tuple[str, str] = ("", "")) -> str:
    """The refusal of the officer's own machine, before anybody has signed."""
    plan = folder / "plan.toml"
    plan.write_text(sites.desk.plan.read_text().replace(old, new))
    (folder / "schema.toml").write_text((sites.folder / "schema.toml").read_text().replace(*schema))
    done = privfair("calibrate", plan, "--out", folder / "budget.json", "--key", sites.desk.key)
    assert done.code == 2, done.err
    assert not (folder / "budget.json").exists()
    return done.err


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('[data.partition]\nkind = "equal"\nsilos = 2\n', "[data.partition]"),
        ('[data.attributes]\nsilos = ["registry"]\n', "[data.attributes]"),
        ("[data.at-least]\nnorth = 9\n", "at-least"),
    ],
)
def test_what_needs_several_sites_files_is_refused_by_name(sites: Sites, tmp_path: Path, table: str, why: str) -> None:
    assert why in _refuses(sites, tmp_path, "[training]", f"{table}[training]")


def test_a_schema_that_a_site_alone_could_not_use_is_refused(sites: Sites, tmp_path: Path) -> None:
    pooled = ("mean = 10.0\nscale = 2.0", 'scaling = "non-private-standardisation"')
    assert "standardisation of income across sites" in _refuses(sites, tmp_path, "", "", pooled)
    assert "must list the values" in _refuses(sites, tmp_path, "", "", ('groups = ["female", "male"]', ""))


def test_a_guard_is_given_its_own_party_and_file(sites: Sites) -> None:
    with pytest.raises(InvalidInput, match="not a party of the plan"):
        sites.prepare("nowhere")
    files = {"north": sites.folder / "south.csv"}
    trust = TrustInForce(sites.desk.trust).file
    with pytest.raises(Refused, match="north with 160"):
        prepare_site(sites.desk.plan, sites.manifest.read_bytes(), trust, "north", files)
    with pytest.raises(InvalidInput, match="must name the silos"):
        prepare_site(sites.desk.plan, sites.manifest.read_bytes(), trust, "north", {"elsewhere": files["north"]})


def test_a_machine_whose_products_round_is_refused_before_a_silos_file_is_read(
    sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rounds(bits: int, widths: tuple[int, ...]) -> None:
        raise CheckFailed("products round")

    monkeypatch.setattr("privfair.models.network.choose_products", rounds)
    linear._network.cache_clear()
    missing = {"north": tmp_path / "missing.csv"}
    with pytest.raises(CheckFailed, match="products round"):
        prepare_site(
            sites.desk.plan, sites.manifest.read_bytes(), TrustInForce(sites.desk.trust).file, "north", missing
        )


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Policy(algorithms=("steffle",)), "allows steffle"),
        (Policy(signers=("ab" * 32,)), "none of the keys"),
        (Policy(largest_epsilon=1.0), "allows epsilon 1"),
    ],
)
def test_a_policy_refuses_manifests_before_anything_is_claimed(
    sites: Sites, tmp_path: Path, policy: Policy, why: str
) -> None:
    with Ledger.create(tmp_path / "ledger.db") as ledger:
        with pytest.raises(PolicyRefused, match=why):
            Guard(sites.prepare("north"), RunFolder(tmp_path), ledger, logging.getLogger("test"), policy)
        assert not ledger.status().manifests


def test_a_policy_refuses_new_rounds_and_sends_old_ones_again(sites: Sites, tmp_path: Path) -> None:
    run = sites.prepare("north")
    state = run.algorithm.checkpoint(run.algorithm.start())
    question = wire.ask_contribution(run.manifest.digest, 0, state)
    with Ledger.create(tmp_path / "ledger.db") as ledger:
        guard = Guard(run, RunFolder(tmp_path), ledger, logging.getLogger("test"), Policy(rounds_per_day=1))
        first = guard.answer(question)
        assert decode(first).kind is MessageKind.PUBLISHED
        refused = decode(guard.answer(wire.ask_contribution(run.manifest.digest, 1, state)))
        assert refused.fields == {"error": "PolicyRefused", "code": "policy"}
        assert guard.answer(question) == first
        guard.close()


def test_a_step_that_was_begun_and_never_answered_needs_the_policy_as_well(
    sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its round is a new one; a guard that was killed in the middle has no round to spare."""
    run = sites.prepare("north")
    question = wire.ask_contribution(run.manifest.digest, 0, run.algorithm.checkpoint(run.algorithm.start()))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with Ledger.create(tmp_path / "ledger.db") as ledger:
        guard = Guard(run, RunFolder(tmp_path), ledger, logging.getLogger("test"), Policy(rounds_per_day=1))
        with monkeypatch.context() as patched:
            patched.setattr(type(run.algorithm), "contribution", killed)
            with pytest.raises(KeyboardInterrupt):
                guard.answer(question)
        guard.close()
        again = Guard(run, RunFolder(tmp_path), ledger, logging.getLogger("test"), Policy(rounds_per_day=1))
        assert decode(again.answer(question)).fields == {"error": "PolicyRefused", "code": "policy"}
        again.close()
        looser = Guard(run, RunFolder(tmp_path), ledger, logging.getLogger("test"))
        assert decode(looser.answer(question)).kind is MessageKind.PUBLISHED
        looser.close()


def test_hours_and_days_of_a_policy() -> None:
    Policy(hours=("08:00-18:00",)).require_now(NOON, 10**6)
    Policy(hours=("20:00-06:00", "11:59-12:01")).require_now(NOON, 0)
    for policy, rounds in ((Policy(hours=("20:00-06:00",)), 0), (Policy(rounds_per_day=5), 5)):
        with pytest.raises(PolicyRefused):
            policy.require_now(NOON, rounds)
    Policy(rounds_per_day=5).require_now(NOON, 4)


def test_answers_take_whole_multiples_of_the_policys_seconds(
    sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a contribution is quick, slow or fails, it is told at the same time; old ones are not held back."""
    assert Policy().seconds_left(0.3) == 0.0
    assert Policy(seconds_per_answer=2.0).seconds_left(0.5) == 1.5
    assert Policy(seconds_per_answer=2.0).seconds_left(2.5) == 1.5
    run, clock, waited = sites.prepare("north"), [0.0], list[float]()
    monkeypatch.setattr("privfair.federation.guard.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("privfair.federation.guard.time.sleep", waited.append)
    state = run.algorithm.checkpoint(run.algorithm.start())
    right = type(run.algorithm).contribution

    def slowly(*given: Any) -> Any:
        clock[0] += 0.25
        if given[2] == 1:
            raise RuntimeError("a record made this fail")
        return right(*given)

    monkeypatch.setattr(type(run.algorithm), "contribution", slowly)
    with Ledger.create(tmp_path / "ledger.db") as ledger:
        policy = Policy(seconds_per_answer=2.0)
        guard = Guard(run, RunFolder(tmp_path), ledger, logging.getLogger("test"), policy)
        kinds = [
            decode(guard.answer(wire.ask_contribution(run.manifest.digest, step, state))).kind for step in (0, 0, 1)
        ]
        guard.close()
    assert kinds == [MessageKind.PUBLISHED, MessageKind.PUBLISHED, MessageKind.REFUSED]
    assert [seconds for seconds in waited if seconds] == [1.75, 1.75]


def test_a_policy_file_with_a_mistake_loosens_nothing(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('algorithms = ["pay-once"]\nlargest-epsilon = 2.0\nhours = ["08:00-18:00"]\nrounds-per-day = 9\n')
    assert read_policy(path) == Policy(("pay-once",), None, 2.0, ("08:00-18:00",), 9)
    for text in (
        "seconds-per-answer = 0",
        "largest_epsilom = 1",
        "hours = ['noon']",
        "rounds-per-day = 0",
        "largest-epsilon = -1",
        "= 3",
    ):
        path.write_text(text)
        with pytest.raises(InvalidInput):
            read_policy(path)
    with pytest.raises(InvalidInput):
        read_policy(tmp_path / "missing.toml")


def test_guards_toml_names_a_socket_for_each_party(tmp_path: Path) -> None:
    path = tmp_path / "guards.toml"
    path.write_text('deadline = 5\n[guards.north]\nsocket = "n.sock"\n')
    assert read_guards(path).sockets == {"north": tmp_path / "n.sock"}
    for text in (
        "",
        "[guards]\n",
        "x = 1\n[guards.a]\nsocket = 'a'",
        "[guards.a]\nport = 1",
        "deadline = 0\n[guards.a]\nsocket='a'",
        "=",
    ):
        path.write_text(text)
        with pytest.raises(InvalidInput):
            read_guards(path)


def test_the_flags_of_training_over_guards_exclude_ledgers(sites: Sites, tmp_path: Path) -> None:
    words = (
        "train",
        sites.desk.plan,
        "--manifest",
        sites.manifest,
        "--trust",
        sites.desk.trust,
        "--out",
        tmp_path / "r",
    )
    assert "drop --ledger" in privfair(*words, "--guards", "g.toml", "--ledger", "l.db").err
    assert "--ledger is needed" in privfair(*words).err


def test_a_guard_that_is_not_there_is_waited_for_until_the_deadline(sites: Sites, tmp_path: Path) -> None:
    path = tmp_path / "guards.toml"
    path.write_text("deadline = 0.2\n" + "".join(f'[guards.{name}]\nsocket = "{name}"\n' for name in sites.parties))
    with pytest.raises(GuardUnreachable, match="--resume") as stopped:
        train_with_guards(sites.signed(), path, tmp_path / "run")
    assert stopped.value.exit_code == 70


def test_why_a_guard_is_not_ready_shows_to_its_operator_alone(
    sites: Sites, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("w")
    header, *rows = (sites.folder / "north.csv").read_text().splitlines()
    place, told, seen = folder / "north.sock", set[str](), set[tuple[type, str]]()
    for number, kept in enumerate(([*rows[1:], rows[0].replace("male", "unknown")], rows[:9], None)):
        file = folder / "north.csv"
        file.unlink(missing_ok=True)
        if kept is not None:
            file.write_text("\n".join([header, *kept]) + "\n")
        if number == 1:  # left behind by a guard that was killed
            with socket.socket(socket.AF_UNIX) as stale:
                stale.bind(str(place))
        keys = {"party": "north", "budget": sites.manifest, "trust": sites.desk.trust, "ledger": sites.ledger("north")}
        keys |= {"data": file, "plan": sites.desk.plan, "folder": folder / "own", "socket": place}
        site = folder / "site.toml"
        site.write_text("".join(f"{key} = {json.dumps(str(value))}\n" for key, value in keys.items()))
        done = privfair("serve", site)
        assert done.code in (2, 3), done.err
        told.add(done.err)
        with pytest.raises(GuardUnreachable) as stopped:
            SocketTransport({"north": place}, deadline=0.2)({"north": wire.ask_hello(sites.signed().manifest.digest)})
        seen.add((stopped.type, str(stopped.value)))
    assert len(told) == 3
    ((_, message),) = seen
    assert message.startswith("the guard of 'north' is not ready: no answer at")


def test_what_a_guard_answers_is_not_believed() -> None:
    run = "ab" * 32

    def answering(message: wire.WireMessage) -> RemoteParties:
        parties = RemoteParties(run, ("north",), lambda messages: {"north": wire.encode(message)})
        parties.expect({"x": (1,)})
        return parties

    import numpy as np

    for bad in (
        wire.WireMessage(MessageKind.PUBLISHED, {"of": [["south", "x", 0]]}, {"0": np.zeros(1)}),
        wire.WireMessage(MessageKind.PUBLISHED, {"of": [["north", "x", 0]]}, {"0": np.zeros(2)}),
        wire.WireMessage(MessageKind.PUBLISHED, {"of": [["north", "y", 0]]}, {"0": np.zeros(1)}),
        wire.WireMessage(MessageKind.GREETING, {}),
    ):
        with pytest.raises(PrivfairError):
            answering(bad).contribute(0, {})
    with pytest.raises(GuardRefused, match="halted"):
        answering(
            wire.WireMessage(MessageKind.REFUSED, {"error": "GuardHalted", "code": Code.HALTED.value})
        ).contribute(0, {})
    with pytest.raises(GuardRefused, match="unknown"):
        answering(wire.WireMessage(MessageKind.REFUSED, {"error": "two words", "code": "nonsense"})).hello()


def test_another_user_of_the_machine_reaches_the_socket_and_no_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Guard and engine under different user ids and one group, as systemd would start them."""
    if os.getuid() != 0:
        pytest.skip("only root can start processes under other user ids")
    sites = Sites.at(tmp_path_factory.mktemp("u"), "pay-once")
    sites.trust_keys()
    sites.desk.budget()
    guard, engine, group = 64001, 64002, 64003
    for party in sites.parties:
        sites.ledger(party)
    for path in (sites.folder, *sites.folder.rglob("*")):
        os.chown(path, guard, group)
        path.chmod(0o750 if path.is_dir() else 0o600)
    for name in ("plan.toml", "schema.toml", "budget.json", "trust.json"):
        (sites.folder / name).chmod(0o640)
    for place in sites.folder.parents:  # pytest's own folders, which root alone may enter
        if place == Path(tempfile.gettempdir()):
            break
        place.chmod(0o755)
    with sites.guards(as_user=(guard, group)):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setgroups([])
                os.setgid(group)
                os.setuid(engine)
                hidden = [sites.folder / "north.csv", sites.folder / "north" / "transcript.bin", sites.ledger("north")]
                denied = [_denied(path) for path in hidden]
                transport = SocketTransport({"north": sites.socket("north")}, deadline=120)
                seal = CoordinatorSeal(sites.signed().trust, sites.keys["coordinator"])
                answer = sealed(transport, seal)({"north": wire.ask_hello(sites.signed().manifest.digest)})
                code = 0 if all(denied) and decode(answer["north"]).kind is MessageKind.GREETING else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _denied(path: Path) -> bool:
    try:
        path.read_bytes()
    except PermissionError:
        return True
    return False


def test_a_socket_in_use_is_not_taken_over(sites: Sites, tmp_path_factory: pytest.TempPathFactory) -> None:
    from privfair.federation.sockets import SocketServer

    path = tmp_path_factory.mktemp("q") / "s.sock"
    log = logging.getLogger("test")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(1)
        with pytest.raises(Refused, match="another guard"):
            SocketServer(path, bytes, log)
    SocketServer(path, bytes, log).close()
    assert not path.exists(), "what a killed guard left is replaced"
    with pytest.raises(InvalidInput, match="--socket"):
        SocketServer(path.with_name("x" * 120), bytes, log)


@pytest.mark.slow
def test_guards_keep_their_ledgers_on_one_postgresql_server_in_a_schema_and_role_each(
    sites: Sites, tmp_path: Path
) -> None:
    try:
        with postgres_server() as url:
            _train_on_postgresql(url, sites, tmp_path)
    except NotInstalled as missing:
        pytest.skip(str(missing))


def _train_on_postgresql(url: str, sites: Sites, folder: Path) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for party in sites.parties:
            connection.execute(sqlalchemy.text(f"CREATE ROLE {party} LOGIN"))
            connection.execute(sqlalchemy.text(f"CREATE SCHEMA {party} AUTHORIZATION {party}"))
    engine.dispose()
    with ExitStack() as stack:
        guards = {}
        for party in sites.parties:
            own = f"{url.replace('privfair@', f'{party}@', 1)}&options=-csearch_path%3D{party}"
            ledger = stack.enter_context(Ledger.create(own, folder / f"{party}.anchor"))
            (folder / party).mkdir()
            guards[party] = Guard(sites.prepare(party), RunFolder(folder / party), ledger, logging.getLogger("test"))
            stack.callback(guards[party].close)
        done = train_over(
            lambda asked: {name: guards[name].answer(message) for name, message in asked.items()},
            sites.signed(),
            folder / "run",
        )
    assert (done.rounds.charged, len(set(done.ledgers.values()))) == (4, 3)
    stranger = create_engine(url.replace("privfair@", "south@", 1))
    with pytest.raises(ProgrammingError, match="permission denied for schema north"), stranger.begin() as connection:
        connection.execute(sqlalchemy.text("SELECT * FROM north.entries"))
    stranger.dispose()


def test_a_site_is_checked_without_claiming_anything(sites: Sites, tmp_path: Path) -> None:
    """`serve --check` verifies what a start verifies; relative paths are those of the file's folder."""
    (tmp_path / "north.csv").write_bytes((sites.folder / "north.csv").read_bytes())
    keys = {"party": "north", "data": "north.csv", "budget": sites.manifest, "trust": sites.desk.trust}
    keys |= {"plan": sites.desk.plan, "ledger": sites.ledger("north"), "folder": "own", "socket": "north.sock"}
    site, policy = tmp_path / "site.toml", tmp_path / "policy.toml"

    def write(**more: object) -> None:
        site.write_text("".join(f"{key} = {json.dumps(str(value))}\n" for key, value in {**keys, **more}.items()))

    write()
    checked = privfair("serve", site, "--check", "--json")
    assert checked.code == 0, checked.err
    assert checked.json() == {"ready": False, "party": "north"}
    assert not (tmp_path / "own").exists()
    policy.write_text('algorithms = ["fedfdp"]\n')
    write(policy="policy.toml")
    assert "site's policy allows fedfdp" in privfair("serve", site, "--check").err
    write(role="relay")
    assert "use guard" in privfair("serve", site, "--check").err
    write(sockets="north.sock")
    assert "did you mean socket?" in privfair("serve", site, "--check").err
    del keys["ledger"]
    write()
    assert "needs the key `ledger`" in privfair("serve", site, "--check").err
