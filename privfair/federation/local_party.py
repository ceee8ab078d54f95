"""The silo's half of a round: batches, contribution, gate, ledger, transcript. Nothing else touches its records.

A party is asked by step and answers a step once. All parties of one process share a claim, a gate, a transcript and a
batch record (`LocalParties`); a silo in its own process is the same with one party.

With user-level privacy there is one party, the aggregator: its units are users, its batch is the round's cohort, and
the contribution groups rows by `SiloTensors.unit_of_row`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

import torch
from torch import Tensor

from calibrate.errors import GateRefused
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import InTheClear, NoPrivacyPromised
from calibrate.sampling import Batch, Cyclic, Sampling
from privfair.algorithms.algorithm import Algorithm, Message, Received, SiloTensors
from privfair.batches.participation import (
    AskedParticipation,
    BatchHeader,
    BatchRecord,
    BatchWriter,
    DrawnParticipation,
    Participation,
    PartyBatches,
    ToldParticipation,
    group_of_units,
    word_source,
)
from privfair.batches.randomness import Indexes, SystemWords, WordSource
from privfair.contribution import BoundedContribution, Published
from privfair.federation.coordinator import (
    Greeting,
    Position,
    PublicFacts,
    PublicState,
    Receipt,
    RoundsSpent,
    RunObserver,
    StepRefused,
    digest_of_values,
    state_digest,
)
from privfair.gate import LOG, Gate
from privfair.ledger import DEFAULT_BLOCK, Claim
from privfair.transcript import ValueSpec

if TYPE_CHECKING:
    from privfair.run.rehearsal import RehearsalKey

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class PartySetup:
    """What the silos' side of a run is made from; it knows what was signed, and cannot spend it."""

    document: BudgetDocument
    algorithm: Algorithm[Any]
    silos: tuple[SiloTensors, ...]
    sampling: Sampling | None = None
    """How batches are drawn; None for full batches, and for an algorithm that draws its own."""
    seed: int = 0
    """Of batches and noise where no one is protected; else unused."""
    block: int = DEFAULT_BLOCK
    """Rounds to charge ahead."""
    facts: PublicFacts | None = None
    """What the parties may say about the data."""
    sensitive: tuple[str, ...] = ()
    """Parties that hold nothing but attributes, and are asked for the records that others drew."""
    updates: int | None = None
    """How many steps the run is to make; the last of them is kept in full, whatever the retention."""
    strict: bool = False
    """Whether the gate refuses what no correct clipping produces: for audits, and always where nothing is promised."""
    log: logging.Logger = LOG
    """Where the gate notes, for the silo alone, what it had to change."""
    key: RehearsalKey | None = None
    """An auditor's, whose words then take the place of the operating system's."""

    @property
    def sizes(self) -> dict[str, int]:
        """Units of each party as signed: exactly this number, or a lower bound where units can be added or removed."""
        return {silo.name: silo.size for silo in self.document.data.silos}

    @property
    def names(self) -> tuple[str, ...]:
        """The parties of this process: all silos of the manifest, or the one that a guard is for."""
        return tuple(silo.name for silo in self.silos)

    @property
    def units(self) -> dict[str, int]:
        """Units that each party really has, to draw batches from; never to be shown. Users may have no row."""
        signed = self.sizes
        return {s.name: s.units if s.unit_of_row is None else max(s.units, signed[s.name]) for s in self.silos}

    @property
    def values(self) -> tuple[ValueSpec, ...]:
        """What the transcript holds of each round."""
        return tuple(ValueSpec(name, tuple(shape)) for name, shape in self.algorithm.shapes().items())


