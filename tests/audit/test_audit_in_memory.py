"""Models in memory under audit: every kind that is offered, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeClassifier

import privfair as pf
from audit.models.records import AuditedRecords
from audit.models.targets import open_target
from audit.models.torch_targets import TorchTarget
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


class TinyClassifier(torch.nn.Module):
    """With the interface of Hugging Face's sequence classifiers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = torch.nn.Embedding(32, 8), torch.nn.Linear(8, 2)

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        logits = self.out(self.words(input_ids).mean(dim=1))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return SimpleNamespace(loss=loss, logits=logits)


def test_a_sequence_classifier_is_audited_as_it_is_and_through_its_loss() -> None:
    torch.manual_seed(0)
    model, tokens = TinyClassifier(), np.random.default_rng(1).integers(0, 32, (60, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x, y = torch.as_tensor(tokens[:30]), torch.as_tensor(Y[:30])
    for _ in range(80):
        optimizer.zero_grad()
        model(x, labels=y).loss.backward()
        optimizer.step()

    class Wrapped:
        def loss(self, record: Any) -> float:
            with torch.no_grad():
                found = model(torch.as_tensor(record[0])[None], labels=torch.as_tensor([int(record[1])]))
            return float(found.loss)

    data = (tokens[:30], Y[:30]), (tokens[30:], Y[30:60])
    plain, wrapped = (pf.audit_model(one, *data, shadow_models=0) for one in (model, Wrapped()))
    assert plain.verdict.value == "leaks"
    areas = [one.membership.attacks[0].auc.value for one in (plain, wrapped)]
    assert areas[0] == pytest.approx(areas[1], abs=0.05)  # of large losses single precision rounds some to ties


def make_net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def make_nothing() -> int:
    return 0


def test_a_state_dict_is_audited_with_its_architecture_and_runs_no_code(tmp_path: Path) -> None:
    net, name = make_net(), f"{__name__}:make_net"
    records = AuditedRecords.of(X, Y, 2, 120, 120)
    expected = TorchTarget(net).signal(records)
    wrapped = {f"_module.{key}": value for key, value in net.state_dict().items()}
    for state in (net.state_dict(), wrapped, {"state_dict": net.state_dict(), "epoch": 3}):
        torch.save(state, tmp_path / "m.pt")
        target = open_target(tmp_path / "m.pt", architecture=name)
        assert np.array_equal(target.signal(records), expected)
    torch.save(torch.nn.Linear(6, 2).state_dict(), tmp_path / "other.pt")
    torch.save(net, tmp_path / "whole.pt")
    torch.save([1.0], tmp_path / "list.pt")
    for file, made, match in (
        ("other.pt", name, "other parameters"),
        ("whole.pt", name, "parameters alone"),
        ("list.pt", name, "no state dict"),
        ("m.pt", f"{__name__}:make_nothing", "torch module"),
        ("m.pt", "no_such:thing", "can't be loaded"),
    ):
        with pytest.raises(InvalidInput, match=match):
            open_target(tmp_path / file, architecture=made)


REFUSED = (
    ["audit"],
    ["audit", "no-run"],
    ["audit", "--model", "no.onnx", "--members", "a.csv", "--nonmembers", "a.csv"],
    ["audit", "--model", "m.pkl", "--members", "a.csv", "--nonmembers", "a.csv"],
    ["audit", "--model", "m.pkl", "--members", "a.csv"],
    ["audit", "."],
    *(
        ["audit", "--model", "m.pkl", "--trust-pickle", "--members", "b.csv", "--nonmembers", "b.csv", *more]
        for more in (
            ["--shadow-models", "1"],
            ["--exposed", "3", "--shadow-models", "8"],
            ["--confidence", "2"],
            ["--epsilon", "-1"],
            ["--epsilon", "1", "--delta", "2"],
            ["--epochs", "3"],
            ["--label", "z"],
            ["--by", "z"],
            ["--unit", "z"],
            ["--drop", "z"],
            ["--attack", "z"],
            ["--population", "z.csv"],
            ["--manifest", "z.json"],
            ["--manifest", "b.csv"],
        )
    ),
    ["audit", "--model", "m.pkl", "--trust-pickle", "--members", "a.csv", "--nonmembers", "b.csv"],
    ["audit", "--model", "b.csv", "--members", "b.csv", "--nonmembers", "b.csv"],
    ["audit", "--score", "z", "--members", "b.csv", "--nonmembers", "b.csv"],
    ["audit", "--score", "x", "--members", "b.csv", "--nonmembers", "b.csv", "--sensitive", "x"],
    ["verify", "b.csv", "--trust", "b.csv"],
    ["verify", "b.csv", "--trust", "b.csv", "--run", "."],
    ["audit", "training", "x:y"],
    ["audit", "training", "x:y", "--data", "no.csv", "--label", "y"],
    ["audit", "training", "x:y", "--data", "b.csv", "--label", "z"],
    ["audit", "training", "x:y", "--data", "b.csv", "--label", "y", "--unit", "who"],
    ["audit", "training", "x:y", "--data", "b.csv", "--label", "y", "--delta", "2"],
    ["audit", "training", "x:y", "--data", "b.csv", "--label", "y"],
)


def test_refusals_load_nothing_heavy(tmp_path: Path) -> None:
    for name in ("a.csv", "m.pkl"):
        (tmp_path / name).write_text("")
    (tmp_path / "b.csv").write_text("x,y\n1,0\n")
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom privfair.cli import cli\n"
        f"answers = [CliRunner().invoke(cli, one) for one in {REFUSED!r}]\n"
        "ended = {type(one.exception).__name__ for one in answers}\n"
        "print(sorted(ended), sorted({'torch', 'scipy', 'sklearn', 'pandas'} & set(sys.modules)))"
    )
    asked = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, **asked)
    refusals = ["BadData", "InvalidInput", "ManifestRefused", "Refused", "SystemExit"]
    assert done.stdout.strip() == f"{refusals} []", done.stdout + done.stderr


