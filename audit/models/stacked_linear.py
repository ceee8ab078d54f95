"""Many logistic regressions trained at once: one matrix product serves all, masks say who learns from whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from audit.models.shadow_models import ShadowRecords
from calibrate.arrays import Booleans, Floats
from calibrate.errors import InvalidInput, count, positive


@final
@dataclass(frozen=True)
class StackedLogistic:
    """Minibatch descent with momentum. All models meet the records in one order and skip those that are not theirs.

    A batch of `batch` records holds about batch / 2 of each model's own; the gradient is divided by that expectation.
    """

    epochs: int = 30
    batch: int = 256
    learning_rate: float = 0.5
    momentum: float = 0.9
    penalty: float = 1e-4
    kind: ClassVar[str] = "logistic"

    def __post_init__(self) -> None:
        count("epochs", self.epochs)
        count("batch", self.batch)
        positive("learning rate", self.learning_rate)
        if not (0 <= self.momentum < 1 and self.penalty >= 0):
            raise InvalidInput(
                "momentum, penalty", (self.momentum, self.penalty), "must be in [0, 1) and at least 0", "give 0.9 and 0"
            )

    @property
    def training(self) -> str:
        return f"{self.epochs} epochs of minibatch descent, batches of {self.batch}, no noise"

    def signals(self, records: ShadowRecords, included: Booleans, seeds: tuple[int, ...]) -> Floats:
        features = with_constant(records)
        weights = self.weights(features, records, included)
        return margins(features, weights, records, len(included))

    def weights(self, features: Tensor, records: ShadowRecords, included: Booleans) -> Tensor:
        """(features + 1, models x scores), trained; the order of records is the same whatever the company."""
        stack = Stack.of(records, included)
        weights = torch.zeros(features.shape[1], stack.columns)
        speed = torch.zeros_like(weights)
        random = np.random.default_rng((len(records), self.epochs, self.batch))
        share = stack.masks.mean(dim=0)
        for _ in range(self.epochs):
            order = torch.from_numpy(random.permutation(len(records)))
            for rows in torch.split(order, self.batch):
                x = features[rows]
                residual = stack.residual(x @ weights, rows)
                residual /= stack.spread(share * len(rows))
                gradient = torch.addmm(weights, x.T, residual, beta=self.penalty)
                speed.mul_(self.momentum).add_(gradient)
                weights.sub_(speed, alpha=self.learning_rate)
        return weights


@dataclass(frozen=True, eq=False)
class Stack:
    """Masks and labels of a group, in the shapes the products need; two classes have one score, more have one each."""

    masks: Tensor
    """(records, models), 1 where the record is the model's own."""
    labels: Tensor
    classes: int

    @classmethod
    def of(cls, records: ShadowRecords, included: Booleans) -> Stack:
        masks = torch.from_numpy(np.ascontiguousarray(included.T).astype(np.float32))
        return cls(masks, torch.from_numpy(records.labels.astype(np.int64)), records.classes)

    @property
    def columns(self) -> int:
        return self.masks.shape[1] * (1 if self.classes == 2 else self.classes)

    def residual(self, scores: Tensor, rows: Tensor) -> Tensor:
        """probability - truth, zero where a record is not the model's own; (rows, columns)."""
        own, labels = self.masks[rows], self.labels[rows]
        if self.classes == 2:
            return scores.sigmoid_().sub_(labels.to(scores.dtype)[:, None]).mul_(own)
        table = scores.view(len(rows), -1, self.classes).softmax(dim=2)
        table[torch.arange(len(rows)), :, labels] -= 1.0
        return (table * own[:, :, None]).view(len(rows), -1)

    def spread(self, of_models: Tensor) -> Tensor:
        """One number per model, repeated for its columns."""
        return of_models if self.classes == 2 else of_models.repeat_interleave(self.classes)


def with_constant(records: ShadowRecords) -> Tensor:
    """Features with a constant for the intercept, in single precision."""
    ones = np.ones((len(records), 1), dtype=np.float32)
    return torch.from_numpy(np.hstack((records.features.astype(np.float32), ones)))


def margins(features: Tensor, weights: Tensor, records: ShadowRecords, models: int) -> Floats:
    """phi of every record under every model, (models, records)."""
    scores = features @ weights
    labels = torch.from_numpy(records.labels.astype(np.int64))
    if records.classes == 2:
        return (scores * (2 * labels - 1)[:, None]).T.double().contiguous().numpy()
    table = scores.view(len(records), models, records.classes)
    return phi_of_table(table.permute(1, 0, 2), labels)


def phi_of_table(table: Tensor, labels: Tensor) -> Floats:
    """phi from scores of shape (models, records, classes)."""
    chosen = labels[None, :, None].expand(table.shape[0], -1, 1)
    own = table.gather(2, chosen)[:, :, 0]
    others = table.scatter(2, chosen, float("-inf")).logsumexp(dim=2)
    return (own - others).double().contiguous().numpy()