@final
class StepGate:
    """The gate, asked by step: a step's round is opened when the first value of the step is to be published."""

    def __init__(
        self,
        gate: Gate,
        claim: Claim,
        document: BudgetDocument,
        first_round: int,
        on_round: Callable[[int, int], None],
        allow_round: Callable[[], None] = lambda: None,
        updates: int | None = None,
    ) -> None:
        self._gate = gate
        self._claim = claim
        self._first_round = first_round
        self._on_round = on_round
        self._allow_round = allow_round
        self._retention = document.retention
        self._updates = updates
        self._step: int | None = None
        self._receipt: str | None = None
        # Only a manifest that promises nothing may turn a noisy value into a plain one.
        self._plain = frozenset[str]()
        if isinstance(document.guarantee, NoPrivacyPromised):
            self._plain = frozenset(value.name for value in document.releases if isinstance(value, InTheClear))

    @property
    def first_round(self) -> int:
        """The first round that this session may use."""
        return self._first_round

    @property
    def at_end_of_block(self) -> bool:
        """Whether the next round must be charged first: the time for a checkpoint."""
        return self._gate.round is None or max(self._gate.round + 1, self._first_round) not in self._claim.held

    @property
    def exhausted(self) -> bool:
        """Whether no signed round is left that may be opened."""
        return (self.at_end_of_block and self._claim.remaining == 0) or self._first_round >= self._claim.rounds

    def open(self, step: int, given: tuple[PublicState, str] | None = None) -> int:
        """The round of this step; opened now, and charged durably before, unless it is open already.

        `given` is the state that the step is computed from, with its digest; a transcript that keeps digests notes it.
        """
        if self._step != step:
            if self.exhausted:
                raise RoundsSpent(
                    f"step {step} would need a round beyond the {self._claim.rounds} signed ones; the budget is spent: "
                    "stop here, or ask for a new budget"
                )
            self._allow_round()
            opened = self._gate.next_round(at_least=self._first_round)
            self._on_round(step, opened)
            if self._retention is not None and given is not None:
                last = step + 1 == self._updates or opened + 1 == self._claim.rounds
                kept = last or step % self._retention == 0
                self._gate.note_state(step, given[1], given[0] if kept else None)
            self._step = step
        assert self._gate.round is not None
        return self._gate.round

    def leave_out_before(self, round_number: int) -> None:
        """Open no round before this one any more; those left out are charged like any others."""
        self._first_round = max(self._first_round, round_number)

    def send(self, party: str, message: Message, sent: dict[str, Published]) -> None:
        """Publish what of the message is not in `sent` yet, and add it there value by value."""
        for contribution in message.noisy:
            if contribution.name not in sent:
                sent[contribution.name] = self._publish(party, contribution)
        for name, categories in (message.randomized or {}).items():
            if name not in sent and name in self._plain:
                sent[name] = self._gate.publish_in_the_clear(party, name, categories)
            elif name not in sent:
                sent[name] = self._gate.publish_randomized(party, name, categories)
        for name, values in (message.clear or {}).items():
            if name not in sent:
                sent[name] = self._gate.publish_in_the_clear(party, name, values)

    def _publish(self, party: str, contribution: BoundedContribution) -> Published:
        if contribution.name in self._plain:
            return self._gate.publish_in_the_clear(party, contribution.name, contribution.values)
        return self._gate.publish(party, contribution)

    def flush(self) -> None:
        """Make transcript and ledger records durable."""
        self._gate.flush()

    def forget(self, until: int) -> None:
        """Let go of what a retention need not keep, up to this round: a durable checkpoint has its effect."""
        self._gate.forget(until)

    def sync(self) -> None:
        """Make what was published so far survive a power cut."""
        self._gate.sync()

    def finish(self) -> str:
        """End transcript and claim, once; the transcript's digest."""
        if self._receipt is None:
            self._receipt = self._gate.finish()
        return self._receipt


@final
class StateReader(Generic[State]):
    """The state behind the arrays a coordinator sends, and their digest; all parties of a process share one."""

    def __init__(self, algorithm: Algorithm[State]) -> None:
        self._algorithm = algorithm
        self._last: tuple[PublicState, State, str] | None = None

    def read(self, arrays: PublicState) -> tuple[State, str]:
        if self._last is None or self._last[0] is not arrays:
            self._last = (arrays, self._algorithm.restore(arrays), state_digest(arrays))
        return self._last[1], self._last[2]


