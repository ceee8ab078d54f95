"""Areas, rates and curves of membership attacks: values against scikit-learn, intervals by their coverage."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from sklearn.metrics import roc_auc_score, roc_curve

from audit.models.membership_attacks import Rmia, shares_above
from audit.models.roc import area, curve, low_rates, rate_at
from audit.models.shadow_models import Signals, log_probability, phi_from_logits, phi_from_probabilities
from audit.report.results import AttackName, Interval, MembershipAttackResult, MembershipResult
from calibrate.errors import InvalidInput

SHIFT = 1.2
REPLICATIONS = 400


def least_coverage(replications: int) -> float:
    return 0.95 - 3 * math.sqrt(0.05 * 0.95 / replications)


@settings(max_examples=40)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=60), st.lists(st.integers(-5, 5), min_size=1, max_size=60))
def test_the_area_and_the_rates_agree_with_scikit_learn(inside: list[int], outside: list[int]) -> None:
    truth, scores = [1] * len(inside) + [0] * len(outside), inside + outside
    assert area(inside, outside).value == pytest.approx(roc_auc_score(truth, scores))
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    for fpr in (0.01, 0.1, 0.3, 0.9):
        expected = true[false <= fpr + 1e-12].max()
        assert rate_at(inside, outside, fpr).value == pytest.approx(expected)


@pytest.mark.parametrize(("members", "nonmembers"), [(60, 60), (300, 40), (25, 200)])
@pytest.mark.parametrize("shift", [0.0, SHIFT, 3.0])
def test_intervals_of_the_area_cover_it(members: int, nonmembers: int, shift: float) -> None:
    random, true = np.random.default_rng(5), float(ndtr(shift / math.sqrt(2)))
    found = (area(random.normal(shift, 1, members), random.normal(0, 1, nonmembers)) for _ in range(REPLICATIONS))
    assert np.mean([one.lower <= true <= one.upper for one in found]) >= least_coverage(REPLICATIONS)


@pytest.mark.parametrize("fpr", [0.001, 0.01, 0.2])
@pytest.mark.parametrize(("members", "nonmembers"), [(80, 80), (50, 1500)])
def test_intervals_of_the_rates_cover_them(members: int, nonmembers: int, fpr: float) -> None:
    random, true = np.random.default_rng(6), float(ndtr(SHIFT + ndtri(fpr)))
    found = (
        rate_at(random.normal(SHIFT, 1, members), random.normal(0, 1, nonmembers), fpr) for _ in range(REPLICATIONS)
    )
    assert np.mean([one.lower <= true <= one.upper for one in found]) >= least_coverage(REPLICATIONS)


def test_intervals_of_coarse_scores_cover_too() -> None:
    """Scores with ties: whole numbers. At these rates a threshold exists, so the true rate has one meaning."""
    random = np.random.default_rng(7)
    fpr, true = float(1 - ndtr(1.5)), float(1 - ndtr(1.5 - SHIFT))
    found = (
        rate_at(np.round(random.normal(SHIFT, 1, 200)), np.round(random.normal(0, 1, 300)), fpr)
        for _ in range(REPLICATIONS)
    )
    assert np.mean([one.lower <= true <= one.upper for one in found]) >= least_coverage(REPLICATIONS)


def test_few_nonmembers_say_little_about_a_low_rate() -> None:
    """A thousandth cannot be measured with a hundred non-members, and the interval says so."""
    found = rate_at(np.ones(100) + 1, np.zeros(100), 0.001)
    assert found.value == 1.0
    assert found.lower == 0.0
    enough = rate_at(np.ones(100) + 1, np.zeros(10_000), 0.001)
    assert enough.lower > 0.95


def test_a_perfect_attack_has_an_interval_below_one() -> None:
    found = area(np.ones(50), np.zeros(50))
    assert found.value == found.upper == 1.0
    assert 0.85 < found.lower < 0.95


def test_the_curve_grows_and_ends_in_the_corner() -> None:
    random = np.random.default_rng(8)
    points = curve(random.normal(1, 1, 500), random.normal(0, 1, 400))
    assert points[0].fpr == 1 / 400
    assert points[-1].fpr == points[-1].tpr == 1.0
    rates = [point.fpr for point in points]
    assert rates == sorted(set(rates))
    assert all(one.tpr <= two.tpr for one, two in pairwise(points))
    assert [point.fpr for point in low_rates(random.normal(size=9), random.normal(size=9))] == [0.001, 0.01]


@given(st.integers(1, 10_000))
def test_curves_depend_on_the_order_of_scores_alone(seed: int) -> None:
    random = np.random.default_rng(seed)
    inside, outside = random.normal(1, 1, 40), random.normal(0, 1, 30)
    assert curve(inside, outside) == curve(np.exp(inside), np.exp(outside))
    assert area(inside, outside) == area(inside * 3 - 1, outside * 3 - 1)


@pytest.mark.parametrize("bad", [[], [[1.0]], [np.nan], [1.0, np.inf]])
def test_scores_that_are_none_are_refused(bad: list[float]) -> None:
    for call in (area, curve, lambda a, b: rate_at(a, b, 0.1)):
        with pytest.raises(InvalidInput, match="members"):
            call(bad, [0.0])
        with pytest.raises(InvalidInput, match="nonmembers"):
            call([0.0], bad)
    with pytest.raises(InvalidInput, match="false-positive rate"):
        rate_at([1.0], [0.0], 0.0)


# --- signals ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(2, 6))
def test_phi_is_the_same_from_logits_and_from_probabilities(seed: int, classes: int) -> None:
    random = np.random.default_rng(seed)
    logits, labels = random.normal(0, 2, (20, classes)), random.integers(0, classes, 20)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    own = probabilities[np.arange(20), labels]
    phi = phi_from_logits(logits, labels)
    np.testing.assert_allclose(phi, phi_from_probabilities(probabilities, labels), atol=1e-9)
    np.testing.assert_allclose(phi, np.log(own) - np.log1p(-own), atol=1e-6)
    np.testing.assert_allclose(log_probability(phi), np.log(own), atol=1e-9)


def test_certainty_does_not_overflow() -> None:
    phi = phi_from_logits(np.array([[1000.0, -1000.0], [-1000.0, 1000.0]]), np.array([0, 0]))
    assert phi.tolist() == [2000.0, -2000.0]
    assert log_probability(phi).tolist() == [0.0, -2000.0]
    sure = phi_from_probabilities(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 0]))
    assert np.isfinite(sure).all()
    assert sure[0] == -sure[1] > 10


def test_outputs_that_are_no_probabilities_are_refused() -> None:
    with pytest.raises(InvalidInput, match="add up to 1"):
        phi_from_probabilities(np.array([[0.7, 0.7]]), np.array([0]))
    with pytest.raises(InvalidInput, match="finite"):
        phi_from_logits(np.array([[np.nan, 0.0]]), np.array([0]))
    with pytest.raises(InvalidInput, match="labels"):
        phi_from_logits(np.zeros((1, 2)), np.array([2]))


# --- RMIA by sorting ----------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.floats(0.5, 4.0))
def test_rmia_by_sorting_equals_all_pairs(seed: int, gamma: float) -> None:
    random = np.random.default_rng(seed)
    x, z = random.normal(size=30), random.normal(size=50)
    pairs = (x[:, None] - z[None, :] >= math.log(gamma)).mean(axis=1)
    np.testing.assert_allclose(shares_above(x, z, gamma), pairs)


def test_rmia_of_one_reference_by_hand() -> None:
    """Two records: p(x|target) = .8 and .5; one reference model that never saw them says .5 for both."""
    signals = Signals(np.log(np.array([0.8 / 0.2, 1.0])), np.zeros((1, 2)), np.zeros((1, 2), dtype=np.bool_))
    offline = ((1 + 0.33) * 0.5 + 1 - 0.33) / 2
    ratios = Rmia().log_ratios(signals)
    np.testing.assert_allclose(ratios, np.log([0.8 / offline, 0.5 / offline]))
    # ratio of the ratios: 1.6, below gamma = 2 and above 1.5
    assert Rmia().scores(signals).tolist() == [0.0, 0.0]
    assert Rmia(gamma=1.5).scores(signals).tolist() == [0.5, 0.0]


# --- the result ---------------------------------------------------------------------------------------------------


def test_results_are_plain_values_for_a_report() -> None:
    import json

    half = Interval(value=0.5, lower=0.4, upper=0.6)
    points = curve([1.0, 2.0], [0.0, 1.5])
    one = MembershipAttackResult(name=AttackName.LOSS, auc=half, tpr_at_fpr=low_rates([1.0], [0.0]), roc=points)
    result = MembershipResult(members=2, nonmembers=2, confidence=0.95, attacks=(one,))
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["kind"] == "membership"
    assert document["attacks"][0]["auc"] == {"value": 0.5, "lower": 0.4, "upper": 0.6}
    assert set(document["attacks"][0]["roc"][0]) == {"fpr", "tpr", "lower", "upper"}
    assert [one["fpr"] for one in document["attacks"][0]["tpr_at_fpr"]] == [0.001, 0.01]
    assert result.attack(AttackName.LOSS) is one
    with pytest.raises(InvalidInput, match="did not run"):
        result.attack(AttackName.RMIA)
    with pytest.raises(ValueError, match="ordered"):
        Interval(value=0.5, lower=0.6, upper=0.7)
