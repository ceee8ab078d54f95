"""The strategies draw what they promise, and a search is deterministic."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from audit.claims import neighbours
from audit.claims.claim import DistanceClaim, Domain, NeighbouringPair, Subject, size_of
from audit.claims.falsify import Search, falsify, replay
from audit.claims.shrink import from_json, table, to_json
from audit.claims.spaces import Ball, Box, Category
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import Norm, Relation, SensitivityClaim

DOMAIN = Domain(
    {"x": Box(-1.0, 2.0, (2,)), "s": Category(2, least_share=0.25)},
    {"w": Ball(1.5, (2, 2))},
    fewest=3,
    most=8,
    attribute="s",
    user="user",
)
calm = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


def _meets_the_conditions(pair: NeighbouringPair) -> None:
    assert DOMAIN.allows(pair)
    for records in (pair.before, pair.after):
        assert 3 <= size_of(records) <= 8
        assert np.all((records["x"] >= -1.0) & (records["x"] <= 2.0))
        assert np.bincount(records["s"], minlength=2).min() >= 0.25 * size_of(records)
    assert np.linalg.norm(pair.public["w"]) <= 1.5 * (1 + 1e-9)


@calm
@given(neighbours.added_record(DOMAIN))
def test_added_record(pair: NeighbouringPair) -> None:
    _meets_the_conditions(pair)
    assert size_of(pair.after) == size_of(pair.before) + 1


@calm
@given(neighbours.removed_record(DOMAIN))
def test_removed_record(pair: NeighbouringPair) -> None:
    _meets_the_conditions(pair)
    assert size_of(pair.before) == size_of(pair.after) + 1


@calm
@given(neighbours.replaced_record(DOMAIN))
def test_replaced_record(pair: NeighbouringPair) -> None:
    _meets_the_conditions(pair)
    assert size_of(pair.before) == size_of(pair.after)
    assert (pair.before["x"] != pair.after["x"]).any(axis=1).sum() <= 1


@calm
@given(neighbours.replaced_attribute(DOMAIN))
def test_replaced_attribute(pair: NeighbouringPair) -> None:
    _meets_the_conditions(pair)
    assert np.array_equal(pair.before["x"], pair.after["x"])
    assert (pair.before["s"] != pair.after["s"]).sum() == 1


@calm
@given(neighbours.added_user(DOMAIN))
def test_added_user(pair: NeighbouringPair) -> None:
    _meets_the_conditions(pair)
    assert 1 <= (pair.after["user"] == 0).sum() <= DOMAIN.most_per_user
    assert not (pair.before["user"] == 0).any()


@calm
@given(neighbours.replaced_user(DOMAIN))
def test_replaced_user_and_json(pair: NeighbouringPair) -> None:
    _meets_the_conditions(pair)
    others = pair.before["user"] != 0
    assert np.array_equal(pair.before["x"][others], pair.after["x"][pair.after["user"] != 0])
    again = from_json(json.loads(json.dumps(to_json(pair))), DOMAIN)
    assert all(np.array_equal(again.before[name], pair.before[name]) for name in pair.before)
    assert np.array_equal(again.public["w"], pair.public["w"])


def test_the_same_seed_finds_the_same() -> None:
    subject = Subject(lambda x: x.mean(axis=0), Domain({"x": Box(-1.0, 1.0, (2,))}, fewest=2))
    first, second = (falsify(subject, DistanceClaim(0.5), Search(100, 2, 10, seed=7)) for _ in range(2))
    assert first.to_json() == second.to_json()


def test_ascent_finds_what_random_pairs_miss() -> None:
    """A narrow peak away from every corner."""
    subject = Subject(lambda x: np.exp(-np.abs(x - 0.377).sum(axis=1) * 3.0).sum(), Domain({"x": Box(-1.0, 1.0, (3,))}))
    still = falsify(subject, DistanceClaim(10.0), Search(60, 0, 0))
    risen = falsify(subject, DistanceClaim(10.0), Search(60, 4, 80))
    assert risen.found > 1.2 * still.found
    assert risen.found <= 1.0 + 1e-9


@pytest.mark.parametrize(
    ("function", "records"),
    [
        (lambda x: x[0], 2),
        (lambda x: x[: len(x) // 2].sum(), 5),
        (lambda x: x[::2].sum() - x[1::2].sum(), 5),
        (lambda x: np.abs(np.diff(x)).sum(), 3),
    ],
    ids=["first", "first half", "alternating", "differences"],
)
@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
def test_functions_of_the_order_are_refuted_by_few_records(function: object, records: int, relation: Relation) -> None:
    """As few as give the largest distance: where more records move it further, more are kept."""
    domain = Domain({"x": Box(0.0, 1.0)}, fewest=1)
    result = falsify(Subject(function, domain), DistanceClaim(0.5, relation), Search(150, 1, 5))
    assert result.refuted
    assert result.pair.size <= records
    assert replay(json.loads(json.dumps(to_json(result.pair))), Subject(function, domain), result.claim) == result.found


def test_a_unit_that_stays_last_moves_no_first_record() -> None:
    domain = Domain({"x": Box(0.0, 1.0)}, fewest=2, unit_last=True)
    assert falsify(Subject(lambda x: x[0], domain), DistanceClaim(0.5), Search(100, 1, 5)).found == 0.0


def test_a_counterexample_is_shown_in_the_order_of_its_records() -> None:
    rows = {name: {"x": np.array(values)} for name, values in (("common", [1.0, 2.0]), ("left", [3.0]), ("right", []))}
    lines = table(NeighbouringPair(**rows, public={}, place=1)).splitlines()[2:]
    assert [line.split() for line in lines] == [["both", "1"], ["first", "3"], ["both", "2"]]


def test_shrinking_drops_what_does_not_matter() -> None:
    subject = Subject(lambda x: x.sum(axis=0), Domain({"x": Box(-1.0, 1.0, (1,))}, most=9))
    finding = falsify(subject, DistanceClaim(0.5), Search(100, 1, 5))
    assert finding.pair.size == 1
    assert finding.found == pytest.approx(1.0)


def test_a_plans_bound_counts_twice_where_a_unit_is_replaced() -> None:
    for relation, bound in ((Relation.ADD_REMOVE, 3.0), (Relation.REPLACE_ONE, 6.0)):
        stated = SensitivityClaim("id", 3.0, Norm.L2, relation, (), "source")
        assert DistanceClaim.from_contribution(stated).bound == bound


def test_missing_columns_and_changed_counterexamples_are_refused() -> None:
    with pytest.raises(InvalidInput, match="attribute"):
        neighbours.replaced_attribute(Domain({"x": Box(0.0, 1.0)}))
    with pytest.raises(InvalidInput, match="user"):
        neighbours.added_user(Domain({"x": Box(0.0, 1.0)}))
    domain = Domain({"x": Box(0.0, 1.0)})
    outside = {"in": {"both": {"x": []}, "first": {"x": [2.0]}, "second": {"x": []}}, "public": {}}
    with pytest.raises(InvalidInput, match="breaks a condition"):
        from_json(outside, domain)
