"""A model that answers all records alike is never called fair, and a threshold can be chosen instead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from calibrate.errors import InvalidInput
from privfair.algorithms.algorithm import Message, SiloTensors
from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.algorithms.fedfdp import FedFdp, FedFdpClips, FedFdpOptions
from privfair.algorithms.fpfl import Fpfl, FpflOptions
from privfair.algorithms.pay_once import PayOnce, PayOnceOptions
from privfair.fairness.constraints import ResponseChannel
from privfair.fairness.measurement import Measurement, area_under_curve, count_confusion, emptiness
from privfair.models.linear import LogisticRegression
from privfair.plan.plan import AS_IT_IS, ThresholdRule
from privfair.plan.sections import GradientOptions
from privfair.run.metrics import decide, measure_at
from tests.privfair.steffle_cases import silo_of, some_state, steffle_for

CLASSES, GROUPS = ("no", "yes"), ("f", "m")


def _records(records: int = 4000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    group = generator.integers(2, size=records)
    label = (generator.random(records) < 0.15 + 0.1 * group).astype(np.int64)
    score = np.clip(0.15 + 0.2 * label + 0.05 * group + 0.1 * generator.normal(size=records), 0.001, 0.999)
    return label, group, score


class _HeldOut:
    """What the choice of a threshold needs of `HeldOutRecords`."""

    positive, class_names, group_names = 1, CLASSES, GROUPS

    def __init__(self) -> None:
        self.label, self.group, self.score = _records()


def _frontier() -> dict[str, object]:
    held_out = _HeldOut()
    cuts = np.arange(1, 100) / 100
    points = [measure_at(held_out, held_out.score, float(cut)) for cut in cuts]  # type: ignore[arg-type]
    return {"points": points, "positive_class": "yes"}


def test_a_model_that_answers_no_to_everybody_is_called_empty() -> None:
    label, group, score = _records()
    for predicted, word in (
        (np.zeros_like(label), "every record"),
        ((score > np.sort(score)[-5]).astype(int), "% of the records"),
    ):
        overall = Measurement(count_confusion(label, predicted, group, CLASSES, GROUPS)).as_json()
        warning = emptiness(overall)
        assert warning is not None
        assert warning.startswith("EMPTY MODEL: it answers 'no' to")
        assert word in warning
        assert "not because it is fair" in warning
        assert "More records, a larger epsilon or fewer columns help" in warning


def test_a_model_no_better_than_a_constant_is_called_empty() -> None:
    label, coin = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    exact = Measurement(count_confusion(label, coin, np.zeros(4, int), CLASSES, ("everyone",)))
    assert "that of a constant answer" in str(emptiness(exact.as_json()))


def test_a_useful_model_gets_no_warning_and_the_right_numbers() -> None:
    label, group, score = _records()
    predicted = (score > 0.25).astype(int)
    overall = Measurement(count_confusion(label, predicted, group, CLASSES, GROUPS)).as_json()
    assert emptiness(overall) is None
    assert overall["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(label, predicted))
    assert overall["majority"] == {"class": "no", "accuracy": pytest.approx(1 - label.mean())}
    assert overall["groups"]["m"]["positive_rate"] == pytest.approx(predicted[group == 1].mean())
    assert emptiness({}) is None


def test_the_area_agrees_with_scikit_learn() -> None:
    label, _, score = _records()
    ties = np.round(score, 1)
    for values in (score, ties):
        both = np.stack([1 - values, values], axis=1)
        assert area_under_curve(both, label) == pytest.approx(roc_auc_score(label, values))
    three = np.random.default_rng(1).dirichlet((1, 1, 1), size=300)
    truth = np.random.default_rng(2).integers(3, size=300)
    wanted = roc_auc_score(truth, three, multi_class="ovr")
    assert area_under_curve(three, truth) == pytest.approx(wanted)
    assert area_under_curve(three, np.zeros(300, dtype=np.int64)) is None
    assert area_under_curve(np.array([[0.5, 0.5]]), np.array([1])) is None
    assert area_under_curve(np.array([[0.5, np.nan]]), np.array([1])) is None


def test_a_target_gap_is_kept_by_a_model_that_is_not_empty() -> None:
    frontier = _frontier()
    decision = decide(frontier, ThresholdRule(target_gap=0.1))
    assert decision["not_reached"] is None
    assert decision["held_out"]["demographic_parity"] <= 0.1
    assert emptiness(decision["held_out"]) is None
    impossible = decide(frontier, ThresholdRule(target_gap=1e-6))
    assert impossible["threshold"] == 0.5
    assert "no threshold with a gap of at most 1e-06" in impossible["not_reached"]


def test_a_target_rate_is_reached() -> None:
    decision = decide(_frontier(), ThresholdRule(target_rate=0.2))
    assert decision["held_out"]["positive_rate"] == pytest.approx(0.2, abs=0.02)
    assert decision["rule"] == "target rate 0.2 on the held-out records"
    assert decide(_frontier(), ThresholdRule(threshold=0.3))["threshold"] == 0.3
    assert decide(_frontier(), AS_IT_IS)["threshold"] == 0.5


def test_contradicting_thresholds_are_refused() -> None:
    with pytest.raises(InvalidInput, match="exclude each other"):
        ThresholdRule(threshold=0.3, target_gap=0.1)
    with pytest.raises(InvalidInput, match="target-rate"):
        ThresholdRule(target_rate=1.5)
    with pytest.raises(InvalidInput, match="two classes"):
        decide({"points": [], "positive_class": "b"}, ThresholdRule(threshold=0.3))


def test_a_weighted_class_counts_more_and_never_beyond_the_clip() -> None:
    """The heaviest class counts as clipped, the others less: adding any record moves the sum by at most `clip`."""
    generator = np.random.default_rng(0)
    x = torch.from_numpy(generator.normal(size=(40, 3)))
    y = torch.from_numpy(generator.integers(2, size=40))
    silo = SiloTensors("a", x, y, torch.zeros(40, dtype=torch.int64))
    model = LogisticRegression(3)
    plain = DpFedSgd(model, GradientOptions(), 0.3, 20.0)
    heavy = DpFedSgd(model, GradientOptions(), 0.3, 20.0, class_weight=(1.0, 50.0))
    state, batch = plain.start(), torch.arange(40)
    sums = [algorithm.contribution(state, 0, silo, batch).noisy[0] for algorithm in (plain, heavy)]
    assert not np.allclose(sums[0].values, sums[1].values)
    for left_out in range(40):
        rest = heavy.contribution(state, 0, silo, batch[batch != left_out]).noisy[0]
        assert np.linalg.norm(sums[1].values - rest.values) <= 0.3
    with pytest.raises(InvalidInput, match="one number for each of the 2 classes"):
        DpFedSgd(model, GradientOptions(), 0.3, 20.0, class_weight=(1.0,)).contribution(state, 0, silo, batch)


def test_weights_matter_and_leave_what_protects_the_attribute_alone() -> None:
    """The bounds of weighted algorithms are in the contract; here, that a weight has its effect and no other."""
    silo = silo_of(40, 3, 2, 2)
    batch, model = torch.arange(40), LogisticRegression(3)
    plain, heavy = (steffle_for(model, 2, batch_size=40, class_weight=w) for w in ((), (1.0, 3.0)))
    before, after = (one.contribution(some_state(plain), 1, silo, batch) for one in (plain, heavy))
    assert not np.allclose(before.clear["g"], after.clear["g"])
    for first, second in zip(before.noisy, after.noisy, strict=True):
        np.testing.assert_array_equal(first.values, second.values)
    for clip in (None, 1e9):  # weighed alike with and without a clip, as if records of the class came three times
        sums = []
        for weights in ((), (1.0, 3.0)):
            algorithm = Fpfl(model, FpflOptions(class_weight=weights), 2, 4.0, clip)
            sums.append(_sum_of(algorithm.contribution(algorithm.start(), 0, silo, batch)))
        thrice = torch.cat([batch, batch[silo.y == 1], batch[silo.y == 1]])
        plain_fpfl = Fpfl(model, FpflOptions(), 2, 4.0, clip)
        wanted = _sum_of(plain_fpfl.contribution(plain_fpfl.start(), 0, silo, thrice))
        np.testing.assert_allclose(sums[1][: model.size], wanted[: model.size])
        np.testing.assert_array_equal(sums[0][model.size :], sums[1][model.size :])
    with pytest.raises(InvalidInput, match="excludes warm-start"):
        steffle_for(model, 2, batch_size=40, class_weight=(1.0, 3.0), warm_start=5)
    with pytest.raises(InvalidInput, match="one number for each of the 2 classes"):
        Fpfl(model, FpflOptions(class_weight=(1.0,)), 2, 4.0, None)


def test_fedfdp_weighs_classes() -> None:
    silo, model, sent = silo_of(40, 3, 2, 2, name="a"), LogisticRegression(3), []
    for weights in ((), (1.0, 3.0)):
        clips, options = FedFdpClips(1.0, 2.5), FedFdpOptions(class_weight=weights)
        algorithm = FedFdp(model, options, {"a": 1.0}, {"a": 40.0}, clips)
        sent.append(algorithm.contribution(algorithm.start(), 0, silo, torch.arange(40)).noisy)
    assert not np.allclose(sent[0][0].values, sent[1][0].values)
    np.testing.assert_array_equal(sent[0][1].values, sent[1][1].values)


def _sum_of(message: Message) -> np.ndarray:
    return message.noisy[0].values if message.noisy else next(iter((message.clear or {}).values()))


def test_pay_once_weighs_classes_without_reading_the_attribute() -> None:
    generator = np.random.default_rng(0)
    x, y = torch.from_numpy(generator.normal(size=(30, 3))), torch.from_numpy(generator.integers(2, size=30))
    messages = []
    for weights, group in (((), 0), ((1.0, 3.0), 0), ((1.0, 3.0), 1)):
        options = PayOnceOptions(fairness=0.0, class_weight=weights)
        channel = ResponseChannel.of_epsilon(2, 1.0)
        algorithm = PayOnce(LogisticRegression(3), options, channel, 30, {"a": 1.0}, rounds=3)
        silo = SiloTensors("a", x, y, torch.full((30,), group))
        state = replace(algorithm.start(), responses={"a": torch.zeros(30, dtype=torch.int64)})
        messages.append(algorithm.contribution(state, 1, silo, torch.arange(30)).clear)
    assert not np.allclose(messages[0]["g"], messages[1]["g"])
    np.testing.assert_array_equal(messages[1]["g"], messages[2]["g"])
    with pytest.raises(InvalidInput, match="excludes warm-start"):
        PayOnce(LogisticRegression(3), replace(options, warm_start=5), channel, 30, {"a": 1.0})
