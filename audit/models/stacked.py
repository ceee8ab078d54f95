"""Many models trained at once, as shadow models: logistic regressions, fully connected nets, copies of a torch module.

Regressions share one order of the records, and masks say who learns from whom. Each net has its own records, order and
start, from its own seed: training it in a stack or alone gives the same net up to rounding.
"""

from __future__ import annotations

import copy
import math
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from audit.models.shadow_models import OwnOrders, ShadowRecords
from calibrate.arrays import Booleans, Floats
from calibrate.errors import InvalidInput, UnsupportedCombination, count, positive


@dataclass(frozen=True, kw_only=True)
class _Descent:
    """The settings of minibatch descent with momentum, refused where it can't run with them."""

    epochs: int = 50
    batch: int = 64
    learning_rate: float = 0.1
    momentum: float = 0.9
    penalty: float = 0.0

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


@final
@dataclass(frozen=True)
class StackedLogistic(_Descent):
    """Minibatch descent with momentum. All models meet the records in one order and skip those that are not theirs.

    A batch of `batch` records holds about batch / 2 of each model's own; the gradient is divided by that expectation.
    """

    epochs: int = 30
    batch: int = 256
    learning_rate: float = 0.5
    penalty: float = 1e-4
    kind: ClassVar[str] = "logistic"

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
    labels = _tensors(records)[1]
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


def _tensors(records: ShadowRecords) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(records.features.astype(np.float32)), torch.from_numpy(records.labels.astype(np.int64))


def _signals(records: ShadowRecords, at_once: int, scores: Callable[[Tensor], Tensor]) -> Floats:
    """phi of every record under every model, from scores (models, records, classes) of some records at a time."""
    parts = zip(*(torch.split(table, at_once) for table in _tensors(records)), strict=True)
    return np.concatenate([phi_of_table(scores(x), y) for x, y in parts], axis=1)


def _descend(
    own: _Descent,
    parameters: list[Tensor],
    gradients: Callable[[Tensor, Tensor], Sequence[Tensor]],
    included: Booleans,
    seeds: tuple[int, ...],
) -> None:
    """Train the stacked parameters in place; `gradients` are those of each model's own rows with these weights."""
    speeds = [torch.zeros_like(one) for one in parameters]
    orders = OwnOrders(included, seeds)
    for _ in range(own.epochs):
        rows, weights = map(torch.from_numpy, orders.shuffle())
        for start in range(0, rows.shape[1], own.batch):
            part = slice(start, start + own.batch)
            moving = weights[:, start] > 0  # a model that ran out of its records rests
            everyone = bool(moving.all())
            for value, speed, gradient in zip(
                parameters, speeds, gradients(rows[:, part], weights[:, part]), strict=True
            ):
                if own.penalty:
                    gradient.add_(value, alpha=own.penalty)
                if everyone:
                    value.sub_(speed.mul_(own.momentum).add_(gradient), alpha=own.learning_rate)
                else:
                    speed[moving] = own.momentum * speed[moving] + gradient[moving]
                    value[moving] -= own.learning_rate * speed[moving]


