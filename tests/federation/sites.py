"""Three sites with small files, the same plan once with files and once with silos, and guards in forked processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from calibrate.manifest.keys import Role, SigningKey, generate
from calibrate.manifest.trust import TrustedKey
from privfair.federation.guard import GuardOptions, serve_guard
from privfair.federation.sockets import SocketTransport
from privfair.ledger import Ledger
from privfair.run.open_run import TrustInForce
from privfair.run.prepare import PreparedRun, prepare_site
from privfair.run.public import PublicRun, read_signed_plan
from tests.privfair.small_runs import Desk, write_silos

ROOT = Path(__file__).parents[2]
ENGINES = {
    engine: Path(os.environ.get(f"PRIVFAIR_{engine.upper()}_PYTHON", ROOT / f".venv-{engine}" / "bin" / "python"))
    for engine in ("flower", "nvflare")
}
"""The interpreters of the environments that have an engine: `make flower`, `make nvflare`."""
SIZES = {"north": 160, "south": 200, "west": 180}
_IN_ONE_PLACE = """files = ["north.csv", "south.csv", "west.csv"]
test-files = ["test/north.csv", "test/south.csv", "test/west.csv"]
schema = "schema.toml"
{at_least}"""
_AT_SITES = 'schema = "schema.toml"\n[data.silos]\nnorth = {north}\nsouth = {south}\nwest = {west}\n'
_STEFFLE = """algorithm = "steffle"
[target]
epsilon = 4.0
delta = 1e-5
[privacy]
silo-size = 160
batch-size = {batch}
rounds = 4
minority-fraction = 0.4
lipschitz = 0.5
w-radius = 0.5
sampling = "{sampling}"
[data]
{{data}}
[training]
group-frequencies = [0.5, 0.5]
block = 2
measure-every = 9
"""
_GAUSSIAN = """algorithm = "{algorithm}"
[target]
epsilon = 8.0
delta = 1e-5
[privacy]
sampling-rate = 0.2
rounds = 4
clip = 1.0
{{more}}[data]
{{data}}
[training]
learning-rate = 1.0
block = 2
measure-every = 9
"""
PLANS = {
    "steffle, full batches": _STEFFLE.format(batch=160, sampling="full"),
    "steffle, shuffled": _STEFFLE.format(batch=40, sampling="shuffled"),
    "gaussian": _GAUSSIAN.format(algorithm="gaussian").replace("{more}", ""),
    "gaussian, banded": _GAUSSIAN.format(algorithm="gaussian").replace("{more}", 'noise = "banded"\nbatches = 3\n'),
    "fedfdp": _GAUSSIAN.format(algorithm="fedfdp").replace("{more}", "loss-clip = 2.0\nloss-noise-ratio = 2.5\n"),
    "pay-once": """algorithm = "pay-once"
[target]
epsilon = 4.0
delta = 1e-5
[privacy]
rounds = 4
[data]
{data}
[training]
block = 2
measure-every = 9
""",
    "fair-plugin": """algorithm = "fair-plugin"
[target]
epsilon = 8.0
delta = 1e-5
[privacy]
protect = "record"
rounds = 4
clip = 3.0
group-clip = 2.0
[data]
{data}
[training]
target-gap = 0.05
block = 2
measure-every = 9
""",
    "gaussian, scaled": _GAUSSIAN.format(algorithm="gaussian")
    .replace("sampling-rate = 0.2", "sampling-rate = 1.0")
    .replace("{more}", "scale-columns = 2\nscale-share = 0.1\n"),
    "fair-plugin, scaled": """algorithm = "fair-plugin"
[target]
epsilon = 8.0
delta = 1e-5
[privacy]
rounds = 14
scale-columns = 2
scale-share = 0.1
group-share = 0.2
gap-share = 0.15
[data]
{data}
[training]
target-gap = 0.05
group-rate = 6.0
block = 2
measure-every = 9
""",
    "fair-plugin, distilled": """algorithm = "fair-plugin"
[target]
epsilon = 8.0
delta = 1e-5
[privacy]
protect = "attribute"
rounds = 7
[data]
{data}
[training]
target-gap = 0.05
distil-trees = 2
block = 2
measure-every = 9
[training.model]
kind = "trees"
trees = 3
leaves = 4
""",
    "fpfl": """algorithm = "fpfl"
[target]
epsilon = 8.0
delta = 1e-3
[privacy]
users = 200
cohort = 40
rounds = 3
clip = 1.0
[data]
{data}
[data.users]
kind = "poisson"
users = 200
[training]
learning-rate = 0.1
block = 2
measure-every = 9
""",
    "mmd-fedavg": """algorithm = "mmd-fedavg"