def test_the_audit_of_a_scikit_learn_model_does_not_load_torch(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name in ("in.csv", "out.csv"):
        x = random.normal(size=(60, 2))
        frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": (x[:, 0] + random.normal(size=60) > 0).astype(int)})
        frame.to_csv(tmp_path / name, index=False)
    joblib.dump(LogisticRegression().fit(frame[["a", "b"]], frame["y"]), tmp_path / "m.joblib")
    asked = ["audit", "--model", "m.joblib", "--trust-pickle", "--members", "out.csv", "--nonmembers", "in.csv"]
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom privfair.cli import cli\n"
        f"answer = CliRunner().invoke(cli, {[*asked, '--label', 'y', '--shadow-models', '4', '--json']!r})\n"
        "print(answer.exit_code, 'torch' in sys.modules)"
    )
    place = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, **place)
    assert done.stdout.strip() == "0 False", done.stdout + done.stderr


@pytest.mark.slow
def test_a_hugging_face_classifier_is_audited_through_its_loss() -> None:
    """A tiny model, built here (nothing is downloaded): silent about its records before training, not after it."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=32, num_labels=2, **sizes))
    random = np.random.default_rng(8)
    tokens, labels = random.integers(0, 32, (160, 5)), random.integers(0, 2, 160)

    class Wrapped:
        def loss(self, record: Any) -> float:
            model.eval()
            with torch.no_grad():
                asked = torch.as_tensor(record[0]).unsqueeze(0)
                return float(model(input_ids=asked, labels=torch.as_tensor([int(record[1])])).loss)

    def judge() -> Any:
        return pf.audit_model(Wrapped(), (tokens[:80], labels[:80]), (tokens[80:], labels[80:]), epsilon=0.5)

    assert judge().verdict.value == "inconclusive"
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(60):
        optimiser.zero_grad()
        model(input_ids=torch.as_tensor(tokens[:80]), labels=torch.as_tensor(labels[:80])).loss.backward()
        optimiser.step()
    report = judge()
    assert report.verdict.value == "violated"
    assert report.epsilon_lower is not None
    assert report.epsilon_lower > 0.5
