"""A verdict has two parts: at the paper's setting, and as the claim is quantified; misprints are labelled as such."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calibrate.theorems.catalogue import CATALOGUE, theorem_named
from calibrate.theorems.theorem import BoundComparison, Outcome, Theorem


@pytest.mark.parametrize("theorem", CATALOGUE, ids=lambda theorem: theorem.id)
def test_every_counterexample_is_one(theorem: Theorem) -> None:
    """What is called a counterexample fails when it is judged on its own, within the claim's conditions."""
    verdict = theorem.judge()
    assert verdict.as_quantified is not None
    found = verdict.as_quantified.counterexample
    if verdict.as_quantified.outcome is Outcome.FAILS:
        assert found is not None
        given = {name: value for name, value in found.items() if value != "Infinity"}
        assert theorem.judge(given).outcome is Outcome.FAILS
    else:
        assert found is None
        assert (theorem.proof is not None) == (verdict.as_quantified.outcome is Outcome.HOLDS)
    shown = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    assert {"as_quantified", "counterexample", "misprint"} <= set(shown)
    assert shown["counterexample"] == found


def test_fedfdps_theorem_2_holds_at_its_setting_and_fails_as_quantified() -> None:
    verdict = theorem_named("fedfdp.theorem-2").judge()
    assert verdict.outcome is Outcome.HOLDS
    assert verdict.as_quantified is not None
    assert verdict.as_quantified.outcome is Outcome.FAILS
    found = verdict.as_quantified.counterexample
    assert found is not None
    assert (found["rounds"], found["delta"], found["sampling_rate"]) == (1, 1e-12, 0.01)
    there = theorem_named("fedfdp.theorem-2").judge(found).to_json()
    assert there["claimed_epsilon"] == pytest.approx(3.02, abs=0.01)
    assert there["true_epsilon"] == pytest.approx(5.02, abs=0.01)


def test_fpfl_holds_at_one_setting_of_its_paper_and_fails_at_another() -> None:
    verdict = theorem_named("fpfl.algorithm-1").judge({"cohort": 1000, "rounds": 250})
    assert verdict.outcome is Outcome.HOLDS
    assert verdict.as_quantified is not None
    assert verdict.as_quantified.outcome is Outcome.FAILS


@pytest.mark.parametrize(
    ("id", "corrected"),
    [
        ("fpfl.gaussian-rdp", Outcome.HOLDS),
        ("mmd.corollary-5.3", Outcome.HOLDS),
        ("steffle.lemma-B.1.W", Outcome.HOLDS),
        ("steffle.lemma-B.1.theta", Outcome.FAILS),
        ("fedfdp.theorem-3", Outcome.HOLDS),
    ],
)
def test_a_misprint_is_told_apart_from_a_false_claim(id: str, corrected: Outcome) -> None:
    theorem = theorem_named(id)
    verdict = theorem.judge()
    assert verdict.misprint is not None
    assert verdict.misprint.corrected is corrected
    assert theorem.correction is not None
    name, reading = theorem.correction.reading
    again = theorem.judge({name: reading})
    assert again.misprint is None
    assert again.outcome is corrected


def test_claims_without_a_misprint_say_so() -> None:
    assert theorem_named("steffle.theorem-3.3").judge().to_json()["misprint"] is None


def test_convergence_is_compared_with_the_iteration_itself() -> None:
    """The condition that the proof uses silently is computed, and the exact course of a quadratic is the run."""
    theorem = theorem_named("fedfdp.theorem-1")
    assert theorem.judge({"C_t": 0.5}).outcome is Outcome.NOT_APPLICABLE
    assert theorem.judge({"L": 0.5}).outcome is Outcome.NOT_APPLICABLE
    still = theorem.judge({"sigma": 1e-9, "t": 2}).finding.comparison
    assert isinstance(still, BoundComparison)
    assert still.found == pytest.approx(0.5), "the first step of size 2/mu throws the iterate to the other side"
    random = np.random.default_rng(4)
    runs = np.full(40_000, 1.0)
    for t in range(1, 5):
        runs = runs - 2 / t * (runs + random.normal(0, 0.3, len(runs)))
    five = theorem.judge({"sigma": 0.3, "clip": 1.0, "B": 1.0, "d": 1, "t": 5}).finding.comparison
    assert isinstance(five, BoundComparison)
    assert five.found == pytest.approx(float(np.square(runs).mean()) / 2, rel=0.05)  # six standard errors
    assert five.claimed > five.found


def test_sub_sampling_never_costs_more_and_the_second_setting_of_fpfl_is_judged() -> None:
    theorem = theorem_named("fpfl.sub-sampling")
    for rate, order in ((0.001, 2), (0.5, 32), (1.0, 8)):
        assert theorem.judge({"rate": rate, "order": order}).outcome is Outcome.HOLDS
    assert theorem_named("fpfl.algorithm-1.femnist").judge().outcome is Outcome.HOLDS
    assert theorem_named("fpfl.algorithm-1.femnist").judge({"relation": "replace-one"}).outcome is not Outcome.HOLDS
