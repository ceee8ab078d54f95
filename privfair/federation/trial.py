"""A whole federation on one machine, to try it out: a guard per party, and an engine between them and the coordinator.

Every process is this one's child, listens on unix sockets or 127.0.0.1 alone, and is stopped at the end by its id.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calibrate.errors import InvalidInput, PrivfairError
from calibrate.manifest.keys import load_private
from privfair.data.infer import silo_name, toml_key, toml_value
from privfair.federation import flower, guard_socket, nvflare
from privfair.federation.sockets import SocketTransport
from privfair.ledger import Ledger
from privfair.run.open_run import TrustInForce
from privfair.run.public import read_signed_plan
from privfair.training import train_over_transport

_PRIVFAIR = [sys.executable, "-m", "privfair"]
_SECONDS_TO_START = 600.0
_SECONDS_TO_STOP = 20.0
RELAY = "privfair_relay"
"""The package in which an app or a job carries the relay."""
NVFLARE_COORDINATOR = "privfair.federation.nvflare.coordinator.Coordinate"
_APP = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "privfair-relay"
version = "1.0.0"
description = "privfair over Flower: a coordinator, and relays to the guards of the silos"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "privfair"
[tool.flwr.app.components]
serverapp = "privfair_relay.server_app:app"
clientapp = "privfair_relay.client_app:app"
[tool.flwr.app.config]
plan = ""
manifest = ""
trust = ""
root = ""
key = ""
out = ""
test-files = "[]"
deadline = 900.0
steps-per-message = 1
resume = false
"""


class TrialStopped(PrivfairError):
    """A process of a local trial did not start, or ended in the middle."""

    exit_code = 70


@dataclass(frozen=True)
class Trial:
    """What a trial needs: the files of `privfair train`, each party's records, and a folder for what parties keep.

    `data` has the files of each party as options name them ("FILE", or "SILO=FILE" for a party
    that collects several silos); `folder` gets one folder per party, with its ledger unless `ledgers` names it, its
    transcript and its log.
    """

    plan: Path
    manifest: Path
    trust: Path
    root: Path | None
    data: Mapping[str, tuple[str, ...]]
    folder: Path
    ledgers: Mapping[str, str]
    steps_per_message: int = 1

    def settings(self, out: Path, test_files: Sequence[Path]) -> dict[str, str]:
        """What an engine's coordinator is told of the run, as texts; the run folder is `out`."""
        return {
            "plan": str(self.plan.resolve()),
            "manifest": str(self.manifest.resolve()),
            "trust": str(self.trust.resolve()),
            "root": "" if self.root is None else str(self.root.resolve()),
            "key": "" if self.key is None else str(self.key.resolve()),
            "out": str(out.resolve()),
            "test-files": json.dumps([str(path.resolve()) for path in test_files]),
        }

    @property
    def key(self) -> Path | None:
        """`coordinator.pem` in the folder, next to each party's `guard.pem`: keys, where the trust file lists them."""
        return _there(self.folder / "coordinator.pem")

    def site_text(self, party: str, socket: Path) -> str:
        """The file of a party's site, for `privfair serve`."""
        named = [text.partition("=") for text in self.data[party]]
        files = {left if equals else silo_name(Path(left)): right or left for left, equals, right in named}
        alone = len(named) == 1 and not named[0][1]
        data = {party: named[0][0]} if alone else files
        places = {
            "budget": self.manifest,
            "plan": self.plan,
            "trust": self.trust,
            "root": self.root,
            "folder": self.folder / party / "guard",
            "socket": socket,
            "sites-key": self.sites_key(),
            "key": _there(self.folder / party / "guard.pem"),
        }
        ledger = self.ledger(party)
        lines = {key: str(path.resolve()) for key, path in places.items() if path is not None}
        lines |= {"party": party, "ledger": ledger if "://" in ledger else str(Path(ledger).resolve())}
        listed = ", ".join(f"{toml_key(name)} = {toml_value(str(Path(file).resolve()))}" for name, file in data.items())
        return "".join(f"{key} = {toml_value(text)}\n" for key, text in lines.items()) + f"data = {{{listed}}}\n"

    def sites_key(self) -> Path:
        """What holders and registries share; made if there is none, and used where the plan has registries."""
        path = self.folder / "sites.key"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
            path.write_text(secrets.token_hex(32))
        return path

    def ledger(self, party: str) -> str:
        """The ledger of a party; one in its folder is made if there is none."""
        named = self.ledgers.get(party)
        if named is not None:
            return named
        path = self.folder / party / "ledger.db"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            Ledger.create(path).close()
        return str(path)


def _there(path: Path) -> Path | None:
    return path if path.exists() else None


