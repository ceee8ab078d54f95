"""Which records of a run are members: each training record once, with its true attribute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audit.models.attribute_targets import members_of
from privfair.data.training_data import load_training_data
from privfair.plan.training import read_training_plan
from tests.end_to_end.test_attributes_apart import TWO, plan_text
from tests.privfair.small_runs import Desk


@pytest.mark.parametrize("attributes", ["", TWO])
def test_members_are_the_training_records_wherever_their_attribute_is_held(tmp_path: Path, attributes: str) -> None:
    desk = Desk.at(tmp_path, plan_text(attributes))
    whole = Desk.at(tmp_path / "whole", plan_text(""))
    found = members_of(load_training_data(read_training_plan(desk.plan).data))
    data = load_training_data(read_training_plan(whole.plan).data).parties.pooled()

    def rows(features: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> list[tuple[float, ...]]:
        return sorted(map(tuple, np.column_stack([features, labels, groups]).tolist()))

    expected = rows(np.asarray(data.features), np.asarray(data.label), np.asarray(data.group))
    assert rows(found.features, found.labels, found.sensitive) == expected
