"""What an audit would have noticed: over all layers, for less noise and for one unit that escapes its bound."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from audit.bounds import CurveFamily, GuessCounts, LowerBound, Method
from audit.coins.attribute_coins import coin_audit
from audit.probes.sensitivity import check_every_unit
from audit.probes.setting import ProbeSetting
from audit.report.figures import draw_figures
from audit.report.results import (
    Attack,
    BoundPower,
    Check,
    CheckOutcome,
    Conclusion,
    Layer,
    Promise,
    Standing,
    passed_if,
)
from audit.runs.noise import check_noise, noise_power
from audit.runs.run_audit import audit_run, until_decided
from audit.settings import CONFIDENCE, AuditOptions
from audit.verdict import judge, on_trial
from privfair.algorithms.dp_fedsgd import DpFedSgd
from tests.planted_bugs.bug import sending, with_values
from tests.planted_bugs.counting_bugs import sorted_by_attribute
from tests.planted_bugs.fixed_randomness import fixed_randomness
from tests.planted_bugs.workshop import Engine, Workshop

PROMISE = Promise(epsilon=2.0, delta=1e-5, source="promised", standing=Standing.PRICED)


def _check(values: int, tried: int = 10) -> Check:
    check = passed_if(Layer.NOISE, "variance", True, "noise is as signed")
    bound = BoundPower(tried=tried, units=10, excess=1e-6)
    return check.model_copy(update={"noise_power": noise_power(values, 1e-4), "bound_power": bound})


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


def test_layers_that_draw_their_own_noise_are_silent_together_as_often_as_each_of_them() -> None:
    report = judge(PROMISE, (_check(100), _check(150)), (), 0.95)
    assert report.power is not None
    assert report.power.noise is not None
    one, other = noise_power(100, 1e-4), noise_power(150, 1e-4)
    for whole, first, second in zip(report.power.noise.curve, one.curve, other.curve, strict=True):
        assert whole.share == first.share
        assert whole.power == pytest.approx(1 - (1 - first.power) * (1 - second.power))
    assert report.noise_noticed == report.power.noise.noticed == max(one.noticed, other.noticed)


def test_consistent_needs_an_even_chance_of_noticing_one_unit_beyond_its_bound() -> None:
    assert judge(PROMISE, (_check(2000, tried=5),), (), 0.95).verdict is Conclusion.CONSISTENT
    doubtful = judge(PROMISE, (_check(2000, tried=4),), (), 0.95)
    assert doubtful.verdict is Conclusion.INCONCLUSIVE
    assert "a unit 50% beyond its bound had less than an even chance of being detected" in doubtful.why
    assert "probability 0.40 (4 of 10 units were tested)" in doubtful.why


def test_the_page_draws_the_power_of_all_layers_together() -> None:
    report = judge(PROMISE, (_check(100), _check(150)), (), 0.95)
    (figure,) = (one for one in draw_figures(report, None, (), ()) if "noticed" in one.caption)
    assert "all layers together" in figure.chart
    assert "probability 1.00" in figure.reading


def _one_record_unclipped(number: int) -> AbstractContextManager[Any]:
    """The record with the `number`-th value of a feature is clipped to one and a half times the norm."""

    def wrong(right: Callable[..., Any], self: Any, state: Any, round: int, silo: Any, batch: Any) -> Any:
        message = right(self, state, round, silo, batch)
        if not bool(np.isclose(silo.x[batch][:, 1].numpy(), number).any()):
            return message
        return with_values(message, lambda name, values: 1.5 * values / np.linalg.norm(values))

    return sending(DpFedSgd, wrong)


def test_one_record_of_hundreds_that_is_not_clipped_is_found(workshop: Workshop) -> None:
    evidence = workshop.clean(Engine.SECRET_BATCHES).evidence()
    setting = ProbeSetting.of(evidence)
    (clean,) = check_every_unit(setting, evidence.silos, 0)
    assert clean.outcome is CheckOutcome.PASSED
    assert clean.bound_power is not None
    assert clean.bound_power.tried == clean.bound_power.units == sum(len(silo) for silo in evidence.silos)
    one = float(evidence.silos[1].x[7, 1])
    with _one_record_unclipped(one):
        (found,) = check_every_unit(setting, evidence.silos, 0)
    assert found.outcome is CheckOutcome.FAILED
    assert found.finding.startswith("1.5")


def test_half_of_the_units_are_tried_on_a_slow_machine_too(workshop: Workshop) -> None:
    evidence = workshop.clean(Engine.SECRET_BATCHES).evidence()
    ticks = itertools.count(0.0, 0.05)
    with patch("audit.probes.sensitivity.time.process_time", lambda: next(ticks)):
        (check,) = check_every_unit(ProbeSetting.of(evidence), evidence.silos, 0)
    assert check.bound_power is not None
    assert check.bound_power.tried == check.bound_power.units // 2


def _attack(reruns: int, epsilon: float, at_ceiling: bool) -> Attack:
    bound = LowerBound(epsilon, 1e-5, 0.95, Method.ONE_RUN, CurveFamily.EPSILON_DELTA, GuessCounts(100, 20, 20))
    return Attack(name=f"{reruns} reruns", bound=bound, power=0.0, evidence="", at_ceiling=at_ceiling)


def test_reruns_go_on_until_the_attack_decides_and_the_error_is_paid_for() -> None:
    asked: list[tuple[int, float, int]] = []

    def attempt(reruns: int, confidence: float, seed: int) -> tuple[Attack, ...]:
        asked.append((reruns, confidence, seed))
        return (_attack(reruns, epsilon=2.5 if reruns > 3 else 1.0, at_ceiling=True),)

    patient = AuditOptions(reruns=1, budget_seconds=1e6)
    assert until_decided(attempt, PROMISE, patient, CONFIDENCE)[0].bound.epsilon == 2.5
    assert [reruns for reruns, _, _ in asked] == [1, 2, 4]
    assert len({seed for _, _, seed in asked}) == 3
    assert sum(1 - confidence for _, confidence, _ in asked) < 0.05


@pytest.mark.parametrize(("budget", "at_ceiling"), [(0.0, True), (1e6, False)])
def test_without_a_budget_or_a_ceiling_there_is_one_attempt(budget: float, at_ceiling: bool) -> None:
    asked: list[float] = []

    def attempt(reruns: int, confidence: float, seed: int) -> tuple[Attack, ...]:
        asked.append(1 - confidence)
        return (_attack(reruns, 1.0, at_ceiling),)

    until_decided(attempt, PROMISE, AuditOptions(reruns=1, budget_seconds=budget), CONFIDENCE)
    assert asked == [pytest.approx(0.05 if budget == 0 else 0.025)]


@pytest.mark.slow
def test_epochs_sorted_by_the_attribute_are_never_called_consistent(workshop: Workshop, tmp_path: Path) -> None:
    """Noise as signed, and an attack that is always right: by its noise alone such a run would pass."""
    engine = Engine.STEFFLE_LONG
    with fixed_randomness(5), sorted_by_attribute(), workshop.trained(engine) as trained:
        evidence = trained.evidence()
        checks = check_noise(evidence)
        assert CheckOutcome.FAILED not in {check.outcome for check in checks}
        promise = on_trial(evidence.document)
        assert promise is not None

        def attempt(reruns: int, confidence: float, seed: int) -> tuple[Attack, ...]:
            return coin_audit(evidence, promise, runs=reruns, seed=seed, confidence=confidence)

        hasty = attempt(1, 0.95, 0)
        assert judge(promise, checks, hasty, 0.95).verdict is not Conclusion.CONSISTENT
        patient = until_decided(attempt, promise, AuditOptions(reruns=1, budget_seconds=600.0), CONFIDENCE)
        assert judge(promise, checks, patient, 0.95).verdict is Conclusion.VIOLATED
        whole = audit_run(trained.run, AuditOptions(reruns=0), plan_path=trained.plan)
        assert whole.verdict is Conclusion.VIOLATED
        assert "batches of known words" in whole.why
