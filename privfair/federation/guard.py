"""The guard of one silo: its data, ledger, noise, batches and transcript in its own process.

The other end of its socket gets what a `Party` tells and nothing else. What a guard refuses crosses as a
class name and a code; the sentence stays in its own log.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, final

import numpy as np

from calibrate.errors import (
    GateRefused,
    InvalidInput,
    LedgerRefused,
    ManifestRefused,
    PrivfairError,
    Refused,
    TrustRefused,
)
from calibrate.manifest.keys import SigningKey, sign
from calibrate.manifest.strict_json import canonical
from privfair.algorithms.algorithm import Received
from privfair.batches.participation import BatchRecord, ToldParticipation
from privfair.contribution import Published
from privfair.data.training_data import site_files
from privfair.durable import replace_file
from privfair.federation.coordinator import (
    Greeting,
    Position,
    PublicState,
    Receipt,
    RoundsSpent,
    StepRefused,
    digest_of_values,
    state_digest,
)
from privfair.federation.countersign import SocketWitness
from privfair.federation.local_party import LocalParties, StateReader
from privfair.federation.policy import ANYTHING, Policy, PolicyRefused
from privfair.federation.registries import (
    HOW_TO_MAKE,
    NO_BATCHES,
    AskedRecords,
    Batches,
    BatchRefused,
    SitesKey,
    digest_of_batches,
    most_participations,
)
from privfair.federation.signed_frames import GuardSeal
from privfair.federation.sockets import SocketServer
from privfair.federation.step_log import StepLog, values_of_step
from privfair.federation.wire import (
    MOST_BYTES,
    MOST_STEPS,
    Code,
    MessageKind,
    WireMessage,
    WireRefused,
    decode,
    greeting_message,
    published,
    published_steps,
    read_batches,
    read_values,
    receipt_message,
    refusal,
)
from privfair.ledger import Ledger
from privfair.ledger.journal import note_event
from privfair.run.folder import RunFolder
from privfair.run.open_run import OpenRun, TrustInForce
from privfair.run.prepare import PreparedRun
from privfair.transcript import Transcript

RECEIPT_TYPE = "application/vnd.privfair.receipt+json"
"""What a silo's key signs when its part of a run has ended."""


class StateRefused(Refused):
    """The state is not one of this algorithm: other names, other shapes, numbers that are none or far too large."""


_TELLS_NOTHING = (RoundsSpent, StepRefused, PolicyRefused, LedgerRefused, TrustRefused, ManifestRefused, GateRefused)
"""What no record decides; every other failure of a contribution is a fault, and may depend on records."""
LARGEST_NUMBER = 1e9
"""In a state, and in values to reply to.

Training does not come near it, and whether a product with a larger one overflows would reveal records.
"""


class GuardHalted(Refused):
    """A contribution failed; nothing more is computed until the site's operator clears the halt."""