@dataclass(eq=False)
class _Answer(Generic[State]):
    """What a party published for one step, and for which question."""

    step: int
    sent: dict[str, Published]
    interrupted: bool = False
    """Whether `sent` began with values of an interrupted attempt."""
    state: State | None = None
    given: tuple[PublicState, str] | None = None
    """The state as it was sent, and its digest."""
    asked: str | None = None
    """Digest of the state it was first asked with."""
    contributed: frozenset[str] | None = None
    """Names of the first message, once it is out."""
    received: str | None = None
    """Digest of what it replied to."""
    replied: bool = False


@final
class LocalParty(Generic[State]):
    """One silo in this process.

    Guarantee: its records leave only as values that the gate published, at most one message (and one reply) per step:
    asked again with the same state it sends the same values, with another state it refuses, so that no engine that
    delivers twice can have noise drawn twice.
    """

    def __init__(
        self,
        silo: SiloTensors,
        algorithm: Algorithm[State],
        batches: PartyBatches,
        gate: StepGate,
        claim: Claim,
        states: StateReader[State],
        position: Position[State],
        observer: RunObserver,
        facts: PublicFacts | None = None,
    ) -> None:
        self._facts = facts
        self._silo = silo
        self._algorithm = algorithm
        self._batches = batches
        self._gate = gate
        self._claim = claim
        self._states = states
        self._observer = observer
        carried = dict(position.carried.get(silo.name, {}))
        self._answer: _Answer[State] = _Answer(position.step, carried, interrupted=bool(carried))

    @property
    def name(self) -> str:
        return self._silo.name

    def hello(self) -> Greeting:
        answer = self._answer
        done = answer.replied if self._algorithm.replies else answer.contributed is not None
        claim = self._claim
        return Greeting(self.name, claim.manifest, claim.ledger, claim.session, answer.step + int(done), self._facts)

    def contribute(self, step: int, state: PublicState) -> Mapping[str, Published]:
        """See `Party.contribute`."""
        restored, digest = self._states.read(state)
        answer = self._answer_for(step, digest)
        answer.given = (state, digest)
        if answer.contributed is None:

            def message_on(batch: Tensor) -> Message:
                # Bound when a round is open for it: where none may be opened, the step before is still answered.
                answer.state, answer.asked, self._answer = restored, digest, answer
                return self._algorithm.contribution(restored, step, self._silo, batch)

            answer.contributed = self._publish(answer, message_on)
        return {name: value for name, value in answer.sent.items() if name in answer.contributed}

    def reply(self, step: int, received: Received) -> Mapping[str, Published]:
        """See `Party.reply`."""
        answer = self._answer
        if answer.step != step or answer.contributed is None or answer.state is None:
            raise StepRefused(f"step {step} of {self.name!r} was not begun; ask for its contribution first")
        state, digest = answer.state, digest_of_values(received)
        if answer.received not in (None, digest):
            raise StepRefused(f"step {step} of {self.name!r} replied to other values; a step is answered once")
        if not answer.replied:
            answer.received = digest
            self._publish(answer, lambda batch: self._algorithm.reply(state, step, self._silo, batch, received))
            answer.replied = True
        return dict(answer.sent)

    def finish(self) -> Receipt:
        """See `Party.finish`; the first party that is asked ends the claim they share."""
        return Receipt(self.name, self._claim.manifest, self._claim.ledger, self._gate.finish())

    def _answer_for(self, step: int, digest: str) -> _Answer[State]:
        answer: _Answer[State] = _Answer(step, {}) if step > self._answer.step else self._answer
        if step < answer.step or answer.asked not in (None, digest):
            raise StepRefused(
                f"step {step} of {self.name!r} was answered already, for another state or a step before; go on with "
                f"step {answer.step + 1}, or take the published values from the transcript"
            )
        return answer

    def _publish(self, answer: _Answer[State], message_on: Callable[[Tensor], Message]) -> frozenset[str]:
        """Publish what the step still owes, in its round; a message that went out before an interruption opens none.

        Which names a message has does not depend on records (`Algorithm.contribution`), so a few units tell them; they
        are returned.
        """
        if answer.interrupted:
            names = frozenset(message_on(self._few_units()).values)
            if names <= answer.sent.keys():
                return names
        batch = torch.from_numpy(self._batches.batch(self._gate.open(answer.step, answer.given)))
        message = message_on(batch)
        self._observer.on_message(answer.step, answer.state, self.name, batch, message)
        self._gate.send(self.name, message, answer.sent)
        self._observer.on_published(answer.step, self.name, answer.sent)
        return frozenset(message.values)

    def _few_units(self) -> Tensor:
        return torch.arange(min(2, self._silo.units))


