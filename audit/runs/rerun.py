"""The one harness that runs the production engine again for an audit: coins, rehearsals and canaries.

Nothing of the engine is copied: verified manifest, ledger claim, parties, gate, noise, transcript and `train_until` are
those that trained. Left out is what does not touch a published value: metrics, checkpoints, the saved model. Each rerun
claims a manifest of the auditor's own (same document, new nonce, the auditor's key) in a ledger of the auditor's own,
so that no one's budget is touched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from audit.runs.evidence import AuditorsManifest, RoundEvidence, RunEvidence, in_memory
from calibrate.arrays import Floats
from calibrate.manifest.document import BudgetDocument, DataBinding
from calibrate.manifest.mechanism import GaussianNoise, LaplaceNoise, NoiseSource, RandomizedCategory
from calibrate.manifest.verify import IntendedRun, verify
from privfair.algorithms.algorithm import Message, SiloTensors
from privfair.batches.participation import BatchRecord
from privfair.contribution import BoundedContribution, Published
from privfair.federation.coordinator import Position, RunObserver, train_until
from privfair.federation.local_party import LocalParties
from privfair.gate import Gate
from privfair.ledger import Ledger
from privfair.run.folder import RunFolder
from privfair.run.open_run import OpenRun
from privfair.run.prepare import PreparedRun, Run, Sites, prepare_run
from privfair.run.record import FIRST_SESSION, read_sessions
from privfair.run.rehearsal import RehearsalKey
from privfair.transcript import Transcript


@dataclass(eq=False)
class Sending:
    """What one silo did in one step: who took part, what it handed to the gate, and what came out."""

    step: int
    party: str
    batch: Tensor
    round: int = -1
    """The ledger's; known once someone published something in this step."""
    clean: dict[str, NDArray[Any]] = field(default_factory=dict)
    published: dict[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(eq=False)
class RunWatch(RunObserver):
    """Notes every state a step began with and every message, on both sides of the gate."""

    states: list[Any] = field(default_factory=list)
    sendings: dict[tuple[int, str], Sending] = field(default_factory=dict)

    def on_message(self, step: int, state: Any, party: str, batch: Any, message: Message) -> None:
        if step == len(self.states):
            self.states.append(state)
        sending = self.sendings.setdefault((step, party), Sending(step, party, batch.clone()))
        sending.clean |= {name: np.array(values) for name, values in message.values.items()}

    def on_published(self, step: int, party: str, values: Mapping[str, Published]) -> None:
        sending = self.sendings[step, party]
        sending.published |= {name: value.values for name, value in values.items()}
        sending.round = max((value.round for value in values.values()), default=sending.round)

    def numbered(self) -> tuple[Sending, ...]:
        """All that was noted; a silo that published nothing in a step took part in the round of those that did."""
        rounds = {one.step: one.round for one in self.sendings.values() if one.round >= 0}
        for one in self.sendings.values():
            one.round = rounds.get(one.step, one.round)
        return tuple(one for one in self.sendings.values() if one.round >= 0)

    def rows(self, party: str, name: str, size: int, *, noise: bool) -> Floats:
        """A party's value in every step, as published or (for a control) before the noise; zeros if it was not sent."""
        steps = [sending for sending in self.sendings.values() if sending.party == party]
        found = np.zeros((len(steps), size))
        for row, sending in zip(found, steps, strict=True):
            values = (sending.published if noise else sending.clean).get(name)
            row[:] = 0.0 if values is None else values.ravel()
        return found


@dataclass(frozen=True, eq=False)
class Publication:
    """One message in the order of publishing: what went into the gate, what came out, and what was paid by then."""

    session: int
    step: int
    party: str
    charged: int
    """Rounds that the ledger had charged when the message was computed."""
    batch: Tensor
    clean: dict[str, NDArray[Any]]
    published: dict[str, Published]


@dataclass(eq=False)
class RehearsalWatch(RunWatch):
    """Notes all messages in order, too, and asks the ledger before each what is charged."""

    charged: Callable[[], int] = lambda: 0
    session: int = 0
    publications: list[Publication] = field(default_factory=list)

    def begin(self, charged: Callable[[], int]) -> None:
        """Another session of the same run."""
        self.charged, self.session = charged, self.session + 1

    def on_message(self, step: int, state: Any, party: str, batch: Any, message: Message) -> None:
        super().on_message(step, state, party, batch, message)
        clean = {name: np.array(values) for name, values in message.values.items()}
        self.publications.append(Publication(self.session, step, party, self.charged(), batch.clone(), clean, {}))

    def on_published(self, step: int, party: str, values: Mapping[str, Published]) -> None:
        super().on_published(step, party, values)
        last = self.publications[-1]
        last.published.update({name: values[name] for name in last.clean if name in values})


@dataclass(frozen=True, eq=False)
class Rerun:
    """One rerun: what an observer was left with, the final position, and the rounds its ledger charged."""

    evidence: RunEvidence
    last: Position[Any]
    charged: int


def rerun(
    run: Run,
    auditor: AuditorsManifest,
    *,
    seed: int,
    sizes: Mapping[str, int] | None = None,
    updates: int | None = None,
    block: int | None = None,
    observer: RunObserver | None = None,
    visits: Sequence[RoundEvidence] | None = None,
    envelope: bytes | None = None,
    key: RehearsalKey | None = None,
    interrupted: int = 0,
) -> Rerun:
    """Train the run once more, in a folder that is thrown away.

    `seed` is that of batches and noise where no one is protected; `sizes` are the units of each silo if they are not
    those that were signed; `updates` and `block` default to the run's own. With `visits` nothing is trained: parties
    are asked in these rounds alone, with the states that are given for them. `envelope` is the auditor's manifest, by
    default a new one. With a `key` all noise and batches follow from it. After `interrupted` updates (0: never) the
    run is taken up by another session.
    """
    data = run.document.data if sizes is None else DataBinding.of(run.document.data.schema_digest, sizes.items())
    prepared = _under_auditor(run, auditor, run.document.model_copy(update={"data": data}), envelope)
    setup = replace(prepared, seed=seed, block=block or prepared.block, strict=True, key=key)
    last = Position(run.algorithm.start())
    with TemporaryDirectory(prefix="privfair-audit-", dir=in_memory()) as place, ExitStack() as sessions:
        spending = sessions.enter_context(OpenRun.apart(prepared.manifest, Path(place)))
        folder, local = spending.folder, _parties(spending, setup, last, observer)
        if visits is None:
            until = prepared.updates if updates is None else min(updates, prepared.updates)
            if 0 < interrupted < until:
                last = train_until(run.algorithm, local, last, interrupted)
                spending = sessions.enter_context(spending.interrupted())
                local = _parties(spending, setup, last, observer)
            last = train_until(run.algorithm, local, last, until)
        for one in visits or ():
            local.gate.leave_out_before(one.round)
            received = local.contribute(one.step, run.algorithm.checkpoint(one.state))
            if run.algorithm.replies:
                local.reply(one.step, received)
        charged = spending.claim.charged
        spending.finish()
        evidence = RunEvidence(
            **prepared.parts,
            folder=folder,
            plan_path=folder.plan,
            manifest_digest=prepared.manifest.digest,
            authentic=prepared.manifest.authentic,
            transcript=Transcript.read(folder.transcript),
            sessions=read_sessions(folder.sessions) if folder.sessions.exists() else (FIRST_SESSION,),
            batches=BatchRecord.read(folder.batches) if folder.batches.exists() else None,
        )
    return Rerun(evidence, last, charged)


def _parties(
    spending: OpenRun, setup: PreparedRun, position: Position[Any], observer: RunObserver | None
) -> LocalParties:
    """The silos of one session; a rehearsal's watch learns of it."""
    if isinstance(observer, RehearsalWatch):
        observer.begin(lambda: spending.ledger.manifest_status(spending.budget.digest).charged)
    return spending.parties(setup, position, observer)


def _under_auditor(
    run: Run, auditor: AuditorsManifest, document: BudgetDocument, envelope: bytes | None = None
) -> PreparedRun:
    """The run under the same promise once more, in the auditor's name."""
    envelope = envelope or auditor.envelope(document)
    intended = IntendedRun(document.config_digest, document.data, document.code_digests())
    return run.under(verify(envelope, auditor.trust, intended), envelope)


# The gate alone, without any training: one message again and again.

_FEWEST_SESSIONS, _MOST_SESSIONS, _THROUGH_THE_GATE = 2, 8, 500
_SHORT = 16
"""Numbers of a message that is drawn without a round."""


@dataclass(eq=False)
class GateNoise:
    """The noise that the gate put on known messages of one value."""

    published: list[Floats] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    """Of each published message, and whose it was:"""
    silos: list[int] = field(default_factory=list)
    alone: list[Floats] = field(default_factory=list)
    """Short ones that were drawn from the gate's source without a round, silos in turn."""


Answers = tuple[Floats, Floats]
"""Categories as they were answered, and as they are."""


def publish_repeatedly(run: Run, auditor: AuditorsManifest, messages: int, most_values: int) -> dict[str, GateNoise]:
    """The noise that the production gate puts on known messages, by the name of each noisy value.

    Zeros and far larger numbers take turns, so that a gate that changes what it is given shows; where sums of rounds
    are mixed, the messages are impulses. What is to become of the message is subtracted. In the middle of each claim
    the gate is closed and opened again, as after an interruption (not where sums are mixed, which a gap would end).

    Some hundreds pass the whole gate, in rounds from the first to the last signed one; the rest of `messages` is drawn
    from the gate's own source of noise, short and without a round, because that takes a third of the time.
    """
    shapes = {name: tuple(shape) for name, shape in run.algorithm.shapes().items()}
    noisy = [one for one in run.document.releases if isinstance(one, GaussianNoise | LaplaceNoise)]
    numbers = sum(int(np.prod(shapes[one.name])) for one in noisy if one.name in shapes)
    found = {one.name: GateNoise() for one in noisy if one.name in shapes}
    if not found or not messages:
        return found
    # Rounded up: every value gets its share of the messages.
    each = -(-messages // len(found))
    wanted = min(each, _THROUGH_THE_GATE, max(1, most_values // max(1, numbers)))
    in_one_claim = len(run.document.data.silos) * min(one.publications for one in noisy if one.name in found)
    sessions = min(_MOST_SESSIONS, max(_FEWEST_SESSIONS, -(-wanted // in_one_claim)))
    with (
        TemporaryDirectory(prefix="privfair-audit-", dir=in_memory()) as place,
        Ledger.create(Path(place) / "ledger.db") as ledger,
    ):
        for session in range(sessions):
            left = -(-(wanted - min(len(one.published) for one in found.values())) // (sessions - session))
            apart = each if session == sessions - 1 else 0
            folder = RunFolder(Path(place) / f"session-{session}")
            _publish_one_session(run, auditor, ledger, folder, found, left, apart)
    return found


def _publish_one_session(
    run: Run,
    auditor: AuditorsManifest,
    ledger: Ledger,
    folder: RunFolder,
    found: dict[str, GateNoise],
    left: int,
    apart: int,
) -> None:
    """Every silo publishes in rounds of one claim until `left` are there; the rest of `apart` has no round."""
    document = run.document
    open_again = _claim_gate(run, auditor, ledger, folder)
    gate = open_again()
    research = document.noise_source is NoiseSource.SEEDED_RESEARCH_ONLY
    declared = {one.name: one for one in document.releases if isinstance(one, GaussianNoise | LaplaceNoise)}
    often = {one.name: one.publications for one in document.releases}
    shapes = run.algorithm.shapes()
    silos = [silo.name for silo in document.data.silos]
    rounds = min(document.rounds, -(-left // len(silos)))
    try:
        numbers = np.linspace(0, document.rounds - 1, rounds).astype(int)
        mixing = any(isinstance(one, GaussianNoise) and one.bands > 1 for one in declared.values())
        if mixing:
            numbers = np.arange(rounds)  # rounds are mixed with those just before them
        for place, number in enumerate(numbers.tolist()):
            if place == (rounds + 1) // 2 and not (mixing or research):
                gate.flush()
                gate.close()
                gate = open_again()
            gate.next_round(at_least=number)
            for whose, silo in enumerate(silos):
                for name in (name for name in found if place < often[name]):
                    one = found[name]
                    large = len(one.published) // len(silos) % 2 == 1
                    message, meant = _known_message(declared[name], shapes[name], place, large)
                    nothing = BoundedContribution(name, message, declared[name].sensitivity, 0.0)
                    one.published.append((gate.publish(silo, nothing).values - meant).ravel())
                    one.rounds.append(number)
                    one.silos.append(whose)
        for name, one in found.items():
            nothing = BoundedContribution(name, np.zeros(_SHORT), declared[name].sensitivity, 0.0)
            more = apart - len(one.published)
            one.alone += (gate.noise_alone(silos[n % len(silos)], nothing) for n in range(more))
        gate.finish()
    finally:
        gate.close()


def _claim_gate(run: Run, auditor: AuditorsManifest, ledger: Ledger, folder: RunFolder) -> Callable[[], Gate]:
    """Claim a manifest of the auditor's own; what is returned opens its gate, the first time or once more."""
    document, prepared = run.document, _under_auditor(run, auditor, run.document)
    folder.path.mkdir()
    spending = OpenRun(prepared.manifest, ledger, folder).begin()
    seed = int(folder.path.name.rpartition("-")[2])
    return lambda: spending.open_gate(prepared.values, seed=seed, block=document.rounds)


def answer_repeatedly(run: Run, auditor: AuditorsManifest, number: int) -> dict[str, list[Answers]]:
    """This many randomised responses of each silo to known categories, by the name of the value."""
    names = [one.name for one in run.document.releases if isinstance(one, RandomizedCategory)]
    if not names or not number:
        return {}
    with (
        TemporaryDirectory(prefix="privfair-audit-", dir=in_memory()) as place,
        Ledger.create(Path(place) / "ledger.db") as ledger,
    ):
        gate = _claim_gate(run, auditor, ledger, RunFolder(Path(place) / "session-0"))()
        try:
            silos = [silo.name for silo in run.document.data.silos]
            return {name: [gate.answers_alone(silo, name, number) for silo in silos] for name in names}
        finally:
            gate.close()


_IMPULSE = 2.0**16
"""In units of sigma: so large that a coefficient which is off by a ten-thousandth shows."""


def _known_message(
    declared: GaussianNoise | LaplaceNoise, shape: tuple[int, ...], place: int, large: bool
) -> tuple[Floats, Floats]:
    """What the gate is given and is to add noise to: zeros, large numbers among zeros, an impulse to be spread."""
    message, meant = np.zeros(shape), np.zeros(shape)
    far = _IMPULSE * (declared.sigma if isinstance(declared, GaussianNoise) else declared.scale)
    if isinstance(declared, GaussianNoise) and declared.strategy is not None and message.size:
        message.flat[0] = far if place % declared.bands == 0 else 0.0
        meant.flat[0] = far * declared.strategy[place % declared.bands]
    elif large:
        message.flat[::3], message.flat[1::3] = far, -far
        meant = message
    return message, meant


# Coins: the same plan with every record's attribute drawn afresh.

Coins = dict[str, NDArray[np.int64]]
"""By silo: the side of each record's coin, 0 or 1, which stands for its attribute."""


@dataclass(frozen=True, eq=False)
class CoinRun:
    """One rerun: the coins that were thrown, and what an observer was left with."""

    coins: Coins
    evidence: RunEvidence


def coin_runs(run: Run, number: int, seed: int, progress: Callable[[int], None] | None = None) -> Iterator[CoinRun]:
    """Train `number` times, each time with fresh fair coins for every record's attribute, where attributes are held.

    Two coin vectors that differ in one coin are neighbours under replacement of one attribute, so the one-run
    theorems apply to the coins as they stand (docs/theorems/audit-bounds.md).
    """
    random, auditor = np.random.default_rng(seed), AuditorsManifest()
    holding = [silo for silo in run.silos if not run.sensitive or silo.name in run.sensitive]
    for finished in range(1, number + 1):
        noise_seed = int(random.integers(2**31))
        coins = {silo.name: random.integers(0, 2, len(silo)) for silo in holding}
        silos = tuple(with_coins(s, coins[s.name]) if s.name in coins else s for s in run.silos)
        yield CoinRun(coins, rerun(replace(run, silos=silos), auditor, seed=noise_seed).evidence)
        if progress is not None:
            progress(finished)


def with_coins(silo: SiloTensors, coins: NDArray[np.int64]) -> SiloTensors:
    """The silo with the coins in the place of its attribute: groups 0 and 1."""
    return replace(silo, s=torch.from_numpy(coins.astype(np.int64)))


# A short run of the production engine on the run's own data, watched from inside, with randomness that is known.

DEFAULT_ROUNDS, SPREAD_ROUNDS = 32, 16
MESSAGES, _MOST_VALUES = 10_000, 200_000
"""Of the gate alone: enough for seeds of 16 bits to come back for certain, and for 22 bits most of the time."""
ANSWERS = 10_000
"""Randomised responses of each silo to known categories."""
_BLOCK = 8


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """All that was seen; `made` is the rehearsal itself, whose ledger and transcript say what was charged and sent."""

    run: Run
    wanted: int
    """Updates that were asked for."""
    made: Rerun
    block: int
    secrets: tuple[bytes, bytes]
    """Of the keys of the rehearsal and of its later rounds."""
    states: tuple[Any, ...]
    """The state before each step."""
    sendings: tuple[Sending, ...]
    publications: tuple[Publication, ...]
    later: tuple[Publication, ...]
    """In rounds spread over the rest of the audited run, with its own states and round numbers."""
    gate_alone: dict[str, GateNoise]
    """By value: the noise that the gate put on known messages."""
    answers_alone: dict[str, list[Answers]]
    """By value, for each silo: randomised responses to known categories."""

    @property
    def document(self) -> BudgetDocument:
        return self.run.document

    def of(self, party: str) -> tuple[Sending, ...]:
        """What one party sent in the rounds that were rehearsed one after the other."""
        return tuple(one for one in self.sendings if one.party == party)


def rehearse(
    plan: Path,
    document: BudgetDocument,
    rounds: int = DEFAULT_ROUNDS,
    sites: Sites | None = None,
    audited: RunEvidence | None = None,
) -> Rehearsal:
    """Train `rounds` rounds of the plan (or as many as it has) with a known key, and keep what was seen.

    For an `audited` run the rehearsal is interrupted once and taken up again, and the gate alone is asked too, with the
    operating system's entropy; where the run is longer, some of its later rounds are rehearsed, from its own states.
    """
    auditor, watch, later = AuditorsManifest(), RehearsalWatch(), RehearsalWatch()
    envelope = auditor.envelope(document)
    run = prepare_run(plan, envelope, auditor.trust, sites)
    block = max(1, min(_BLOCK, min(rounds, run.updates) // 2))
    secrets = (hashlib.sha256(envelope).digest(), hashlib.sha256(envelope + b"later").digest())
    made = rerun(
        *(run, auditor),
        seed=run.plan.training.seed,
        updates=rounds,
        block=block,
        observer=watch,
        envelope=envelope,
        key=RehearsalKey(secrets[0]),
        interrupted=0 if audited is None else min(rounds, run.updates) // 2 // block * block,
    )
    visits = () if audited is None else _later_rounds(audited, rounds)
    if visits:
        seed, other = run.plan.training.seed + 1, RehearsalKey(secrets[1])
        rerun(run, auditor, seed=seed, block=_BLOCK, observer=later, visits=visits, key=other)
    return Rehearsal(
        run=run,
        wanted=min(rounds, run.updates),
        made=made,
        block=block,
        secrets=secrets,
        states=tuple(watch.states),
        sendings=watch.numbered(),
        publications=tuple(watch.publications),
        later=tuple(later.publications),
        gate_alone={} if audited is None else publish_repeatedly(run, auditor, MESSAGES, _MOST_VALUES),
        answers_alone={} if audited is None else answer_repeatedly(run, auditor, ANSWERS),
    )


def _later_rounds(audited: RunEvidence, rehearsed: int) -> tuple[RoundEvidence, ...]:
    """Rounds after the first `rehearsed` ones, evenly spread up to the last.

    Not where rounds are mixed with those before them: a round alone is not a round of such a run.
    """
    if any(isinstance(one, GaussianNoise) and one.bands > 1 for one in audited.document.releases):
        return ()
    steps = [step for step in audited.seen if step >= rehearsed]
    number = min(len(steps), SPREAD_ROUNDS, rehearsed)
    if number == 0:
        return ()
    chosen = {steps[place] for place in np.linspace(0, len(steps) - 1, number).astype(int).tolist()}
    return tuple(one for one in audited.rounds() if one.step in chosen)