@contextmanager
def start_guards(trial: Trial) -> Iterator[dict[str, Path]]:
    """A guard per party, each in its own process; the sockets at which they answer, by party."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pf-")))
        sockets: dict[str, Path] = {}
        started: dict[str, subprocess.Popen[str]] = {}
        for number, party in enumerate(trial.data):
            sockets[party] = place / f"{number}.sock"
            site = place / f"{number}.toml"
            site.write_text(trial.site_text(party, sockets[party]), encoding="utf-8")
            started[party] = stack.enter_context(
                _started([*_PRIVFAIR, "serve", "--quiet", str(site)], None, dict(os.environ))
            )
        for party, process in started.items():
            assert process.stdout is not None
            if not process.stdout.readline().startswith("ready"):
                raise TrialStopped(f"the guard of {party!r} did not start; what it wrote above says why")
        yield sockets


def train_over_sockets(
    trial: Trial, sockets: Mapping[str, Path], out: Path, test_files: Sequence[Path], resume: bool
) -> None:
    """Coordinate the guards from this process; the run folder is `out`."""
    signed = read_signed_plan(trial.plan, trial.manifest.read_bytes(), TrustInForce(trial.trust, trial.root).file)
    transport = SocketTransport(sockets)
    try:
        steps, key = trial.steps_per_message, None if trial.key is None else load_private(trial.key)
        train_over_transport(transport, signed, out, test_files, resume, steps_per_message=steps, key=key)
    finally:
        transport.close()


@contextmanager
def start_flower(sockets: Mapping[str, Path], logs: Path) -> Iterator[str]:
    """A SuperLink and a SuperNode per guard on 127.0.0.1; the SuperLink's address. Their logs go into `logs`."""
    require_flower()
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pf-flower-")))
        link, *nodes = _free_ports(1 + len(sockets))
        words = ["--insecure", "--host", "127.0.0.1", "--port", str(link), "--disable-runtime-dependency-installation"]
        superlink = stack.enter_context(
            _started([_script("flower-superlink"), *words], logs / "superlink.log", _environment(home / "link"))
        )
        _await_port(link, superlink)
        for (party, path), port in zip(sockets.items(), nodes, strict=True):
            words = ["--insecure", "--superlink", f"127.0.0.1:{link}", "--host", "127.0.0.1", "--port", str(port)]
            words += ["--node-config", f'guard-socket="{path}"']
            environment = _environment(home / party)
            log = logs / f"supernode-{party}.log"
            stack.enter_context(_started([_script("flower-supernode"), *words], log, environment))
        yield f"127.0.0.1:{link}"


def run_flower_app(address: str, trial: Trial, out: Path, test_files: Sequence[Path], resume: bool, logs: Path) -> None:
    """Submit the coordinator to a SuperLink and wait for the end of its run; the run folder is `out`."""
    settings = trial.settings(out, test_files)
    with tempfile.TemporaryDirectory(prefix="pf-app-") as made:
        write_app(Path(made) / "app")
        numbers = {"steps-per-message": str(trial.steps_per_message), "resume": "true" if resume else "false"}
        submit_app(address, Path(made) / "app", settings, numbers, logs)
    if not (out / "receipts.json").exists():
        raise TrialStopped(f"the run over Flower did not end well; flwr-run.log and superlink.log in {logs} say why")


