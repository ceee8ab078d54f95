"""That no test of the noise failed is evidence only where missing noise would have been seen."""

from __future__ import annotations

import numpy as np
import pytest

from audit.noise import Residuals, all_measured, judge_residuals
from audit.report.results import Check, Conclusion, Outcome, Promise, Standing
from audit.verdict import judge
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
    assert Outcome.FAILED not in {check.outcome for check in checks}
    assert judge(PROMISE, checks, (), 0.95).verdict is Conclusion.INCONCLUSIVE
    assert "12 values" in checks[-1].finding


def test_many_residuals_do(document: BudgetDocument) -> None:
    checks = _checks(document, np.random.default_rng(0).normal(size=(20, 5)))
    assert {check.outcome for check in checks} == {Outcome.PASSED}
    assert judge(PROMISE, checks, (), 0.95).verdict is Conclusion.CONSISTENT


def test_where_it_is_said_that_half_would_be_noticed_it_is(document: BudgetDocument) -> None:
    random = np.random.default_rng(1)
    enough = next(n for n in range(2, 200) if _checks(document, np.ones((n, 1)))[-1].outcome is Outcome.PASSED)
    flagged = [
        Outcome.FAILED in {check.outcome for check in _checks(document, 0.5 * random.normal(size=(enough, 1)))}
        for _ in range(200)
    ]
    assert np.mean(flagged) > 0.4


def test_a_value_whose_noise_was_never_measured_is_named(document: BudgetDocument) -> None:
    other = document.releases[0].model_copy(update={"name": "losses"})
    assert isinstance(other, GaussianNoise)
    wider = document.model_copy(update={"releases": (*document.releases, other)})
    last = _checks(wider, np.random.default_rng(0).normal(size=(20, 5)))[-1]
    assert last.outcome is Outcome.NOT_POSSIBLE
    assert "losses" in last.finding