[target]
epsilon = 4.0
delta = 1e-5
[privacy]
group-size = 100
samples-per-group = 10
rounds = 3
users = 3
cohort = 1
update-clip = 0.5
histogram-noise-ratio = 1.0
[data]
{data}
[training]
kernel-width = 8.0
block = 2
measure-every = 9
""",
}
ADD_REMOVE = (
    "gaussian",
    "gaussian, banded",
    "gaussian, scaled",
    "fedfdp",
    "fair-plugin",
    "fair-plugin, scaled",
    "fpfl",
)
AGGREGATED = {"fpfl": "users", "mmd-fedavg": "central"}
"""Plans whose records one trusted party collects, and its name."""


def _signed_sizes(plan: str) -> dict[str, int]:
    """Lower bounds where records can be added or removed, else the numbers of records."""
    return {name: size - 40 if plan in ADD_REMOVE else size for name, size in SIZES.items()}


@dataclass(frozen=True)
class Sites:
    """A desk whose plan names silos; each party has a ledger and a folder of its own."""

    desk: Desk
    plan: str
    children: list[int] = field(default_factory=list)
    """Process ids of the guards, while they run."""
    keys: dict[str, SigningKey] = field(default_factory=dict)
    """Keys of the coordinator and of each guard, where `trust_keys` made them."""

    @classmethod
    def at(cls, folder: Path, plan: str, rounds: int | None = None) -> Sites:
        text = _with_rounds(PLANS[plan], rounds).format(data=_AT_SITES.format(**_signed_sizes(plan)))
        return cls(Desk.at(folder, text), plan)

    @property
    def folder(self) -> Path:
        return self.desk.folder

    @property
    def parties(self) -> tuple[str, ...]:
        return (AGGREGATED[self.plan],) if self.plan in AGGREGATED else tuple(SIZES)

    @property
    def manifest(self) -> Path:
        return self.folder / "budget.json"

    def signed(self) -> PublicRun:
        return read_signed_plan(self.desk.plan, self.manifest.read_bytes(), TrustInForce(self.desk.trust).file)

    def trust_keys(self) -> None:
        """Give the coordinator and each guard a key, and list them in the trust file."""
        trust, now = TrustInForce(self.desk.trust).file, datetime.now(UTC).replace(microsecond=0)
        for name in ("coordinator", *self.parties):
            self.keys[name], party = generate(), None if name == "coordinator" else name
            role = Role.COORDINATOR if party is None else Role.GUARD
            trust = trust.with_key(TrustedKey.of(self.keys[name].public, role, now, party=party))
        self.desk.trust.write_bytes(trust.to_bytes())

    def prepare(self, party: str) -> PreparedRun:
        names = tuple(SIZES) if party in AGGREGATED.values() else (party,)
        files = {name: self.folder / f"{name}.csv" for name in names}
        trust = TrustInForce(self.desk.trust).file
        return prepare_site(self.desk.plan, self.manifest.read_bytes(), trust, party, files)

    def ledger(self, party: str) -> Path:
        """The party's own ledger, made when it is first asked for."""
        path = self.folder / f"{party}.db"
        if not path.exists():
            Ledger.create(path).close()
        return path

    def socket(self, party: str) -> Path:
        return self.folder / f"{party}.sock"

    @contextmanager
    def guards(
        self, options: GuardOptions | None = None, as_user: tuple[int, int] | None = None
    ) -> Iterator[SocketTransport]:
        """All guards, each in a forked process, of another user and group if given; stopped by their ids at the end."""
        children = self.children
        transport = SocketTransport({party: self.socket(party) for party in self.parties}, deadline=240)
        try:
            for party in self.parties:
                children.append(self._fork(party, options or GuardOptions(), as_user))
            yield transport
        finally:
            transport.close()
            for child in children:
                os.kill(child, signal.SIGTERM)
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            children.clear()
            assert not any(codes)

    def _fork(self, party: str, options: GuardOptions, as_user: tuple[int, int] | None) -> int:
        run, ledger = self.prepare(party), self.ledger(party)
        if self.keys:
            options = replace(options, trust=TrustInForce(self.desk.trust), key=self.keys[party])
        here, there = socket.socketpair()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                here.close()
                if as_user is not None:
                    os.setgroups([])
                    os.setgid(as_user[1])
                    os.setuid(as_user[0])
                serve_guard(
                    run, self.folder / party, ledger, self.socket(party), options, lambda: there.sendall(b"ready")
                )
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        there.close()
        here.settimeout(240)
        with here:
            assert here.recv(5) == b"ready", f"the guard of {party} did not start"
        return child


def _with_rounds(text: str, rounds: int | None) -> str:
    return text if rounds is None else re.sub(r"(?m)^rounds = \d+$", f"rounds = {rounds}", text)


def desk_in_one_place(folder: Path, plan: str, rounds: int | None = None) -> Desk:
    """The same plan with the same files, for `privfair train` in one process; its test files are other records."""
    bounds = "".join(f"{name} = {size}\n" for name, size in _signed_sizes(plan).items())
    at_least = f"[data.at-least]\n{bounds}" if plan in ADD_REMOVE and plan != "fpfl" else ""
    text = _with_rounds(PLANS[plan], rounds).format(data=_IN_ONE_PLACE.format(at_least=at_least))
    desk = Desk.at(folder, text)
    (folder / "test").mkdir()
    write_silos(folder / "test", (30, 30, 30), seed=9)
    return desk
