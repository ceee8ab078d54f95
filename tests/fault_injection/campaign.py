"""One trial: a run meets a fault at its k-th durable operation, is resumed, and must keep every promise.

After the fault and after the end: no value is published in a round that was not charged, no value of a step is
published twice, what was published stays as it was, the run ends, and the model is what the transcript leads to.
"""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrate.errors import PrivfairError
from privfair.ledger import Ledger
from privfair.run import metrics
from privfair.run.folder import RunFolder, load_theta
from privfair.run.record import read_sessions
from privfair.run.replay import last_position, rounds_of_steps
from privfair.training import execute
from privfair.transcript import Ending, Transcript
from privfair.transcript.storage import ValueKey
from tests.fault_injection.faults import KILLED, Fault, Shim
from tests.fault_injection.schemes import Scheme
from tests.privfair.ledgers import new_ledger

STOPPED, CRASHED = 3, 70


@dataclass(frozen=True)
class Store:
    """Where the trials' ledgers are: `place` gives each trial a ledger of its own."""

    name: str
    place: Callable[[Path], str]


def sqlite_file(folder: Path) -> str:
    return str(folder / "ledger.db")


SQLITE = Store("SQLite", sqlite_file)


@dataclass(frozen=True)
class Trial:
    """A folder for one run and its ledger."""

    scheme: Scheme
    ledger: str
    folder: Path

    @classmethod
    def fresh(cls, scheme: Scheme, store: Store, folder: Path) -> Trial:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        trial = cls(scheme, store.place(folder), folder)
        new_ledger(trial.ledger, trial.anchor).close()
        return trial

    @property
    def anchor(self) -> Path:
        return self.folder / "ledger.anchor"

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder / "run")

    def train(self, shim: Shim, *, resume: bool) -> int:
        """The engine in a forked child, with the shim; its exit code."""
        child = os.fork()
        if child == 0:
            self._train_and_exit(shim, resume)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def count(self) -> list[str]:
        """The kinds of all durable operations of a run that nothing interrupts."""
        kinds, shim = self.folder / "kinds", Shim()
        child = os.fork()
        if child == 0:
            _measure_less()
            shim.install()
            execute(self.scheme.run, self.run.path, self.ledger, self.anchor)
            kinds.write_text("\n".join(shim.kinds))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return kinds.read_text().split("\n")

    def _train_and_exit(self, shim: Shim, resume: bool) -> None:
        code = CRASHED
        try:
            _measure_less()
            shim.install()
            execute(self.scheme.run, self.run.path, self.ledger, self.anchor, resume)
            code = 0
        except PrivfairError as refusal:
            (self.folder / "said").write_text(f"{type(refusal).__name__}: {refusal}")
            code = STOPPED
        except BaseException:
            (self.folder / "said").write_text(traceback.format_exc())
        finally:
            os._exit(code)

    def said(self) -> str:
        path = self.folder / "said"
        return path.read_text() if path.exists() else ""


def _measure_less() -> None:
    """One threshold in place of 99 in the file of metrics, which took most of a child's time."""
    metrics.GRID = np.array([0.5])


def attempt(trial: Trial, fault: Fault, at: int, again: int | None = None) -> list[str]:
    """What went wrong in one trial; empty if nothing did. `again` is a second kill, while the run is resumed."""
    wrong = []
    code = trial.train(Shim(fault, at), resume=False)
    expected = {KILLED} if fault in (Fault.KILL, Fault.TORN) else {STOPPED, 0}
    if code not in expected:
        wrong.append(f"ended with code {code}: {trial.said()}")
    before = _published(trial)
    wrong += _unpaid(trial)
    if again is not None:
        trial.train(Shim(Fault.KILL, again), resume=True)
        wrong += _unpaid(trial)
    if trial.train(Shim(), resume=True) != 0:
        return [*wrong, f"did not resume: {trial.said()}"]
    after = _published(trial)
    changed = [key for key, digest in before.items() if after.get(key) != digest]
    if changed:
        wrong.append(f"{changed[0]} was published before the fault and changed")
    return [*wrong, *_unpaid(trial), *_wrong_end(trial)]


@dataclass(frozen=True)
class Attempt:
    """One fault: at which of how many operations, in words, and what went wrong."""

    at: int
    operations: int
    what: str
    wrong: list[str]


def attempts(
    scheme: Scheme, store: Store, folder: Path, every: int = 1, faults: tuple[Fault, ...] = tuple(Fault)
) -> Iterator[Attempt]:
    """Every `every`-th operation of a run, with each fault.

    At every third of these points the run is also killed a second time, while it is resumed.
    """
    warm = Trial.fresh(scheme, store, folder)
    execute(scheme.run, warm.run.path, warm.ledger, warm.anchor)  # children inherit what is loaded by now
    kinds = Trial.fresh(scheme, store, folder).count()
    for at in range(1, len(kinds) + 1, every):
        kind, second = kinds[at - 1], 1 + 7 * at % len(kinds)
        wanted = [(fault, None) for fault in faults if fault.differs_at(kind)]
        if Fault.KILL in faults and at // every % 3 == 0:
            wanted.append((Fault.KILL, second))
        for fault, again in wanted:
            what = f"{fault.value} {kind} {at}" + ("" if again is None else f", then killed before operation {again}")
            wrong = attempt(Trial.fresh(scheme, store, folder), fault, at, again)
            yield Attempt(at, len(kinds), what, wrong)


def _published(trial: Trial) -> dict[ValueKey, str]:
    """The digest of each value that was published, which is all that is kept of some."""
    path = trial.run.transcript
    if not path.exists():
        return {}
    found = Transcript.read(path)
    return {key: found.release(key).digest for key in found.keys}


def _unpaid(trial: Trial) -> list[str]:
    """Values in rounds that the ledger did not charge, or that it recorded otherwise."""
    if not trial.run.transcript.exists():
        return []
    try:
        with Ledger.open(trial.ledger, trial.anchor) as ledger:
            Transcript.read(trial.run.transcript).verify_against(ledger)
    except PrivfairError as refusal:
        return [f"unpaid: {refusal}"]
    return []


def _wrong_end(trial: Trial) -> list[str]:
    run, folder, wrong = trial.scheme.run, trial.run, []
    transcript, sessions = Transcript.read(folder.transcript), read_sessions(folder.sessions)
    if transcript.ending is not Ending.CLOSED:
        wrong.append("the transcript has no end")
    with Ledger.open(trial.ledger, trial.anchor) as ledger:
        status = ledger.manifest_status(run.manifest.digest)
        if transcript.verify_against(ledger).unrecorded:
            wrong.append("the ledger lacks records")
    steps, left = rounds_of_steps({key.round for key in transcript.keys}, sessions, closed=True)
    for step, rounds in enumerate(steps):
        values = [(key.party, key.name) for key in transcript.keys if key.round in rounds]
        if len(set(values)) != len(values):
            wrong.append(f"a value of step {step} was published twice")
    if left and status.charged < status.claim.rounds:
        wrong.append("the last step was not finished, though rounds were left")
    last = last_position(run.algorithm, transcript, sessions)
    if last is None:  # only digests of the last step are kept: allowed where faults took the signed rounds after it
        if transcript.header.retention is None or len(steps) >= run.updates:
            wrong.append("the last step was not kept")
    elif not np.array_equal(run.algorithm.theta(last.state).numpy(), load_theta(folder, run.model).numpy()):
        wrong.append("the model is not what the transcript leads to")
    return wrong
