"""One process's part of a run: claim or resume, step by step with metrics and checkpoints, and the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, final

from calibrate.errors import ManifestRefused, Refused, TrustRefused
from calibrate.manifest.trust import TrustSeen
from calibrate.manifest.verify import AuthenticManifest
from privfair.durable import replace_file
from privfair.federation.coordinator import Position, run_steps
from privfair.federation.local_party import LocalParties
from privfair.ledger import AlreadyClaimed, BudgetExceeded, Claim, ClaimEnded, ClaimToken, Ledger, UnknownClaim
from privfair.run.folder import RunFolder, load_checkpoint, save_checkpoint, save_model
from privfair.run.metrics import MetricsLog
from privfair.run.prepare import PreparedRun, claim_terms
from privfair.run.public import Progress, Status
from privfair.run.replay import Session, append_session, read_sessions, replay
from privfair.run.summary import Ran, receipts, require_same_run, summary
from privfair.transcript import Ending, Transcript


class Trust(Protocol):
    """The trust file in force, as it can be asked while a run goes on."""

    @property
    def seen(self) -> TrustSeen: ...

    def require_signed(self, manifest: AuthenticManifest) -> None:
        """Refuse to go on unless the manifest's signers are trusted now."""
        ...


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
        folder, run = self._folder, self._run
        try:
            self._check_trust()
        except Refused:
            folder.discard()
            raise
        replace_file(folder.plan, run.plan_bytes)
        replace_file(folder.manifest, run.envelope)
        folder.write_json(folder.encoding, run.data.encoding())
        self._write_summary(Status.BEGUN, 0)
        try:
            claim = self._ledger.claim(claim_terms(run.manifest), ClaimToken.at(folder.token))
        except (AlreadyClaimed, BudgetExceeded, ClaimEnded):
            folder.discard()
            raise
        return self._go_on(claim, self._start())

    def resume(self) -> dict[str, Any]:
        """Go on with the run of this folder: fresh rounds only, from the state that the transcript leads to."""
        require_same_run(self._folder, self._run.manifest, self._ledger_id)
        self._check_trust()
        transcript = Transcript.read(self._folder.transcript) if self._folder.transcript.exists() else None
        claim = self._claim_again(transcript)
        if transcript is None:
            if claim is None:
                raise self._lost_transcript()
            return self._go_on(claim, self._start())
        transcript.verify_against(self._ledger)
        position = self._rebuild(transcript)
        if transcript.ending is Ending.CLOSED:
            if claim is not None:
                claim.reconcile(transcript.releases())
                claim.close(transcript.digest)
            self._save_model(position)
            return self._end(position)
        if claim is None:
            raise self._lost_transcript()
        return self._go_on(claim, position)

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
        """Before a claim and after each block: the manifest's signers are still trusted, by a file that is not older.

        Raises `Refused`. Blocks that were charged stay spent, published values stay published, and nothing further is
        drawn; the run goes on with --resume once the same manifest is signed by a key that is live.
        """
        if self._trust is not None:
            self._trust.require_signed(self._run.manifest.authentic)
            self._ledger.remember_trust(self._trust.seen)

    def close(self) -> None:
        self._log.close()

    def _start(self) -> Position[Any]:
        return Position(self._run.algorithm.start())

    def _claim_again(self, transcript: Transcript | None) -> Claim | None:
        """The claim of this folder's token; None if it was closed, for then only files are left to be written."""
        token = ClaimToken.at(self._folder.token)
        try:
            return self._ledger.resume(token)
        except ClaimEnded:
            return None
        except UnknownClaim:
            if transcript is not None:
                raise
            return self._ledger.claim(claim_terms(self._run.manifest), token)

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
        status_now = None
        if status is not Status.BEGUN:
            status_now = self._ledger.manifest_status(self._run.manifest.digest)
        ran = Ran(self._run.manifest, self._run.sampling, self._run.updates)
        document = summary(status, ran, self._folder, self._ledger_id, steps, self._log.last, status_now)
        document["remarks"] = list(remarks)
        self._folder.write_json(self._folder.summary, document)
        return document

    def _lost_transcript(self) -> Refused:
        return Refused(
            f"the ledger closed this run, but {self._folder.transcript} is missing or has no end; put the untouched "
            "file back, nothing can be published any more"
        )
