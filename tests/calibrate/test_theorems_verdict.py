"""A verdict follows from the numbers and the conditions alone; settings are read strictly."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.errors import InvalidInput
from calibrate.privacy_unit import EpsilonInterval
from calibrate.theorems.catalogue import CATALOGUE, theorem_named
from calibrate.theorems.theorem import (
    BoundComparison,
    Direction,
    EpsilonComparison,
    Finding,
    Outcome,
    Precondition,
    judge_finding,
)

positive = st.floats(1e-6, 1e6)


@given(claimed=positive, ends=st.tuples(positive, positive))
def test_an_epsilon_claim_is_judged_by_which_side_of_the_interval_it_lies(
    claimed: float, ends: tuple[float, float]
) -> None:
    lower, upper = min(ends), max(ends)
    verdict = judge_finding("x", Finding(EpsilonComparison(claimed, EpsilonInterval(lower, upper)), "why"), ())
    if upper <= claimed:
        assert verdict.outcome is Outcome.HOLDS
        assert verdict.looseness == claimed / upper
    elif lower > claimed:
        assert verdict.outcome is Outcome.FAILS
    else:
        assert verdict.outcome is Outcome.UNDECIDED


@pytest.mark.parametrize(
    ("claimed", "found", "direction", "outcome"),
    [
        (2.0, 1.0, Direction.AT_MOST, Outcome.HOLDS),
        (1.0, 1.0 + 1e-13, Direction.AT_MOST, Outcome.HOLDS),
        (1.0, 1.0001, Direction.AT_MOST, Outcome.FAILS),
        (1.0, math.inf, Direction.AT_MOST, Outcome.FAILS),
        (0.0, -1e-16, Direction.AT_LEAST, Outcome.HOLDS),
        (0.0, -1e-3, Direction.AT_LEAST, Outcome.FAILS),
        (1.0, 0.999, Direction.EXACTLY, Outcome.FAILS),
        (1.0, 1.0, Direction.EXACTLY, Outcome.HOLDS),
    ],
)
def test_a_bound_is_judged_in_its_direction(
    claimed: float, found: float, direction: Direction, outcome: Outcome
) -> None:
    verdict = judge_finding("x", Finding(BoundComparison("q", claimed, found, direction), "why"), ())
    assert verdict.outcome is outcome
    json.loads(json.dumps(verdict.to_json(), allow_nan=False))


def test_a_broken_condition_comes_before_the_numbers_and_is_named() -> None:
    finding = Finding(EpsilonComparison(1.0, EpsilonInterval(5.0, 6.0)), "why")
    verdict = judge_finding("x", finding, (Precondition("a holds", True), Precondition("b holds", False)))
    assert verdict.outcome is Outcome.NOT_APPLICABLE
    assert verdict.broken == ("b holds",)
    assert verdict.to_json()["verdict"] == "not applicable"


@pytest.mark.parametrize("theorem", CATALOGUE, ids=lambda theorem: theorem.id)
def test_every_claim_has_a_source_a_formula_and_a_json_verdict(theorem: object) -> None:
    from calibrate.theorems.theorem import Theorem

    assert isinstance(theorem, Theorem)
    assert theorem.citation
    assert theorem.place
    assert theorem.formula
    told = json.loads(json.dumps(theorem.judge().to_json(), allow_nan=False))
    assert {"id", "claimed_epsilon", "true_epsilon", "verdict", "preconditions", "why"} <= set(told)
    if told["claimed_epsilon"] is None:
        assert {"claimed", "found", "ratio"} <= set(told)
    else:
        assert told["true_epsilon"] == told["true_epsilon_interval"]["upper"]


def test_the_catalogue_holds_every_claim_once() -> None:
    assert [theorem.id for theorem in CATALOGUE] == [
        "steffle.lemma-B.1.W",
        "steffle.lemma-B.1.theta",
        "steffle.theorem-3.3",
        "steffle.theorem-C.2",
        "steffle.section-4.central",
        "steffle.appendix-F.general",
        "fedfdp.equation-13",
        "fedfdp.theorem-2",
        "fedfdp.theorem-3",
        "fedfdp.theorem-4",
        "fedfdp.theorem-1",
        "fedfdp.equation-14",
        "fedfdp.algorithm-2.division",
        "fedfdp.section-VIII.epsilon",
        "fedfdp.section-VIII.rounds",
        "fpfl.algorithm-1",
        "fpfl.algorithm-1.femnist",
        "fpfl.sub-sampling",
        "fpfl.gaussian-rdp",
        "mmd.proposition-5.2",
        "mmd.corollary-5.3",
        "steffle.theorem-3.4",
        "steffle.theorem-C.9",
        "mmd.theorem-5.1",
    ]


@pytest.mark.parametrize(
    ("given_values", "message"),
    [
        ({"epsilon": "-1"}, "epsilon"),
        ({"delta": "2"}, "delta"),
        ({"rounds": "1.5"}, "whole number"),
        ({"rounds": "many"}, "must be a number"),
        ({"rounds": "nan"}, "finite"),
        ({"batch": "public"}, "secret, revealed"),
        ({"sampling": "fixed"}, "use shuffled, poisson"),
        ({"roundz": "3"}, "did you mean rounds"),
        ({"T": "3", "rounds": "3"}, "twice"),
        ({"minority_fraction": "0.6"}, "minority_fraction"),
        ({"batch_size": "7501"}, "batch-size"),
    ],
)
def test_a_bad_setting_is_refused_by_name(given_values: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        theorem_named("steffle.theorem-3.3").judge(given_values)


def test_the_papers_letters_are_understood_and_text_equals_numbers() -> None:
    theorem = theorem_named("steffle.lemma-B.1.W")
    assert theorem.judge({"m": "5", "rho": "0.5"}) == theorem.judge({"batch_size": 5, "minority_fraction": 0.5})


def test_an_unknown_id_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidInput, match=r"did you mean steffle\.theorem-3\.3"):
        theorem_named("steffle.theorem-33")


def test_mismatched_lists_are_refused() -> None:
    with pytest.raises(InvalidInput, match="rounds"):
        theorem_named("fedfdp.section-VIII.rounds").judge({"sigmas": "1,2"})


def test_settings_at_the_edge_are_answered_or_refused_by_name() -> None:
    assert theorem_named("steffle.theorem-C.2").judge({"n": 1, "m": 1, "T": 100}).to_json()["true_epsilon"]
    with pytest.raises(InvalidInput, match="largest_order"):
        theorem_named("fpfl.algorithm-1").judge({"epsilon": 0.001})
    huge = theorem_named("steffle.theorem-3.3").judge({"epsilon": 200, "batch": "secret", "sampling": "poisson"})
    assert huge.outcome is Outcome.NOT_APPLICABLE
    assert huge.broken[0].startswith("epsilon <= 2 ln(1/delta)")
