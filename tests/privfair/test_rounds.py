"""The loop: who sends what through which door of the gate, and what interruptions leave behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import GateRefused
from calibrate.manifest.document import BudgetDocument, DataBinding, Issuer
from calibrate.manifest.draft import BudgetSubject, NoPromise, draft_document
from calibrate.manifest.mechanism import InTheClear
from calibrate.plans.clipped_sums import FpflPlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Relation
from calibrate.sampling import Poisson
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.contribution import BoundedContribution
from privfair.federation.coordinator import Position, StepRefused, run_steps
from privfair.federation.local_party import LocalParties, PartySetup, require_declared
from privfair.transcript import Transcript
from tests.privfair.small_runs import OpenGate, document_of, gate_for

PARTIES = (("north", 4), ("south", 6))


@dataclass(frozen=True)
class Totals(Algorithm[tuple[float, ...]]):
    """A toy: each silo sends its sum; the state adds up what was received. The first step also sends a greeting."""

    noisy: bool = True
    greets: bool = False

    def clear_values(self) -> tuple[ClearValue, ...]:
        return (ClearValue("greeting", "says nothing", False),) if self.greets else ()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"greeting": (1,), "value_1": (2,)} if self.greets else {"value_1": (2,)}

    def start(self) -> tuple[float, ...]:
        return ()

    def contribution(self, state: tuple[float, ...], step: int, silo: SiloTensors, batch: Tensor) -> Message:
        assert step == len(state), "the step an algorithm sees is the number of its updates"
        total = np.array([float(silo.x[batch].sum()), float(len(batch))])
        return Message(
            noisy=(BoundedContribution("value_1", total, 1.0, 1.0),) if self.noisy else (),
            clear=({} if self.noisy else {"value_1": total})
            | ({"greeting": np.ones(1)} if self.greets and step == 0 else {}),
        )

    def update(self, state: tuple[float, ...], received: Received) -> tuple[float, ...]:
        assert set(received) == {"north", "south"}
        return (*state, sum(float(values["value_1"].values[0]) for values in received.values()))

    def theta(self, state: tuple[float, ...]) -> Tensor:
        return torch.tensor(state)

    def checkpoint(self, state: tuple[float, ...]) -> dict[str, Floats]:
        return {"totals": np.array(state)}

    def restore(self, arrays: Mapping[str, Floats]) -> tuple[float, ...]:
        return tuple(arrays["totals"].tolist())


def silos() -> tuple[SiloTensors, ...]:
    return tuple(
        SiloTensors(name, torch.full((size, 1), float(size)), torch.zeros(size), torch.zeros(size))
        for name, size in PARTIES
    )


def unpromised(names: dict[str, tuple[int, ...]], rounds: int) -> BudgetDocument:
    clear = tuple(
        InTheClear(name=name, publications=rounds, shape=shape, why="a test", depends_on_unit=True)
        for name, shape in names.items()
    )
    subject = BudgetSubject(DataBinding.of("ab" * 32, PARTIES), clear=clear, config_digest="cd" * 32)
    price = NoPromise("totals", PrivacyUnit.of(Relation.REPLACE_ONE), rounds, "a test")
    return draft_document(price, subject, Issuer(why="a test")).document


def local_parties(
    opened: OpenGate, algorithm: Any, sampling: Any = None, position: Position[Any] | None = None
) -> LocalParties:
    setup = PartySetup(opened.manifest.document, algorithm, silos(), sampling)
    return LocalParties.behind(opened.gate, setup, opened.claim, position=position)


def steps(opened: OpenGate, algorithm: Any, until: int, sampling: Any = None) -> list[Position[Any]]:
    parties = local_parties(opened, algorithm, sampling)
    return list(run_steps(algorithm, parties, Position(algorithm.start()), until))


@pytest.fixture(scope="module")
def private() -> BudgetDocument:
    plan = GaussianPlan(sampling_rate=1.0, rounds=5)
    return document_of(plan, EpsilonDelta(1.0, 1e-5), silos=PARTIES, shapes={"value_1": (2,)})


def test_every_silo_sends_once_a_round_and_the_state_sees_published_values_alone(
    private: BudgetDocument, tmp_path: Path
) -> None:
    opened = gate_for(private, tmp_path, Totals().shapes(), block=2)
    positions = steps(opened, Totals(), 5)
    assert [(p.step, p.round) for p in positions] == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]
    opened.gate.finish()
    transcript = Transcript.read(opened.transcript)
    sent = sum(transcript.values(party, "value_1")[:, 0] for party, _ in PARTIES)
    np.testing.assert_array_equal(positions[-1].state, sent)
    assert not np.array_equal(sent, np.full(5, 4.0 * 4 + 6 * 6)), "noise was added"


def test_the_loop_stops_with_the_signed_rounds(private: BudgetDocument, tmp_path: Path) -> None:
    opened = gate_for(private, tmp_path, Totals().shapes())
    assert len(steps(opened, Totals(), 99)) == 5
    assert opened.claim.remaining == 0


def test_fewer_updates_than_signed_leave_rounds_uncharged(private: BudgetDocument, tmp_path: Path) -> None:
    opened = gate_for(private, tmp_path, Totals().shapes(), block=2)
    assert len(steps(opened, Totals(), 3)) == 3
    assert opened.claim.charged == 4


def test_the_end_of_a_block_is_seen(private: BudgetDocument, tmp_path: Path) -> None:
    opened = gate_for(private, tmp_path, Totals().shapes(), block=2)
    local = local_parties(opened, Totals())
    ends = [local.gate.at_end_of_block for _ in run_steps(Totals(), local, Position(()), 5)]
    assert ends == [False, True, False, True, True]


def test_an_empty_batch_still_sends_noise(private: BudgetDocument, tmp_path: Path) -> None:
    opened = gate_for(private, tmp_path, Totals().shapes())
    positions = steps(opened, Totals(), 2, Poisson(1e-9))
    assert all(total != 0 for total in positions[-1].state)


def test_a_promise_of_nothing_sends_noisy_values_in_the_clear(tmp_path: Path) -> None:
    opened = gate_for(unpromised({"value_1": (2,)}, 3), tmp_path, Totals().shapes())
    positions = steps(opened, Totals(noisy=True), 3)
    assert positions[-1].state == (16.0 + 36.0,) * 3


def test_a_promise_never_sends_a_noisy_value_in_the_clear(tmp_path: Path) -> None:
    """Even if somebody signs that the value does not depend on the unit, the loop does not take that door."""
    plan = GaussianPlan(sampling_rate=1.0, rounds=2)
    clear = InTheClear(name="value_2", publications=2, shape=(2,), why="it is said", depends_on_unit=False)
    document = document_of(plan, EpsilonDelta(1.0, 1e-5), silos=PARTIES, clear=(clear,), shapes={"value_1": (2,)})
    opened = gate_for(document, tmp_path, {"value_1": (2,), "value_2": (2,)})

    class Other(Totals):
        def contribution(self, state: Any, step: int, silo: SiloTensors, batch: Tensor) -> Message:
            return Message(noisy=(BoundedContribution("value_2", np.zeros(2), 1.0, 1.0),))

    with pytest.raises(GateRefused, match="not as a noisy value"):
        steps(opened, Other(), 1)


def test_what_the_manifest_does_not_declare_is_refused_before_the_claim(private: BudgetDocument) -> None:
    with pytest.raises(GateRefused, match="publishes 'greeting', which the manifest does not declare"):
        require_declared(Totals(greets=True), private)

    class Wider(Totals):
        def shapes(self) -> Mapping[str, tuple[int, ...]]:
            return {"value_1": (3,)}

    with pytest.raises(GateRefused, match=r"shape \(3,\), the manifest signed \(2,\)"):
        require_declared(Wider(), private)

    class Plain(Totals):
        def clear_values(self) -> tuple[ClearValue, ...]:
            return (ClearValue("value_1", "why not", False),)

    with pytest.raises(GateRefused, match="sends 'value_1' in the clear, the manifest does not"):
        require_declared(Plain(), private)
    require_declared(Totals(), private)


def test_values_of_an_interrupted_step_are_sent_again_and_not_drawn_again(
    private: BudgetDocument, tmp_path: Path
) -> None:
    opened = gate_for(private, tmp_path, Totals().shapes(), block=2)
    opened.gate.next_round()
    old = opened.gate.publish("north", BoundedContribution("value_1", np.zeros(2), 1.0, 1.0))
    position = Position((), 0, None, {"north": {"value_1": old}})
    (reached,) = run_steps(Totals(), local_parties(opened, Totals(), position=position), position, 1)
    opened.gate.finish()
    transcript = Transcript.read(opened.transcript)
    assert transcript.rounds("north", "value_1").tolist() == [0]
    assert transcript.rounds("south", "value_1").tolist() == [1]
    assert reached.state == (old.values[0] + transcript.value(1, "south", "value_1")[0],)
    assert not reached.carried


def test_an_interrupted_step_of_a_silo_without_records_is_sent_again(private: BudgetDocument, tmp_path: Path) -> None:
    """Whether there is any record shows in no error."""
    opened = gate_for(private, tmp_path, Totals().shapes(), block=2)
    opened.gate.next_round()
    old = opened.gate.publish("north", BoundedContribution("value_1", np.zeros(2), 1.0, 0.0))
    none = torch.zeros(0)
    empty = SiloTensors("north", torch.zeros(0, 1), none, none, unit_of_row=none.long())
    setup = PartySetup(opened.manifest.document, Totals(), (empty,))
    position = Position((), 0, None, {"north": {"value_1": old}})
    (north,) = LocalParties.behind(opened.gate, setup, opened.claim, position=position).parties
    assert north.contribute(0, Totals().checkpoint(())) == {"value_1": old}


def test_a_step_whose_values_all_went_out_is_completed_without_another_round(
    private: BudgetDocument, tmp_path: Path
) -> None:
    opened = gate_for(private, tmp_path, Totals().shapes(), block=2)
    opened.gate.next_round()
    values = {
        name: {"value_1": opened.gate.publish(name, BoundedContribution("value_1", np.zeros(2), 1.0, 1.0))}
        for name, _ in PARTIES
    }
    position = Position((), 0, None, values)
    charged = opened.claim.charged
    (reached,) = run_steps(Totals(), local_parties(opened, Totals(), position=position), position, 1)
    assert (reached.step, reached.round, reached.carried) == (1, 0, {})
    assert opened.claim.charged == charged
    assert opened.gate.round == 0
    greeter = Totals(greets=True)
    asked = run_steps(greeter, local_parties(opened, greeter, position=position), position, 1)
    with pytest.raises(GateRefused, match="'greeting' is not declared"):
        next(asked)
    assert opened.gate.round == 1, "the greeting is still missing, and needs a round"


def test_a_step_is_answered_once_and_for_one_state(private: BudgetDocument, tmp_path: Path) -> None:
    """Every engine delivers at least once: the same question has the same answer, another one is refused."""
    opened = gate_for(private, tmp_path, Totals().shapes(), block=2)
    north, south = local_parties(opened, Totals()).parties
    state = Totals().checkpoint(())
    first = north.contribute(0, state)
    again = north.contribute(0, {"totals": np.array(state["totals"])})
    np.testing.assert_array_equal(first["value_1"].values, again["value_1"].values)
    assert first["value_1"].round == again["value_1"].round == 0
    with pytest.raises(StepRefused, match="answered already"):
        north.contribute(0, {"totals": np.array([1.0])})
    south.contribute(0, state)
    later = {"totals": np.array([1.0])}
    assert north.contribute(1, later)["value_1"].round == 1
    with pytest.raises(StepRefused, match="answered already"):
        north.contribute(0, state)
    opened.gate.finish()
    transcript = Transcript.read(opened.transcript)
    assert transcript.rounds("north", "value_1").tolist() == [0, 1]
    assert transcript.rounds("south", "value_1").tolist() == [0]
    assert (north.hello().step, south.hello().step) == (2, 1)


def test_one_aggregator_sends_for_a_cohort_of_users(tmp_path: Path) -> None:
    """User-level privacy: the units of the one party are users, and the manifest counts users."""
    users, seen = 50, []

    class Cohorts(Totals):
        def shapes(self) -> Mapping[str, tuple[int, ...]]:
            return {"user_statistics": (1,)}

        def contribution(self, state: Any, step: int, silo: SiloTensors, batch: Tensor) -> Message:
            assert silo.unit_of_row is not None
            rows = torch.isin(silo.unit_of_row, batch)
            seen.append((set(batch.tolist()), set(silo.unit_of_row[rows].tolist())))
            return Message(noisy=(BoundedContribution("user_statistics", np.zeros(1), 1.0, 1.0),))

        def update(self, state: Any, received: Received) -> Any:
            return (*state, float(received["users"]["user_statistics"].values[0]))

    plan = FpflPlan(users=users, cohort=10, rounds=4, clip=1.0)
    document = document_of(plan, EpsilonDelta(4.0, 1e-3), silos=(("users", users),), shapes={"user_statistics": (1,)})
    (declared,) = document.sampling
    opened = gate_for(document, tmp_path, {"user_statistics": (1,)})
    owners = torch.arange(120) % (users - 5)  # five users hold nothing and still count
    records = SiloTensors("users", torch.zeros(120, 1), torch.zeros(120), torch.zeros(120), owners)
    setup = PartySetup(opened.manifest.document, Cohorts(), (records,), declared.scheme)
    parties = LocalParties.behind(opened.gate, setup, opened.claim)
    positions = list(run_steps(Cohorts(), parties, Position(()), 4))
    assert len(positions) == 4
    assert all(rows <= cohort for cohort, rows in seen)
    assert all(len(cohort) == 10 and cohort <= set(range(users)) for cohort, _ in seen)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield
