"""Small engines to plant bugs in: a plan with its signed budget, a clean run of it, and runs under a bug."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory

from audit.runs.evidence import AuditorsManifest, RunEvidence
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.verify import read_unverified
from privfair.run.folder import RunFolder
from privfair.run.prepare import prepare_run
from privfair.training import RunSession
from tests.planted_bugs.fixed_randomness import fixed_randomness
from tests.privfair.ledgers import open_ledger
from tests.privfair.small_runs import FPFL, GAUSSIAN, Desk

DATA = """[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
at-least = 100
"""
_STEFFLE = """algorithm = "steffle"
[target]
epsilon = 2.0
delta = 1e-5
[privacy]
silo-size = 120
batch-size = 25
rounds = {rounds}
minority-fraction = 0.5
lipschitz = 1.0
w-radius = 0.5
"""
_FREQUENCIES = """[training]
group-frequencies = [0.5, 0.5]
"""
_FEDFDP = """algorithm = "fedfdp"
[target]
epsilon = 2.0
delta = 1e-5
[privacy]
sampling-rate = 0.2
rounds = 16
clip = 0.5
loss-clip = 2.0
loss-noise-ratio = 2.5
"""
_FAIR_PLUGIN = """algorithm = "fair-plugin"
[target]
epsilon = 2.0
delta = 1e-5
[privacy]
rounds = 8
"""
TARGET = "[target]\nepsilon = 4.0\ndelta = 1e-5\n"
MMD = f"""algorithm = "mmd-fedavg"
{TARGET}[privacy]
group-size = 100
samples-per-group = 10
rounds = 10
users = 3
cohort = 2
update-clip = 0.5
histogram-noise-ratio = 1.0
{DATA}[training]
kernel-width = 8.0
"""
PAY_ONCE = f"""algorithm = "pay-once"
{TARGET}[privacy]
rounds = 10
{DATA}[training]
fairness = 1.0
"""
FAIR_PLUGIN = f"""algorithm = "fair-plugin"
{TARGET}[privacy]
rounds = 10
{DATA}[training]
bins = 6
"""
_LIMITED = 'sampling = "truncated-poisson"\nbatch-limit = 40\nmost-units = 200'
_NETWORK = '[training.model]\nkind = "perceptron"\nhidden = [16]'


class Engine(Enum):
    """Which plan a bug is planted in; claimed epsilon 2 (the last three, clean only: 4 to 8)."""

    FULL_BATCHES = "DP-SGD, full batches, a network"
    SECRET_BATCHES = "DP-SGD, Poisson batches, logistic"
    TRUNCATED = "DP-SGD, truncated Poisson batches, logistic"
    ALLOCATED = "DP-SGD, random allocation, logistic"
    BANDED = "DP-SGD, banded noise, logistic"
    SCALES = "DP-SGD, full batches, paid scales"
    FEDFDP = "FedFDP"
    FAIR_PLUGIN = "fair plug-in, records"
    STEFFLE = "SteFFLe, shuffled batches"
    STEFFLE_LONG = "SteFFLe, 60 rounds"
    FPFL = "FPFL, users"
    MMD = "MMD-FedAvg"
    PAY_ONCE = "pay once, randomised response"


def _gaussian(rate: float, rounds: int, more: str) -> str:
    return GAUSSIAN.format(rate=rate, rounds=rounds, more=more).replace("epsilon = 8.0", "epsilon = 2.0")


_PLANS = {
    Engine.FULL_BATCHES: _gaussian(1.0, 16, _NETWORK),
    Engine.SECRET_BATCHES: _gaussian(0.2, 24, ""),
    Engine.TRUNCATED: _gaussian(0.05, 24, "").replace("clip = 1.0", f"clip = 1.0\n{_LIMITED}"),
    Engine.ALLOCATED: _gaussian(0.2, 24, "").replace("clip = 1.0", 'clip = 1.0\nsampling = "random-allocation"'),
    Engine.BANDED: _gaussian(1 / 6, 24, "").replace("clip = 1.0", 'clip = 1.0\nnoise = "banded"\nbatches = 6'),
    Engine.SCALES: _gaussian(1.0, 16, "").replace("clip = 1.0", "clip = 1.0\nscale-columns = 2\nscale-share = 0.1"),
    Engine.FEDFDP: f"{_FEDFDP}{DATA}[training]\nfairness = 2.0\n",
    Engine.FAIR_PLUGIN: f"{_FAIR_PLUGIN}{DATA}[training]\nbins = 6\n",
    Engine.STEFFLE: f"{_STEFFLE.format(rounds=15)}{DATA}{_FREQUENCIES}",
    Engine.STEFFLE_LONG: f"{_STEFFLE.format(rounds=60)}{DATA}{_FREQUENCIES}",
    Engine.FPFL: FPFL,
    Engine.MMD: MMD,
    Engine.PAY_ONCE: PAY_ONCE,
}


@dataclass(frozen=True)
class Trained:
    """A finished run and the ledger it was charged to."""

    run: Path
    plan: Path
    ledger: Path

    def evidence(self) -> RunEvidence:
        """Read anew, so that a planted bug is also in what the auditor builds from the plan."""
        return RunEvidence.read(self.run, plan_path=self.plan)


@dataclass
class Workshop:
    """Plans are calibrated and clean runs are made once, when they are first asked for."""

    folder: Path
    _desks: dict[Engine, Desk] = field(default_factory=dict)
    _documents: dict[Engine, BudgetDocument] = field(default_factory=dict)
    _clean: dict[Engine, Trained] = field(default_factory=dict)

    def plan(self, engine: Engine) -> Path:
        if engine not in self._desks:
            self._desks[engine] = Desk.at(self.folder / engine.name, _PLANS[engine])
        return self._desks[engine].plan

    def document(self, engine: Engine) -> BudgetDocument:
        if engine not in self._documents:
            self.plan(engine)
            budget = self._desks[engine].budget()
            self._documents[engine] = read_unverified(budget.read_bytes()).document
        return self._documents[engine]

    def clean(self, engine: Engine) -> Trained:
        if engine not in self._clean:
            self.document(engine)
            with fixed_randomness(1):
                place = self.folder / engine.name / "clean"
                place.mkdir()
                self._clean[engine] = self._train(engine, place, None)
        return self._clean[engine]

    @contextmanager
    def trained(self, engine: Engine, updates: int | None = None) -> Iterator[Trained]:
        """A run made now, under whatever is planted; thrown away afterwards."""
        with TemporaryDirectory(dir=self.folder) as place:
            yield self._train(engine, Path(place), updates)

    def _train(self, engine: Engine, place: Path, updates: int | None) -> Trained:
        auditor, plan = AuditorsManifest(), self.plan(engine)
        prepared = prepare_run(plan, auditor.envelope(self.document(engine)), auditor.trust)
        training = replace(prepared.plan.training, measure_every=10**9)
        prepared = replace(prepared, plan=replace(prepared.plan, training=training))
        if updates is not None:
            prepared = replace(prepared, updates=updates)
        folder = RunFolder.create(place / "run")
        with open_ledger(place / "ledger.db") as ledger, folder.locked():
            RunSession(prepared, folder, ledger).begin()
        return Trained(folder.path, plan, place / "ledger.db")
