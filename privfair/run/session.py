"""One process's part of a run: claim or resume, step by step with metrics and checkpoints, and the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from calibrate.errors import ManifestRefused, TrustRefused
from privfair.durable import replace_file
from privfair.federation.coordinator import Position, run_steps
from privfair.federation.local_party import LocalParties
from privfair.ledger import Claim, Ledger
from privfair.run.folder import RunFolder, json_file, load_checkpoint, save_checkpoint, save_model
from privfair.run.metrics import MetricsLog
from privfair.run.open_run import Trust, begin, require_trust, take_up
from privfair.run.prepare import PreparedRun
from privfair.run.public import Progress, Status
from privfair.run.replay import Session, append_session, read_sessions, replay
from privfair.run.summary import Ran, receipts, require_same_run, summary
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
        self._ledger = ledger
        self._progress = progress
        self._trust = trust
        self._ledger_id = ledger.anchor().ledger
        self._log = MetricsLog(folder.metrics)
        self.step = 0

    def begin(self) -> dict[str, Any]:
        """A new run: write down what it is, claim the manifest, train."""
        run = self._run
        files = {**run.files(), self._folder.summary.name: json_file(self._summary(Status.BEGUN, 0))}
        claim = begin(run.manifest, self._ledger, self._folder, files, self._trust)
        return self._go_on(claim, self._start())

    def resume(self) -> dict[str, Any]:
        """Go on with the run of this folder: fresh rounds only, from the state that the transcript leads to."""
        require_same_run(self._folder, self._run.manifest, self._ledger_id)
        self._check_trust()
        replace_file(self._folder.origin, self._run.files()[self._folder.origin.name])
        claim = take_up(self._run.manifest, self._ledger, self._folder)
        position = self._start()
        if self._folder.transcript.exists():
            position = self._rebuild(Transcript.read(self._folder.transcript))
        if claim is not None:
            return self._go_on(claim, position)
        self._save_model(position)
        return self._end(position)

    def _go_on(self, claim: Claim, position: Position[Any]) -> dict[str, Any]:
        carried = sorted({value.round for values in position.carried.values() for value in values.values()})

        def write_session(step: int) -> None:
            before = tuple(carried) if step == position.step else ()
            append_session(self._folder.sessions, Session(claim.session, claim.held.start, step, before))

        opened: set[int] = set()

        def on_round(step: int, round_number: int) -> None:
            if not opened:
                write_session(step)
            opened.add(round_number)

        setup, folder = self._run.setup, self._folder
        with LocalParties.open(setup, claim, folder.transcript, folder.batches, position, on_round) as parties:
            reached = self._train(parties, claim, position)
            if reached.carried:
                write_session(reached.step)  # no round is left: what the last step published stays without an update
            self._save_model(reached)
            parties.finish()
        return self._end(reached)

    def _train(self, parties: LocalParties, claim: Claim, position: Position[Any]) -> Position[Any]:
        """The steps, with a checkpoint at the end of each block and at the end of all."""
        run, gate = self._run, parties.gate
        reached, self.step, due = position, position.step, None
        try:
            for reached in run_steps(run.algorithm, parties, position, run.updates):
                self.step = reached.step
                if due is not None:
                    # By now the next block is charged, and with it everything before was made durable.
                    self._checkpoint(parties, due)
                    due = None
                self._report(reached, claim.charged, last=reached.step == run.updates or gate.exhausted)
                if gate.at_end_of_block:
                    due = reached
                    if reached.step < run.updates:
                        self._check_trust()
        except (KeyboardInterrupt, ManifestRefused, TrustRefused):
            gate.flush()
            self._checkpoint(parties, reached)
            self._write_summary(Status.INTERRUPTED, reached.step)
            raise
        gate.flush()
        self._checkpoint(parties, reached)
        return reached

    def _check_trust(self) -> None:
        """Before a claim and after each block."""
        require_trust(self._trust, self._run.manifest, self._ledger)

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

    def _measure(self, position: Position[Any], *, last: bool) -> dict[str, Any] | None:
        run, step = self._run, position.step
        due = last or run.plan.training.measures(step, run.updates)
        if not due or run.held_out is None or step <= max(0, self._log.last_step):
            return None
        theta = run.algorithm.theta(position.state)
        return self._log.append(run.held_out.measure(run.model, theta, step, position.round))

    def _checkpoint(self, parties: LocalParties, position: Position[Any]) -> None:
        """Only after the transcript is durable up to this position, so that a checkpoint is never ahead of it."""
        if parties.record is not None:
            parties.record.sync()
        if not position.carried:
            save_checkpoint(self._folder.checkpoint, self._run.manifest.digest, self._run.algorithm, position)
            parties.gate.forget(-1 if position.round is None else position.round)

    def _save_model(self, position: Position[Any]) -> None:
        run = self._run
        theta = run.algorithm.theta(position.state)
        for name, code in run.plan.own_code().items():
            replace_file(self._folder.path / name, code)
        save_model(self._folder, run.model, theta, run.data.encoding(), run.promise.text)

    def _end(self, position: Position[Any]) -> dict[str, Any]:
        self._measure(position, last=True)
        self._folder.write_json(self._folder.receipts, receipts(self._ledger, self._run.manifest.digest))
        return self._write_summary(Status.FINISHED, position.step, self._run.algorithm.remarks(position.state))

    def _write_summary(self, status: Status, steps: int, remarks: tuple[str, ...] = ()) -> dict[str, Any]:
        document = self._summary(status, steps, remarks)
        self._folder.write_json(self._folder.summary, document)
        return document

    def _summary(self, status: Status, steps: int, remarks: tuple[str, ...] = ()) -> dict[str, Any]:
        status_now = None
        if status is not Status.BEGUN:
            status_now = self._ledger.manifest_status(self._run.manifest.digest)
        ran = Ran(self._run.manifest, self._run.sampling, self._run.updates)
        document = summary(status, ran, self._folder, self._ledger_id, steps, self._log.last, status_now)
        document["remarks"] = list(remarks)
        return document
