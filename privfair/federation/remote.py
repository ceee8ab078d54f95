"""Guards as the coordinator sees them: the same questions, carried by a transport.

What comes back is not believed: it must be of the party that was asked, of this run, and of the declared names and
shapes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, cast, final

from calibrate.errors import InvalidInput, Refused, positive
from calibrate.manifest.document import BudgetDocument
from privfair.algorithms.algorithm import Received
from privfair.contribution import Published
from privfair.durable import read_toml
from privfair.federation.coordinator import Greeting, PublicFacts, PublicState, Receipt, RoundsSpent, state_digest
from privfair.federation.signed_frames import CoordinatorSeal
from privfair.federation.sockets import GuardUnreachable
from privfair.federation.wire import (
    Code,
    MessageKind,
    Transport,
    WireMessage,
    WireRefused,
    ask_contribution,
    ask_finish,
    ask_hello,
    ask_reply,
    decode,
    read_greeting,
    read_receipt,
    read_steps,
    read_values,
)
from privfair.plan.sections import read_section

_REMEDIES = {
    Code.STATE: "if its numbers are beyond 1e9, training diverged: have a plan with smaller steps signed",
    Code.POLICY: "wait until its policy allows it, then go on with --resume",
    Code.BATCH: "give all sites the same --sites-key; its own log says more",
    Code.STEP: "go on with --resume in the folder of this run",
    Code.HALTED: "its operator must look into its log, clear the halt and start it again",
}


class GuardRefused(Refused):
    """A guard said no: by which class of refusal and which code is all it tells."""

    def __init__(self, party: str, error: str, code: Code) -> None:
        self.party = party
        self.error = error
        self.code = code
        remedy = _REMEDIES.get(code, "the reason stands in its own log, at its site")
        super().__init__(f"the guard of {party!r} refused ({error}, {code.value}); {remedy}")


@dataclass(frozen=True)
class GuardPlace:
    """Where a guard answers."""

    socket: Path


@dataclass(frozen=True)
class Guards:
    """guards.toml: where each party's guard answers, and how long one question may take.

    ::

        deadline = 600                   # seconds for one question to all guards; left out: 600
        key = "coordinator.pem"          # signs questions, where the trust file lists coordinators and guards
        [guards.north]
        socket = "/run/privfair-north/guard.sock"
    """

    places: Mapping[str, GuardPlace]
    deadline: float
    key: Path | None = None

    @property
    def sockets(self) -> dict[str, Path]:
        return {name: place.socket for name, place in self.places.items()}


def read_guards(path: Path) -> Guards:
    """The guards in a TOML file; paths are relative to the file's own place."""
    document = read_toml(path, "--guards")
    table, deadline, key = document.pop("guards", None), document.pop("deadline", 600), document.pop("key", None)
    if key is not None and not isinstance(key, str):
        raise InvalidInput("--guards", str(path), "must name a key as a text", 'write key = "coordinator.pem"')
    if document or not isinstance(table, dict) or not table or not all(isinstance(one, dict) for one in table.values()):
        rule = "must hold a table [guards.NAME] for each party, and at most a deadline and a key"
        raise InvalidInput("--guards", str(path), rule, 'write [guards.north] and socket = "north.sock"')
    places = {name: read_section(GuardPlace, f"guards.{name}", one, path.parent) for name, one in table.items()}
    named = None if key is None else path.parent / key
    return Guards(places, positive("deadline", cast("float", deadline)), named)


