"""Train under a manifest: verify, claim, go through the rounds, leave a run folder that can be audited."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from torch import Tensor

from calibrate.errors import ManifestRefused, PrivfairError, Refused, TrustRefused
from calibrate.manifest.keys import SigningKey, load_private
from calibrate.meaning import Protection
from calibrate.notebook import as_html
from calibrate.privacy_unit import EpsilonDelta
from privfair.data.dataset import Silos
from privfair.data.encode import load_own_silo
from privfair.data.training_data import site_format
from privfair.durable import read_named, replace_file
from privfair.fairness.measurement import Measured, emptiness
from privfair.federation.coordinator import Position, RunObserver, train_until
from privfair.federation.countersign import SocketWitness
from privfair.federation.remote import EngineNodes, Node, ResendingTransport, read_guards
from privfair.federation.signed_frames import CoordinatorSeal
from privfair.federation.sockets import SocketTransport
from privfair.federation.wire import Transport
from privfair.ledger import Ledger
from privfair.models.model import Model
from privfair.plan.plan import AS_IT_IS, ThresholdRule
from privfair.run.federated import train_over
from privfair.run.folder import RunFolder, load_checkpoint, load_theta
from privfair.run.metrics import UNDECIDED, Decision, HeldOutRecords, MetricsLog, decide, measure_thresholds
from privfair.run.open_run import OpenRun, TrustInForce
from privfair.run.prepare import PreparedRun, prepare_run
from privfair.run.public import Measure, Measuring, Progress, PublicRun, read_signed_plan
from privfair.run.record import RunRecord, Status, read_sessions
from privfair.run.replay import replay
from privfair.run.search import BestTry, run_search
from privfair.transcript import Transcript


class RunStopped(PrivfairError):
    """The machine failed in the middle of a run; what is written so far is whole, and the run can be resumed."""

    exit_code = 70


@dataclass(frozen=True)
class TrainingResult:
    """What a finished run amounts to; the same keys as the command line's JSON."""

    run: Path
    record: RunRecord
    decision: Decision = field(default_factory=lambda: UNDECIDED)
    """The threshold that predictions use, and what it does on the held-out records (`run.metrics`)."""
    best: BestTry | None = None
    """Of a search: the setting of the best try, and its score; None for a run."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """The document of run.json."""
        return self.record.as_json()

    @property
    def accuracy(self) -> float | None:
        return self._overall("accuracy")

    @property
    def demographic_parity(self) -> float | None:
        return self._overall("demographic_parity")

    def to_json(self) -> Mapping[str, Any]:
        """Run folder, last metrics, promise, and how far the run got."""
        record, promise, overall = self.record, self.record.promise, self.record.overall
        numbers = ("accuracy", "loss", "demographic_parity", "equalised_odds", "false_negative_gap")
        more = ("balanced_accuracy", "auc", "majority", "most_predicted", "positive_class", "groups")
        return {
            "run": str(self.run),
            "algorithm": record.algorithm,
            **{name: overall.get(name) for name in numbers},
            "rounds": record.rounds.steps,
            "rounds_signed": record.rounds.signed,
            "rounds_charged": record.rounds.charged,
            "epsilon": promise.epsilon,
            "delta": promise.json_delta,
            "claimed_epsilon": promise.claimed_epsilon,
            "promise": promise.text,
            "protected": self.protection.protected,
            "not_protected_in_short": self.protection.not_protected,
            "not_protected": list(promise.not_protected),
            **{name: overall.get(name) for name in more},
            "decision": self.decision,
            "warning": self.warning,
            "metrics_are_private": False,
            "manifest": record.manifest.digest,
            "transcript": record.transcript,
            **({} if self.best is None else {"best": self.best}),
        }

    @property
    def protection(self) -> Protection:
        """Who is protected."""
        promise = self.record.promise
        cost = None if promise.epsilon is None else EpsilonDelta(promise.epsilon, promise.delta)
        return Protection(promise.unit, cost)

    @property
    def measured(self) -> Measured:
        """The numbers of the held-out records at the threshold in use."""
        overall = self.record.overall
        if self.decision["rule"] == AS_IT_IS.text or self.decision["held_out"] is None:
            return overall
        return {**overall, **self.decision["held_out"]}

    @property
    def warning(self) -> str | None:
        """Why the model is worth nothing at the threshold in use, or what training did not reach; else None."""
        return emptiness(self.measured) or "; ".join(self.record.remarks) or None

    def _repr_html_(self) -> str:
        """How a notebook shows it: the promise first, then how far the run got and how well it does."""
        found = self.to_json()
        names = ("accuracy", "demographic_parity", "equalised_odds")
        rows = [(name.replace("_", " "), f"{found[name]:.4f}") for name in names if found[name] is not None]
        steps = f"{found['rounds']} steps, {found['rounds_charged']} of {found['rounds_signed']} signed rounds spent"
        known = ". Metrics are of test records and not private" if rows else ""
        return as_html(str(found["promise"]), f"; {self.run}: {steps}{known}.", rows)

    def _overall(self, name: str) -> float | None:
        value: float | None = self.to_json()[name]
        return value


_SOUND = (KeyboardInterrupt, ManifestRefused, TrustRefused)
"""What stops a run whose gate is in order, so that it is left with a checkpoint and a record."""


@final
class RunSession(RunObserver):
    """Owns the files of a run folder for as long as one process trains in it: checkpoints, metrics, record."""

    def __init__(
        self,
        prepared: PreparedRun,
        folder: RunFolder,
        ledger: Ledger,
        progress: Callable[[Progress], None] | None = None,
        trust: TrustInForce | None = None,
    ) -> None:
        self._run = run = prepared
        self._folder = folder
        self._spending = spending = OpenRun(run.manifest, ledger, folder, trust=trust)
        self._record = run.record(ledger.identity, remarks=())
        self._log = MetricsLog(folder.metrics)
        self.measuring = Measuring(
            run.plan,
            run.document,
            (run.model, run.algorithm),
            None if run.held_out is None else self._measure,
            progress,
            lambda position: spending.claim.charged,
            lambda: spending.gate.exhausted,
        )
        self.measuring.metrics, self.measuring.measured = self._log.last, max(0, self._log.last_step)
        self._due: Position[Any] | None = None
        """The end of a block whose checkpoint waits for the next charge."""

    def begin(self) -> RunRecord:
        """A new run: write down what it is, claim the manifest, train."""
        with self._spending.begin({**self._run.files(), **self._record.file()}) as spending:
            return self._go_on(spending, self._start())

    def resume(self) -> RunRecord:
        """Continue the run of this folder: fresh rounds only, from the state that the transcript leads to."""
        folder = self._folder
        self._record.require_same_run(folder)
        replace_file(folder.origin, self._run.files()[folder.origin.name])
        with self._spending.resume() as spending:
            position = self._start()
            if folder.transcript.exists():
                position = self._rebuild(Transcript.read(folder.transcript))
            if not spending.ended:
                return self._go_on(spending, position)
            self._run.save_model(folder, self._run.algorithm.theta(position.state))
            return self._end(position)

    def _go_on(self, spending: OpenRun, position: Position[Any]) -> RunRecord:
        run, self.measuring.step = self._run, position.step
        parties = spending.parties(run, position)
        reached = train_until(run.algorithm, parties, position, run.updates, (self.measuring, self))
        run.save_model(self._folder, run.algorithm.theta(reached.state))
        spending.finish(reached)
        return self._end(reached)

    def on_step(self, position: Position[Any]) -> None:
        """A checkpoint at the end of each block."""
        if self._due is not None:
            # By now the next block is charged, and with it everything before was made durable.
            self._spending.checkpoint(self._run.algorithm, self._due)
        self._due = position if self._spending.gate.at_end_of_block else None

    def on_end(self, position: Position[Any], stopped: BaseException | None) -> None:
        if stopped is None or isinstance(stopped, _SOUND):
            self._spending.gate.flush()
            self._spending.checkpoint(self._run.algorithm, position)
        if isinstance(stopped, _SOUND):
            self._spending.note(self._record, Status.INTERRUPTED, position.step, metrics=self._log.last)

    def close(self) -> None:
        self._log.close()

    def _start(self) -> Position[Any]:
        return Position(self._run.algorithm.start())

    def _rebuild(self, transcript: Transcript) -> Position[Any]:
        """The state after the last finished step; steps that a crash left unmeasured are measured now."""
        run, folder = self._run, self._folder
        start = load_checkpoint(folder.checkpoint, run.manifest.digest, run.algorithm)
        position = self._start()
        for position in replay(run.algorithm, transcript, read_sessions(folder.sessions), start):
            self.measuring.measure(position)
        return position

    def _measure(self, model: Model, theta: Tensor, step: int, round_number: int | None) -> Measured:
        assert self._run.held_out is not None
        return self._log.append(self._run.held_out.measure(model, theta, step, round_number))

    def _end(self, position: Position[Any]) -> RunRecord:
        self.measuring.measure(position, last=True)
        remarks = tuple(self._run.algorithm.remarks(position.state))
        told = {"metrics": self._log.last, "remarks": remarks}
        return self._spending.note(self._record, Status.FINISHED, position.step, **told)


def train(
    plan: str | Path,
    *,
    manifest: str | Path,
    trust: str | Path,
    ledger: str | Path,
    out: str | Path,
    resume: bool = False,
    root: str | Path | None = None,
    anchor: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    threshold: ThresholdRule = AS_IT_IS,
) -> TrainingResult:
    """Train the plan in a TOML file; the arguments are the flags of `privfair train`.

    Args:
        plan: the plan file.
        manifest: the signed budget for exactly this plan and its data.
        trust: the trust file that says whose signatures count.
        ledger: where the budget is spent: a file that `privfair ledger init` made, or a PostgreSQL URL.
        out: the folder for the run's files.
        resume: continue the run that was interrupted in `out`.
        root: the public key that signs the trust file, if one does.
        anchor: the ledger's anchor file; by default next to a ledger file.
        progress: called after each step.
        threshold: how the threshold of predictions is chosen (`privfair.plan.plan.ThresholdRule`); as the plan's
            [decision] has it.

    Guarantee: nothing computed from training records leaves except through the gate, under the signed manifest
    and its ledger. What that promises, to whom, is the manifest's to say; it is repeated in the result. Metrics
    are computed from test records and are not private.

    A run that was interrupted continues with `resume=True`; rounds that were charged stay spent.
    """
    valid = TrustInForce(trust, root)
    return execute(prepare(plan, manifest, valid), out, ledger, anchor, resume, progress, valid, threshold=threshold)


def prepare(
    plan: str | Path, manifest: str | Path, trust: str | Path | TrustInForce, root: str | Path | None = None
) -> PreparedRun:
    """Read and verify everything, spending nothing."""
    trusted = trust if isinstance(trust, TrustInForce) else TrustInForce(trust, root)
    return prepare_run(Path(plan), read_named(Path(manifest), "--manifest"), trusted.file, searching=True)


def execute(
    prepared: PreparedRun,
    out: str | Path,
    ledger: str | Path,
    anchor: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    trust: TrustInForce | None = None,
    threshold: ThresholdRule = AS_IT_IS,
    witness: Path | None = None,
) -> TrainingResult:
    """Claim and train what was verified; with `resume`, a folder in which nothing was begun is begun.

    `threshold` says from which probability on a prediction is positive; a target is taken from the held-out records.

    `witness` is the socket of the witness that the budget names.

    With `trust`, the ledger remembers the trust file, and the run stops at the next block after a key was revoked.
    """
    if resume and prepared.search is not None:
        raise Refused(
            "a search does not continue after it stopped: its tries are gone and its budget is spent; sign a new budget"
        )
    # A ledger that cannot be opened leaves no folder behind.
    with Ledger.open(ledger, None if anchor is None else Path(anchor)) as book, ExitStack() as stack:
        book.witness = None if witness is None else SocketWitness(witness)
        folder = RunFolder.create(Path(out), resume=resume)
        going_on = folder.begun
        stack.enter_context(folder.locked())
        session = RunSession(prepared, folder, book, progress, trust)
        try:
            best = None
            if prepared.search is not None:
                record, best = run_search(prepared, folder, book, trust)
            else:
                record = session.resume() if going_on else session.begin()
            decision = _decide(prepared, folder, prepared.plan.file.decision if threshold == AS_IT_IS else threshold)
        except OSError as error:
            raise RunStopped(
                f"the run in {folder.path} stopped after step {session.measuring.step}: {error}; fix that, then "
                "continue with the same command and --resume"
            ) from error
        finally:
            session.close()
    return TrainingResult(folder.path, record, decision, best)


def _decide(prepared: PreparedRun, folder: RunFolder, rule: ThresholdRule) -> Decision:
    """Write what each threshold does on the held-out records, and which one predictions use."""
    if prepared.held_out is None:
        return UNDECIDED
    fairness = getattr(prepared.plan.own, "fairness", None)
    frontier = measure_thresholds(prepared.held_out, prepared.model, load_theta(folder, prepared.model), fairness)
    decision = decide(frontier, rule)
    folder.write_json(folder.frontier, frontier)
    folder.write_json(folder.decision, decision)
    return decision


def train_with_guards(
    signed: PublicRun,
    guards: str | Path,
    out: str | Path,
    test_files: Sequence[Path] = (),
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    steps_per_message: int = 1,
) -> TrainingResult:
    """Train a signed plan with the guards that a TOML file names; the arguments are the flags of `privfair train`.

    `test_files` are public records in the format of the plan's schema, to measure the model on; without any, nothing is
    measured. `steps_per_message`: see `privfair.run.federated.train_over`.
    """
    places = read_guards(Path(guards))
    key = None if places.key is None else load_private(places.key)
    transport = SocketTransport(places.sockets, places.deadline)
    try:
        return train_over_transport(
            transport, signed, out, test_files, resume, progress, steps_per_message=steps_per_message, key=key
        )
    finally:
        transport.close()


def train_over_transport(
    transport: Transport,
    signed: PublicRun,
    out: str | Path,
    test_files: Sequence[Path] = (),
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    engine: str = "guards",
    steps_per_message: int = 1,
    key: SigningKey | None = None,
) -> TrainingResult:
    """Train a signed plan with the guards behind a transport; `engine` is its name, for run.json and the report."""
    folder = Path(out)
    with _measuring(signed, tuple(test_files), folder) as measure:
        record = train_over(
            transport,
            signed,
            folder,
            resume=resume,
            engine=engine,
            measure=measure,
            progress=progress,
            steps_per_message=steps_per_message,
            key=key,
        )
    return TrainingResult(folder, record)


def train_over_engine(
    engine: str,
    exchange: Callable[[Mapping[Node, bytes]], Iterable[tuple[Node, bytes]]],
    present: Callable[[], Iterable[Node]],
    settings: Mapping[str, Any],
) -> TrainingResult:
    """Train the signed plan that an engine's configuration names, over the guards behind its nodes.

    `exchange` and `present` are those of `EngineNodes`; `settings` has the paths `plan`, `manifest`, `trust`, `root`
    and `key` (or empty texts) and `out`, `test-files` (a list in JSON), `deadline`, `steps-per-message` and `resume`.
    """
    root = Path(str(settings["root"])) if settings["root"] else None
    trust = TrustInForce(Path(str(settings["trust"])), root)
    signed = read_signed_plan(Path(str(settings["plan"])), Path(str(settings["manifest"])).read_bytes(), trust.file)
    nodes = EngineNodes(exchange, present, float(settings["deadline"]))
    key = load_private(Path(str(settings["key"]))) if settings.get("key") else None
    parties = (silo.name for silo in signed.document.data.silos)
    nodes.find(signed.manifest.digest, parties, CoordinatorSeal(signed.trust, key))
    return train_over_transport(
        ResendingTransport(nodes.send),
        signed,
        Path(str(settings["out"])),
        tuple(Path(name) for name in json.loads(str(settings["test-files"]))),
        resume=bool(settings["resume"]),
        engine=engine,
        steps_per_message=int(settings["steps-per-message"]),
        key=key,
    )


@contextmanager
def _measuring(signed: PublicRun, files: tuple[Path, ...], folder: Path) -> Iterator[Measure | None]:
    """What writes a line of metrics.jsonl; None without test files."""
    if not files:
        yield None
        return
    plan = signed.plan
    _, own = site_format(plan.data)
    silos = Silos(tuple(load_own_silo(file, own) for file in files))
    held_out = HeldOutRecords(silos, plan.model.dtype, plan.training.positive)
    log: list[MetricsLog] = []

    def measure(model: Model, theta: Tensor, step: int, round_number: int | None) -> Measured:
        if not log:
            log.append(MetricsLog(RunFolder(folder).metrics))
        return log[0].append(held_out.measure(model, theta, step, round_number))

    try:
        yield measure
    finally:
        for one in log:
            one.close()
