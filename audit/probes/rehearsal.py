"""A short run of the production engine on the run's own data, watched from inside: batches, clean and published values.

It goes through manifest, ledger, gate and transcript as the run did, under a manifest of the auditor's own and in a
folder that is thrown away. Whoever audits holds the data, so looking at secret batches of a rehearsal betrays nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import Tensor

from audit.evidence import AuditorsManifest
from calibrate.arrays import Floats
from calibrate.manifest.document import BudgetDocument
from calibrate.sampling import Sampling
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.batches.randomness import Indexes, WordSource
from privfair.ledger import Ledger
from privfair.models.model import Model
from privfair.run.folder import RunFolder
from privfair.run.prepare import prepare_run
from privfair.run.session import RunSession
from privfair.transcript import Transcript

# An algorithm that does what it always does, while somebody writes down what it is asked and what it sends.


@dataclass
class WatchedSending:
    step: int
    party: str
    batch: Tensor
    values: dict[str, np.ndarray]


@dataclass
class Watch:
    """The notes: every state a step began with, and every message."""

    states: list[Any] = field(default_factory=list)
    sent: list[WatchedSending] = field(default_factory=list)

    def note(self, state: Any, step: int, party: str, batch: Tensor, message: Message) -> None:
        if step == len(self.states):
            self.states.append(state)
        values = {part.name: np.array(part.values) for part in message.noisy}
        values |= {name: np.array(given) for name, given in (message.randomized or {}).items()}
        values |= {name: np.array(given) for name, given in (message.clear or {}).items()}
        if self.sent and (self.sent[-1].step, self.sent[-1].party) == (step, party):
            self.sent[-1].values |= values
            return
        for earlier in self.sent:
            if (earlier.step, earlier.party) == (step, party):
                earlier.values |= values
                return
        self.sent.append(WatchedSending(step, party, batch.clone(), values))


@dataclass(frozen=True, eq=False)
class _Watched(Algorithm[Any]):
    """Hands every question on to the algorithm and notes the messages."""

    inner: Any
    watch: Watch

    def clear_values(self) -> tuple[ClearValue, ...]:
        return self.inner.clear_values()  # type: ignore[no-any-return]

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.inner.shapes()  # type: ignore[no-any-return]

    def start(self) -> Any:
        return self.inner.start()

    def contribution(self, state: Any, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        message: Message = self.inner.contribution(state, step, silo, batch)
        self.watch.note(state, step, silo.name, batch, message)
        return message

    def reply(self, state: Any, step: int, silo: SiloTensors, batch: Tensor, received: Received) -> Message:
        message: Message = self.inner.reply(state, step, silo, batch, received)
        self.watch.note(state, step, silo.name, batch, message)
        return message

    def draw(self, silo: SiloTensors, source: WordSource) -> Indexes:
        return self.inner.draw(silo, source)  # type: ignore[no-any-return]

    def update(self, state: Any, received: Received) -> Any:
        return self.inner.update(state, received)

    def theta(self, state: Any) -> Tensor:
        return self.inner.theta(state)  # type: ignore[no-any-return]

    def checkpoint(self, state: Any) -> dict[str, Floats]:
        return self.inner.checkpoint(state)  # type: ignore[no-any-return]

    def restore(self, arrays: Mapping[str, Floats]) -> Any:
        return self.inner.restore(arrays)


def watched(algorithm: Algorithm[Any], watch: Watch) -> Algorithm[Any]:
    """The algorithm as it was, and `watch` filled in as it is used."""
    phases = {"replies": algorithm.replies, "draws": algorithm.draws}
    return type("Watched", (_Watched,), phases)(algorithm, watch)  # type: ignore[no-any-return]


DEFAULT_ROUNDS = 32
_BLOCK, _NEVER = 8, 10**9


@dataclass(frozen=True, eq=False)
class Sending:
    """What one silo did in one step: who took part, what it handed to the gate, and what came out."""

    step: int
    party: str
    batch: Tensor
    clean: Mapping[str, np.ndarray]
    published: Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """All that was seen; `charged` is the ledger's word, `published_rounds` the transcript's."""

    document: BudgetDocument
    algorithm: Algorithm[Any]
    model: Model
    silos: tuple[SiloTensors, ...]
    sampling: Sampling | None
    steps: int
    charged: int
    published_rounds: int
    block: int
    states: tuple[Any, ...]
    """The state before each step."""
    sendings: tuple[Sending, ...]

    def of(self, party: str) -> tuple[Sending, ...]:
        return tuple(one for one in self.sendings if one.party == party)


def rehearse(plan: Path, document: BudgetDocument, rounds: int = DEFAULT_ROUNDS) -> Rehearsal:
    """Train `rounds` rounds of the plan (or as many as it has) and keep what was seen."""
    auditor = AuditorsManifest()
    prepared = prepare_run(plan, auditor.envelope(document), auditor.trust)
    seen = Watch()
    training = replace(prepared.plan.training, measure_every=_NEVER, block=min(_BLOCK, rounds))
    trial = replace(
        prepared,
        plan=replace(prepared.plan, training=training),
        algorithm=watched(prepared.algorithm, seen),
        updates=min(rounds, prepared.updates),
    )
    with TemporaryDirectory(prefix="privfair-rehearsal-") as place:
        folder = RunFolder.create(Path(place) / "run")
        with Ledger.open(Path(place) / "ledger.db") as ledger, folder.locked():
            RunSession(trial, folder, ledger).begin()
            charged = ledger.manifest_status(prepared.manifest.digest).charged
        transcript = Transcript.read(folder.transcript)
        published = sorted({key.round for key in transcript.keys})
        sendings = tuple(_sending(seen, place, transcript, published) for place in range(len(seen.sent)))
    return Rehearsal(
        document=document,
        algorithm=prepared.algorithm,
        model=prepared.model,
        silos=prepared.silos,
        sampling=prepared.sampling,
        steps=len(seen.states),
        charged=charged,
        published_rounds=len(published),
        block=training.block or 1,
        states=tuple(seen.states),
        sendings=sendings,
    )


def _sending(seen: Watch, place: int, transcript: Transcript, rounds: list[int]) -> Sending:
    one = seen.sent[place]
    published = {}
    if one.step < len(rounds):
        held = {
            transcript.header.values[key.name].name
            for key in transcript.keys
            if key.round == rounds[one.step] and transcript.header.parties[key.party] == one.party
        }
        published = {
            name: np.asarray(transcript.value(rounds[one.step], one.party, name), dtype=np.float64)
            for name in one.values
            if name in held
        }
    return Sending(one.step, one.party, one.batch, one.values, published)
