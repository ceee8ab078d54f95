"""`privfair audit --model`: every kind of model, scores of one's own, and what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from torch import nn

from audit.report.page import ReportContent, read_audit, render
from tests.end_to_end.command_line import Outcome, privfair

RECORDS, FEATURES = 400, 6
QUICK = ("--shadow-models", 8)


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    features = random.normal(size=(RECORDS, FEATURES))
    labels = (features[:, 0] + features[:, 1] * features[:, 2] + random.normal(size=RECORDS) > 0).astype(int)
    return features, labels


def write(path: Path, features: np.ndarray, labels: Any, label: str = "label") -> Path:
    rows = [",".join([*(f"f{i}" for i in range(features.shape[1])), label])]
    rows += [
        ",".join([*(f"{value!r}" for value in row), str(name)])
        for row, name in zip(features.tolist(), labels, strict=True)
    ]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[object, ...]:
    features, labels = arrays()
    members = write(tmp_path / "members.csv", features[: RECORDS // 2], labels[: RECORDS // 2])
    nonmembers = write(tmp_path / "nonmembers.csv", features[RECORDS // 2 :], labels[RECORDS // 2 :])
    return "--members", members, "--nonmembers", nonmembers


def audit(*words: object) -> Outcome:
    return privfair("audit", *words, "--json")


def forest() -> RandomForestClassifier:
    features, labels = arrays()
    half = RECORDS // 2
    return RandomForestClassifier(20, random_state=0).fit(features[:half], labels[:half])


# --- every kind of model ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["joblib", "pkl"])
def test_a_scikit_learn_forest_leaks(suffix: str, tmp_path: Path, files: tuple[object, ...]) -> None:
    path = tmp_path / f"model.{suffix}"
    if suffix == "joblib":
        joblib.dump(forest(), path)
    else:
        path.write_bytes(pickle.dumps(forest()))
    out = tmp_path / "audit.json"
    claim = ("--epsilon", 0.5, "--delta", 1e-5, "--relation", "replace-one", "--out", out)
    outcome = audit("--model", path, *files, "--trust-pickle", *claim, *QUICK)
    assert outcome.code == 1, outcome.err
    found = outcome.json()
    assert found["verdict"] == "violated"
    assert found["epsilon_lower"] > 0.5
    assert found["promised"]["epsilon"] == 0.5
    assert found["membership"]["target"] == {"kind": "scikit-learn", "source": str(path)}
    assert found["membership"]["members"] == found["membership"]["nonmembers"] == RECORDS // 2
    assert {one["name"] for one in found["membership"]["attacks"]} == {"loss", "rmia", "lira-online"}
    assert json.loads(out.read_text()) == found


def test_a_pipeline_with_text_columns_gets_them_by_name(tmp_path: Path) -> None:
    import pandas as pd

    features, labels = arrays()
    table = pd.DataFrame(features, columns=[f"f{i}" for i in range(FEATURES)])
    table["job"] = np.random.default_rng(1).choice(["clerk", "nurse"], RECORDS)
    table["ward"] = np.random.default_rng(2).integers(0, 9, RECORDS)
    table["outcome"] = np.where(labels == 1, "yes", "no")
    half = RECORDS // 2
    model = make_pipeline(
        make_column_transformer((OneHotEncoder(), ["job"]), remainder="passthrough"), LogisticRegression()
    ).fit(table[:half].drop(columns=["outcome", "ward"]), table.outcome[:half])
    joblib.dump(model, tmp_path / "m.joblib")
    table[:half].to_csv(tmp_path / "a.csv", index=False)
    table[half:].to_csv(tmp_path / "b.csv", index=False)
    words = ("--model", tmp_path / "m.joblib", "--members", tmp_path / "a.csv", "--nonmembers", tmp_path / "b.csv")
    outcome = audit(*words, "--trust-pickle", "--drop", "ward", *QUICK)
    assert outcome.code == 0, outcome.err
    assert "class column: outcome" in outcome.err
    assert outcome.json()["membership"]["shadow"]["kind"] == "the target's own estimator"
    open_label = audit(*words, "--trust-pickle")
    assert open_label.code == 2
    assert "--label" in open_label.err


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 12), nn.ReLU(), nn.Linear(12, 2))


def test_a_torch_module(tmp_path: Path, files: tuple[object, ...]) -> None:
    path = tmp_path / "net.pt"
    torch.save(net(), path)
    outcome = audit("--model", path, *files, "--trust-pickle", *QUICK)
    assert outcome.code == 0, outcome.err
    found = outcome.json()
    assert found["membership"]["target"]["kind"] == "torch"
    assert found["verdict"] == "no-leak-found"
    assert "no epsilon is refuted" in found["why"]
    assert found["membership"]["shadow"]["kind"] == "the target's own architecture"
    torch.save(net().state_dict(), path)
    assert "state dict" in audit("--model", path, *files, "--trust-pickle").err


def save_onnx(path: Path, *, sigmoid: bool = False) -> None:
    """A linear model as a graph of its own: two logits, or one probability."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    outputs = 1 if sigmoid else 2
    weight = np.random.default_rng(0).normal(size=(FEATURES, outputs)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"])]
    if sigmoid:
        nodes.append(helper.make_node("Sigmoid", ["z"], ["p"]))
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])],
        [helper.make_tensor_value_info("p" if sigmoid else "z", TensorProto.FLOAT, ["n", outputs])],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def test_an_onnx_file_gives_the_signals_of_its_matrix(tmp_path: Path, files: tuple[object, ...]) -> None:
    pytest.importorskip("onnxruntime")
    from audit.models.shadow_models import phi_from_logits
    from audit.models.targets import open_target
    from tests.audit.membership_worlds import audited

    path = tmp_path / "m.onnx"
    save_onnx(path)
    features, labels = arrays()
    from audit.models.shadow_models import ShadowRecords

    records = audited(ShadowRecords(features, labels, 2), RECORDS // 2, RECORDS // 2)
    weight = np.random.default_rng(0).normal(size=(FEATURES, 2)).astype(np.float32)
    np.testing.assert_allclose(open_target(path).signal(records), phi_from_logits(features @ weight, labels), atol=1e-4)
    outcome = audit("--model", path, *files, *QUICK)
    assert outcome.code == 0, outcome.err
    assert outcome.json()["membership"]["target"]["kind"] == "onnx"


def test_one_output_must_be_explained(tmp_path: Path, files: tuple[object, ...]) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "m.onnx"
    save_onnx(path, sigmoid=True)
    unexplained = audit("--model", path, *files, *QUICK)
    assert unexplained.code == 2
    assert "--outputs" in unexplained.err
    assert audit("--model", path, *files, *QUICK, "--outputs", "probabilities").code == 0


def test_scores_of_ones_own(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    paths = []
    for name, shift in (("a", 4.0), ("b", 0.0)):
        paths.append(tmp_path / f"{name}.csv")
        rows = [f"{value:.6f}" for value in -random.normal(shift, 1, 500)]
        paths[-1].write_text("\n".join(["loss", *rows]) + "\n")
    words = ("--members", paths[0], "--nonmembers", paths[1], "--score", "loss", "--epsilon", 1)
    outcome = audit(*words, "--smaller-is-member", "--assignment", "coins")
    assert outcome.code == 1, outcome.err
    found = outcome.json()
    assert found["membership"]["attacks"][0]["auc"]["value"] > 0.95
    assert found["membership"]["attacks"][0]["tpr_at_fpr"][1]["value"] > 0.8
    # The wrong end of the score: below one half, and nothing is proved.
    wrong = audit(*words)
    assert wrong.code == 0
    assert wrong.json()["verdict"] == "inconclusive"


def test_a_table_for_people(tmp_path: Path, files: tuple[object, ...]) -> None:
    joblib.dump(forest(), tmp_path / "m.joblib")
    outcome = privfair("audit", "--model", tmp_path / "m.joblib", *files, "--trust-pickle", *QUICK, "--epsilon", 9)
    assert outcome.code == 0, outcome.err
    for word in ("AUC", "TPR at 1% FPR", "lira-online", "8 shadow models"):
        assert word in outcome.out.replace("\n", " ")


def test_population_makes_shadow_models_offline(tmp_path: Path, files: tuple[object, ...]) -> None:
    features, labels = arrays(seed=1)
    other = write(tmp_path / "other.csv", features, labels)
    joblib.dump(forest(), tmp_path / "m.joblib")
    outcome = audit("--model", tmp_path / "m.joblib", *files, "--trust-pickle", "--population", other, *QUICK)
    assert outcome.code == 0, outcome.err
    found = outcome.json()["membership"]
    assert found["shadow"]["design"] == "offline"
    assert {one["name"] for one in found["attacks"]} == {"loss", "rmia", "lira-offline"}


@pytest.mark.parametrize("shadow", ["logistic", "perceptron"])
def test_the_kind_of_shadow_models_can_be_chosen(shadow: str, tmp_path: Path, files: tuple[object, ...]) -> None:
    joblib.dump(forest(), tmp_path / "m.joblib")
    words = ("--model", tmp_path / "m.joblib", *files, "--trust-pickle", "--shadow", shadow, "--epochs", 2)
    outcome = audit(*words, "--jobs", 2, *QUICK)
    assert outcome.code == 0, outcome.err
    assert outcome.json()["membership"]["shadow"]["kind"] == shadow


@pytest.mark.parametrize("inner", [False, True], ids=["GradSampleModule", "its _module"])
def test_a_module_that_opacus_wrapped_is_no_fault_of_ours(
    inner: bool, tmp_path: Path, files: tuple[object, ...]
) -> None:
    """Its hooks broke the training of shadow models, and the traceback's exit code said "violated"."""
    opacus = pytest.importorskip("opacus")
    wrapped = opacus.GradSampleModule(net())
    nn.functional.cross_entropy(wrapped(torch.zeros(4, FEATURES)), torch.zeros(4, dtype=torch.int64)).backward()
    torch.save(wrapped._module if inner else wrapped, tmp_path / "net.pt")
    outcome = audit("--model", tmp_path / "net.pt", *files, "--trust-pickle", *QUICK)
    assert outcome.code == 0, outcome.err
    assert outcome.json()["membership"]["shadow"]["kind"] == "the target's own architecture"


def test_without_a_claim_an_overfitted_model_leaks_and_only_a_limit_fails_it(
    tmp_path: Path, files: tuple[object, ...]
) -> None:
    joblib.dump(forest(), tmp_path / "m.joblib")
    words = ("--model", tmp_path / "m.joblib", *files, "--trust-pickle", *QUICK)
    outcome = audit(*words)
    assert outcome.code == 0, outcome.err
    found = outcome.json()
    assert found["verdict"] == "leaks"
    assert found["why"].startswith(f"no epsilon below {found['epsilon_lower']:.3f} is true")
    assert max(attack["power"] for attack in found["attacks"]) > 0.5
    lower = found["epsilon_lower"]
    assert [audit(*words, "--fail-above", limit).code for limit in (lower + 0.1, lower - 0.1, "auc=0.99")] == [0, 1, 0]
    failed = audit(*words, "--fail-above", "auc=0.6")
    assert failed.code == 1
    assert "above 0.6" in failed.err
    assert audit(*words, "--fail-above", "auc").code == 2


def test_the_verdict_comes_first_and_tables_after_it(tmp_path: Path, files: tuple[object, ...]) -> None:
    joblib.dump(forest(), tmp_path / "m.joblib")
    outcome = privfair("audit", "--model", tmp_path / "m.joblib", *files, "--trust-pickle", *QUICK)
    places = [outcome.out.index(word) for word in ("LEAKS", "AUC")]
    assert "checks passed" not in outcome.out, "a leak is not followed by praise"
    assert places == sorted(places)


class _Always:
    """A classifier that answers the same class to everybody."""

    classes_ = np.array([0, 1, 2])

    def __init__(self, answer: int) -> None:
        self.answer = answer

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return np.full((len(x), 3), 0.1) + 0.7 * (np.arange(3) == self.answer)


def test_a_model_that_answers_all_alike_is_never_shown_without_the_warning(tmp_path: Path) -> None:
    features, labels = arrays()
    written = [write(tmp_path / f"{n}.csv", features[n::2], labels[n::2] + (features[n::2, 3] > 0)) for n in (0, 1)]
    joblib.dump(_Always(1), tmp_path / "m.joblib")
    asked = ("--model", tmp_path / "m.joblib", "--members", written[0], "--nonmembers", written[1], "--trust-pickle")
    shown = privfair("audit", *asked, "--shadow-models", 0, "--out", tmp_path / "audit.json")
    assert shown.code == 0, shown.err
    assert "WARNING  EMPTY MODEL: it answers '1' to every record" in shown.out
    assert "on the non-members" in shown.out
    found = json.loads((tmp_path / "audit.json").read_text("utf-8"))["model"]
    assert found["records"] == RECORDS // 2
    assert found["balanced_accuracy"] == pytest.approx(1 / 3)
    page = render(ReportContent(None, read_audit(tmp_path / "audit.json"), (), ()))
    assert "EMPTY MODEL" in page


def test_a_useful_model_is_measured_on_the_non_members(tmp_path: Path, files: tuple[object, ...]) -> None:
    joblib.dump(forest(), tmp_path / "m.joblib")
    found = audit("--model", tmp_path / "m.joblib", *files, "--trust-pickle", "--shadow-models", 0).json()["model"]
    features, labels = arrays()
    half = RECORDS // 2
    assert found["accuracy"] == pytest.approx(forest().score(features[half:], labels[half:]), abs=0.02)
    assert found["warning"] is None
    assert found["demographic_parity"] is None
    assert 0.5 < found["auc"] <= 1


# --- what is refused ----------------------------------------------------------------------------------------------


def test_a_pickle_is_not_opened_without_being_told_to(tmp_path: Path, files: tuple[object, ...]) -> None:
    """The file would leave a mark if it were opened."""
    mark = tmp_path / "mark"

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (mark,)

    for suffix in ("pkl", "joblib", "pt", "pth"):
        path = tmp_path / f"m.{suffix}"
        path.write_bytes(pickle.dumps(Bomb()))
        outcome = audit("--model", path, *files)
        assert outcome.code == 3
        assert "--trust-pickle" in outcome.err
        assert not mark.exists()


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("--model", "m.joblib"), 2, "--members"),
        (("--members", "a.csv", "--nonmembers", "b.csv"), 2, "--score"),
        (("--model", "m.joblib", "--score", "s", "--members", "a.csv", "--nonmembers", "b.csv"), 2, "--score"),
        (("./run", "--model", "m.joblib", "--members", "a.csv", "--nonmembers", "b.csv"), 2, "not both"),
        (("--model", "m.txt", "--members", "a.csv", "--nonmembers", "b.csv"), 2, "m.txt"),
        (("--model", "gone.onnx", "--members", "a.csv", "--nonmembers", "b.csv"), 2, "does not exist"),
        ((), 2, "command"),
    ],
)
def test_incomplete_questions_are_refused(words: tuple[object, ...], code: int, part: str) -> None:
    outcome = audit(*words)
    assert outcome.code == code
    assert part in outcome.err


