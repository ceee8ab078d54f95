"""One process's part of a run: claim or resume, step by step with metrics and checkpoints, and the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from calibrate.errors import ManifestRefused, TrustRefused
from privfair.durable import replace_file
from privfair.fairness.measurement import Measured
from privfair.federation.coordinator import Position, run_steps
from privfair.ledger import Ledger
from privfair.run.folder import RunFolder, load_checkpoint
from privfair.run.metrics import MetricsLog
from privfair.run.open_run import OpenRun, Trust
from privfair.run.prepare import PreparedRun
from privfair.run.public import Progress
from privfair.run.record import RunRecord, Status
from privfair.run.replay import read_sessions, replay
from privfair.transcript import Transcript


@final
class RunSession:
    """Owns the files of a run folder for as long as one process trains in it."""

    def __init__(
        self,
        prepared: PreparedRun,
        folder: RunFolder,
        ledger: Ledger,
        progress: Callable[[Progress], None] | None = None,
        trust: Trust | None = None,
    ) -> None:
        self._run = prepared
        self._folder = folder
        self._progress = progress
        self._open_run = OpenRun(prepared.manifest, ledger, folder, trust=trust)
        self._record = prepared.record(ledger.identity, remarks=())
        self._log = MetricsLog(folder.metrics)
        self.step = 0

    def begin(self) -> RunRecord:
        """A new run: write down what it is, claim the manifest, train."""
        with self._open_run.begin({**self._run.files(), **self._record.file()}) as spending:
            return self._go_on(spending, self._start())

    def resume(self) -> RunRecord:
        """Go on with the run of this folder: fresh rounds only, from the state that the transcript leads to."""
        folder = self._folder
        self._record.require_same_run(folder)
        replace_file(folder.origin, self._run.files()[folder.origin.name])
        with self._open_run.resume() as spending:
            position = self._start()
            if folder.transcript.exists():
                position = self._rebuild(Transcript.read(folder.transcript))
            if not spending.ended:
                return self._go_on(spending, position)
            self._run.save_model(folder, self._run.algorithm.theta(position.state))
            return self._end(position)

    def _go_on(self, spending: OpenRun, position: Position[Any]) -> RunRecord:
        reached = self._train(spending, position)
        self._run.save_model(self._folder, self._run.algorithm.theta(reached.state))
        spending.finish(reached)
        return self._end(reached)

    def _train(self, spending: OpenRun, position: Position[Any]) -> Position[Any]:
        """The steps, with a checkpoint at the end of each block and at the end of all."""
        run = self._run
        parties = spending.parties(run.setup, position)
        gate, reached, self.step, due = spending.gate, position, position.step, None
        try:
            for reached in run_steps(run.algorithm, parties, position, run.updates):
                self.step = reached.step
                if due is not None:
                    # By now the next block is charged, and with it everything before was made durable.
                    spending.checkpoint(run.algorithm, due)
                    due = None
                self._report(reached, spending.claim.charged, last=reached.step == run.updates or gate.exhausted)
                if gate.at_end_of_block:
                    due = reached
        except (KeyboardInterrupt, ManifestRefused, TrustRefused):
            gate.flush()
            spending.checkpoint(run.algorithm, reached)
            spending.note(self._record, Status.INTERRUPTED, reached.step, metrics=self._log.last)
            raise
        gate.flush()
        spending.checkpoint(run.algorithm, reached)
        return reached

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
            self._measure(position, last=position.step == run.updates)
        return position

    def _report(self, position: Position[Any], charged: int, *, last: bool) -> None:
        metrics = self._measure(position, last=last)
        if self._progress is not None:
            signed = self._run.manifest.document.rounds
            self._progress(Progress(position.step, self._run.updates, charged, signed, metrics))

    def _measure(self, position: Position[Any], *, last: bool) -> Measured | None:
        run, step = self._run, position.step
        due = last or run.plan.training.measures(step, run.updates)
        if not due or run.held_out is None or step <= max(0, self._log.last_step):
            return None
        theta = run.algorithm.theta(position.state)
        return self._log.append(run.held_out.measure(run.model, theta, step, position.round))

    def _end(self, position: Position[Any]) -> RunRecord:
        self._measure(position, last=True)
        remarks = tuple(self._run.algorithm.remarks(position.state))
        told = {"metrics": self._log.last, "remarks": remarks}
        return self._open_run.note(self._record, Status.FINISHED, position.step, **told)