@dataclass(frozen=True, eq=False)
class LocalParties:
    """All parties of this process behind one gate, under one claim."""

    parties: tuple[LocalParty[Any], ...]
    gate: StepGate
    record: BatchWriter | None
    states: StateReader[Any]
    batches: Mapping[str, PartyBatches]

    @classmethod
    def behind(
        cls,
        gate: Gate,
        setup: PartySetup,
        claim: Claim,
        batches: Path | None = None,
        position: Position[Any] | None = None,
        on_round: Callable[[int, int], None] = lambda step, round_number: None,
        observer: RunObserver | None = None,
        allow_round: Callable[[], None] = lambda: None,
    ) -> LocalParties:
        """The parties behind an open gate, with their batches (recorded where they count as known and a path is given).

        `position` is where the run stands, with what an interrupted step already published; `on_round` is
        called with a step and the round that was opened for it, before anything is published in it; `allow_round` is
        called before any round is opened, and raises where none may be.
        """
        drawn, record = _open_batches(setup, claim, batches)
        first = first_usable_round(claim, gate, drawn, setup.sensitive)
        step_gate = StepGate(gate, claim, setup.document, first, on_round, allow_round, setup.updates)
        states = StateReader(setup.algorithm)
        here = Position(setup.algorithm.start()) if position is None else position
        watching = RunObserver() if observer is None else observer
        party = partial(LocalParty, gate=step_gate, claim=claim, states=states, position=here, observer=watching)
        parties = tuple(party(silo, setup.algorithm, drawn[silo.name], facts=setup.facts) for silo in setup.silos)
        return cls(parties, step_gate, record, states, drawn)

    def contribute(self, step: int, state: PublicState) -> Received:
        return {party.name: party.contribute(step, state) for party in self.parties}

    def reply(self, step: int, received: Received) -> Received:
        return {party.name: party.reply(step, received) for party in self.parties}

    def finish(self) -> tuple[Receipt, ...]:
        return tuple(party.finish() for party in self.parties)


def open_batches(
    manifest: str,
    sampling: Sampling | None,
    units: Mapping[str, int],
    sources: Mapping[str, WordSource],
    path: Path | None,
    parties: tuple[str, ...],
    groups: Mapping[str, Indexes] = MappingProxyType({}),
) -> tuple[dict[str, Participation], BatchWriter | None]:
    """The batches of parties with so many units each, and the record of them, where they count as known.

    `manifest` is its digest, `parties` are all that the record may name; a record that exists at `path` is continued.
    `groups` says for cyclic batches which group each unit belongs to.
    """
    recorded, writer = None, None
    if path is not None and sampling is not None and sampling.batch is Batch.REVEALED:
        header = BatchHeader(manifest, parties, sampling, next(iter(sources.values())).label)
        recorded = BatchRecord.read(path) if path.exists() else None
        writer = BatchWriter.resume(path, header) if recorded else BatchWriter.create(path, header)
    drawn = {
        name: Participation(name, size, sampling, sources[name], writer, recorded, groups.get(name))
        for name, size in units.items()
    }
    return drawn, writer


