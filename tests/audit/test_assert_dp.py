"""The mechanism tester: finds the bugs of the literature, passes what is right, and alarms as rarely as it says.

Mechanisms that keep their promise are judged at a false-alarm probability of 1e-9; all others are seeded.
"""

from __future__ import annotations

import doctest
import json
import math
from typing import Any

import numpy as np
import pytest

from audit.claims import assert_dp as module
from audit.claims.assert_dp import MechanismSearch, PrivacyRefuted, assert_dp
from audit.claims.claim import Domain
from audit.claims.outputs import Outputs, Vocabulary, _lowest_bits
from audit.claims.spaces import Box, Category
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import Protected, Relation
from tests.audit.published_mechanisms import PUBLISHED, Published

UNIT = Domain({"x": Box(0.0, 1.0)})
QUICK = MechanismSearch(pairs=12, runs=3000)
FEW_ENTRIES = tuple(each for each in PUBLISHED if "sparse vector" not in each.name or "without noise" in each.name)
MANY_ENTRIES = tuple(each for each in PUBLISHED if each not in FEW_ENTRIES)


def _check(each: Published) -> None:
    def run() -> module.MechanismResult:
        search = MechanismSearch(low_bits=each.low_bits)
        return assert_dp(each.mechanism, each.epsilon, each.delta, each.domain, relation=each.relation, search=search)

    if each.keeps:
        result = run()
        assert not result.refuted
        assert result.bound.epsilon <= each.epsilon
        return
    with pytest.raises(PrivacyRefuted) as caught:
        run()
    result = caught.value.result
    assert result.bound.epsilon > each.epsilon
    assert result.bound.confidence == 1 - 1e-9
    assert result.pair.size <= 4


@pytest.mark.parametrize("each", FEW_ENTRIES, ids=lambda each: each.name)
def test_mechanisms_of_the_literature_are_judged_rightly(each: Published) -> None:
    _check(each)


@pytest.mark.slow
@pytest.mark.parametrize("each", MANY_ENTRIES, ids=lambda each: each.name)
def test_sparse_vectors_of_the_literature_are_judged_rightly(each: Published) -> None:
    _check(each)


def test_the_example_of_the_docstring_is_true() -> None:
    assert doctest.testmod(module, verbose=False, optionflags=doctest.ELLIPSIS).failed == 0


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_a_mechanism_at_its_bound_is_refuted_as_rarely_as_stated(epsilon: float) -> None:
    """Randomised response on one bit, at a false-alarm probability of 5%: seeded, 100 tests, three standard errors."""
    right = math.exp(epsilon) / (1 + math.exp(epsilon))

    def response(s: Any, rng: np.random.Generator, runs: int) -> Any:
        return np.where(rng.random(runs) < right, int(s[0]), 1 - int(s[0]))

    domain, alarms = Domain({"s": Category(2)}, fewest=1, most=1, attribute="s"), 0
    for seed in range(100):
        search = MechanismSearch(pairs=1, runs=300, seed=seed, false_alarm=0.05)
        try:
            assert_dp(response, epsilon, 0.0, domain, relation=Relation.REPLACE_ATTRIBUTE, search=search)
        except PrivacyRefuted:
            alarms += 1
    assert alarms / 100 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 100)


def test_delta_is_forgiven_and_nothing_more() -> None:
    def leaks_sometimes(x: Any, rng: np.random.Generator, runs: int) -> Any:
        noisy = np.round(x.sum() + rng.laplace(0, 1.0, runs), 2)
        return np.where(rng.random(runs) < 0.05, 100.0 + len(x), noisy)

    search = MechanismSearch(pairs=12)
    assert not assert_dp(leaks_sometimes, 1.0, 0.06, UNIT, search=search).refuted
    with pytest.raises(PrivacyRefuted, match=r"delta = 0\.001"):
        assert_dp(leaks_sometimes, 1.0, 0.001, UNIT, search=search)


def test_outputs_may_be_anything_and_runs_may_be_single() -> None:
    """No generator, no vectors: text, None, lists of different lengths."""

    def names(x: Any) -> Any:
        return ["present"] * len(x) if len(x) else None

    with pytest.raises(PrivacyRefuted) as caught:
        assert_dp(names, 1.0, 0.0, UNIT, search=MechanismSearch(pairs=5, runs=200))
    result = caught.value.result
    assert result.pair.size == 1
    assert "None" in result.event or "present" in result.event
    document = json.loads(json.dumps(result.to_json()))
    assert document["verdict"] == "refuted"
    assert document["claimed"] == {"epsilon": 1.0, "delta": 0.0}
    assert document["counterexample"]["in"]["first"]["x"] or document["counterexample"]["in"]["second"]["x"]


def test_order_dependence_and_users_are_tested_too() -> None:
    def first_record(x: Any, rng: np.random.Generator, runs: int) -> Any:
        return np.round(10 * x[0] + rng.laplace(0, 1.0, runs), 2)

    with pytest.raises(PrivacyRefuted):
        assert_dp(first_record, 1.0, 0.0, Domain({"x": Box(0.0, 1.0)}, fewest=1), search=QUICK)

    def count(x: Any, user: Any, rng: np.random.Generator, runs: int) -> Any:
        return np.round(len(x) + rng.laplace(0, 1.0, runs), 2)

    users = Domain({"x": Box(0.0, 1.0)}, user="user", most_per_user=3)
    with pytest.raises(PrivacyRefuted):
        assert_dp(count, 1.0, 0.0, users, protected=Protected.USER, search=QUICK)
    assert not assert_dp(count, 3.0, 0.0, users, protected=Protected.USER, search=QUICK).refuted


def test_the_same_seed_gives_the_same_result() -> None:
    def noisy(x: Any, rng: np.random.Generator, runs: int) -> Any:
        return np.round(x.sum() + rng.laplace(0, 1.0, runs), 2)

    first, second = (assert_dp(noisy, 1.0, 0.0, UNIT, search=QUICK).to_json() for _ in range(2))
    assert first == second


def test_what_can_not_be_tested_is_refused() -> None:
    with pytest.raises(InvalidInput, match="none of x"):
        assert_dp(lambda data: 0, 1.0, 0.0, UNIT)
    with pytest.raises(InvalidInput, match="outputs"):
        assert_dp(lambda x, runs: np.zeros(3), 1.0, 0.0, UNIT, search=QUICK)
    with pytest.raises(InvalidInput, match="user"):
        assert_dp(lambda x: 0, 1.0, 0.0, UNIT, protected=Protected.USER)


def test_the_lowest_bit_of_a_float_is_exact() -> None:
    values = np.array([1.0, 0.75, 3.0, -0.1, 5e-324, 0.0, np.inf])
    found = _lowest_bits(values)
    assert found[:3].tolist() == [0.0, -2.0, 0.0]
    assert found[3] == math.log2(float((0.1).as_integer_ratio()[1]) ** -1)
    assert found[4] == -1074
    assert np.isnan(found[5:]).all()


def test_outputs_of_different_lengths_share_a_table() -> None:
    vocabulary = Vocabulary()
    table = Outputs.of([1, (2.0, None), [[True, "a"], 3]], vocabulary)
    assert table.values.shape == (3, 3)
    assert table.values[0].tolist()[0] == 1.0
    assert table.values[2].tolist()[0] == 1.0
    assert vocabulary.name(int(table.codes[1, 1])) == "None"
    assert vocabulary.name(int(table.codes[2, 1])) == "'a'"
    assert table.entry(7)[1].tolist() == [-1, -1, -1]
