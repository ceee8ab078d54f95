"""What attacks see of a model: for each record, how firmly it believes the record's own label.

The signal is phi = log p_y - log sum over j != y of p_j, which is nearly normal over retrained models (Carlini et al.
2022). Signals of all models are kept as one table (models x records); the models themselves are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from calibrate.arrays import Booleans, Floats, Integers
from calibrate.errors import InvalidInput

LEAST_PROBABILITY = 1e-7
"""Below this a probability in single precision is rounding, and exact zeros (of trees) would drown every variance."""


def phi_from_logits(logits: Floats, labels: Integers) -> Floats:
    """phi without rounding: the label's score minus the log-sum-exp of the others."""
    table, chosen = _check("logits", logits, labels)
    rows = np.arange(len(table))
    others = table.copy()
    others[rows, chosen] = -np.inf
    return np.asarray(table[rows, chosen] - logsumexp(others, axis=1))


def phi_from_probabilities(probabilities: Floats, labels: Integers) -> Floats:
    """phi from class probabilities; the others are added up rather than taken as 1 - p, which would round to 0."""
    table, chosen = _check("probabilities", probabilities, labels)
    if (table < -1e-9).any() or not np.allclose(table.sum(axis=1), 1.0, atol=1e-3):
        raise InvalidInput(
            "probabilities",
            "rows",
            "must be at least 0 and add up to 1",
            "say that the model's outputs are logits, or normalise them",
        )
    rows = np.arange(len(table))
    others = np.clip(table, 0.0, None)
    own = others[rows, chosen].copy()
    others[rows, chosen] = 0.0
    floor = LEAST_PROBABILITY
    return np.asarray(np.log(np.maximum(own, floor)) - np.log(np.maximum(others.sum(axis=1), floor)))


def log_probability(phi: Floats) -> Floats:
    """log p_y, the negative loss, from phi."""
    return np.asarray(-np.logaddexp(0.0, -phi))


@dataclass(frozen=True, eq=False)
class Signals:
    """The target's signal and the shadow models' on the same records.

    `included[k, i]`: record i was in the training data of shadow model k. Nothing here knows who is a member of the
    target's training data; that is what makes the bounds on epsilon valid.
    """

    target: Floats
    shadow: Floats
    included: Booleans

    def __post_init__(self) -> None:
        records = self.target.shape
        if self.target.ndim != 1 or not len(self.target):
            raise InvalidInput("target", records, "must be one signal per record", "give a flat array")
        if self.shadow.ndim != 2 or self.shadow.shape[1:] != records or self.included.shape != self.shadow.shape:
            raise InvalidInput(
                "shadow",
                (self.shadow.shape, self.included.shape),
                f"must both be (models, {len(self.target)})",
                "give one signal and one mark for each model and record",
            )
        if self.included.dtype != np.bool_:
            raise InvalidInput("included", self.included.dtype, "must be true or false", "compare first")
        for name, values in (("target", self.target), ("shadow", self.shadow)):
            if not np.isfinite(values).all():
                raise InvalidInput(name, "NaN or infinite", "must be finite", "drop or fix these records")

    @classmethod
    def alone(cls, target: Floats) -> Signals:
        """A target without shadow models."""
        values = np.asarray(target, dtype=np.float64)
        return cls(values, np.zeros((0, len(values))), np.zeros((0, len(values)), dtype=np.bool_))

    @property
    def models(self) -> int:
        return len(self.shadow)

    @property
    def records(self) -> int:
        return len(self.target)

    def of(self, rows: Integers) -> Signals:
        """Some of the records, in this order."""
        return Signals(self.target[rows], self.shadow[:, rows], self.included[:, rows])

    def with_target(self, model: int) -> tuple[Signals, Booleans]:
        """A shadow model in the target's place, attacked with the others; and who was in its training data."""
        rest = np.arange(self.models) != model
        return Signals(self.shadow[model], self.shadow[rest], self.included[rest]), self.included[model]


def _check(argument: str, table: Floats, labels: Integers) -> tuple[Floats, Integers]:
    values, chosen = np.asarray(table, dtype=np.float64), np.asarray(labels)
    if values.ndim != 2 or values.shape[1] < 2 or chosen.shape != values.shape[:1]:
        raise InvalidInput(
            argument,
            (values.shape, chosen.shape),
            "must be (records, classes) with one label per record",
            "give a row for each record and a column for each class",
        )
    if not np.isfinite(values).all():
        raise InvalidInput(argument, "NaN or infinite", "must be finite", "check the model's outputs")
    if chosen.dtype.kind not in "iu" or (len(chosen) and not 0 <= chosen.min() <= chosen.max() < values.shape[1]):
        raise InvalidInput(
            "labels", f"outside 0 .. {values.shape[1] - 1}", "must be class numbers", "number the classes from 0"
        )
    return values, chosen.astype(np.int64)
