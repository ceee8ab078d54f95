"""Attribute inference: imputation is no leakage, memorising is; intervals hold where nothing leaks."""

from __future__ import annotations

import numpy as np
import pytest

from audit.models.attribute_attacks import CSMIA, YEOM, Attribute, AttributeRecords, SensitiveInput
from audit.models.attribute_audit import AttributeOptions, attribute_inference, difference_interval, mean_interval
from audit.report.results import AttributeFinding, AttributeInference
from calibrate.errors import InvalidInput
from tests.audit.attribute_cases import Honest, Memorising, MemorisingElsewhere, as_input, population, without_input

SHAPES = [(2, False), (4, True)]


def _two_sets(seed: int, values: int, one_hot: bool, size: int) -> tuple[AttributeRecords, AttributeRecords]:
    random = np.random.default_rng(seed)
    return population(random, size, values, one_hot), population(random, size + 137, values, one_hot)


def _by_name(found: AttributeInference, name: str):  # type: ignore[no-untyped-def]
    return next(one for one in found.attacks if one.name == name)


@pytest.mark.parametrize(("values", "one_hot"), SHAPES)
def test_an_attack_that_only_imputes_shows_no_leakage(values: int, one_hot: bool) -> None:
    """The attribute can be guessed well from the features, and the model helps, but members are not special."""
    members, others = _two_sets(1, values, one_hot, 1000)
    found = attribute_inference(Honest(values), as_input(values, one_hot), members, others)
    assert found.finding is AttributeFinding.NONE_FOUND
    assert found.imputation.members.value > 1.3 / values
    assert all(one.leakage.lower <= 0 <= one.leakage.upper for one in found.attacks)
    assert {one.name for one in found.attacks} == {"Yeom", "CSMIA", "LOMIA", "learned from outputs"}
    assert [one.name for one in found.not_applied] == ["white box"]
    assert "at most" in found.why


@pytest.mark.parametrize(("values", "one_hot"), SHAPES)
def test_a_memorising_model_is_found_out(values: int, one_hot: bool) -> None:
    members, others = _two_sets(2, values, one_hot, 800)
    target = Memorising(Honest(values), members, 1.0)
    found = attribute_inference(target, as_input(values, one_hot), members, others)
    assert found.finding is AttributeFinding.LEAKAGE
    for name in ("Yeom", "CSMIA", "learned from outputs"):
        result = _by_name(found, name)
        assert result.leaks
        assert result.members.accuracy.value > found.imputation.members.value
        assert result.beats_imputation
    assert "remembers s of its members" in found.why
    assert "taken alone" not in found.why


def test_memory_is_found_also_where_the_attribute_is_no_input() -> None:
    members, others = (without_input(part) for part in _two_sets(7, 2, False, 1000))
    attribute = Attribute("s", ("a", "b"))
    leaking = attribute_inference(MemorisingElsewhere(Honest(2), members, 1.0), attribute, members, others)
    assert leaking.finding is AttributeFinding.LEAKAGE
    assert {one.name for one in leaking.not_applied} == {"Yeom", "CSMIA", "LOMIA", "white box"}
    assert attribute_inference(Honest(2), attribute, members, others).finding is AttributeFinding.NONE_FOUND


def test_an_attack_cannot_see_what_it_is_to_guess() -> None:
    members, _ = _two_sets(4, 4, True, 100)
    attribute = as_input(4, True)
    asked = members.asked(attribute)
    assert (asked.features[:, 4:] == [1, 0, 0, 0]).all()
    assert (attribute.others(asked.features) == attribute.others(members.features)).all()


def test_csmia_decides_by_how_many_values_are_right() -> None:
    """Three records, two values; the model's answers are written out."""
    answers = {
        (0.0, 0.0): [0.1, 0.9],
        (0.0, 1.0): [0.7, 0.3],  # label 1: only value 0 is right
        (1.0, 0.0): [0.4, 0.6],
        (1.0, 1.0): [0.2, 0.8],  # label 1: both right, value 1 is firmer
        (2.0, 0.0): [0.9, 0.1],
        (2.0, 1.0): [0.6, 0.4],  # label 1: none right, value 1 is less sure
    }

    class Written:
        def probabilities(self, features):  # type: ignore[no-untyped-def]
            return np.array([answers[tuple(row)] for row in features])

    from audit.models.attribute_attacks import Knowledge

    records = AttributeRecords(
        np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]), np.ones(3, dtype=np.int64), np.array([0, 1, 1])
    )
    attribute = Attribute("s", ("no", "yes"), SensitiveInput((1,), ((0.0,), (1.0,))))
    knowledge = Knowledge(Written(), attribute, records, 2, 0)
    asked = records.asked(attribute)
    assert CSMIA.learn(knowledge)(asked).tolist() == [0, 1, 1]
    # Yeom: confidence in label 1 times the prior (2, 3)/5
    assert YEOM.learn(knowledge)(asked).tolist() == [0, 1, 1]


