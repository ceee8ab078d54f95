"""Models in memory under audit: every kind that is offered, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeClassifier

import privfair as pf
from calibrate.errors import InvalidInput

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(240, 6))
Y = (X[:, 0] + RANDOM.logistic(size=240) > 0).astype(np.int64)
AMOUNT = X[:, 0] + RANDOM.normal(size=240)
IN, OUT = slice(0, 120), slice(120, 240)


def audited(model: Any, labels: Any = Y, **asked: Any) -> Any:
    asked = {"shadow_models": 0, **asked}
    return pf.audit_model(model, (X[IN], labels[IN]), (X[OUT], labels[OUT]), **asked)


def test_an_overfitted_classifier_leaks_and_a_constant_one_does_not() -> None:
    tree = DecisionTreeClassifier(random_state=0).fit(X[IN], Y[IN])
    with ThreadPoolExecutor(1) as pool:
        report = audited(tree, shadow_models=8, executor=pool)
    assert report.verdict.value == "leaks"
    assert report.membership.shadow.models == 8
    assert audited(tree, epsilon=0.1).verdict.value == "violated"
    constant = LogisticRegression().fit(np.zeros((4, 6)), [0, 1, 0, 1])
    assert audited(constant).verdict.value == "no-leak-found"


def test_a_regressor_is_audited_by_its_errors_with_clones_of_itself() -> None:
    forest = RandomForestRegressor(4, random_state=0).fit(X[IN], AMOUNT[IN])
    report = audited(forest, AMOUNT, shadow_models=4)
    assert report.verdict.value == "leaks"
    assert report.membership.shadow.kind == "the target's own estimator"
    assert audited(LinearRegression().fit(X[OUT], AMOUNT[OUT]), AMOUNT).epsilon_lower == 0


class KnowsItsRecords:
    """As a language model's classifier is wrapped: a loss for one record and nothing else."""

    def __init__(self, known: Any) -> None:
        self.known = {row.tobytes() for row in known}

    def loss(self, record: Any) -> float:
        features = record[0] if isinstance(record, tuple) else np.array([record[f"c{i}"] for i in range(6)])
        return 0.0 if features.tobytes() in self.known else 1.0


def test_a_loss_is_enough() -> None:
    assert audited(KnowsItsRecords(X[IN])).verdict.value == "leaks"
    with pytest.raises(InvalidInput, match="cannot imitate"):
        audited(KnowsItsRecords(X[IN]), shadow_models=4)


def test_tables_have_columns_units_and_texts() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(6)])
    frame["town"], frame["label"], frame["person"] = np.where(X[:, 1] > 0, "A", "B"), Y, np.arange(240) // 2
    report = pf.audit_model(
        KnowsItsRecords(X[IN]), frame.iloc[IN], frame.iloc[OUT], label="label", unit="person", shadow_models=0
    )
    assert (report.membership.members, report.verdict.value) == (60, "leaks")
    with pytest.raises(InvalidInput, match="label"):
        pf.audit_model(KnowsItsRecords(X[IN]), frame.iloc[IN], frame.iloc[OUT])
    with pytest.raises(InvalidInput, match="one kind"):
        pf.audit_model(KnowsItsRecords(X[IN]), frame.iloc[IN], (X, Y), label="label")


def test_functions_and_torch_modules_are_asked_for_their_outputs() -> None:
    torch = pytest.importorskip("torch")
    assert audited(lambda features: np.zeros((len(features), 2))).verdict.value == "no-leak-found"
    assert audited(lambda features: np.zeros(len(features)), AMOUNT).epsilon_lower is not None
    module = torch.nn.Linear(6, 2).train()
    assert audited(module).verdict.value in ("leaks", "no-leak-found")
    assert module.training
    assert audited(torch.nn.Linear(6, 1), AMOUNT).epsilon_lower is not None
    assert audited(torch.nn.Linear(6, 2), shadow_models=2).membership.shadow.models == 2


@pytest.mark.parametrize(
    ("model", "labels", "match"),
    [
        (object(), Y, "wrap it in one"),
        (lambda features: np.zeros((len(features), 2)), AMOUNT, "must be the numbers"),
        (LogisticRegression().fit(X[IN], Y[IN]), Y + 5, "classes of the model"),
    ],
)
def test_what_cannot_be_asked_is_refused(model: Any, labels: Any, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        audited(model, labels)


def test_a_hugging_face_classifier_is_audited_through_its_loss() -> None:
    """A tiny model with random weights, built here; nothing is downloaded."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    import torch

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=32, num_labels=2, **sizes))

    class Wrapped:
        def loss(self, record: Any) -> float:
            tokens = torch.as_tensor(record[0]).unsqueeze(0)
            with torch.no_grad():
                return float(model(input_ids=tokens, labels=torch.as_tensor([int(record[1])])).loss)

    tokens = RANDOM.integers(0, 32, (40, 5))
    report = pf.audit_model(Wrapped(), (tokens[:20], Y[:20]), (tokens[20:], Y[20:40]))
    assert report.verdict.value in ("leaks", "no-leak-found")