@pytest.mark.parametrize(
    ("header", "row", "parts"),
    [
        ("f0,f1,f2,f3,f4,label", "1,2,3,4,5,0", ("b.csv", "'f5'", "missing")),
        ("f0,f1,f2,f3,f4,f5,label", "1,2,3,4,5,6,7", ("b.csv", "'label'", "line 2", "(0, 1)")),
        ("f0,f1,f2,f3,f4,f5,label", "1,2,3,4,5,,0", ("b.csv", "'f5'", "line 2", "no value")),
    ],
)
def test_bad_records_are_named(
    header: str, row: str, parts: tuple[str, ...], tmp_path: Path, files: tuple[object, ...]
) -> None:
    joblib.dump(forest(), tmp_path / "m.joblib")
    bad = tmp_path / "b.csv"
    bad.write_text("\n".join([header, row, row]) + "\n")
    outcome = audit("--model", tmp_path / "m.joblib", *files[:2], "--nonmembers", bad, "--trust-pickle")
    assert outcome.code == 2
    for part in parts:
        assert part in outcome.err


def test_the_members_again_are_no_nonmembers(tmp_path: Path, files: tuple[object, ...]) -> None:
    joblib.dump(forest(), tmp_path / "m.joblib")
    outcome = audit("--model", tmp_path / "m.joblib", *files[:2], "--nonmembers", files[1], "--trust-pickle")
    assert outcome.code == 2
    assert "not in the training data" in outcome.err