def test_sets_that_differ_by_themselves_prove_nothing() -> None:
    """Non-members whose attribute no longer shows in the features: every attack looks like memory, and is none."""
    members, others = _two_sets(9, 2, False, 600)
    shuffled = np.random.default_rng(0).permutation(others.sensitive)
    features = others.features.copy()
    features[:, 4] = shuffled
    found = attribute_inference(
        Honest(2), as_input(2, False), members, AttributeRecords(features, others.labels, shuffled)
    )
    assert found.finding is AttributeFinding.NOT_COMPARABLE
    assert "from one source" in found.why


def test_a_constant_feature_is_no_obstacle() -> None:
    members, others = (without_input(part) for part in _two_sets(10, 2, False, 200))
    flat = [
        AttributeRecords(np.hstack([part.features, np.zeros((len(part), 2))]), part.labels, part.sensitive)
        for part in (members, others)
    ]
    found = attribute_inference(Honest(2), Attribute("s", ("a", "b")), flat[0], flat[1])
    assert found.finding is AttributeFinding.NONE_FOUND


def test_answers_are_the_same_for_the_same_seed() -> None:
    members, others = _two_sets(5, 2, False, 300)
    first, second = (attribute_inference(Honest(2), as_input(2, False), members, others) for _ in range(2))
    assert first.to_json() == second.to_json()


def test_attacks_that_cannot_be_made_are_refused() -> None:
    members, others = (without_input(part) for part in _two_sets(6, 2, False, 100))
    with pytest.raises(InvalidInput, match="none of them"):
        attribute_inference(
            Honest(2), Attribute("s", ("a", "b")), members, others, AttributeOptions(attacks=(YEOM, CSMIA))
        )


def test_too_few_records_are_refused() -> None:
    members, others = _two_sets(6, 2, False, 30)
    with pytest.raises(InvalidInput, match="at least 40"):
        attribute_inference(Honest(2), as_input(2, False), members, others)


def _coverage_of_difference(weights: tuple[float, float, float], sizes: tuple[int, int], runs: int) -> float:
    """How often an interval for two samples of one law misses zero."""
    random = np.random.default_rng(11)
    missed = 0
    for _ in range(runs):
        first, second = (random.choice([-1.0, 0.0, 1.0], size, p=weights) for size in sizes)
        found = difference_interval(first, second, 0.95)
        missed += not found.lower <= 0 <= found.upper
    return missed / runs


@pytest.mark.slow
@pytest.mark.parametrize("weights", [(0.005, 0.99, 0.005), (0.15, 0.65, 0.2), (0.4, 0.0, 0.6)])
def test_intervals_cover_under_the_null(weights: tuple[float, float, float]) -> None:
    """Fast version; among them a law with hardly any discordant records, where the bootstrap fails."""
    assert _coverage_of_difference(weights, (150, 370), 150) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 150)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [(0.005, 0.99, 0.005), (0.0, 0.995, 0.005), (0.15, 0.65, 0.2), (0.4, 0.0, 0.6)])
@pytest.mark.parametrize("sizes", [(40, 40), (300, 1000)])
def test_intervals_cover_under_the_null_2000_times(weights: tuple[float, float, float], sizes: tuple[int, int]) -> None:
    assert _coverage_of_difference(weights, sizes, 2000) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.003, 0.3, 0.97])
def test_the_mean_interval_covers_and_shrinks(rate: float) -> None:
    random = np.random.default_rng(5)
    missed, widths = 0, {}
    for size in (100, 4000):
        for _ in range(100):
            found = mean_interval((random.random(size) < rate).astype(np.float64), 0, 1, 0.95)
            assert found.lower <= found.value <= found.upper
            missed += not found.lower <= rate <= found.upper
            widths[size] = found.upper - found.lower
    assert missed / 200 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)
    assert widths[4000] < widths[100] / 3
    normal = 2 * 1.96 * np.sqrt(rate * (1 - rate) / 4000)
    assert widths[4000] < 2.5 * normal + 0.004


@pytest.mark.slow
def test_no_leakage_is_reported_over_many_honest_models() -> None:
    """The whole audit under the null: 60 fresh populations, all attacks, at most the promised share of alarms."""
    alarms = 0
    for seed in range(60):
        members, others = _two_sets(100 + seed, 2, False, 400)
        found = attribute_inference(
            Honest(2), as_input(2, False), members, others, AttributeOptions(seed=seed, confidence=0.9)
        )
        alarms += found.finding is AttributeFinding.LEAKAGE
    assert alarms / 60 <= 0.1 + 3 * np.sqrt(0.09 / 60)
