"""What a membership bound assumes of its files: fair coins, one for each record or person, and files that are apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair as pf
from audit.bounds import CurveFamily, ProfileCurve
from audit.models.epsilon_bound import BoundTerms, ClaimOnTrial, bound_of, power_of
from audit.models.membership_audit import MembershipOptions, audit_scores
from audit.models.records import AuditedRecords, Coins
from audit.report.results import Assignment, CheckOutcome, Conclusion, Promise
from audit.runs.evidence import AuditorsManifest
from calibrate.accountants.gaussian import gaussian_epsilon
from calibrate.errors import InvalidInput
from calibrate.manifest.verify import read_unverified
from calibrate.plans.gaussian import GaussianPlan
from calibrate.privacy_unit import EpsilonDelta, Relation
from tests.end_to_end.command_line import privfair
from tests.privfair.small_runs import document_of

CLAIM = ClaimOnTrial.said(1.0, 1e-5, Relation.ADD_REMOVE)
BY_COINS = MembershipOptions(0, assignment=Assignment.COINS)
AT_RANDOM = MembershipOptions(0, assignment=Assignment.EXCHANGEABLE)
TRIALS = [BoundTerms(assignment, Relation.ADD_REMOVE, 1e-5) for assignment in Assignment]
REPLICATIONS = 200


def share_above_zero(bounded: Callable[[np.random.Generator], float]) -> float:
    """How often a bound of scores that know nothing exceeds the truth, which is 0."""
    return float(np.mean([bounded(np.random.default_rng((seed, 5))) > 0 for seed in range(REPLICATIONS)]))


ALLOWED = 0.05 + 3 * math.sqrt(0.05 * 0.95 / REPLICATIONS)


def test_coins_are_not_believed_if_the_files_are_uneven() -> None:
    scores = np.random.default_rng(0).normal(size=2200)
    uneven = np.arange(2200) < 2000
    with pytest.raises(InvalidInput, match="2000 of 2200 are members"):
        audit_scores(scores, uneven, "score", BY_COINS, CLAIM)
    found = audit_scores(scores, uneven, "score", AT_RANDOM, CLAIM)
    assert found.verdict is not Conclusion.VIOLATED
    assert found.epsilon_lower == 0.0


def test_fair_coins_are_believed() -> None:
    for seed in range(20):
        random = np.random.default_rng(seed)
        audit_scores(random.normal(size=500), random.random(500) < 0.5, "score", BY_COINS, CLAIM)


@pytest.mark.slow
def test_uneven_numbers_that_coins_may_give_are_no_head_start() -> None:
    """With 1070 of 2000 members a guess is right more often than not, without any look at the model."""
    member = np.arange(2000) < 1070
    trial = BoundTerms(Assignment.COINS, Relation.ADD_REMOVE, 1e-5)
    assert share_above_zero(lambda random: bound_of(random.normal(size=2000), member, trial).epsilon) <= ALLOWED


@pytest.mark.slow
@pytest.mark.parametrize(("distinct", "copies"), [(200, 5), (100, 10)])
@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.assignment.value)
def test_copies_of_a_record_do_not_make_a_bound_surer_than_it_says(
    distinct: int, copies: int, trial: BoundTerms
) -> None:
    units = np.repeat(np.arange(distinct), copies)

    def bounded(random: np.random.Generator, told: bool = True) -> float:
        member = random.permutation(distinct) < distinct // 2
        scores = random.normal(size=distinct)
        coins = Coins.of(units if told else np.arange(len(units)), member[units])
        return bound_of(coins.mean(scores[units]), coins.is_member, trial).epsilon

    assert share_above_zero(bounded) <= ALLOWED
    if copies == 10:
        assert share_above_zero(lambda random: bounded(random, told=False)) > 0.1, "each copy with a coin: too sure"


@pytest.mark.parametrize(("members", "nonmembers"), [(300, 60), (60, 300), (40, 400)])
def test_files_of_unequal_size_keep_the_coverage(members: int, nonmembers: int) -> None:
    member = np.arange(members + nonmembers) < members

    def bounded(random: np.random.Generator) -> float:
        trial = BoundTerms(Assignment.EXCHANGEABLE, Relation.ADD_REMOVE, 1e-5)
        return bound_of(random.normal(size=len(member)), random.permutation(member), trial).epsilon

    assert share_above_zero(bounded) <= ALLOWED


def test_one_unit_in_both_files_is_counted_and_left_out_and_more_are_refused() -> None:
    member = np.arange(800) < 400
    units = np.arange(800)
    units[400] = 0
    coins = Coins.of(units, member)
    assert len(coins.is_member) == 798
    assert coins.unit_of_row[0] == coins.unit_of_row[400] == -1
    assert "1 units stand among members and non-members" in coins.check.finding
    assert coins.check.outcome is CheckOutcome.PASSED
    units[400:405] = np.arange(5)
    with pytest.raises(InvalidInput, match=r"5 of 400 units in common"):
        Coins.of(units, member)


def test_audited_records_in_the_population_are_refused() -> None:
    random = np.random.default_rng(0)
    features, labels = random.normal(size=(300, 3)), random.integers(0, 2, 300)
    features[200:250], labels[200:250] = features[:50], labels[:50]
    with pytest.raises(InvalidInput, match="population"):
        AuditedRecords.of(features, labels, 2, 100, 100).coins()


def test_copies_stay_together_in_shadow_models_and_share_one_signal() -> None:
    features = np.repeat(np.arange(6.0), 2)[:, np.newaxis]
    coins = AuditedRecords.of(features, np.zeros(12, dtype=np.int64), 2, 6, 6).coins()
    assert coins.is_member.tolist() == [True] * 3 + [False] * 3
    halves = np.array([[True, False, True, False, False, True]])
    assert coins.rows(halves)[0].tolist() == np.repeat(halves[0], 2).tolist()
    assert coins.mean(np.arange(12.0)).tolist() == [0.5, 2.5, 4.5, 6.5, 8.5, 10.5]


def _write(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(["person,score", *rows]) + "\n", encoding="utf-8")
    return path


def test_the_records_of_one_person_share_a_coin(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    rows = [[f"{side}{one % 40},{random.normal():.6f}" for one in range(200)] for side in ("m", "n")]
    files = ("--members", _write(tmp_path / "m.csv", rows[0]), "--nonmembers", _write(tmp_path / "n.csv", rows[1]))
    outcome = privfair("audit", *files, "--score", "score", "--unit", "person", "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json()
    assert (found["membership"]["members"], found["membership"]["nonmembers"]) == (40, 40)
    assert "400 audited rows are 80 units" in found["checks"][0]["finding"]
    both = _write(tmp_path / "both.csv", rows[0][:100] + rows[1][:100])
    refused = privfair("audit", *files[:2], "--nonmembers", both, "--score", "score", "--unit", "person")
    assert refused.code == 2
    assert "--unit" in refused.err


def test_a_release_known_to_be_gaussian_is_bounded_further() -> None:
    """mu = 1 costs epsilon 4.38 at delta 1e-5; assuming nothing, half as much at most is proved."""
    random = np.random.default_rng(0)
    is_member = random.integers(0, 2, 2000) == 1
    scores = random.normal(size=2000) + is_member
    bounds = {
        family: bound_of(scores, is_member, BoundTerms(Assignment.COINS, Relation.ADD_REMOVE, 1e-5, family=family))
        for family in (CurveFamily.EPSILON_DELTA, CurveFamily.GAUSSIAN)
    }
    gaussian = bounds[CurveFamily.GAUSSIAN]
    assert 2.2 < gaussian.epsilon < 4.38
    assert gaussian.mu is not None
    assert gaussian.mu < 1
    assert bounds[CurveFamily.EPSILON_DELTA].epsilon < gaussian.epsilon
    pairs = BoundTerms(Assignment.EXCHANGEABLE, Relation.ADD_REMOVE, 1e-5, family=CurveFamily.GAUSSIAN)
    assert 0 < bound_of(scores, is_member, pairs).epsilon < gaussian.epsilon
    assert 0 < power_of(1.0, pairs, 500, ((0.9, 0.9, 0.9),)) <= 1


@pytest.mark.slow
def test_the_gaussian_reading_holds_at_its_level() -> None:
    random = np.random.default_rng(3)
    above = 0
    for _ in range(200):
        is_member = random.integers(0, 2, 300) == 1
        trial = BoundTerms(Assignment.COINS, Relation.ADD_REMOVE, 1e-5, family=CurveFamily.GAUSSIAN)
        bound = bound_of(random.normal(size=300) + 0.5 * is_member, is_member, trial)
        assert bound.mu is not None
        above += bound.mu > 0.5
    assert above <= 200 * 0.05 + 3 * np.sqrt(200 * 0.05 * 0.95)


def test_a_manifests_own_curve_refutes_what_one_point_of_it_does_not() -> None:
    """A curve of mu = 0.5 is claimed, scores are of mu = 1.3: the bound stays below epsilon, the curve is refuted."""
    deltas = (0.4, 0.3, 0.2, 0.14, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01, 3e-3, 1e-3, 1e-4, 1e-5)
    points = tuple((gaussian_epsilon(0.5, delta) * 1.0001, delta) for delta in deltas)
    promise = Promise(epsilon=points[-1][0], delta=1e-5, source="promised by the manifest")
    claim = ClaimOnTrial(promise, Relation.ADD_REMOVE, ProfileCurve.of(points))
    random = np.random.default_rng(11)
    is_member = random.integers(0, 2, 2000) == 1
    leaking, honest = (mu * is_member + random.normal(size=2000) for mu in (1.3, 0.5))
    broken, kept = (audit_scores(scores, is_member, "s", BY_COINS, claim) for scores in (leaking, honest))
    assert kept.attacks[0].curve is not None
    assert not kept.attacks[0].curve.refuted
    assert broken.epsilon_lower is not None
    assert broken.epsilon_lower < promise.epsilon
    assert broken.attacks[0].curve is not None
    assert broken.attacks[0].curve.refuted
    assert broken.verdict is Conclusion.VIOLATED


def _manifest(folder: Path, rate: float, name: str) -> Path:
    """A signed budget of 4.38 at 1e-5: with whole batches a Gaussian release of mu = 1."""
    document = document_of(GaussianPlan(rate, 1, Relation.ADD_REMOVE, clip=1.0), EpsilonDelta(4.38, 1e-5))
    path = folder / name
    path.write_bytes(AuditorsManifest().envelope(document))
    return path


def test_a_signed_gaussian_release_is_read_as_one_and_anything_else_is_not(tmp_path: Path) -> None:
    """The signature names the family, so more is proved of scores with mu = 1; and its own curve is on trial."""
    random = np.random.default_rng(0)
    is_member = random.integers(0, 2, 2000) == 1
    scores = random.normal(size=2000) + is_member
    claims = [
        ClaimOnTrial.of_manifest(read_unverified(_manifest(tmp_path, rate, f"{rate}.json").read_bytes()).document)
        for rate in (1.0, 0.2)
    ]
    whole, sampled = claims
    assert whole is not None
    assert sampled is not None
    assert (whole.family, sampled.family) == (CurveFamily.GAUSSIAN, CurveFamily.EPSILON_DELTA)
    found = [audit_scores(scores, is_member, "s", BY_COINS, claim) for claim in claims]
    assert all(report.attacks[0].curve is not None for report in found)
    assert all(report.verdict is not Conclusion.VIOLATED for report in found)
    lower = [report.epsilon_lower for report in found]
    assert lower[0] is not None
    assert lower[1] is not None
    assert 4.38 > lower[0] > 2.2 > lower[1] > 1.8


def test_in_memory_a_manifest_is_on_trial_in_place_of_a_number(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    x, y = random.normal(size=(400, 2)), random.integers(0, 2, 400)
    known = {row.tobytes() for row in x[:200]}

    class Knows:
        def loss(self, record: Any) -> float:
            return 0.0 if np.asarray(record[0]).tobytes() in known else 1.0

    parts, path = ((x[:200], y[:200]), (x[200:], y[200:])), _manifest(tmp_path, 1.0, "budget.json")
    report = pf.audit_model(Knows(), *parts, manifest=path, assignment="coins")
    assert report.promised is not None
    assert report.promised.epsilon == pytest.approx(4.38, rel=1e-3)
    assert report.attacks[0].curve is not None
    assert report.verdict is Conclusion.VIOLATED
    with pytest.raises(InvalidInput, match="one promise"):
        pf.audit_model(Knows(), *parts, manifest=path, epsilon=1.0)


def test_pairs_read_a_curve_point_by_point() -> None:
    curve = ProfileCurve.of(((0.5, 1e-3), (3.0, 1e-6)))
    paired = BoundTerms(Assignment.EXCHANGEABLE, Relation.ADD_REMOVE, 1e-5).own_curve(curve).points()
    assert {(round(one.epsilon, 9), one.delta) for one in paired} == {
        (1.0, (1 + np.exp(0.5)) * 1e-3),
        (6.0, (1 + np.exp(3.0)) * 1e-6),
    }
    assert BoundTerms(Assignment.COINS, Relation.ADD_REMOVE, 1e-5).own_curve(curve) is curve
