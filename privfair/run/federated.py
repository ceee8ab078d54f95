"""A run over guards, from the coordinator's side: it holds the state and the model, and neither a record nor a ledger.

The state follows from what the guards published, and guards send the same bytes again; so a coordinator that was killed
continues from its last checkpoint, or from the very beginning, without a single new round.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from calibrate.errors import count
from calibrate.manifest.keys import SigningKey
from privfair.durable import replace_file
from privfair.federation.coordinator import Position, Receipt, RunObserver, train_until
from privfair.federation.remote import RemoteParties, agreed_facts
from privfair.federation.signed_frames import CoordinatorSeal, sealed
from privfair.federation.wire import Transport
from privfair.run.folder import RunFolder, load_checkpoint, save_checkpoint, save_model
from privfair.run.public import Measure, Measuring, Progress, PublicRun, promise_of
from privfair.run.record import RunRecord, Status


@final
class FederatedRun(RunObserver):
    """One process's part of a run over guards, in its own folder, where it keeps checkpoints and a record."""

    def __init__(
        self,
        signed: PublicRun,
        folder: RunFolder,
        transport: Transport,
        engine: str = "guards",
        measure: Measure | None = None,
        progress: Callable[[Progress], None] | None = None,
        steps_per_message: int = 1,
        key: SigningKey | None = None,
    ) -> None:
        transport = sealed(transport, CoordinatorSeal(signed.trust, key))
        self._signed = signed
        self._folder = folder
        self._engine = engine
        parties = tuple(silo.name for silo in signed.document.data.silos)
        self._updates = signed.plan.updates(signed.document.rounds)
        self._parties = RemoteParties(
            signed.manifest.digest, parties, transport, count("--steps-per-message", steps_per_message), self._updates
        )
        greetings = self._parties.hello()
        self._facts = agreed_facts(greetings, signed.document)
        built = self._model, self._algorithm = signed.build(self._facts)
        shapes = {name: tuple(shape) for name, shape in self._algorithm.shapes().items()}
        self._parties.expect(shapes, self._facts.sensitive)
        self._block = signed.plan.block(signed.document.rounds)
        self._measuring = Measuring(signed.plan, signed.document, built, measure, progress, _rounds_so_far)
        schemes = [declaration.scheme for declaration in signed.document.sampling]
        ledgers = {name: greeting.ledger for name, greeting in greetings.items()}
        where = {"engine": engine, "ledgers": ledgers, "transcripts": {}}
        scheme = schemes[0] if len(schemes) == 1 else None
        self._record = RunRecord.begun(signed.manifest, self._updates, scheme, **where)

    def train(self) -> RunRecord:
        """Begin, or continue where this folder's run stopped; the document of run.json."""
        folder = self._folder
        self._require_same_run()
        for name, content in {
            folder.plan.name: self._signed.plan.file.content,
            **self._signed.plan.file.beside,
        }.items():
            replace_file(folder.path / name, content)
        replace_file(folder.manifest, self._signed.envelope)
        folder.write_json(folder.encoding, dict(self._facts.encoding))
        found = load_checkpoint(folder.checkpoint, self._signed.manifest.digest, self._algorithm)
        position: Position[Any] = Position(self._algorithm.start()) if found is None else found
        self._note(Status.BEGUN, position.step)
        observers = (self._measuring, self)
        reached = train_until(self._algorithm, self._parties, position, self._updates, observers)
        for name, code in self._signed.plan.own_code().items():
            replace_file(folder.path / name, code)
        theta = self._algorithm.theta(reached.state)
        save_model(folder, self._model, theta, dict(self._facts.encoding), promise_of(self._signed.document).text)
        self._measuring.measure(reached, last=True)
        receipts = self._parties.finish()
        listed = {receipt.party: {**receipt.statement, "signed": receipt.signed} for receipt in receipts}
        folder.write_json(folder.receipts, {"engine": self._engine, "parties": listed})
        transcripts = {receipt.party: receipt.transcript for receipt in receipts}
        charged = max(map(_charged, receipts), default=0)
        return self._note(Status.FINISHED, reached.step, charged, transcripts=transcripts, digests=folder.digests())

    def on_step(self, position: Position[Any]) -> None:
        if position.step % self._block == 0:
            self._checkpoint(position)

    def on_end(self, position: Position[Any], stopped: BaseException | None) -> None:
        self._checkpoint(position)
        if stopped is not None:
            self._note(Status.INTERRUPTED, position.step)

    def _checkpoint(self, position: Position[Any]) -> None:
        save_checkpoint(self._folder.checkpoint, self._signed.manifest.digest, self._algorithm, position)

    def _note(self, status: Status, steps: int, charged: int = 0, **more: object) -> RunRecord:
        rounds = {"steps": steps, "charged": charged}
        return self._record.reached(status, rounds, metrics=self._measuring.metrics, **more).write(self._folder)

    def _require_same_run(self) -> None:
        """Continue a folder that was begun under its own manifest only."""
        if self._folder.summary.exists():
            self._record.require_same_run(self._folder)


def train_over(
    transport: Transport,
    signed: PublicRun,
    out: Path,
    *,
    resume: bool = False,
    engine: str = "guards",
    measure: Measure | None = None,
    progress: Callable[[Progress], None] | None = None,
    steps_per_message: int = 1,
    key: SigningKey | None = None,
) -> RunRecord:
    """Train a signed plan with the parties behind a transport, and leave the coordinator's run folder in `out`.

    `steps_per_message` asks a run's only party for several steps at once, for engines that are slow per message; the
    values are the same. With several parties it is refused. `key` signs questions, where the trust file lists keys of
    coordinators and guards.

    Guarantee: none, and none is needed: every party publishes under its own gate and ledger, and `out` holds
    what follows from that.
    """
    folder = RunFolder.create(out, resume=resume)
    with folder.locked():
        return FederatedRun(
            signed, folder, transport, engine, measure, progress, steps_per_message=steps_per_message, key=key
        ).train()


def _rounds_so_far(position: Position[Any]) -> int:
    return 0 if position.round is None else position.round + 1


def _charged(receipt: Receipt) -> int:
    rounds = receipt.statement.get("rounds")
    found = rounds.get("charged") if isinstance(rounds, dict) else None
    return found if isinstance(found, int) else 0
