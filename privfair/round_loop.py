"""The round loop: contribution -> gate -> update, for any algorithm and any number of parties in one process.

A *round* is a number of the ledger: charged, spent once, never used again. A *step* is one update of the
state. Without interruptions step and round agree; a crash leaves rounds behind that no step uses.

With user-level privacy there is one party, the aggregator: its units are users, its batch is the round's
cohort, and the contribution groups rows by `SiloTensors.unit_of_row`. The loop is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar, assert_never, final

import torch

from calibrate.errors import GateRefused
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import AsPrintedGuarantee, InTheClear, NoPrivacyPromised, PrivateGuarantee
from privfair.algorithms.algorithm import Algorithm, Message, SiloTensors
from privfair.batches.participation import AskedParticipation, DrawnParticipation, Participation
from privfair.contribution import BoundedContribution, Published
from privfair.gate import Gate
from privfair.ledger import Claim

AnyParticipation = Participation | DrawnParticipation | AskedParticipation

State = TypeVar("State")

Values = Mapping[str, Mapping[str, Published]]
"""By party, then by name."""


@dataclass(frozen=True, eq=False)
class Position(Generic[State]):
    """Where a run stands between two steps."""

    state: State
    step: int
    """Updates made so far."""
    round: int | None
    """The round of the last update; None before the first."""
    carried: Values
    """What an interrupted attempt at the next step already published: sent again from the transcript, never
    drawn again."""


@final
class Rounds(Generic[State]):
    """One run's parties, gate and algorithm."""

    def __init__(
        self,
        algorithm: Algorithm[State],
        silos: tuple[SiloTensors, ...],
        participations: Mapping[str, AnyParticipation],
        document: BudgetDocument,
        gate: Gate,
        claim: Claim,
    ) -> None:
        self._algorithm = algorithm
        self._silos = silos
        self._participations = participations
        self._gate = gate
        self._claim = claim
        # Only a manifest that promises nothing may turn a noisy value into a plain one.
        self._plain = _nothing_promised(document)
        self._clear = {declared.name for declared in document.releases if isinstance(declared, InTheClear)}

    @property
    def at_end_of_block(self) -> bool:
        """Whether the next round must be charged first: the moment for a checkpoint."""
        return self._gate.round is None or self._gate.round + 1 not in self._claim.held

    @property
    def exhausted(self) -> bool:
        """Whether no signed round is left."""
        return self.at_end_of_block and self._claim.remaining == 0

    def run(self, position: Position[State], until: int) -> Iterator[Position[State]]:
        """Step by step up to `until` updates, or as far as the signed rounds reach."""
        while position.step < until and not self.exhausted:
            position = self._step(position)
            yield position

    def _step(self, position: Position[State]) -> Position[State]:
        round = self._gate.next_round()
        received: dict[str, dict[str, Published]] = {}
        batches = {silo.name: torch.from_numpy(self._participations[silo.name].batch(round)) for silo in self._silos}
        for silo in self._silos:
            message = self._algorithm.contribution(position.state, position.step, silo, batches[silo.name])
            received[silo.name] = self._send(silo.name, message, position.carried.get(silo.name, {}))
        if self._algorithm.replies:
            seen = {party: dict(values) for party, values in received.items()}
            for silo in self._silos:
                reply = self._algorithm.reply(position.state, position.step, silo, batches[silo.name], seen)
                received[silo.name] = self._send(silo.name, reply, received[silo.name])
        state = self._algorithm.update(position.state, received)
        return Position(state, position.step + 1, round, {})

    def _send(self, party: str, message: Message, carried: Mapping[str, Published]) -> dict[str, Published]:
        sent = dict(carried)
        for contribution in message.noisy:
            if contribution.name not in sent:
                sent[contribution.name] = self._publish(party, contribution)
        for name, categories in (message.randomized or {}).items():
            if name in sent:
                continue
            if self._plain and name in self._clear:
                sent[name] = self._gate.publish_in_the_clear(party, name, categories)
            else:
                sent[name] = self._gate.publish_randomized(party, name, categories)
        for name, values in (message.clear or {}).items():
            if name not in sent:
                sent[name] = self._gate.publish_in_the_clear(party, name, values)
        return sent

    def _publish(self, party: str, contribution: BoundedContribution) -> Published:
        if self._plain and contribution.name in self._clear:
            return self._gate.publish_in_the_clear(party, contribution.name, contribution.values)
        return self._gate.publish(party, contribution)


def completed(
    algorithm: Algorithm[State], silos: tuple[SiloTensors, ...], position: Position[State]
) -> Position[State]:
    """The position after the next step, if everything it needs was published before an interruption.

    What a step publishes is asked of the algorithm itself, whose `contribution` is pure: nothing leaves.
    """
    if not position.carried:
        return position
    for silo in silos:
        message = algorithm.contribution(position.state, position.step, silo, _a_few_units(silo))
        if set(_names(message)) - set(position.carried.get(silo.name, {})):
            return position
    for silo in silos if algorithm.replies else ():
        reply = algorithm.reply(position.state, position.step, silo, _a_few_units(silo), position.carried)
        if set(_names(reply)) - set(position.carried[silo.name]):
            return position
    last = max(value.round for values in position.carried.values() for value in values.values())
    return Position(algorithm.update(position.state, position.carried), position.step + 1, last, {})


def require_declared(algorithm: Algorithm[State], document: BudgetDocument) -> None:
    """Refuse, before anything is claimed, an algorithm that sends what the manifest does not declare."""
    declared = {release.name: release for release in document.releases}
    for name, shape in algorithm.shapes().items():
        if name not in declared:
            raise GateRefused(
                f"the algorithm publishes {name!r}, which the manifest does not declare (it allows "
                f"{', '.join(declared)}); have the budget issued from this very plan file"
            )
        signed = declared[name].shape
        if signed is not None and signed != tuple(shape):
            raise GateRefused(
                f"the algorithm publishes {name!r} with shape {tuple(shape)}, the manifest signed {signed}; "
                "have the budget issued from this very plan file"
            )
    for value in algorithm.clear_values():
        if not isinstance(declared.get(value.name), InTheClear):
            raise GateRefused(
                f"the algorithm sends {value.name!r} in the clear, the manifest does not; have it signed so, or "
                "run the algorithm that was signed"
            )


def _names(message: Message) -> tuple[str, ...]:
    noisy = tuple(contribution.name for contribution in message.noisy)
    return (*noisy, *(message.randomized or {}), *(message.clear or {}))


def _a_few_units(silo: SiloTensors) -> torch.Tensor:
    units = len(silo) if silo.unit_of_row is None else int(silo.unit_of_row.max()) + 1
    return torch.arange(min(2, units))


def _nothing_promised(document: BudgetDocument) -> bool:
    match document.guarantee:
        case NoPrivacyPromised():
            return True
        case PrivateGuarantee() | AsPrintedGuarantee():
            return False
        case _:
            assert_never(document.guarantee)
