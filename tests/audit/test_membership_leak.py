"""What membership audits find: a leak where a net overfits, nothing where nothing can be, no verdict from thin air."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from audit.models.epsilon_bound import ClaimOnTrial
from audit.models.membership_attacks import LiraOffline, LiraOnline, LossThreshold, Rmia
from audit.models.membership_audit import MembershipOptions, audit_model, audit_scores, blind_rule
from audit.models.records import AuditedRecords
from audit.models.roc import area_value
from audit.models.shadow_models import ShadowRecords, Signals, random_halves, train_shadow_models
from audit.models.stacked import StackedLogistic
from audit.models.torch_targets import TorchTarget
from audit.report.results import Assignment, AttackName, AuditReport, Conclusion, ShadowDesign
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import Relation
from tests.audit.membership_worlds import CLASSES, FEATURES, OVERFIT, audited, noisy_records

RECORDS = 800
CLAIM = ClaimOnTrial.said(1.0, 1e-5, Relation.REPLACE_ONE)


@pytest.fixture(scope="module")
def signals() -> tuple[Signals, Signals, np.ndarray]:
    """A net on half of 800 records, attacked with 64 others on random halves, or with one on 400 other records."""
    records = noisy_records(2 * RECORDS, seed=1)
    included = np.zeros((66, 2 * RECORDS), dtype=bool)
    included[:65, :RECORDS] = random_halves(65, RECORDS, seed=3)
    included[65, RECORDS : RECORDS + RECORDS // 2] = True
    found = train_shadow_models(OVERFIT, records, included, seed=0)
    found, member = found[:, :RECORDS], included[0, :RECORDS]
    included = included[:, :RECORDS]
    online = Signals(found[0], found[1:65], included[1:65])
    return online, Signals(found[0], found[65:], included[65:]), member


@pytest.mark.slow
def test_attacks_on_an_overfit_net_come_out_in_the_known_order(signals: tuple[Signals, Signals, np.ndarray]) -> None:
    """LOSS .67 < RMIA with one reference .74 < LiRA online with 64 .83 is what is expected of them."""
    online, one_reference, member = signals

    def auc(scores: np.ndarray) -> float:
        return area_value(scores[member], scores[~member])

    loss = auc(LossThreshold().scores(online))
    rmia = auc(Rmia().scores(one_reference))
    lira = auc(LiraOnline().scores(online))
    assert 0.55 < loss < rmia - 0.03
    assert rmia < lira - 0.03
    assert lira > 0.75
    assert loss < auc(LiraOffline().scores(online)) < lira
    assert rmia < auc(Rmia().scores(online))


@pytest.mark.slow
def test_fewer_shadow_models_share_one_variance(signals: tuple[Signals, Signals, np.ndarray]) -> None:
    """Below 64 models one variance serves all records, and that is better than a poor one for each."""
    online, _, member = signals
    few = Signals(online.target, online.shadow[:8], online.included[:8])
    usable = few.included.any(axis=0) & ~few.included.all(axis=0)
    few, truth = few.of(np.flatnonzero(usable)), member[usable]
    scores = LiraOnline().scores(few)
    assert area_value(scores[truth], scores[~truth]) > 0.65


# --- a whole audit ------------------------------------------------------------------------------------------------


def overfit_net(features: np.ndarray, labels: np.ndarray) -> nn.Sequential:
    everyone = np.ones((1, len(labels)), dtype=bool)
    layers = OVERFIT.layers(ShadowRecords(features, labels, CLASSES), everyone, (17,))
    net = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    for parameter, values in zip(net.parameters(), layers, strict=True):
        parameter.data = values[0].T.contiguous() if parameter.ndim == 2 else values[0, 0].clone()
    return net


def fitted_to_members(records: AuditedRecords) -> TorchTarget:
    inside = slice(0, records.members)
    return TorchTarget(overfit_net(records.features[inside], records.labels[inside]), "net")


@pytest.fixture(scope="module")
def leaking() -> AuditReport:
    records = audited(noisy_records(RECORDS, seed=8), RECORDS // 2, RECORDS // 2)
    return audit_model(fitted_to_members(records), records, MembershipOptions(32, OVERFIT), CLAIM)


def test_an_overfit_net_breaks_any_small_promise(leaking: AuditReport) -> None:
    lira = leaking.membership.attack(AttackName.LIRA_ONLINE)
    assert lira.auc.value > 0.75
    assert leaking.verdict is Conclusion.VIOLATED
    assert leaking.epsilon_lower is not None
    assert leaking.epsilon_lower > 1.5


def test_shadow_models_in_the_targets_place_show_the_same_strength(leaking: AuditReport) -> None:
    for attack in leaking.membership.attacks:
        assert attack.control_auc == pytest.approx(attack.auc.value, abs=0.06)
    assert max(attack.power for attack in leaking.attacks) > 0.9


def test_the_document_has_the_verdict_and_the_curves(leaking: AuditReport) -> None:
    document = leaking.to_json()
    assert document["verdict"] == "violated"
    names = [one["name"] for one in document["attacks"]]  # type: ignore[attr-defined]
    assert names == ["membership: loss", "membership: rmia", "membership: lira-online"]
    assert document["membership"]["shadow"]["models"] == 32  # type: ignore[index]


def test_each_attack_has_its_share_of_the_error(leaking: AuditReport) -> None:
    assert {round(one.bound.confidence, 6) for one in leaking.attacks} == {round(1 - 0.05 / 3, 6)}
    assert leaking.confidence == 0.95


def test_a_net_that_saw_nobody_is_consistent() -> None:
    """Trained on other records: nothing to find, though on shadow models the same attack finds plenty."""
    others = noisy_records(RECORDS, seed=9)
    records = audited(noisy_records(RECORDS, seed=8), RECORDS // 2, RECORDS // 2)
    net = overfit_net(others.features, others.labels)
    found = audit_model(TorchTarget(net), records, MembershipOptions(16, OVERFIT), CLAIM)
    for attack in found.membership.attacks:
        assert attack.auc.lower <= 0.5 <= attack.auc.upper
    assert found.verdict is Conclusion.CONSISTENT
    assert found.epsilon_lower is not None
    assert found.epsilon_lower < 0.5


def test_a_weak_attack_is_inconclusive_never_a_pass() -> None:
    """Linear shadow models of this data hardly overfit, so the control has no power and says so."""
    records = audited(noisy_records(RECORDS, seed=8), RECORDS // 2, RECORDS // 2)
    target = TorchTarget(nn.Linear(FEATURES, CLASSES))
    found = audit_model(target, records, MembershipOptions(8, StackedLogistic(epochs=3)), CLAIM)
    assert found.verdict is Conclusion.INCONCLUSIVE
    assert max(attack.power for attack in found.attacks) < 0.5


def test_offline_shadow_models_never_see_an_audited_record() -> None:
    records = audited(noisy_records(RECORDS + 400, seed=8), RECORDS // 2, RECORDS // 2)
    assert records.has_population
    found = audit_model(fitted_to_members(records), records, MembershipOptions(16, OVERFIT), CLAIM)
    assert found.membership.shadow is not None
    assert found.membership.shadow.design is ShadowDesign.OFFLINE
    offline = found.membership.attack(AttackName.LIRA_OFFLINE)
    assert offline.auc.value > 0.65
    assert offline.control_auc is not None
    assert found.membership.members == found.membership.nonmembers == RECORDS // 2


def test_without_shadow_models_only_the_loss_speaks() -> None:
    records = audited(noisy_records(RECORDS, seed=8), RECORDS // 2, RECORDS // 2)
    found = audit_model(TorchTarget(nn.Linear(FEATURES, CLASSES)), records, MembershipOptions(0), CLAIM)
    assert [one.name for one in found.membership.attacks] == [AttackName.LOSS]
    assert found.membership.shadow is None
    assert found.verdict is Conclusion.INCONCLUSIVE


def test_the_same_seed_gives_the_same_document() -> None:
    records = audited(noisy_records(200, seed=8), 100, 100)
    target = fitted_to_members(records)
    options = MembershipOptions(4, OVERFIT, seed=5)
    assert audit_model(target, records, options, CLAIM).to_json() == (
        audit_model(target, records, options, CLAIM).to_json()
    )


# --- the assumption behind every bound ----------------------------------------------------------------------------


def test_files_that_differ_by_themselves_give_no_bound() -> None:
    """Members from another year: any attack "succeeds", and no epsilon follows."""
    plain = noisy_records(RECORDS, seed=8)
    shifted = plain.features.copy()
    shifted[: RECORDS // 2, 0] += 1.0
    records = AuditedRecords.of(shifted, plain.labels, CLASSES, RECORDS // 2, RECORDS // 2)
    found = audit_model(TorchTarget(nn.Linear(FEATURES, CLASSES)), records, MembershipOptions(0), CLAIM)
    assert found.epsilon_lower is None
    assert found.verdict is Conclusion.INCONCLUSIVE
    check = found.checks[-1]
    assert check.outcome.value == "not possible"
    assert "differ by themselves" in check.finding


def test_the_blind_rule_seldom_cries_wolf() -> None:
    records, alarms = noisy_records(300, seed=8), 0
    for seed in range(200):
        member = np.random.default_rng(seed).permutation(300) < 150
        alarms += blind_rule(records.features, records.labels, member, seed).p_value < 0.05
    assert alarms / 200 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


def test_the_blind_rule_sees_spread_and_labels_too() -> None:
    records = noisy_records(1000, seed=8)
    member = np.arange(1000) < 500
    wider = records.features.copy()
    wider[member] *= 1.5
    assert blind_rule(wider, records.labels, member, 0).tells_apart
    by_label = np.argsort(np.argsort(records.labels, kind="stable")) < 500
    assert blind_rule(records.features, records.labels, by_label, 0).tells_apart


# --- scores of somebody else --------------------------------------------------------------------------------------


@pytest.mark.parametrize("assignment", list(Assignment))
def test_scores_from_elsewhere_are_judged(assignment: Assignment) -> None:
    random = np.random.default_rng(2)
    member = random.permutation(1000) < 500
    options = MembershipOptions(assignment=assignment)
    leaking = audit_scores(random.normal(size=1000) + 4 * member, member, "score", options, CLAIM)
    assert leaking.verdict is Conclusion.VIOLATED
    quiet = audit_scores(random.normal(size=1000), member, "score", options, CLAIM)
    assert quiet.verdict is Conclusion.INCONCLUSIVE
    assert quiet.membership.target.kind == "scores"


def test_marks_must_fit_the_scores() -> None:
    with pytest.raises(InvalidInput, match="is_member"):
        audit_scores(np.zeros(5), np.ones(4, dtype=bool), "score", MembershipOptions())


def test_a_promise_beyond_reach_is_inconclusive() -> None:
    records = audited(noisy_records(200, seed=8), 100, 100)
    claim = ClaimOnTrial.said(1000.0, 1e-5, Relation.ADD_REMOVE)
    found = audit_model(TorchTarget(nn.Linear(FEATURES, CLASSES)), records, MembershipOptions(4, OVERFIT), claim)
    assert found.verdict is Conclusion.INCONCLUSIVE


def test_one_shadow_model_is_refused() -> None:
    with pytest.raises(InvalidInput, match="shadow models"):
        MembershipOptions(1)
