"""One process's part of a run: claim or resume, step by step with metrics and checkpoints, and the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from torch import Tensor

from calibrate.errors import ManifestRefused, TrustRefused
from privfair.durable import replace_file
from privfair.fairness.measurement import Measured
from privfair.federation.coordinator import Position, RunObserver, train_until
from privfair.ledger import Ledger
from privfair.models.model import Model
from privfair.run.folder import RunFolder, load_checkpoint
from privfair.run.metrics import MetricsLog
from privfair.run.open_run import OpenRun, Trust
from privfair.run.prepare import PreparedRun
from privfair.run.public import Measuring, Progress
from privfair.run.record import RunRecord, Status, read_sessions
from privfair.run.replay import replay
from privfair.transcript import Transcript

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
        trust: Trust | None = None,
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
        """Go on with the run of this folder: fresh rounds only, from the state that the transcript leads to."""
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
