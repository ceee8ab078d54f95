"""Many logistic regressions, or fully connected nets, trained at once: shadow models by matrix products.

Regressions share one order of the records, and masks say who learns from whom. Each net has its own records, order and
start, from its own seed: training it in a stack or alone gives the same net up to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from audit.models.shadow_models import OwnOrders, ShadowRecords
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
        _check_descent(self)

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


def _check_descent(own: StackedLogistic | StackedPerceptron) -> None:
    """The settings of minibatch descent with momentum, refused where it can't run with them."""
    count("epochs", own.epochs)
    count("batch", own.batch)
    positive("learning rate", own.learning_rate)
    if not (0 <= own.momentum < 1 and own.penalty >= 0):
        raise InvalidInput(
            "momentum, penalty", (own.momentum, own.penalty), "must be in [0, 1) and at least 0", "give 0.9 and 0"
        )


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


_RECORDS_AT_ONCE = 4096


@final
@dataclass(frozen=True)
class StackedPerceptron:
    """ReLU nets with hidden layers of these sizes; minibatch descent with momentum."""

    hidden: tuple[int, ...] = (64,)
    epochs: int = 50
    batch: int = 64
    learning_rate: float = 0.1
    momentum: float = 0.9
    penalty: float = 0.0
    kind: ClassVar[str] = "perceptron"

    def __post_init__(self) -> None:
        if not isinstance(self.hidden, tuple) or not self.hidden:
            raise InvalidInput("hidden", self.hidden, "must be a tuple of at least one size", "give (64,)")
        for size in self.hidden:
            count("hidden", size)
        _check_descent(self)

    @property
    def training(self) -> str:
        return (
            f"hidden layers {self.hidden}, {self.epochs} epochs of minibatch descent, batches of {self.batch}, no noise"
        )

    def signals(self, records: ShadowRecords, included: Booleans, seeds: tuple[int, ...]) -> Floats:
        features = torch.from_numpy(records.features.astype(np.float32))
        labels = torch.from_numpy(records.labels.astype(np.int64))
        layers = self.layers(records, included, seeds)
        found = [
            phi_of_table(_forward(layers, x.expand(len(seeds), *x.shape))[-1], y)
            for x, y in zip(*(torch.split(table, _RECORDS_AT_ONCE) for table in (features, labels)), strict=True)
        ]
        return np.concatenate(found, axis=1)

    def layers(self, records: ShadowRecords, included: Booleans, seeds: tuple[int, ...]) -> list[Tensor]:
        """Weight (models, inputs, outputs) and intercept (models, 1, outputs) of each layer in turn, trained."""
        features = torch.from_numpy(records.features.astype(np.float32))
        labels = torch.from_numpy(records.labels.astype(np.int64))
        layers = self._start(features.shape[1], records.classes, seeds)
        speeds = [torch.zeros_like(layer) for layer in layers]
        orders = OwnOrders(included, seeds)
        for _ in range(self.epochs):
            rows, weights = map(torch.from_numpy, orders.shuffle())
            for start in range(0, rows.shape[1], self.batch):
                part = slice(start, start + self.batch)
                gradients = _gradients(layers, features[rows[:, part]], labels[rows[:, part]], weights[:, part])
                self._step(layers, speeds, gradients, weights[:, start] > 0)
        return layers

    def _step(self, layers: list[Tensor], speeds: list[Tensor], gradients: list[Tensor], moving: Tensor) -> None:
        """One step of the models that have records in this batch; the others, who ran out of them, rest."""
        everyone = bool(moving.all())
        for layer, speed, gradient in zip(layers, speeds, gradients, strict=True):
            if self.penalty:
                gradient.add_(layer, alpha=self.penalty)
            if everyone:
                layer.sub_(speed.mul_(self.momentum).add_(gradient), alpha=self.learning_rate)
            else:
                speed[moving] = self.momentum * speed[moving] + gradient[moving]
                layer[moving] -= self.learning_rate * speed[moving]

    def _start(self, features: int, classes: int, seeds: tuple[int, ...]) -> list[Tensor]:
        """Uniform within 1 / sqrt(inputs), as torch's linear layers start."""
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        layers = []
        for inputs, outputs in pairwise((features, *self.hidden, classes)):
            within = 1.0 / math.sqrt(inputs)
            for shape in ((inputs, outputs), (1, outputs)):
                drawn = torch.stack([torch.rand(shape, generator=one) for one in generators])
                layers.append(drawn.mul_(2 * within).sub_(within))
        return layers


def _forward(layers: list[Tensor], x: Tensor) -> list[Tensor]:
    """What goes into each layer, and the scores last."""
    values = [x]
    for position, (weight, bias) in enumerate(zip(layers[::2], layers[1::2], strict=True)):
        scores = torch.baddbmm(bias, values[-1], weight)
        values.append(scores if 2 * position + 2 == len(layers) else scores.relu_())
    return values


def _gradients(layers: list[Tensor], x: Tensor, y: Tensor, weights: Tensor) -> list[Tensor]:
    """Of the weighted mean cross-entropy of each model's batch; a batch of padding alone gives zero."""
    values = _forward(layers, x)
    delta = values[-1].softmax(dim=2)
    delta.scatter_add_(2, y[:, :, None], torch.full((*y.shape, 1), -1.0))
    delta.mul_((weights / weights.sum(dim=1, keepdim=True).clamp_min(1.0))[:, :, None])
    gradients: list[Tensor] = []
    for position in range(len(layers) // 2 - 1, -1, -1):
        gradients = [values[position].transpose(1, 2) @ delta, delta.sum(dim=1, keepdim=True), *gradients]
        if position:
            delta = (delta @ layers[2 * position].transpose(1, 2)).mul_(values[position].sign())
    return gradients