@final
class RemoteParties:
    """All parties of a run behind one transport; see `Parties`."""

    def __init__(
        self, run: str, parties: tuple[str, ...], transport: Transport, steps_per_message: int = 1, updates: int = 0
    ) -> None:
        """`steps_per_message` are asked for at once, as far as the `updates` of the run reach: of one party alone."""
        if steps_per_message > 1 and len(parties) > 1:
            raise InvalidInput(
                "--steps-per-message",
                steps_per_message,
                f"needs a run of one party, and this one has {len(parties)}: the state of a step follows from what all "
                "of them published in the step before",
                "leave it out, or put more work into a step (local-steps, larger batches)",
            )
        self._run = run
        self._parties = parties
        self._transport = transport
        self._steps_per_message = steps_per_message
        self._updates = updates
        self._ahead: dict[int, tuple[str, Received]] = {}
        """Steps that were answered before their turn: the digest of the state they are for, and all their values."""
        self._whole = -1
        """The last step that was taken from there; it needs no reply."""
        self._shapes: Mapping[str, tuple[int, ...]] = {}
        self._registries: tuple[str, ...] = ()
        self._state: PublicState = {}

    def expect(self, shapes: Mapping[str, tuple[int, ...]], registries: tuple[str, ...] = ()) -> None:
        """What may be published; nothing is accepted before this is known.

        `registries` are asked after the others, with the batches that these sealed for them.
        """
        self._shapes = shapes
        self._registries = registries

    def hello(self) -> dict[str, Greeting]:
        """Every party's greeting."""
        answers = self._ask_all(ask_hello(self._run), MessageKind.GREETING)
        found = {name: read_greeting(answer) for name, answer in answers.items()}
        for name, greeting in found.items():
            if (greeting.party, greeting.manifest) != (name, self._run):
                raise Refused(
                    f"the guard at the place of {name!r} is {greeting.party!r} of run {greeting.manifest[:12]}; fix "
                    "guards.toml"
                )
        return found

    def contribute(self, step: int, state: PublicState) -> Received:
        """See `Parties.contribute`."""
        self._state = state
        steps = min(self._steps_per_message, self._updates - step)
        if step not in self._ahead and steps <= 1:
            return self._contributions(step, state)
        if step not in self._ahead:
            self._ahead = self._several(step, ask_contribution(self._run, step, state, steps))
        digest, received = self._ahead.pop(step)
        if digest != state_digest(state):
            raise Refused(
                f"step {step} was answered for another state than this coordinator has; run the same version of "
                "privfair on both sides, or leave out --steps-per-message"
            )
        self._whole = step
        return received

    def reply(self, step: int, received: Received) -> Received:
        """See `Parties.reply`; a guard that was started again in between is asked for its contribution once more."""
        if step == self._whole:
            return received
        question = ask_reply(self._run, step, received)
        try:
            return self._values(question)
        except GuardRefused as refused:
            if refused.code is not Code.STEP:
                raise
            self._contributions(step, self._state)
            return self._values(question)

    def finish(self) -> tuple[Receipt, ...]:
        """End the run at every party."""
        answers = self._ask_all(ask_finish(self._run), MessageKind.RECEIPT)
        found = {name: read_receipt(answer) for name, answer in answers.items()}
        for name, receipt in found.items():
            if (receipt.party, receipt.manifest) != (name, self._run):
                raise Refused(f"the receipt of {name!r} is about another party or run; look at its guard")
        return tuple(found.values())

    def _contributions(self, step: int, state: PublicState) -> Received:
        question = ask_contribution(self._run, step, state)
        if not self._registries:
            return self._values(question)
        holders = [name for name in self._parties if name not in self._registries]
        answers = self._ask(dict.fromkeys(holders, question), MessageKind.PUBLISHED)
        sealed = {name: answer.text("batch") for name, answer in answers.items() if "batch" in answer.fields}
        told = ask_contribution(self._run, step, state, batches=sealed)
        answers |= self._ask(dict.fromkeys(self._registries, told), MessageKind.PUBLISHED)
        return {name: self._own(name, read_values(answers[name])) for name in self._parties}

    def _values(self, question: bytes) -> Received:
        answers = self._ask_all(question, MessageKind.PUBLISHED)
        return {name: self._own(name, read_values(answer)) for name, answer in answers.items()}

    def _several(self, step: int, question: bytes) -> dict[int, tuple[str, Received]]:
        (name,) = self._parties
        found = read_steps(self._ask_all(question, MessageKind.PUBLISHED)[name])
        return {step + n: (digest, {name: self._own(name, values)}) for n, (digest, values) in enumerate(found)}

    def _own(self, name: str, found: Received) -> Mapping[str, Published]:
        values = found.get(name, {})
        if found.keys() - {name} or any(self._shapes.get(key) != one.values.shape for key, one in values.items()):
            raise WireRefused(Code.MALFORMED, f"{name!r} sent what is not its own, or of another shape")
        return values

    def _ask_all(self, question: bytes, kind: MessageKind) -> dict[str, WireMessage]:
        return self._ask(dict.fromkeys(self._parties, question), kind)

    def _ask(self, questions: Mapping[str, bytes], kind: MessageKind) -> dict[str, WireMessage]:
        answers = self._transport(questions)
        found: dict[str, WireMessage] = {}
        for name in questions:
            message = decode(answers[name])
            if message.kind is MessageKind.REFUSED:
                raise _refusal(name, message)
            if message.kind is not kind:
                raise WireRefused(Code.MALFORMED, f"{name!r} answered with a {message.kind.value}")
            found[name] = message
        return found


def _refusal(party: str, message: WireMessage) -> Refused:
    error, code = message.text("error"), message.text("code")
    known = Code(code) if code in {one.value for one in Code} else Code.FAULT
    if known is Code.SPENT:
        return RoundsSpent(f"the guard of {party!r} has no signed round left; stop here, or ask for a new budget")
    return GuardRefused(party, error[:80] if error.isidentifier() else "unknown", known)