def submit_app(address: str, app: Path, settings: Mapping[str, str], numbers: Mapping[str, str], logs: Path) -> None:
    """`flwr run` of an app folder at the SuperLink of `address`, until it ends; what it prints goes into `logs`.

    `settings` are texts of the app's configuration, `numbers` are what TOML writes without quotes.
    """
    config = " ".join(
        [f"{name}='{value}'" for name, value in settings.items()] + [f"{k}={v}" for k, v in numbers.items()]
    )
    with tempfile.TemporaryDirectory(prefix="pf-home-") as made, (logs / "flwr-run.log").open("ab") as log:
        home = Path(made) / "home"
        environment = _environment(home)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "trial"\n[superlink.trial]\naddress = "{address}"\ninsecure = true\n'
        )
        words = [_script("flwr"), "run", str(app), "trial", "--stream", "--run-config", config]
        ended = subprocess.run(words, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
    if ended.returncode != 0:
        raise TrialStopped(f"the run over Flower did not end well; flwr-run.log and superlink.log in {logs} say why")


def write_app(folder: Path) -> None:
    """The Flower app in a folder, as `flwr run` wants it: the coordinator and the relay, each in its module."""
    package = folder / RELAY
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(_APP)
    shutil.copy(Path(flower.__path__[0]) / "server_app.py", package)
    _write_relay(package, Path(flower.__path__[0]) / "client_app.py")


def _write_relay(package: Path, relay: Path) -> None:
    """A relay for sites that have no privfair: it finds what it needs of it in its own folder."""
    (package / "__init__.py").write_text("")
    shutil.copy(Path(guard_socket.__file__), package)
    (package / relay.name).write_text(
        relay.read_text().replace("privfair.federation.guard_socket", f"{RELAY}.guard_socket")
    )


def run_nvflare_job(
    trial: Trial, sockets: Mapping[str, Path], out: Path, test_files: Sequence[Path], resume: bool, logs: Path
) -> None:
    """The coordinator and a client per guard in NVFlare's simulator, until the job ends; the run folder is `out`."""
    settings = {**trial.settings(out, test_files), "deadline": 900.0, "resume": resume}
    with tempfile.TemporaryDirectory(prefix="pf-nvflare-") as made:
        place, job = Path(made), Path(made) / "job"
        write_job(job, {**settings, "steps-per-message": trial.steps_per_message}, len(sockets))
        for party, path in sockets.items():
            (place / party).symlink_to(path.resolve())
        simulate(job, tuple(sockets), f"{place}/{{site}}", logs)
    if not (out / "receipts.json").exists():
        raise TrialStopped(f"the run over NVFlare did not end well; nvflare.log in {logs} says why")


def simulate(job: Path, clients: Sequence[str], guard_socket: str, logs: Path) -> None:
    """NVFlare's simulator with these clients, each of which finds its guard at `guard_socket` ({site} is its name)."""
    require_nvflare()
    logs.mkdir(parents=True, exist_ok=True)
    words = [_script("nvflare"), "simulator", str(job), "-w", str(job.with_name("workspace"))]
    words += ["-c", ",".join(clients), "-t", str(len(clients))]
    found = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PRIVFAIR_GUARD_SOCKET": guard_socket, "PYTHONPATH": found}
    with _started(words, logs / "nvflare.log", environment) as process:
        if process.wait() != 0:
            raise TrialStopped(f"the run over NVFlare did not end well; nvflare.log in {logs} says why")


def write_job(folder: Path, settings: Mapping[str, Any], clients: int, coordinator: str = NVFLARE_COORDINATOR) -> None:
    """The NVFlare job in a folder: the coordinator by its import path, and the relay for every client."""
    config, package = folder / "app" / "config", folder / "app" / "custom" / RELAY
    config.mkdir(parents=True)
    package.mkdir(parents=True)
    _write_relay(package, Path(nvflare.__path__[0]) / "relay.py")
    workflow = {"id": "coordinate", "path": coordinator, "args": {"settings": dict(settings)}}
    relay = {"tasks": ["frame"], "executor": {"path": f"{RELAY}.relay.GuardRelay", "args": {}}}
    nothing: dict[str, Any] = {
        "format_version": 2,
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
    }
    for path, content in (
        (config / "config_fed_server.json", {**nothing, "workflows": [workflow]}),
        (config / "config_fed_client.json", {**nothing, "executors": [relay]}),
        (folder / "meta.json", {"name": "privfair", "min_clients": clients, "deploy_map": {"app": ["@ALL"]}}),
    ):
        path.write_text(json.dumps(content, indent=1))


def require_flower() -> None:
    """Refused with the remedy where Flower is not installed."""
    _require_engine("flower", "flwr")


def require_nvflare() -> None:
    """Refused with the remedy where NVFlare is not installed."""
    _require_engine("nvflare", "nvflare")


def _require_engine(engine: str, package: str) -> None:
    if find_spec(package) is None:
        found = f"pip install 'privfair[train,{engine}]' -c constraints-{engine}.txt"
        rule = f"needs the package {package}, which is not installed here"
        raise InvalidInput("--engine", engine, rule, f"install it with `{found}` and start from there")


def _script(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _environment(home: Path) -> dict[str, str]:
    """Flower without telemetry and update checks, in a separate home; its scripts are next to the interpreter."""
    home.mkdir(parents=True)
    found = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": f"{found}{os.pathsep}{os.environ.get('PATH', '')}",
    }


@contextmanager
def _started(words: list[str], log: Path | None, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process in its own group, so that what it starts ends with it; Ctrl-C reaches this process alone."""
    with ExitStack() as stack:
        output = subprocess.PIPE if log is None else stack.enter_context(log.open("ab"))
        errors = None if log is None else subprocess.STDOUT
        process = subprocess.Popen(
            words, stdout=output, stderr=errors, text=True, env=environment, start_new_session=True
        )
        try:
            yield process
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    for asked in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, asked)
            process.wait(_SECONDS_TO_STOP)
        except ProcessLookupError:
            process.wait()
            break
        except subprocess.TimeoutExpired:
            continue
    if process.stdout is not None:
        process.stdout.close()


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def _await_port(port: int, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise TrialStopped("the SuperLink of Flower did not start; superlink.log says why")
