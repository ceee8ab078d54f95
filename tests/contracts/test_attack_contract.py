"""What every membership attack must keep, and every bound drawn from one.

Worlds of signals whose leak is known stand in for trained models: without a leak an attack must find nothing, with one
it must find it, and no bound on epsilon may exceed the truth more often than it says, the choice of the number of
guesses included.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from audit.bounds import Selection
from audit.models.epsilon_bound import BoundTerms, bound_of, rankings_of
from audit.models.membership_attacks import LiraOffline, LiraOnline, LossThreshold, MembershipAttack, Rmia
from audit.models.roc import area
from audit.models.shadow_models import Signals
from audit.models.targets import UserScore
from audit.report.results import Assignment
from calibrate.accountants.gaussian import gaussian_epsilon
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.privacy_unit import Relation

ATTACKS: dict[str, MembershipAttack] = {
    attack.name.value: attack for attack in (LossThreshold(), LiraOnline(), LiraOffline(), Rmia(), UserScore())
}
every_attack = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
comparing = pytest.mark.parametrize(
    "attack", [one for one in ATTACKS.values() if one.least_models], ids=lambda one: one.name.value
)
RECORDS, MODELS = 200, 12
FAST, FULL = 300, 2000


def world(seed: int, leak: float, records: int = RECORDS) -> tuple[Signals, np.ndarray]:
    """Records of different difficulty; a model that was trained on a record is firmer about it by `leak` deviations."""
    random = np.random.default_rng(seed)
    difficulty = random.normal(0, 2, records)
    included = random.random((MODELS, records)).argsort(axis=0) < MODELS // 2
    member = random.random(records) < 0.5
    shadow = difficulty + leak * included + random.normal(size=(MODELS, records))
    target = difficulty + leak * member + random.normal(size=records)
    return Signals(target, shadow, included), member


# --- the scores ---------------------------------------------------------------------------------------------------


@every_attack
def test_without_a_leak_the_area_is_one_half_within_its_interval(attack: MembershipAttack) -> None:
    covered, values = 0, []
    for seed in range(FAST):
        signals, member = world(seed, leak=0.0)
        scores = attack.scores(signals)
        found = area(scores[member], scores[~member])
        covered += found.lower <= 0.5 <= found.upper
        values.append(found.value)
    assert covered / FAST >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / FAST)
    assert abs(np.mean(values) - 0.5) < 4 * np.std(values) / math.sqrt(FAST)


@every_attack
def test_a_plain_leak_is_found(attack: MembershipAttack) -> None:
    """An attack that always says one half would keep every other rule."""
    signals, member = world(1, leak=6.0)
    scores = attack.scores(signals)
    assert area(scores[member], scores[~member]).lower > 0.75


@every_attack
def test_records_in_another_order_get_the_same_scores(attack: MembershipAttack) -> None:
    signals, _ = world(2, leak=1.0)
    order = np.random.default_rng(0).permutation(RECORDS)
    np.testing.assert_allclose(attack.scores(signals.of(order)), attack.scores(signals)[order], rtol=1e-12)


@comparing
def test_shadow_models_in_another_order_change_nothing(attack: MembershipAttack) -> None:
    signals, _ = world(2, leak=1.0)
    order = np.random.default_rng(0).permutation(MODELS)
    other = Signals(signals.target, signals.shadow[order], signals.included[order])
    np.testing.assert_allclose(attack.scores(other), attack.scores(signals), rtol=1e-9)


@every_attack
def test_scores_are_finite_one_a_record_and_repeatable(attack: MembershipAttack) -> None:
    signals, _ = world(3, leak=30.0)
    first, second = attack.scores(signals), attack.scores(signals)
    assert first.shape == (RECORDS,)
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, second)


@every_attack
def test_extreme_confidence_is_no_error(attack: MembershipAttack) -> None:
    """Models that are sure beyond double precision, and shadow models that all agree."""
    signals, _ = world(4, leak=0.0)
    sure = Signals(signals.target * 200, np.repeat(signals.shadow[:1] * 200, MODELS, axis=0), signals.included)
    assert np.isfinite(attack.scores(sure)).all()


@comparing
def test_too_few_shadow_models_are_refused(attack: MembershipAttack) -> None:
    with pytest.raises(InvalidInput, match="shadow models"):
        attack.scores(Signals.alone(np.zeros(5)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_signals_that_are_no_numbers_are_refused(bad: float) -> None:
    signals, _ = world(5, leak=0.0)
    spoilt = signals.target.copy()
    spoilt[3] = bad
    with pytest.raises(InvalidInput, match="finite"):
        Signals(spoilt, signals.shadow, signals.included)
    with pytest.raises(InvalidInput, match="finite"):
        bound_of(spoilt, np.arange(RECORDS) < 9, BoundTerms(Assignment.COINS, Relation.ADD_REMOVE, 1e-5))


def test_signals_of_different_sizes_are_refused() -> None:
    signals, _ = world(6, leak=0.0)
    with pytest.raises(InvalidInput, match="shadow"):
        Signals(signals.target[1:], signals.shadow, signals.included)
    with pytest.raises(InvalidInput, match="shadow"):
        Signals(signals.target, signals.shadow, signals.included[1:])
    with pytest.raises(InvalidInput, match="included"):
        Signals(signals.target, signals.shadow, signals.included.astype(float))


# --- the bounds on epsilon ----------------------------------------------------------------------------------------

TRIALS = {
    f"{assignment.value}/{relation.value}": BoundTerms(assignment, relation, 1e-5)
    for assignment in Assignment
    for relation in (Relation.ADD_REMOVE, Relation.REPLACE_ONE)
}
every_trial = pytest.mark.parametrize("trial", TRIALS.values(), ids=TRIALS)


def allowed(replications: int) -> float:
    return 0.05 + 3 * math.sqrt(0.05 * 0.95 / replications)


def members(random: np.random.Generator, assignment: Assignment, records: int) -> np.ndarray:
    if assignment is Assignment.COINS:
        return random.random(records) < 0.5
    return random.permutation(records) < records // 2


def truth(trial: BoundTerms, shift: float) -> float:
    """One score a record, normal, shifted by `shift` for members: a Gaussian release for each record.

    Adding a record changes its own score by one Gaussian of parameter `shift`. Replacing one changes two scores:
    sqrt(2) shift.
    """
    parameter = shift if trial.relation is Relation.ADD_REMOVE else math.sqrt(2) * shift
    return gaussian_epsilon(parameter, trial.delta) if shift else 0.0


def _refutes(scores: np.ndarray, member: np.ndarray, trial: BoundTerms, limit: float) -> bool:
    """Whether the bound exceeds the limit; coins that fell so unevenly that they are not believed refute nothing."""
    try:
        return bound_of(scores, member, trial).refutes(limit)
    except InvalidInput:
        if trial.assignment is not Assignment.COINS:
            raise
        return False


def share_above(trial: BoundTerms, shift: float, replications: int) -> float:
    above, limit = 0, truth(trial, shift)
    for seed in range(replications):
        random = np.random.default_rng((seed, 77))
        member = members(random, trial.assignment, RECORDS)
        scores = random.normal(size=RECORDS) + shift * member
        above += _refutes(scores, member, trial, limit)
    return above / replications


@every_trial
@pytest.mark.parametrize("shift", [0.0, 0.6])
def test_a_bound_exceeds_the_truth_at_most_as_often_as_it_says(trial: BoundTerms, shift: float) -> None:
    assert share_above(trial, shift, 100) <= allowed(100)


@pytest.mark.slow
@every_trial
@pytest.mark.parametrize("shift", [0.0, 0.6, 1.5])
def test_the_same_with_two_thousand_replications(trial: BoundTerms, shift: float) -> None:
    assert share_above(trial, shift, FULL) <= allowed(FULL)


@pytest.mark.slow
@every_attack
def test_every_attack_keeps_the_coverage_without_a_leak(attack: MembershipAttack) -> None:
    trial = TRIALS["exchangeable/replace-one"]
    above = 0
    for seed in range(FULL):
        signals, member = world(seed, leak=0.0)
        above += bound_of(attack.scores(signals), member, trial).refutes(0.0)
    assert above / FULL <= allowed(FULL)


@every_trial
def test_the_best_number_of_guesses_read_off_the_data_would_fail(trial: BoundTerms) -> None:
    """The gate can fail: the share of right guesses, taken where it is largest, refutes the truth far too often."""
    above = 0
    for seed in range(200):
        random = np.random.default_rng((seed, 78))
        member = members(random, trial.assignment, RECORDS)
        right = rankings_of(random.normal(size=RECORDS), member, trial)[0].ordered()
        counts = np.arange(1, len(right) + 1)
        best = np.max((np.cumsum(right) - counts / 2) / np.sqrt(counts / 4))
        above += best > 1.645
    assert above / 200 > allowed(200)


@every_trial
def test_a_plain_leak_is_bounded_away_from_zero(trial: BoundTerms) -> None:
    random = np.random.default_rng(4)
    member = members(random, trial.assignment, 1000)
    bound = bound_of(random.normal(size=1000) + 5.0 * member, member, trial)
    assert bound.epsilon > 1.5
    assert bound.confidence == trial.confidence
    assert bound.selection is Selection.BONFERRONI
    assert bound.epsilon <= truth(trial, 5.0)


@every_trial
def test_equal_scores_prove_nothing_whatever_the_order_of_the_files(trial: BoundTerms) -> None:
    """Members come first in every table; a tie that is broken by position would find them all."""
    member = np.arange(2000) < 1000
    for scores in (np.zeros(2000), np.arange(2000) % 2.0):
        assert bound_of(scores, member, trial).epsilon < 0.2


def test_pairs_are_drawn_by_the_seed() -> None:
    random = np.random.default_rng(1)
    member = np.arange(400) < 200
    scores = random.normal(size=400) + member
    first = BoundTerms(Assignment.EXCHANGEABLE, Relation.REPLACE_ONE, 1e-5, seed=1)
    other = BoundTerms(Assignment.EXCHANGEABLE, Relation.REPLACE_ONE, 1e-5, seed=2)
    assert bound_of(scores, member, first) == bound_of(scores, member, first)
    assert rankings_of(scores, member, first)[0].strength.tolist() != (
        rankings_of(scores, member, other)[0].strength.tolist()
    )


def test_add_remove_pays_for_two_steps() -> None:
    """From pairs, the bound for adding or removing one record is about half of that for replacing one."""
    random = np.random.default_rng(1)
    member = np.arange(1000) < 500
    scores = random.normal(size=1000) + 4 * member
    replaced = bound_of(scores, member, TRIALS["exchangeable/replace-one"]).epsilon
    added = bound_of(scores, member, TRIALS["exchangeable/add-remove"]).epsilon
    assert added == pytest.approx(replaced / 2, rel=0.02)


def test_a_promise_about_an_attribute_is_not_on_trial() -> None:
    with pytest.raises(UnsupportedCombination, match="attribute"):
        BoundTerms(Assignment.EXCHANGEABLE, Relation.REPLACE_ATTRIBUTE, 1e-5)


@pytest.mark.parametrize("member", [np.zeros(50, dtype=bool), np.ones(50, dtype=bool), np.zeros(49, dtype=bool)])
def test_both_kinds_of_records_are_needed(member: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match="is_member"):
        bound_of(np.zeros(50), member, TRIALS["coins/add-remove"])