def agreed_facts(greetings: Mapping[str, Greeting], document: BudgetDocument) -> PublicFacts:
    """The public facts on which all parties agree; refused where they differ, or a ledger is not the signed one."""
    facts: PublicFacts | None = None
    for name, greeting in greetings.items():
        bound = {one.ledger for one in document.ledgers if one.silo in (None, name)}
        if bound and greeting.ledger not in bound:
            raise Refused(f"the guard of {name!r} keeps another ledger than was signed; have it started with that one")
        if greeting.facts is None or facts not in (None, greeting.facts):
            raise Refused(
                f"the guard of {name!r} tells other classes, groups or features than the others; give every site the "
                "same schema"
            )
        facts = greeting.facts
    assert facts is not None
    return facts


# Over an engine that loses, repeats, delays and reorders what it carries. Every message may be delivered several times
# and every answer may be lost or late: a party that has not answered is asked again with the same bytes, which a guard
# answers with the same bytes. An answer carries the digest of its question, so that a late answer to an earlier one is
# never taken for an answer to this one.

Send = Callable[[Mapping[str, bytes]], Iterable[tuple[str, bytes]]]
"""Hands one message per party to an engine; gives what came back in its time: party and relayed answer, in any order,
some of them twice, late or not at all."""

_DIGEST_BYTES = 32
_FIRST_LOOK = 0.2


@final
class ResendingTransport:
    """Asks again until everybody has answered this very question, at most `tries` times."""

    def __init__(self, send: Send, tries: int = 10) -> None:
        self._send = send
        self._tries = tries

    def __call__(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        expected = {name: hashlib.sha256(message).digest() for name, message in messages.items()}
        answers: dict[str, bytes] = {}
        for _ in range(self._tries):
            missing = {name: message for name, message in messages.items() if name not in answers}
            if not missing:
                return answers
            for name, content in self._send(missing):
                if expected.get(name) == content[:_DIGEST_BYTES]:
                    answers.setdefault(name, content[_DIGEST_BYTES:])
        silent = sorted(messages.keys() - answers.keys())
        if silent:
            raise GuardUnreachable(
                f"no answer of {', '.join(map(repr, silent))} came back in {self._tries} tries; see whether the guards "
                "and the engine's nodes run, then go on with the same command and --resume"
            )
        return answers


Node = TypeVar("Node")


class EngineNodes(Generic[Node]):
    """The nodes of an engine as parties: each is asked who its guard is.

    `exchange` carries one frame per node and gives what came back in its time, by node; `present` lists the nodes that
    the engine knows of; `deadline` is in seconds.
    """

    def __init__(
        self,
        exchange: Callable[[Mapping[Node, bytes]], Iterable[tuple[Node, bytes]]],
        present: Callable[[], Iterable[Node]],
        deadline: float,
    ) -> None:
        self._exchange = exchange
        self._present = present
        self._deadline = deadline
        self._nodes: dict[str, Node] = {}
        self._greetings: dict[str, tuple[bytes, bytes]] = {}

    def send(self, messages: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        """What came back, by party; the greeting that a node was found by answers the first hello: a message less."""
        asked: dict[Node, tuple[str, bytes]] = {}
        for name, message in messages.items():
            question, greeting = self._greetings.pop(name, (b"", b""))
            if question == message:
                yield name, greeting
            else:
                asked[self._nodes[name]] = (name, message)
        for node, content in self._exchange({node: message for node, (_, message) in asked.items()}) if asked else ():
            yield asked[node][0], content

    def find(self, run: str, parties: Iterable[str], seal: CoordinatorSeal) -> None:
        """Ask every node who its guard is until all parties are found; an answer without its signature is none."""
        wanted, pause, until = set(parties), _FIRST_LOOK, time.monotonic() + self._deadline
        names, question = tuple(wanted), seal.ask(ask_hello(run))
        while not wanted <= self._nodes.keys():
            unknown = [node for node in self._present() if node not in self._nodes.values()]
            for node, content in self._exchange(dict.fromkeys(unknown, question)) if unknown else ():
                party = _greeted(names, question, content[_DIGEST_BYTES:], seal)
                if party is not None:
                    self._nodes.setdefault(party, node)
                    self._greetings.setdefault(party, (question, content))
            if not wanted <= self._nodes.keys():
                if time.monotonic() > until:
                    missing = ", ".join(sorted(wanted - self._nodes.keys()))
                    raise Refused(f"no node of the engine stands for {missing}; start their guards and nodes")
                time.sleep(pause)
                pause = min(2 * pause, 5.0)


def _greeted(parties: Iterable[str], question: bytes, answer: bytes, seal: CoordinatorSeal) -> str | None:
    """The party whose guard greets in this answer; None for anything else."""
    for party in parties:
        try:
            message = decode(seal.open(party, question, answer))
        except WireRefused:
            continue
        if message.kind is MessageKind.GREETING and read_greeting(message).party == party:
            return party
    return None
