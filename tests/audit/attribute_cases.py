"""Populations, planted models and honest models for tests of attribute inference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from audit.models.attribute_attacks import Attribute, AttributeRecords, SensitiveInput
from calibrate.arrays import Floats

NUMERIC = 4


def population(random: np.random.Generator, records: int, values: int, one_hot: bool) -> AttributeRecords:
    """The attribute shows in the first feature and moves the label; it stands last among the inputs."""
    sensitive = random.integers(0, values, records)
    x = random.normal(size=(records, NUMERIC))
    x[:, 0] += 1.2 * sensitive
    noise = random.logistic(size=records)
    labels = (x[:, 1] + 0.8 * (sensitive - (values - 1) / 2) + noise > 0).astype(np.int64)
    last = np.eye(values)[sensitive] if one_hot else sensitive[:, None].astype(np.float64)
    return AttributeRecords(np.hstack([x, last]), labels, sensitive)


def as_input(values: int, one_hot: bool) -> Attribute:
    names = tuple(f"v{number}" for number in range(values))
    if one_hot:
        columns = tuple(range(NUMERIC, NUMERIC + values))
        return Attribute("s", names, SensitiveInput(columns, tuple(map(tuple, np.eye(values).tolist()))))
    return Attribute("s", names, SensitiveInput((NUMERIC,), tuple((float(v),) for v in range(values))))


def without_input(records: AttributeRecords) -> AttributeRecords:
    return AttributeRecords(records.features[:, :NUMERIC], records.labels, records.sensitive)


@dataclass(frozen=True, eq=False)
class Honest:
    """Knows the population's law and no record: the attribute enters only as the law says."""

    values: int

    def probabilities(self, features: Floats) -> Floats:
        sensitive = self._sensitive(features[:, NUMERIC:])
        score = features[:, 1] + 0.8 * (sensitive - (self.values - 1) / 2)
        positive = 1 / (1 + np.exp(-score))
        return np.stack([1 - positive, positive], axis=1)

    def _sensitive(self, last: Floats) -> Floats | float:
        """Half-way where the attribute is no input."""
        if not last.any():
            return 0.5 if last.shape[1] != 1 else last[:, 0]
        return last.argmax(axis=1) if last.shape[1] > 1 else last[:, 0]


class Memorising:
    """Honest, but surer of the true label for a member as it was trained on; `share` of the members are memorised."""

    def __init__(self, honest: Honest, members: AttributeRecords, share: float) -> None:
        self._honest = honest
        kept = round(share * len(members))
        self._known = {
            row.tobytes(): (int(label), int(code))
            for row, label, code in zip(
                members.features[:kept], members.labels[:kept], members.sensitive[:kept], strict=True
            )
        }

    def probabilities(self, features: Floats) -> Floats:
        found = self._honest.probabilities(features)
        for place, row in enumerate(features):
            known = self._known.get(row.tobytes())
            if known is not None:
                found[place] = self._remembered(*known)
        return found

    def _remembered(self, label: int, code: int) -> list[float]:
        return [0.01, 0.99] if label else [0.99, 0.01]


class MemorisingElsewhere(Memorising):
    """The attribute is no input, but the last digits of a member's probability spell it."""

    def _remembered(self, label: int, code: int) -> list[float]:
        positive = 0.905 + 0.01 * code if label else 0.095 - 0.01 * code
        return [1 - positive, positive]
