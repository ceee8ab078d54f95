"""That no test of the noise failed is evidence only where missing noise would have been seen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from audit.bounds import CurveFamily, GuessCounts, LowerBound, Method
from audit.report.results import STATED_BREACH, Attack, Check, CheckOutcome, Conclusion, Promise, Standing
from audit.runs.noise import Residuals, all_measured, judge_residuals
from audit.verdict import is_at_ceiling, judge
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import GaussianNoise
from calibrate.plans.gaussian import GaussianPlan
from calibrate.privacy_unit import EpsilonDelta, Relation
from tests.privfair.small_runs import document_of

ALPHA = 1e-3
PROMISE = Promise(epsilon=2.0, delta=1e-5, source="promised", standing=Standing.PRICED)


@pytest.fixture(scope="module")
def document() -> BudgetDocument:
    return document_of(GaussianPlan(0.2, 10, Relation.ADD_REMOVE, clip=1.0), EpsilonDelta(2.0, 1e-5))


def _checks(document: BudgetDocument, rows: np.ndarray) -> tuple[Check, ...]:
    found = (Residuals("north", document.releases[0].name, rows),)
    return (*judge_residuals(found, ALPHA), all_measured(document, found, ALPHA))


def test_a_dozen_residuals_with_half_the_noise_do_not_speak_for_the_promise(document: BudgetDocument) -> None:
    checks = _checks(document, 0.5 * np.random.default_rng(0).normal(size=(4, 3)))
    assert CheckOutcome.FAILED not in {check.outcome for check in checks}
    assert judge(PROMISE, checks, (), 0.95).verdict is Conclusion.INCONCLUSIVE
    assert "12 values" in checks[-1].finding


def test_many_residuals_do(document: BudgetDocument) -> None:
    checks = _checks(document, np.random.default_rng(0).normal(size=(40, 5)))
    assert {check.outcome for check in checks} == {CheckOutcome.PASSED}
    assert judge(PROMISE, checks, (), 0.95).verdict is Conclusion.CONSISTENT


def test_noise_that_would_hardly_be_missed_at_eight_tenths_does_not_speak_for_the_promise(
    document: BudgetDocument,
) -> None:
    checks = _checks(document, np.random.default_rng(0).normal(size=(20, 5)))
    assert {check.outcome for check in checks} == {CheckOutcome.PASSED}
    found = judge(PROMISE, checks, (), 0.95)
    assert found.verdict is Conclusion.INCONCLUSIVE
    assert found.noise_noticed is not None
    assert 0.6 < found.noise_noticed < STATED_BREACH


def test_the_smallest_breach_that_is_named_is_noticed_half_of_the_time(document: BudgetDocument) -> None:
    random = np.random.default_rng(3)
    found = judge(PROMISE, _checks(document, random.normal(size=(60, 5))), (), 0.95)
    assert found.noise_noticed is not None
    share = math.floor(100 * found.noise_noticed) / 100
    assert f"noise {round(100 * (1 - share))}% below the signed level would have been detected" in found.why
    flagged = [
        CheckOutcome.FAILED in {check.outcome for check in _checks(document, share * random.normal(size=(60, 5)))}
        for _ in range(100)
    ]
    assert np.mean(flagged) > 0.5 - 3 * math.sqrt(0.25 / 100)


def _at_ceiling(right: float, guesses: int = 20) -> Attack:
    counts = GuessCounts(guesses, guesses, round(right * guesses))
    bound = LowerBound(0.5, 1e-5, 0.95, Method.ONE_RUN, CurveFamily.EPSILON_DELTA, counts)
    ceiling = is_at_ceiling(right, 1.0, guesses)
    return Attack(name="coins", bound=bound, power=0.0, evidence="", right=right, at_ceiling=ceiling)


def test_an_attack_as_right_as_without_noise_is_not_outvoted_by_measured_noise(document: BudgetDocument) -> None:
    checks = _checks(document, np.random.default_rng(0).normal(size=(60, 5)))
    assert judge(PROMISE, checks, (_at_ceiling(0.6),), 0.95).verdict is Conclusion.CONSISTENT
    found = judge(PROMISE, checks, (_at_ceiling(1.0),), 0.95)
    assert found.verdict is Conclusion.INCONCLUSIVE
    assert "as right as without any noise" in found.why
    assert judge(PROMISE, checks, (_at_ceiling(1.0, guesses=3),), 0.95).verdict is Conclusion.CONSISTENT, "luck"


def test_where_it_is_said_that_half_would_be_noticed_it_is(document: BudgetDocument) -> None:
    random = np.random.default_rng(1)
    enough = next(n for n in range(2, 200) if _checks(document, np.ones((n, 1)))[-1].outcome is CheckOutcome.PASSED)
    flagged = [
        CheckOutcome.FAILED in {check.outcome for check in _checks(document, 0.5 * random.normal(size=(enough, 1)))}
        for _ in range(200)
    ]
    assert np.mean(flagged) > 0.4


def test_a_value_whose_noise_was_never_measured_is_named(document: BudgetDocument) -> None:
    other = document.releases[0].model_copy(update={"name": "losses"})
    assert isinstance(other, GaussianNoise)
    wider = document.model_copy(update={"releases": (*document.releases, other)})
    last = _checks(wider, np.random.default_rng(0).normal(size=(20, 5)))[-1]
    assert last.outcome is CheckOutcome.NOT_POSSIBLE
    assert "losses" in last.finding


def _true_noise(random: np.random.Generator, party: str, rounds: int, width: int, silent: bool) -> Residuals:
    noise, message = (np.rint(2.0**30 * random.normal(size=(rounds, width))).astype(np.int64) for _ in range(2))
    clean = 0 * message if silent else 5 * message
    return Residuals(party, "value", noise / 2**30, noise + clean, clean, 27)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "width", "silos", "silent", "runs"),
    [
        (1, 1, 1, False, 400),
        (1, 1, 3, False, 300),
        (2, 1, 1, False, 400),
        (12, 3, 3, True, 200),
        (150, 1, 2, False, 60),
    ],
)
def test_true_noise_of_any_shape_is_flagged_at_most_as_often_as_stated(
    rounds: int, width: int, silos: int, silent: bool, runs: int
) -> None:
    """One number, one round, one silo, messages that are all zero: seeded, 5% and three standard errors."""
    random, flagged = np.random.default_rng((rounds, silos)), 0
    for _ in range(runs):
        found = tuple(_true_noise(random, f"silo {place}", rounds, width, silent) for place in range(silos))
        flagged += any(check.outcome is CheckOutcome.FAILED for check in judge_residuals(found, 0.05))
    assert flagged / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