def test_a_score_that_is_no_number_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("s\n1\n2\n3\n")
    (tmp_path / "b.csv").write_text("s\n1\nnan\n0\n")
    words = ("--members", tmp_path / "a.csv", "--nonmembers", tmp_path / "b.csv")
    outcome = audit(*words, "--score", "s")
    assert outcome.code == 2
    for part in ("b.csv", "'s'", "line 3"):
        assert part in outcome.err
    assert "'t'" in audit(*words, "--score", "t").err


def test_models_that_cannot_be_asked_are_refused(tmp_path: Path, files: tuple[object, ...]) -> None:
    features, labels = arrays()
    path = tmp_path / "m.joblib"
    for model, part in (
        (RidgeClassifier().fit(features, labels), "predict_proba"),
        (LogisticRegression(), "not fitted"),
        (LogisticRegression().fit(features[:, :3], labels), "--drop"),
    ):
        joblib.dump(model, path)
        outcome = audit("--model", path, *files, "--trust-pickle")
        assert outcome.code == 2
        assert part in outcome.err
    path.write_bytes(b"nonsense")
    assert "cannot be opened" in audit("--model", path, *files, "--trust-pickle").err
    (tmp_path / "m.onnx").write_bytes(b"nonsense")
    if pytest.importorskip("onnxruntime"):
        assert "not an ONNX model" in audit("--model", tmp_path / "m.onnx", *files).err


def test_classes_with_names_need_the_models_order(tmp_path: Path) -> None:
    features, labels = arrays()
    names = np.where(labels == 1, "yes", "no")
    half = RECORDS // 2
    a = write(tmp_path / "a.csv", features[:half], names[:half])
    b = write(tmp_path / "b.csv", features[half:], names[half:])
    torch.save(net(), tmp_path / "n.pt")
    words = ("--model", tmp_path / "n.pt", "--members", a, "--nonmembers", b, "--trust-pickle", *QUICK)
    outcome = audit(*words)
    assert outcome.code == 2
    assert "--classes" in outcome.err
    assert audit(*words, "--classes", "no,yes").code == 0


def test_an_interrupt_leaves_nothing_behind(
    tmp_path: Path, files: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from audit.models import targets as cloned_estimator

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cloned_estimator.ClonedEstimator, "signals", interrupted)
    joblib.dump(forest(), tmp_path / "m.joblib")
    out = tmp_path / "audit.json"
    outcome = audit("--model", tmp_path / "m.joblib", *files, "--trust-pickle", "--out", out)
    assert outcome.code == 130
    assert outcome.out == ""
    assert not out.exists()
