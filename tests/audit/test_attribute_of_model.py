"""Attribute inference on models with files: scikit-learn and torch, attribute as number, as text, and left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from audit.models.attribute_attacks import WHITE_BOX, YEOM
from audit.models.attribute_audit import AttributeOptions
from audit.models.attribute_targets import AskedByClass, InputTable, attribute_inference_of_model
from audit.models.records import ColumnChoice, RecordTables, encode_tables
from audit.models.targets import SklearnTarget
from audit.models.torch_targets import TorchTarget
from audit.report.results import AttributeFinding
from calibrate.errors import InvalidInput
from tests.audit.attribute_cases import population

QUICK = AttributeOptions(attacks=(YEOM, WHITE_BOX))


def _write(path: Path, seed: int, records: int, names: tuple[str, str]) -> Path:
    found = population(np.random.default_rng(seed), records, 2, False)
    rows = ["a,b,c,d,sex,label"]
    rows += [
        ",".join([*(f"{value:.6f}" for value in x[:4]), names[s], str(y)])
        for x, s, y in zip(found.features, found.sensitive, found.labels, strict=True)
    ]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def _tables(folder: Path, names: tuple[str, str]) -> RecordTables:
    return RecordTables.read(_write(folder / "in.csv", 1, 700, names), _write(folder / "out.csv", 2, 700, names))


def test_the_nearest_neighbour_leaks_and_hundreds_of_neighbours_do_not(tmp_path: Path) -> None:
    tables = _tables(tmp_path, ("0", "3"))
    records = encode_tables(tables, ColumnChoice("label"))
    x = np.column_stack([*records.columns.values()])[: records.members]
    y = records.labels[: records.members]
    for neighbours, expected in ((1, AttributeFinding.LEAKAGE), (300, AttributeFinding.NONE_FOUND)):
        target = SklearnTarget(KNeighborsClassifier(neighbours).fit(x, y))
        found = attribute_inference_of_model(target, tables, records, "sex", QUICK)
        assert found.finding is expected
        assert found.values == ("0", "3")
        assert [one.name for one in found.attacks] == ["Yeom"]


def test_text_values_are_tried_out_by_name(tmp_path: Path) -> None:
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    tables = _tables(tmp_path, ("female", "male"))
    records = encode_tables(tables, ColumnChoice("label"))
    frame = pd.DataFrame({name: values[: records.members] for name, values in records.columns.items()})
    spelled = make_column_transformer((OneHotEncoder(), ["sex"]), remainder="passthrough")
    model = make_pipeline(spelled, KNeighborsClassifier(1))
    target = SklearnTarget(model.fit(frame, records.labels[: records.members].astype(str)))
    inputs = InputTable.of(records.columns)
    asked = AskedByClass(target, inputs, records.class_names)
    table = inputs.encode(records.columns)
    assert {name: list(values) for name, values in inputs.decode(table).items()} == {
        name: list(values) for name, values in records.columns.items()
    }
    expected = model.predict_proba(pd.DataFrame(dict(records.columns)))
    assert asked.probabilities(table) == pytest.approx(expected, abs=1e-6)
    found = attribute_inference_of_model(target, tables, records, "sex", QUICK)
    assert found.values == ("female", "male")
    assert found.attacks[0].leakage.value > 0.03


def test_a_column_that_was_left_out_is_read_off_the_answers_alone(tmp_path: Path) -> None:
    tables = _tables(tmp_path, ("0", "1"))
    records = encode_tables(tables, ColumnChoice("label", ("sex",)))
    torch.manual_seed(0)
    target = TorchTarget(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))
    found = attribute_inference_of_model(target, tables, records, "sex", QUICK)
    assert [one.name for one in found.not_applied] == ["Yeom"]
    assert [one.name for one in found.attacks] == ["white box"]
    assert found.finding is AttributeFinding.NONE_FOUND


def test_a_number_with_many_values_is_refused(tmp_path: Path) -> None:
    tables = _tables(tmp_path, ("0", "1"))
    records = encode_tables(tables, ColumnChoice("label"))
    target = TorchTarget(nn.Linear(5, 2))
    with pytest.raises(InvalidInput, match="different values"):
        attribute_inference_of_model(target, tables, records, "a", QUICK)