def _open_batches(
    setup: PartySetup, claim: Claim, path: Path | None
) -> tuple[dict[str, PartyBatches], BatchWriter | None]:
    """Each party's batches, and the record they are written to."""
    sources = {name: word_source(setup.document, setup.seed, name, claim.session) for name in setup.names}
    if setup.key is not None:
        sources = {name: rehearsed(setup.key, one, name, claim.session) for name, one in sources.items()}
    if setup.algorithm.draws:
        return {s.name: DrawnParticipation(s, setup.algorithm, sources[s.name]) for s in setup.silos}, None
    units = {name: size for name, size in setup.units.items() if name not in setup.sensitive}
    sampling, groups = setup.sampling, dict[str, Indexes]()
    if isinstance(sampling, Cyclic):
        groups = {silo.name: group_of_units(silo, sampling.groups) for silo in setup.silos}
    holders, writer = open_batches(claim.manifest, sampling, units, sources, path, setup.names, groups)
    numbers = {s.name: s.record_numbers.numpy() for s in setup.silos if s.record_numbers is not None}
    held = [(holders[name], numbers[name]) for name in holders] if setup.sensitive else []
    asked: dict[str, PartyBatches] = {
        name: AskedParticipation(name, numbers[name], held, writer) if held else _alone(setup, name, sources, writer)
        for name in setup.sensitive
    }
    return {**holders, **asked}, writer


def rehearsed(key: RehearsalKey, source: WordSource, party: str, session: int) -> WordSource:
    """The auditor's words where the operating system's would be used; any other source stays, so that it shows."""
    system = source.label == SystemWords.label
    return SystemWords(key.source(f"batches of {party}, session {session}")) if system else source


def _alone(setup: PartySetup, name: str, sources: Mapping[str, WordSource], writer: BatchWriter | None) -> PartyBatches:
    """The batches of a registry whose holders are elsewhere: all of its records, or those it is told."""
    if setup.sampling is None:
        return Participation(name, setup.units[name], None, sources[name])
    return ToldParticipation(name, writer)


def first_usable_round(
    claim: Claim, gate: Gate, drawn: Mapping[str, PartyBatches], sensitive: tuple[str, ...] = ()
) -> int:
    """Where this session begins, for all parties: rounds whose batches an interruption made unusable are left out."""
    usable = max(claim.held.start, gate.first_round)
    for name, batches in drawn.items():
        if isinstance(batches, Participation):
            # What a sensitive silo published was computed on the records that holders drew.
            own = {release.round for release in gate.earlier if release.party in (name, *sensitive)}
            usable = max(usable, batches.first_usable(claim.held.start, own))
    return usable


def require_shapes(shapes: Mapping[str, tuple[int, ...]], document: BudgetDocument, who: str, remedy: str) -> None:
    """Refuse, before anything is claimed, values that the manifest does not declare or declares with another shape."""
    declared = {release.name: release for release in document.releases}
    for name, shape in shapes.items():
        if name not in declared:
            raise GateRefused(
                f"{who} publishes {name!r}, which the manifest does not declare (it allows "
                f"{', '.join(declared)}); {remedy}"
            )
        signed = declared[name].shape
        if signed is not None and signed != shape:
            raise GateRefused(f"{who} publishes {name!r} with shape {shape}, the manifest signed {signed}; {remedy}")


def require_declared(algorithm: Algorithm[State], document: BudgetDocument) -> None:
    """Refuse, before anything is claimed, an algorithm that sends what the manifest does not declare."""
    require_shapes(
        {name: tuple(shape) for name, shape in algorithm.shapes().items()},
        document,
        "the algorithm",
        "have the budget issued from this very plan file",
    )
    declared = {release.name: release for release in document.releases}
    for value in algorithm.clear_values():
        if not isinstance(declared.get(value.name), InTheClear):
            raise GateRefused(
                f"the algorithm sends {value.name!r} in the clear, the manifest does not; have it signed so, or "
                "run the algorithm that was signed"
            )
