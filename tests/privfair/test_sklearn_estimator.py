"""PrivateFairClassifier among scikit-learn's own: pipelines, cross-validation, fairlearn, and a budget that counts."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fairlearn.metrics import MetricFrame, demographic_parity_difference
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import privfair as pf
from calibrate.errors import InvalidInput, PrivfairError
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from privfair.integrations.sklearn import PrivateFairClassifier, PublicScaler
from privfair.ledger.entries import BudgetExceeded

RNG = np.random.default_rng(5)
X = RNG.uniform(-2, 2, size=(240, 3))
SEX = np.where(RNG.random(240) < 0.4, "f", "m")
Y = np.where(X[:, 0] + 0.5 * (SEX == "m") + 0.3 * RNG.normal(size=240) > 0, "yes", "no")
PUBLIC: dict[str, Any] = {"classes": ["no", "yes"], "groups": ["f", "m"], "bounds": (-2, 2)}


def attribute(**more: Any) -> PrivateFairClassifier:
    return PrivateFairClassifier(**({"protect": "attribute", "rounds": 12} | PUBLIC | more))


@pytest.fixture(scope="module")
def fitted() -> PrivateFairClassifier:
    with pytest.warns(pf.SelfSigned, match="once per fold"):
        return attribute().fit(X, Y, sensitive_features=SEX)


def test_it_learns_under_a_promise_about_the_attribute(fitted: PrivateFairClassifier) -> None:
    assert fitted.promise_.text == "epsilon 1 at delta 1e-05 for one attribute"
    assert fitted.manifest_.algorithm == "pay-once"
    assert fitted.score(X, Y) > 0.8
    assert list(fitted.classes_) == ["no", "yes"]
    assert list(fitted.groups_) == ["f", "m"]
    assert fitted.n_iter_ == 12


def test_predictions_are_those_of_the_run_behind_it(fitted: PrivateFairClassifier) -> None:
    assert fitted.model_ is not None
    columns = {f"x{place}": X[:, place] for place in range(3)}
    assert np.allclose(fitted.predict_proba(X), fitted.model_.predict_proba(columns))
    scores = fitted.predict_proba(X)[:, 1]
    linear = ((X + 2) / 4) @ fitted.coef_.ravel() + fitted.intercept_
    assert np.allclose(scores, 1 / (1 + np.exp(-linear)))


def test_a_copy_predicts_and_knows_its_promise_but_not_its_run(fitted: PrivateFairClassifier) -> None:
    copy = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(copy.predict(X), fitted.predict(X))
    assert copy.promise_ == fitted.promise_
    with pytest.raises(InvalidInput, match="not pickled"):
        copy.audit()


def test_fairlearns_metric_frame_takes_its_predictions(fitted: PrivateFairClassifier) -> None:
    predicted = fitted.predict(X)
    frame = MetricFrame(metrics=accuracy_score, y_true=Y, y_pred=predicted, sensitive_features=SEX)
    assert set(frame.by_group.index) == {"f", "m"}
    gap = demographic_parity_difference(Y == "yes", predicted == "yes", sensitive_features=SEX)
    assert 0 <= gap <= 1


@pytest.mark.slow
def test_a_fit_that_answers_all_alike_warns() -> None:
    rare = np.where(np.arange(240) % 12 == 0, "yes", "no")
    with pytest.warns(pf.EmptyModel, match="EMPTY MODEL: it answers 'no' to every record"):
        attribute(rounds=3).fit(X, rare, sensitive_features=SEX)


def test_it_is_audited(fitted: PrivateFairClassifier) -> None:
    found = fitted.audit(reruns=0)
    assert not [check for check in found.checks if check.outcome.value == "failed"]


@pytest.mark.filterwarnings("ignore::privfair.api.plan.SelfSigned")
def test_it_works_in_a_pipeline() -> None:
    pipeline = make_pipeline(FunctionTransformer(lambda x: x / 2), attribute(bounds=(-1, 1), rounds=2))
    pipeline.fit(X, Y, privatefairclassifier__sensitive_features=SEX)
    assert pipeline.predict(X).shape == (240,)


def test_cross_validation_says_that_every_fold_pays() -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        attribute(rounds=1).fit(X, Y, sensitive_features=SEX)
        attribute(rounds=1).fit(X, Y, sensitive_features=SEX)
    assert sum(issubclass(one.category, pf.SelfSigned) for one in warned) == 2


@pytest.mark.filterwarnings("ignore::privfair.api.plan.SelfSigned")
def test_cross_validation_is_refused_when_the_ledgers_total_is_spent(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    with pf.Ledger.create(ledger) as book:
        unit = PrivacyUnit(Protected.ATTRIBUTE, Relation.REPLACE_ATTRIBUTE)
        book.set_budget("clinic/patients/2026", unit, 2.5, 1e-4)
    clf = attribute(rounds=1, ledger=ledger, dataset=("patients", "clinic", "2026"))
    with pytest.raises(BudgetExceeded):
        cross_val_score(clf, X, Y, cv=3, params={"sensitive_features": SEX}, error_score="raise")
    with pf.Ledger.open(ledger) as book:
        assert len(book.status().manifests) == 2


def test_a_signed_manifest_is_spent_once_and_by_nothing_else(tmp_path: Path) -> None:
    ledger, key = tmp_path / "ledger.db", pf.generate_key()
    pf.Ledger.create(ledger).close()
    budget = attribute().plan(X, Y, sensitive_features=SEX).sign(key, ledger=ledger)
    path = budget.save(tmp_path / "budget.json")
    clf = attribute(manifest=path, trust=budget.own_trust(), ledger=ledger)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pf.SelfSigned)
        clf.fit(X, Y, sensitive_features=SEX)
    assert clf.manifest_.nonce == budget.document.nonce
    with pytest.raises(PrivfairError):
        cross_val_score(clf, X, Y, cv=3, params={"sensitive_features": SEX}, error_score="raise")
    with pytest.raises(PrivfairError):
        clf.fit(X, Y, sensitive_features=SEX)
    with pytest.raises(InvalidInput, match="needs trust= and ledger="):
        attribute(manifest=path).fit(X, Y, sensitive_features=SEX)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::privfair.api.plan.SelfSigned", "ignore::privfair.noise.UnsafeNoiseWarning")
def test_records_and_users_can_be_protected() -> None:
    seeded = {"unsafe_seeded_research_noise": True, "random_state": np.random.RandomState(3)}
    asked = {"rounds": 3, "epsilon": 3.0, "sampling_rate": 0.5, "at_least": 200}
    record = PrivateFairClassifier(**(PUBLIC | asked | seeded)).fit(X, Y)
    assert record.promise_.unit.protected.value == "record"
    assert record.promise_.nothing  # seeded noise protects nobody
    with pytest.warns(pf.TreatedAsPublic, match="the number of users"):
        user = PrivateFairClassifier(protect="user", rounds=2, epsilon=3.0, learning_rate=0.5).fit(
            X, Y, sensitive_features=SEX, user_id=np.arange(240) % 60
        )
    assert user.promise_.unit.protected.value == "user"


def test_what_is_read_off_the_data_is_treated_as_public_openly() -> None:
    with pytest.warns(pf.TreatedAsPublic, match="the classes of 'label'"):
        plan = PrivateFairClassifier().plan(X, Y)
    assert any("read off the records" in text for text in plan.price().promise.not_protected)


@pytest.mark.parametrize(
    ("more", "fit", "why"),
    [
        ({"classes": ["yes", "maybe"]}, {"sensitive_features": SEX}, "does not list every value"),
        ({}, {"sensitive_features": SEX[:5]}, "has 5 rows"),
        ({}, {}, "is needed to protect an attribute"),
        ({}, {"sensitive_features": SEX, "user_id": SEX}, "goes with protect"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(more: dict[str, Any], fit: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        attribute(**more).fit(X, Y, **fit)


def test_several_sensitive_columns_make_one_attribute() -> None:
    both = np.column_stack([SEX, np.where(X[:, 1] > 0, "old", "young")])
    clf = attribute(groups=None)
    with pytest.warns(pf.TreatedAsPublic):
        clf.plan(X, Y, sensitive_features=both)
    assert list(clf.groups_) == ["f, old", "f, young", "m, old", "m, young"]
    with pytest.raises(NotFittedError):
        clf.predict(X)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_it_passes_scikit_learns_own_checks() -> None:
    clf = PrivateFairClassifier(
        epsilon=5.0, rounds=5, sampling_rate=0.5, random_state=0, unsafe_seeded_research_noise=True
    )
    results = check_estimator(clf, on_fail=None, on_skip=None)
    assert [one["check_name"] for one in results if one["status"] == "failed"] == []
    assert sum(one["status"] == "passed" for one in results) >= 40


@pytest.mark.filterwarnings("ignore::privfair.api.plan.SelfSigned", "ignore::privfair.noise.UnsafeNoiseWarning")
def test_records_with_groups_get_the_fair_rule_and_predict_as_their_run() -> None:
    asked = {"rounds": 5, "epsilon": 8.0, "at_least": 200, "target_gap": 0.1, "unsafe_seeded_research_noise": True}
    fair = PrivateFairClassifier(**(PUBLIC | asked | {"random_state": 3})).fit(X, Y, sensitive_features=SEX)
    assert fair.manifest_.algorithm == "fair-plugin"
    assert fair.promise_.unit.protected.value == "record"
    assert fair.coef_.shape == (1, 3)
    assert fair.model_ is not None
    columns = {f"x{place}": X[:, place] for place in range(3)}
    assert np.allclose(fair.predict_proba(X), fair.model_.predict_proba(columns))
    assert np.array_equal(pickle.loads(pickle.dumps(fair)).predict(X), fair.predict(X))


def test_scores_are_log_odds_and_agree_with_predictions(fitted: PrivateFairClassifier) -> None:
    scores = fitted.decision_function(X)
    linear = ((X + 2) / 4) @ fitted.coef_.ravel() + fitted.intercept_
    assert np.allclose(scores, linear)
    assert np.array_equal(fitted.predict(X) == "yes", scores > 0)


def test_a_pipeline_fitted_on_the_records_warns_and_public_bounds_do_not() -> None:
    private = make_pipeline(StandardScaler(), attribute())
    with pytest.warns(pf.TreatedAsPublic, match="standardscaler"):
        private.fit(X, Y, privatefairclassifier__sensitive_features=SEX)
    public = make_pipeline(PublicScaler(bounds=(-2, 2)), attribute(bounds=(0, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", pf.TreatedAsPublic)
        warnings.simplefilter("ignore", pf.SelfSigned)
        public.fit(X, Y, privatefairclassifier__sensitive_features=SEX)
    assert public.score(X, Y) > 0.8


def test_the_public_scaler_learns_nothing_from_records() -> None:
    scaler = PublicScaler(bounds=([0, 10], [1, 30]))
    expected = [[0.5, 0.0], [1.0, 0.5]]
    for seen in ([[5.0, 5.0]], [[-9.0, 99.0]]):
        assert np.array_equal(scaler.fit(seen).transform([[0.5, 0.0], [7.0, 20.0]]), expected)
    with pytest.raises(TypeError, match="sample_weight"):
        attribute().fit(X, Y, sensitive_features=SEX, sample_weight=np.ones(len(X)))  # type: ignore[call-arg]
