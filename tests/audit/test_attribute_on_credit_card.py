"""Attribute inference on real data: the figures of docs/audit-model.md#attribute-inference."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from audit.models.attribute_attacks import Attribute, AttributeRecords, SensitiveInput
from audit.models.attribute_audit import attribute_inference
from audit.report.results import AttributeFinding, AttributeInference
from calibrate.arrays import Floats
from privfair.data.benchmarks import load_benchmark
from privfair.plan.data import Benchmark

RECORDS = 3000


class Estimator:
    def __init__(self, fitted) -> None:  # type: ignore[no-untyped-def]
        self._fitted = fitted

    def probabilities(self, features: Floats) -> Floats:
        return np.asarray(self._fitted.predict_proba(features))


def _audited(model) -> AttributeInference:  # type: ignore[no-untyped-def]
    """A model of 3,000 members, sex among its inputs, against as many others."""
    data = load_benchmark(Benchmark.CREDIT_CARD)
    sex = np.asarray(data.group)
    inputs = np.hstack([np.asarray(data.features, dtype=np.float64), sex[:, np.newaxis]])
    order = np.random.default_rng(0).permutation(len(sex))
    members, others = (
        AttributeRecords(inputs[rows], np.asarray(data.label)[rows], sex[rows])
        for rows in (order[:RECORDS], order[RECORDS : 2 * RECORDS])
    )
    place = SensitiveInput((inputs.shape[1] - 1,), ((0.0,), (1.0,)))
    attribute = Attribute("SEX", data.group_names, place)
    return attribute_inference(Estimator(model.fit(members.features, members.labels)), attribute, members, others)


@pytest.mark.slow
def test_a_linear_model_of_real_people_does_not_leak_their_sex() -> None:
    found = _audited(LogisticRegression(max_iter=500))
    assert found.finding is AttributeFinding.NONE_FOUND
    assert all(one.leakage.upper < 0.12 for one in found.attacks)


@pytest.mark.slow
def test_a_fully_grown_forest_leaks_the_sex_of_its_members() -> None:
    found = _audited(RandomForestClassifier(100, random_state=0))
    assert found.finding is AttributeFinding.LEAKAGE
    by_name = {one.name: one for one in found.attacks}
    for name in ("CSMIA", "learned from outputs"):
        assert by_name[name].leakage.lower > 0.2
        assert by_name[name].beats_imputation
        assert by_name[name].members.accuracy.value > 0.78
    assert not by_name["Yeom"].leaks
