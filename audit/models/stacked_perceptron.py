"""Many fully connected nets trained at once, by batched matrix products; forward and backward by hand.

Each model has its own records, its own order and its own start, from its own seed: training it in a stack or alone
gives the same net up to rounding.
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
from audit.models.stacked_linear import phi_of_table
from calibrate.arrays import Booleans, Floats
from calibrate.errors import InvalidInput, count, positive

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
        count("epochs", self.epochs)
        count("batch", self.batch)
        positive("learning rate", self.learning_rate)
        if not (0 <= self.momentum < 1 and self.penalty >= 0):
            raise InvalidInput(
                "momentum, penalty", (self.momentum, self.penalty), "must be in [0, 1) and at least 0", "give 0.9 and 0"
            )

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