@final
@dataclass(frozen=True)
class StackedPerceptron(_Descent):
    """ReLU nets with hidden layers of these sizes; minibatch descent with momentum."""

    hidden: tuple[int, ...] = (64,)
    kind: ClassVar[str] = "perceptron"

    def __post_init__(self) -> None:
        if not isinstance(self.hidden, tuple) or not self.hidden:
            raise InvalidInput("hidden", self.hidden, "must be a tuple of at least one size", "give (64,)")
        for size in self.hidden:
            count("hidden", size)
        super().__post_init__()

    @property
    def training(self) -> str:
        return f"hidden layers {self.hidden}, {super().training}"

    def signals(self, records: ShadowRecords, included: Booleans, seeds: tuple[int, ...]) -> Floats:
        layers = self.layers(records, included, seeds)
        return _signals(records, 4096, lambda x: _forward(layers, x.expand(len(seeds), *x.shape))[-1])

    def layers(self, records: ShadowRecords, included: Booleans, seeds: tuple[int, ...]) -> list[Tensor]:
        """Weight (models, inputs, outputs) and intercept (models, 1, outputs) of each layer in turn, trained."""
        x, y = _tensors(records)
        layers = self._start(x.shape[1], records.classes, seeds)
        _descend(self, layers, lambda rows, weights: _gradients(layers, x[rows], y[rows], weights), included, seeds)
        return layers

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
    # d loss / d scores = probability - truth, weighed; then back through each layer.
    delta = values[-1].softmax(dim=2)
    delta.scatter_add_(2, y[:, :, None], torch.full((*y.shape, 1), -1.0))
    delta.mul_((weights / weights.sum(dim=1, keepdim=True).clamp_min(1.0))[:, :, None])
    gradients: list[Tensor] = []
    for position in range(len(layers) // 2 - 1, -1, -1):
        gradients = [values[position].transpose(1, 2) @ delta, delta.sum(dim=1, keepdim=True), *gradients]
        if position:
            delta = (delta @ layers[2 * position].transpose(1, 2)).mul_(values[position].sign())
    return gradients


# Nets with the architecture of a torch module: many copies trained at once by torch.func.

_STARTING = threading.Lock()
"""Layers start from torch's global generator; two groups in two threads must take turns."""


@final
@dataclass(frozen=True, eq=False)
class StackedModule(_Descent):
    """The module's layers, started again for each model; cross-entropy of its outputs as logits, with momentum."""

    module: nn.Module
    kind: ClassVar[str] = "the target's own architecture"

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = why_not_stackable(self.module)
        if reason is not None:
            raise UnsupportedCombination(
                f"shadow models of a {type(self.module).__name__}", reason, "use StackedPerceptron"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process by value: torch would share the parameters' memory through open files."""
        settings = {name: value for name, value in vars(self).items() if name != "module"}
        return _from_bytes, (pickle.dumps(self.module), settings)

    def signals(self, records: ShadowRecords, included: Booleans, seeds: tuple[int, ...]) -> Floats:
        x, y = _tensors(records)
        skeleton = copy.deepcopy(self.module).float().eval()
        parameters = _start(skeleton, seeds)

        def scores(one: dict[str, Tensor], part: Tensor) -> Tensor:
            """Two classes may have a single output: the logit of the second."""
            outputs: Tensor = functional_call(skeleton, one, (part,))
            return outputs if outputs.shape[-1] > 1 else nn.functional.pad(outputs, (1, 0))

        def loss(one: dict[str, Tensor], part: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
            losses = nn.functional.cross_entropy(scores(one, part), labels, reduction="none")
            return (losses * weights).sum() / weights.sum().clamp_min(1.0)

        def gradients(rows: Tensor, weights: Tensor) -> list[Tensor]:
            return list(vmap(grad(loss))(parameters, x[rows], y[rows], weights).values())

        _descend(self, list(parameters.values()), gradients, included, seeds)
        with torch.no_grad():
            return _signals(records, 1024, lambda part: vmap(scores, in_dims=(0, None))(parameters, part))


def _from_bytes(module: bytes, settings: Mapping[str, Any]) -> StackedModule:
    return StackedModule(pickle.loads(module), **settings)


def why_not_stackable(module: nn.Module) -> str | None:
    """Why copies of a module can't be trained in one stack; None if they can."""
    for name, layer in module.named_modules():
        where = name or type(layer).__name__
        if any(True for _ in layer.buffers(recurse=False)):
            return f"the layer {where} keeps statistics of its batches"
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            return f"the layer {where} drops units at random"
        own = any(True for _ in layer.parameters(recurse=False))
        if own and not callable(getattr(layer, "reset_parameters", None)):
            return f"the layer {where} cannot be started anew (it has no reset_parameters)"
    if not any(True for _ in module.parameters()):
        return "it has no parameters"
    return None


def _start(skeleton: nn.Module, seeds: tuple[int, ...]) -> dict[str, Tensor]:
    """Parameters of freshly started copies, stacked by name."""
    found = []
    with _STARTING, torch.random.fork_rng(devices=[]):
        for seed in seeds:
            torch.manual_seed(seed)
            one = copy.deepcopy(skeleton)
            for layer in one.modules():
                start_anew = getattr(layer, "reset_parameters", None)
                if callable(start_anew):
                    start_anew()
            found.append({name: value.detach() for name, value in one.named_parameters()})
    return {name: torch.stack([one[name] for one in found]) for name in found[0]}
