"""`privfair.testing`: the contracts that outsiders call hold for what is built in, and notice what breaks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from torch import Tensor

from audit.models.membership_attacks import LossThreshold, Rmia, Scoring
from audit.models.shadow_models import Signals
from calibrate.arrays import Floats
from calibrate.plans.gaussian import GaussianPlan
from calibrate.theorems.catalogue import theorem_named
from privfair.algorithms.algorithm import Message, Received, SiloTensors
from privfair.algorithms.dp_fedsgd import DpFedSgd, DpFedSgdState
from privfair.plan.sections import GradientOptions
from privfair.testing import ContractBroken, check_algorithm, check_attack, check_plan, check_theorem
from tests.contracts.algorithm_cases import CASES, MODELS, ROUNDS, Case, silo

PRIVATE = [case for case in CASES if case.plan is not None and not case.name.startswith("mmd-fedavg")]
"""Not the one that replies: its messages depend on an answer within the round."""


@pytest.mark.parametrize("case", PRIVATE, ids=str)
def test_built_in_algorithms_keep_it(case: Case) -> None:
    model = MODELS["logistic"]()
    assert case.plan is not None
    silos = tuple(silo(name, model) for name in case.parties)
    check_algorithm(lambda: case.build(model), case.plan, silos, case.samplings[0], ROUNDS)


PLAN = GaussianPlan(0.25, ROUNDS)


class Honest(DpFedSgd):  # type: ignore[misc]  # final for the engine; broken on purpose here
    pass


class Unclipped(Honest):
    def contribution(self, state: DpFedSgdState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        (sent,) = super().contribution(state, step, silo, batch).noisy
        return Message(noisy=(replace(sent, values=3 * sent.values),))


class OtherBound(Honest):
    def contribution(self, state: DpFedSgdState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        (sent,) = super().contribution(state, step, silo, batch).noisy
        return Message(noisy=(replace(sent, bound=2.0),))


class Impure(Honest):
    def contribution(self, state: DpFedSgdState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        silo.x.mul_(0.5)
        return super().contribution(state, step, silo, batch)


class Remembering(Honest):
    def update(self, state: DpFedSgdState, received: Received) -> DpFedSgdState:
        after = super().update(state, received)
        return replace(after, theta=after.theta + self.seed)


class Talkative(Honest):
    def contribution(self, state: DpFedSgdState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        return replace(super().contribution(state, step, silo, batch), clear={"mean": np.zeros(1)})

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {**super().shapes(), "mean": (1,)}


class Silent(Honest):
    def contribution(self, state: DpFedSgdState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        return super().contribution(state, step, silo, batch) if step else Message()

    def update(self, state: DpFedSgdState, received: Received) -> DpFedSgdState:
        return super().update(state, received) if received["north"] else state


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Unclipped, "one unit moves value_1"),
        (OtherBound, "is bounded by 2, in the plan by 1"),
        (Impure, "not pure"),
        (Remembering, "not a function of state and published values"),
        (Talkative, "must be declared in clear_values"),
        (Silent, "as often as the plan says"),
    ],
)
def test_a_broken_algorithm_is_noticed(kind: type[DpFedSgd], words: str) -> None:
    model = MODELS["logistic"]()
    silos = tuple(silo(name, model, scale=30.0) for name in ("north", "south"))
    made = iter(range(9))
    with pytest.raises(ContractBroken, match=words):
        check_algorithm(
            lambda: kind(model, GradientOptions(), 1.0, 20.0, next(made) if kind is Remembering else 0),
            PLAN,
            silos,
            CASES[-1].samplings[0],
            ROUNDS,
        )


@dataclass(frozen=True)
class Vague(GaussianPlan):
    def assumptions(self) -> tuple[str, ...]:
        return ("batches",)


@dataclass(frozen=True)
class Hidden(GaussianPlan):
    def parameters(self) -> dict[str, object]:  # type: ignore[override]
        return {name: value for name, value in super().parameters().items() if name != "clip"}


def test_plans() -> None:
    check_plan(PLAN)
    for broken, words in ((Vague(0.25, 5), "another|whole sentences"), (Hidden(0.25, 5, clip=2.0), "another")):
        with pytest.raises(ContractBroken, match=words):
            check_plan(broken)


def test_theorems() -> None:
    theorem = theorem_named("fpfl.gaussian-rdp")
    check_theorem(theorem)
    for broken, words in (
        (replace(theorem, id="nameless"), "paper.claim"),
        (replace(theorem, citation=" "), "needs a citation"),
        (replace(theorem, domain={"sigma": (-1.0,)}), "a value that it refuses"),
        (replace(theorem, parameters=(replace(theorem.parameters[0], meaning=""),)), "needs a meaning"),
    ):
        with pytest.raises(ContractBroken, match=words):
            check_theorem(broken)


@dataclass(frozen=True)
class Odd:
    """An attack that breaks one rule."""

    how: str
    least_models: int = 0

    def scores(self, signals: Signals) -> Floats:
        match self.how:
            case "backwards":
                return -signals.target
            case "too few":
                return signals.target[:-1]
            case "infinite":
                return signals.target / 0.0
            case _:
                return signals.target + np.arange(signals.records) % 7


@pytest.mark.parametrize("attack", [LossThreshold(), Rmia()], ids=lambda one: one.name.value)
def test_built_in_attacks_keep_it(attack: Scoring) -> None:
    check_attack(attack)


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("backwards", "plain leak is not found"),
        ("too few", "one score per record"),
        ("infinite", "must be finite"),
        ("by place", "depend on the order"),
    ],
)
def test_a_broken_attack_is_noticed(how: str, words: str) -> None:
    with pytest.raises(ContractBroken, match=words):
        check_attack(Odd(how))
