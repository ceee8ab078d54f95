"""Gaps against fairlearn, against the definitions by brute force, and on empty groups."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from fairlearn import metrics as fairlearn
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score

from calibrate.errors import InvalidInput
from privfair.data.dataset import Dataset, Silo, Silos
from privfair.data.stability import digest
from privfair.fairness.measurement import (
    Comparison,
    Confusion,
    Measurement,
    accuracy_gap,
    count_confusion,
    demographic_parity,
    equal_opportunity,
    equalised_odds,
    false_negative_gap,
    measure_silos,
)

OVERALL = Comparison.OVERALL


def _names(prefix: str, how_many: int) -> tuple[str, ...]:
    return tuple(f"{prefix}{i}" for i in range(how_many))


def _count(label: np.ndarray, guess: np.ndarray, group: np.ndarray, classes: int = 2, groups: int = 2) -> Confusion:
    return count_confusion(label, guess, group, _names("c", classes), _names("g", groups))


def _draw(seed: int, classes: int, groups: int, records: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    group = rng.integers(groups, size=records)
    label = (rng.integers(classes, size=records) + (rng.random(records) < 0.3) * group) % classes
    guess = np.where(rng.random(records) < 0.6, label, (rng.integers(classes, size=records) + group) % classes)
    return label, guess, group


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("groups", [2, 3, 5])
def test_binary_gaps_equal_fairlearn(seed: int, groups: int) -> None:
    label, guess, group = _draw(seed, 2, groups)
    confusion = _count(label, guess, group, 2, groups)
    arguments = {"y_true": label, "y_pred": guess, "sensitive_features": group}
    assert demographic_parity(confusion).value == pytest.approx(fairlearn.demographic_parity_difference(**arguments))
    assert equalised_odds(confusion).value == pytest.approx(fairlearn.equalized_odds_difference(**arguments))
    assert equal_opportunity(confusion).value == pytest.approx(fairlearn.equal_opportunity_difference(**arguments))
    frame = fairlearn.MetricFrame(
        metrics={
            "fnr": fairlearn.false_negative_rate,
            "fpr": fairlearn.false_positive_rate,
            "tpr": fairlearn.true_positive_rate,
            "rate": fairlearn.selection_rate,
            "accuracy": accuracy_score,
        },
        **arguments,
    )
    between, overall = frame.difference("between_groups"), frame.difference("to_overall")
    assert false_negative_gap(confusion).value == pytest.approx(between["fnr"])
    assert accuracy_gap(confusion).value == pytest.approx(between["accuracy"])
    assert false_negative_gap(confusion, comparison=OVERALL).value == pytest.approx(overall["fnr"])
    assert accuracy_gap(confusion, OVERALL).value == pytest.approx(overall["accuracy"])
    assert demographic_parity(confusion, OVERALL).value == pytest.approx(overall["rate"])
    assert equalised_odds(confusion, OVERALL).value == pytest.approx(max(overall["tpr"], overall["fpr"]))
    np.testing.assert_allclose(confusion.selection_rates[:, 1], frame.by_group["rate"])
    np.testing.assert_allclose(confusion.true_positive_rates[:, 1], frame.by_group["tpr"])
    np.testing.assert_allclose(confusion.false_positive_rates[:, 1], frame.by_group["fpr"])
    np.testing.assert_allclose(confusion.accuracies, frame.by_group["accuracy"])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(2, 4))
def test_gaps_equal_the_printed_definitions(seed: int, classes: int, groups: int) -> None:
    """SteFFLe, equations (11) and (12), written out as printed."""
    label, guess, group = _draw(seed, classes, groups)
    confusion = _count(label, guess, group, classes, groups)

    def rate(chosen: np.ndarray, c: int, g: int) -> float:
        return float((guess[chosen & (group == g)] == c).mean())

    everyone = np.ones(len(label), dtype=bool)
    pairs = list(itertools.product(range(classes), range(groups), range(groups)))
    parity = max(abs(rate(everyone, c, a) - rate(everyone, c, b)) for c, a, b in pairs)
    odds = max(
        max(abs(rate(chosen, c, a) - rate(chosen, c, b)) for chosen in (label == c, label != c)) for c, a, b in pairs
    )
    assert demographic_parity(confusion).value == pytest.approx(parity)
    assert equalised_odds(confusion).value == pytest.approx(odds)


@pytest.mark.parametrize("classes", [3, 5])
def test_many_classes_equal_fairlearn_one_against_the_rest(classes: int) -> None:
    label, guess, group = _draw(3, classes, 3, 2000)
    confusion = _count(label, guess, group, classes, 3)
    parity, odds = [], []
    for c in range(classes):
        arguments = {"y_true": label == c, "y_pred": guess == c, "sensitive_features": group}
        parity.append(fairlearn.demographic_parity_difference(**arguments))
        odds.append(fairlearn.equalized_odds_difference(**arguments))
        opportunity = fairlearn.equal_opportunity_difference(**arguments)
        assert equal_opportunity(confusion, c).value == pytest.approx(opportunity)
        assert false_negative_gap(confusion, c).value == pytest.approx(opportunity)
    assert demographic_parity(confusion).value == pytest.approx(max(parity))
    assert equalised_odds(confusion).value == pytest.approx(max(odds))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(2, 4), st.randoms())
def test_gaps_do_not_depend_on_order_or_numbering(seed: int, classes: int, groups: int, random) -> None:
    label, guess, group = _draw(seed, classes, groups)
    shuffled = list(range(len(label)))
    random.shuffle(shuffled)
    renumbered = np.array(random.sample(range(groups), groups))
    first = _count(label, guess, group, classes, groups)
    second = _count(label[shuffled], guess[shuffled], renumbered[group][shuffled], classes, groups)
    for gap in (demographic_parity, equalised_odds, accuracy_gap, equal_opportunity):
        assert gap(first).value == pytest.approx(gap(second).value)
        assert 0 <= gap(first).value <= 1


def test_an_empty_group_is_undefined_not_zero() -> None:
    label, guess, group = np.array([0, 1, 1, 0]), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
    confusion = _count(label, guess, group, 2, 3)
    gap = demographic_parity(confusion)
    assert math.isnan(gap.value)
    assert not gap.defined
    assert gap.reason == "no records in group 'g2'"


def test_a_group_without_positives_has_no_false_negative_rate() -> None:
    label, guess, group = np.array([0, 1, 0, 0]), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
    confusion = _count(label, guess, group)
    assert false_negative_gap(confusion).reason == "no records of class 'c1' in group 'g1'"
    assert not equalised_odds(confusion).defined
    assert demographic_parity(confusion).value == pytest.approx(0)
    alone = _count(label[group == 0], guess[group == 0], group[group == 0], 2, 1)
    assert "fewer than 2 groups" in str(false_negative_gap(alone).reason)
    assert false_negative_gap(alone, comparison=OVERALL).value == 0


def test_no_records_at_all() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    measurement = Measurement(_count(nothing, nothing, nothing))
    assert math.isnan(measurement.accuracy)
    assert not measurement.gaps["demographic_parity"].defined
    json.dumps(measurement.as_json(), allow_nan=False)


def _dataset(label: np.ndarray, group: np.ndarray) -> Dataset:
    return Dataset(
        np.zeros((len(label), 1)), label, group, ("x",), ("c0", "c1"), ("g0", "g1"), digest({"test": "gaps"})
    )


def test_overall_is_measured_on_all_records_not_averaged_over_silos() -> None:
    """Two silos, each perfectly unfair in opposite directions: every silo has gap 1, the whole has gap 0."""
    group = np.array([0, 0, 1, 1])
    label = np.array([0, 1, 0, 1])
    silos = Silos((Silo("a", _dataset(label, group)), Silo("b", _dataset(label, group))))
    measured = measure_silos(silos, [group, 1 - group])
    assert [m.gaps["demographic_parity"].value for _, m in measured.silos] == [1, 1]
    assert measured.overall.gaps["demographic_parity"].value == 0
    assert measured.overall.accuracy == 0.5
    shown = json.loads(json.dumps(measured.as_json(), allow_nan=False))
    assert shown["overall"]["records"] == 8
    assert shown["silos"]["a"]["demographic_parity"] == 1
    assert shown["overall"]["groups"]["g0"] == {
        "records": 4,
        "accuracy": 0.5,
        "selection_rates": [0.5, 0.5],
        "positive_rate": 0.5,
        "true_positive_rate": 0.5,
        "false_positive_rate": 0.5,
        "false_negative_rate": 0.5,
        "precision": 0.5,
    }


def test_a_silo_without_a_group_says_so_in_json() -> None:
    label = np.array([0, 1])
    silos = Silos((Silo("a", _dataset(label, np.array([0, 0]))), Silo("b", _dataset(label, np.array([0, 1])))))
    shown = measure_silos(silos, [label, label]).as_json()
    assert shown["silos"]["a"]["demographic_parity"] is None
    assert "g1" in shown["silos"]["a"]["undefined"]["demographic_parity"]
    assert shown["overall"]["demographic_parity"] == pytest.approx(1 - 1 / 3)
    with pytest.raises(InvalidInput, match="one array for each of 2 silos"):
        measure_silos(silos, [label])


@pytest.mark.parametrize(
    ("label", "guess", "group", "complaint"),
    [
        ([0, 2], [0, 1], [0, 1], "label = 2"),
        ([0, 1], [0, 3], [0, 1], "prediction = 3"),
        ([0, 1], [0, 1], [0, 2], "group = 2"),
        ([0, 1], [0.2, 0.9], [0, 1], "take the most likely class"),
        ([0, 1], [0], [0, 1], "as many as labels"),
    ],
)
def test_codes_are_checked(label: list[int], guess: list[float], group: list[int], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        _count(np.array(label), np.array(guess), np.array(group))


def test_other_misuse() -> None:
    confusion = _count(*_draw(0, 2, 2))
    with pytest.raises(InvalidInput, match="positive = 2"):
        equal_opportunity(confusion, 2)
    with pytest.raises(InvalidInput, match="same groups"):
        confusion + _count(*_draw(0, 2, 3), 2, 3)
    with pytest.raises(InvalidInput, match="shape"):
        Confusion(np.zeros((2, 2), dtype=np.int64), ("a", "b"), ("c", "d"))