@final
class Guard:
    """One party behind a socket.

    Guarantee: its records leave only as values that the gate published under the signed manifest and this silo's own
    ledger. For each step at most one message (and one reply) is published, whatever is asked, how often and in which
    order, and however often the guard is killed: asked again it sends the same bytes, for another state it refuses.
    What is answered is on disk before it is sent. No refusal depends on a record's values. An error inside a
    contribution is a fault of the algorithm or of the machine and may depend on records: whatever its class, the
    answer is `GuardHalted`, and nothing more is computed, by this process or a successor, until an operator deletes
    the file `halted` in the guard's folder and starts the guard again.
    """

    def __init__(
        self,
        run: PreparedRun,
        folder: RunFolder,
        ledger: Ledger,
        log: logging.Logger,
        policy: Policy = ANYTHING,
        trust: TrustInForce | None = None,
        key: SigningKey | None = None,
        sites_key: SitesKey | None = None,
    ) -> None:
        (silo,) = run.silos
        self.party = silo.name
        self._run = run
        self._folder = folder
        self._ledger = ledger
        self._log = log
        self._policy = policy
        self._trust = trust
        self._key = key
        self._seal = GuardSeal(silo.name, trust, key)
        self.knows_caller = False
        """Whether the last question came from a coordinator of this run, as far as that can be told."""
        self._sites_key, self._registry = _join_sites(run, sites_key)
        self._tags = [] if self._sites_key is None else self._sites_key.tags(run.record_numbers)
        self._opened = -1
        """The last round that this process opened."""
        self._asked = ""
        self._first: tuple[int, tuple[str, ...]] = (-1, ())
        """The step that this process contributed to last, and the names of that message."""
        self._halt_file = folder.path / "halted"
        self._halted = self._halt_file.exists()
        if self._halted:
            log.warning("%s", self._halt())
        self._shapes = {name: values.shape for name, values in run.algorithm.checkpoint(run.algorithm.start()).items()}
        policy.require_manifest(run.manifest)
        self._spending = self._claimed(policy)
        self._steps = StepLog(folder.path / "steps.jsonl")
        self._past = Transcript.read(folder.transcript) if folder.transcript.exists() else None
        self._past_before = self._steps.last
        """Steps before this one are whole in `_past`."""
        self._session = 0 if self._spending.ended else self._spending.claim.session
        self._count_answered_steps()
        self._local = None if self._spending.ended else self._open()
        self._states = StateReader(run.algorithm) if self._local is None else self._local.states

    def _claimed(self, policy: Policy) -> OpenRun:
        """The claim of this folder, taken or taken up again.

        The folder is for this manifest alone; plan, manifest and code are kept in it for audits.
        """
        run, folder = self._run, self._folder
        if folder.manifest.exists() and folder.manifest.read_bytes() != run.envelope:
            raise Refused(
                f"{folder.path} belongs to another budget; name another --folder, or the budget it was begun with"
            )
        kept = {folder.plan.name: run.plan.file.content, folder.manifest.name: run.envelope}
        kept |= {**run.plan.own_code(), **site_files(run.plan.data)}

        def in_hours() -> None:
            now = datetime.now(UTC)
            policy.require_now(now, self._steps.rounds_on(now))

        found = OpenRun(run.manifest, self._ledger, folder, party=self.party, trust=self._trust, rules=(in_hours,))
        if not folder.claimed:
            return found.begin(kept)
        for name, content in kept.items():
            replace_file(folder.path / name, content)
        return found.resume()

    def _open(self) -> LocalParties:
        last = self._steps.steps.get(self._steps.last)
        carried = {} if last is None or self._past is None else values_of_step(self._past, self.party, last)
        start = self._run.algorithm.start()
        position: Position[Any] = Position(start, max(0, self._steps.last), None, {self.party: carried})

        def on_round(step: int, round_number: int) -> None:
            self._steps.begin(step, round_number, self._asked)
            self._opened = round_number

        return self._spending.parties(replace(self._run, log=self._log), position, on_round=on_round)

    @property
    def signs(self) -> bool:
        """Whether questions and answers are signed."""
        return self._seal.signs

    def close(self) -> None:
        """Let go of all files; what waits for the ledger is written to it."""
        if self._local is not None:
            self._local.gate.flush()
            self._local = None
        self._spending.close()
        self._steps.close()

    # The four questions, each of which may be asked any number of times.

    def hello(self) -> Greeting:
        facts = self._run.facts
        step = self._steps.last + 1
        if self._local is not None and self._steps.last >= 0:
            step = max(self._local.parties[0].hello().step, self._steps.last)
        manifest = self._run.manifest.digest
        return Greeting(self.party, manifest, self._ledger.identity, self._session, step, facts)

    def contribute(self, step: int, state: PublicState, batches: Batches = NO_BATCHES) -> Mapping[str, Published]:
        """See `Party.contribute`; `batches` are what holders sealed for a registry, and mean nothing to others."""
        registry, before = self._registry, self._steps.steps.get(step)
        digest = digest_of_batches(self._read_state(state), NO_BATCHES if registry is None else batches)
        if step > self._steps.last + 1:
            raise StepRefused(f"step {step} comes after step {self._steps.last + 1}, which was never asked for")
        if before is not None and before.state != digest and (step < self._steps.last or self._published(step)):
            raise StepRefused(f"step {step} was answered for another state; a step is answered once")
        if before is not None and (step < self._steps.last or self._local is None):
            sent = self._published(step)
            return {name: value for name, value in sent.items() if before.received is None or name in before.first}
        if self._local is None:
            raise StepRefused(f"step {step} is asked for after the end; nothing is published any more")
        self._require_going()
        self._asked, party = digest, self._local.parties[0]
        told, rows = self._local.batches[self.party], None if registry is None else registry.rows(step, batches)
        if isinstance(told, ToldParticipation) and rows is not None:
            told.tell(rows)
        values = self._compute(lambda: party.contribute(step, state))
        if registry is not None:
            registry.count(step, rows)
        self._first = (step, tuple(values))
        self._make_durable()
        return values

    def _sealed_batch(self, step: int, values: Mapping[str, Published]) -> str | None:
        """What a holder tells the registries about the batch of an answered step; None where there are none to tell."""
        if self._sites_key is None or self._registry is not None:
            return None
        number = max(value.round for value in values.values())
        if self._local is not None and number == self._opened:
            rows = self._local.batches[self.party].batch(number)
        else:
            rows = BatchRecord.read(self._folder.batches).batch(number, self.party)
        tags = [self._tags[row] for row in rows.tolist()]
        return self._sites_key.seal(self._run.manifest.digest, step, self.party, tags)

    def _count_answered_steps(self) -> None:
        """How often each record of a registry took part before this guard was started."""
        if self._registry is None or self._past is None:
            return
        past, record = self._past, BatchRecord.read(self._folder.batches) if self._folder.batches.exists() else None
        for step, answered in self._steps.steps.items():
            used = [n for n in answered.rounds for one in past.header.values if past.holds(n, self.party, one.name)]
            known = bool(used) and record is not None and record.holds_round(used[-1], self.party)
            if used:
                self._registry.count(step, record.batch(used[-1], self.party) if record is not None and known else None)

    def reply(self, step: int, received: Received) -> Mapping[str, Published]:
        """See `Party.reply`."""
        digest, before = digest_of_values(received), self._steps.steps.get(step)
        if before is None:
            raise StepRefused(f"step {step} was not begun; ask for its contribution first")
        if before.received not in (None, digest):
            raise StepRefused(f"step {step} replied to other values; a step is answered once")
        if step < self._steps.last or self._local is None:
            return self._published(step)
        _require_moderate({f"{n} of {who}": one.values for who, sent in received.items() for n, one in sent.items()})
        self._require_going()
        begun, names = self._first
        if begun != step:
            raise StepRefused(f"step {step} was begun before this guard was started; ask for its contribution again")
        party = self._local.parties[0]
        if before.received is None:
            self._steps.reply(step, digest, names)
        values = self._compute(lambda: party.reply(step, received))
        self._make_durable()
        return values

    def advance(self, step: int, state: PublicState, steps: int) -> list[tuple[str, Mapping[str, Published]]]:
        """A number of steps from this one on, each as if it were asked for alone: its state's digest, and its values.

        Only for the party of a run that has no other: then each next state follows from what this one published. What
        stops it after the first step ends the answer there, and is told when the next step is asked for; so does an
        answer that would grow too long.
        """
        if not 1 <= steps <= MOST_STEPS:
            raise WireRefused(Code.MALFORMED, f"a message asks for 1 to {MOST_STEPS} steps")
        if len(self._run.manifest.document.data.silos) != 1:
            raise StepRefused("several steps are answered at once only where this party is the only one")
        algorithm = self._run.algorithm
        found: list[tuple[str, Mapping[str, Published]]] = []
        size = 0
        for number in range(step, step + steps):
            try:
                values = self.contribute(number, state)
                if algorithm.replies:
                    values = self.reply(number, {self.party: values})
            except PrivfairError as refused:
                if not found:
                    raise
                self._log.warning("stopped before step %s: %s: %s", number, type(refused).__name__, refused)
                break
            found.append((state_digest(state), values))
            size += sum(value.values.nbytes for value in values.values())
            if size > MOST_BYTES // 2:
                break
            following = algorithm.update(algorithm.restore(state), {self.party: values})
            state = algorithm.checkpoint(following)
        return found

    def finish(self) -> Receipt:
        """See `Party.finish`; the receipt is signed if the silo has a key."""
        if self._local is not None:
            self._spending.finish()
            self._local.gate.forget(self._run.document.rounds)
            self._spending.close()
            self._local = None
            self._past, self._past_before = None, 0
            self._log.info("finished; the claim is closed")
        told = self._spending.receipts(party=self.party)
        document = told.as_json()
        envelope = None if self._key is None else sign(RECEIPT_TYPE, canonical(document), self._key).decode()
        receipt = Receipt(
            self.party, self._run.manifest.digest, self._ledger.identity, told.transcript or "", document, envelope
        )
        self._folder.write_json(self._folder.receipts, {**document, "signed": envelope})
        return receipt

    def answer(self, content: bytes) -> bytes:
        """The bytes that answer these bytes, whatever they are; nothing is raised."""
        self.knows_caller, bound = False, list[bytes | None]()

        def answered() -> bytes:
            message, binding = self._seal.open(content)
            bound.append(binding)
            return self._answer_message(message)

        answer = self._refusing(answered)
        return self._refusing(lambda: self._seal.close(bound[0], answer)) if bound else answer

    def _answer_message(self, content: bytes) -> bytes:
        message = decode(content)
        if message.fields.get("run") != self._run.manifest.digest:
            raise WireRefused(Code.OTHER_RUN, "it is for another run")
        self.knows_caller = True
        return self._answer(message)

    def _refusing(self, answer: Callable[[], bytes]) -> bytes:
        """An answer, or the refusal that stands for the error in its place."""
        try:
            return answer()
        except PrivfairError as refused:
            self._log.warning("refused: %s: %s", type(refused).__name__, refused)
            note_event("refused", logging.WARNING, kind=type(refused).__name__, party=self.party)
            return refusal(type(refused).__name__, _code(refused))
        except Exception:
            self._log.exception("a fault of privfair or of this machine")
            return refusal("GuardFault", Code.FAULT)

    def _answer(self, message: WireMessage) -> bytes:
        match message.kind:
            case MessageKind.HELLO:
                return greeting_message(self.hello())
            case MessageKind.CONTRIBUTE if "steps" in message.fields:
                self._forget_before(message.whole("step"))
                return published_steps(self.advance(message.whole("step"), message.arrays, message.whole("steps")))
            case MessageKind.CONTRIBUTE:
                step = message.whole("step")
                self._forget_before(step)
                values = self.contribute(step, message.arrays, read_batches(message))
                return published(values, self._sealed_batch(step, values))
            case MessageKind.REPLY:
                return published(self.reply(message.whole("step"), read_values(message)))
            case MessageKind.FINISH:
                return receipt_message(self.finish())
            case _:
                raise WireRefused(Code.MALFORMED, f"{message.kind.value} is an answer, not a question")

    def _forget_before(self, step: int) -> None:
        """Where digests are kept: a coordinator that asks for this step has a checkpoint of the last whole block."""
        block = self._run.plan.block(self._run.document.rounds)
        before = self._steps.steps.get(min(step, self._steps.last + 1) // block * block - 1)
        if before is not None and self._local is not None:
            self._local.gate.forget(before.rounds[-1])

    def _published(self, step: int) -> Mapping[str, Published]:
        """What was published for a step, from the transcript on disk."""
        if self._past is None or step >= self._past_before:
            self._past, self._past_before = Transcript.read(self._folder.transcript), self._steps.last
        return values_of_step(self._past, self.party, self._steps.steps[step])

    def _compute(self, message: Callable[[], Mapping[str, Published]]) -> Mapping[str, Published]:
        """What `message` publishes, or a durable halt if it fails in a way that may depend on records."""
        began = time.monotonic()
        try:
            return message()
        except _TELLS_NOTHING:
            raise
        except Exception as error:
            self._halted = True
            note_event("halted", logging.ERROR, party=self.party, manifest=self._run.manifest.digest)
            self._log.exception("a contribution failed: a fault of the algorithm, of privfair or of this machine")
            replace_file(self._halt_file, f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: see guard.log\n".encode())
            raise self._halt() from error
        finally:
            time.sleep(self._policy.seconds_left(time.monotonic() - began))

    def _require_going(self) -> None:
        if self._halted:
            raise self._halt()

    def _halt(self) -> GuardHalted:
        return GuardHalted(
            "a contribution failed, and nothing more is computed. Find the cause in this log, delete "
            f"{self._halt_file}, then start the guard again."
        )

    def _read_state(self, state: PublicState) -> str:
        """The digest of a state that can be used; whether it can depends on no record."""
        for name, shape in self._shapes.items():
            if name not in state or state[name].shape != shape:
                raise StateRefused(f"{name!r} of the state is missing, or of another shape than {shape}")
        _require_moderate(state)
        try:
            return self._states.read(state)[1]
        except Exception as error:
            raise StateRefused(f"the state can't be read ({type(error).__name__})") from error

    def _make_durable(self) -> None:
        """Before an answer leaves: what was published survives a power cut; for which question, the step log says."""
        if self._local is None:
            return
        if self._registry is not None and self._local.record is not None:
            self._local.record.sync()
        self._local.gate.sync()


def _join_sites(run: PreparedRun, key: SitesKey | None) -> tuple[SitesKey | None, AskedRecords | None]:
    """The key where batches are told at all, and what a registry counts with."""
    (silo,) = run.silos
    registries = run.facts.sensitive
    if not registries or run.sampling is None:
        return None, None
    most = most_participations(run.sampling, run.document.rounds)
    if key is None:
        rule = "is needed: holders tell registries which records take part, past the coordinator"
        raise InvalidInput("--sites-key", None, rule, HOW_TO_MAKE)
    holders = [one.name for one in run.document.data.silos if one.name not in registries]
    if silo.name not in registries:
        return key, None
    return key, AskedRecords(key, run.manifest.digest, holders, run.record_numbers, most)


def _require_moderate(arrays: PublicState) -> None:
    for name, values in arrays.items():
        if not (np.abs(values) <= LARGEST_NUMBER).all():
            raise StateRefused(f"{name!r} holds numbers beyond {LARGEST_NUMBER:g}, or NaN")


_CODES: Mapping[type[PrivfairError], Code] = {
    RoundsSpent: Code.SPENT,
    StepRefused: Code.STEP,
    StateRefused: Code.STATE,
    BatchRefused: Code.BATCH,
    PolicyRefused: Code.POLICY,
    GuardHalted: Code.HALTED,
}


def _code(refused: PrivfairError) -> Code:
    if isinstance(refused, WireRefused):
        return refused.code
    return next((code for kind, code in _CODES.items() if isinstance(refused, kind)), Code.REFUSED)


@dataclass(frozen=True)
class GuardOptions:
    """What a site decides in addition to manifest, data and ledger."""

    policy: Policy = ANYTHING
    trust: TrustInForce | None = None
    """The trust file in force, asked again at every block; None to trust the manifest as it was verified."""
    key: SigningKey | None = None
    """The silo's key, which signs its receipt, and its answers where the trust file lists it for a guard."""
    sites_key: SitesKey | None = None
    """What holders of records and registries share, and the coordinator lacks."""
    deadline: float = 60.0
    """Seconds for a frame to arrive, and for an answer to be read."""
    witness: Path | None = None
    """Socket of the witness that the budget names."""


def serve_guard(
    run: PreparedRun,
    folder: Path,
    ledger: str | Path,
    socket: Path,
    options: GuardOptions,
    ready: Callable[[], None],
    anchor: Path | None = None,
) -> None:
    """Answer at `socket` until SIGTERM or SIGINT; `ready` is called once questions are answered.

    `folder` holds transcript, batches, steps and log; `ledger` is the silo's own. Of several guards that are started in
    one folder the second is refused.
    """
    os.umask(0o077)  # log, transcript and steps are this user's alone, whatever the folder allows
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    own, log = RunFolder(folder), _open_log(folder / "guard.log")
    with own.locked(), Ledger.open(ledger, anchor) as book:
        book.witness = None if options.witness is None else SocketWitness(options.witness)
        guard = Guard(run, own, book, log, options.policy, options.trust, key=options.key, sites_key=options.sites_key)
        try:
            server = SocketServer(
                socket, guard.answer, log, options.deadline, known=lambda: guard.knows_caller, shared=guard.signs
            )
            if not guard.signs:
                log.warning("the trust file has no keys of coordinators and guards: the socket is for this user alone")
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: server.stop())
            log.info("the guard of %s answers at %s", guard.party, socket)
            ready()
            server.serve()
        finally:
            guard.close()
            log.info("stopped")


def _open_log(path: Path) -> logging.Logger:
    """The guard's own log; what it says of a refusal may quote a measured norm, so it stays in the silo's folder."""
    log = logging.getLogger(f"privfair.guard.{path}")
    log.setLevel(logging.INFO)
    log.propagate = False
    handler = RotatingFileHandler(path, maxBytes=10_000_000, backupCount=3, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    return log
