"""Shadow models with the architecture of a torch module: many copies trained at once by torch.func."""

from __future__ import annotations

import copy
import pickle
import threading
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from audit.models.shadow_models import OwnOrders, ShadowRecords
from audit.models.stacked import phi_of_table
from calibrate.arrays import Booleans, Floats
from calibrate.errors import UnsupportedCombination, count, positive

_RECORDS_AT_ONCE = 1024
_STARTING = threading.Lock()
"""Layers start from torch's global generator; two groups in two threads must take turns."""


@final
@dataclass(frozen=True, eq=False)
class StackedModule:
    """The module's layers, started anew for each model; cross-entropy of its outputs as logits, with momentum."""

    module: nn.Module
    epochs: int = 50
    batch: int = 64
    learning_rate: float = 0.1
    momentum: float = 0.9
    kind: ClassVar[str] = "the target's own architecture"

    def __post_init__(self) -> None:
        count("epochs", self.epochs)
        count("batch", self.batch)
        positive("learning rate", self.learning_rate)
        reason = why_not_stackable(self.module)
        if reason is not None:
            raise UnsupportedCombination(
                f"shadow models of a {type(self.module).__name__}", reason, "use StackedPerceptron"
            )

    @property
    def training(self) -> str:
        return f"{self.epochs} epochs of minibatch descent, batches of {self.batch}, no noise"

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process by value: torch would share the parameters' memory through open files."""
        return _from_bytes, (pickle.dumps(self.module), self.epochs, self.batch, self.learning_rate, self.momentum)

    def signals(self, records: ShadowRecords, included: Booleans, seeds: tuple[int, ...]) -> Floats:
        x = torch.from_numpy(records.features.astype(np.float32))
        y = torch.from_numpy(records.labels.astype(np.int64))
        skeleton = copy.deepcopy(self.module).float().eval()
        parameters = self._train(skeleton, x, y, included, seeds)

        def scores(one: dict[str, Tensor], part: Tensor) -> Tensor:
            return _scores(functional_call(skeleton, one, (part,)))

        with torch.no_grad():
            found = [
                phi_of_table(vmap(scores, in_dims=(0, None))(parameters, part), labels)
                for part, labels in zip(*(torch.split(table, _RECORDS_AT_ONCE) for table in (x, y)), strict=True)
            ]
        return np.concatenate(found, axis=1)

    def _train(
        self, skeleton: nn.Module, x: Tensor, y: Tensor, included: Booleans, seeds: tuple[int, ...]
    ) -> dict[str, Tensor]:
        def loss(one: dict[str, Tensor], part: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
            losses = nn.functional.cross_entropy(
                _scores(functional_call(skeleton, one, (part,))), labels, reduction="none"
            )
            return (losses * weights).sum() / weights.sum().clamp_min(1.0)

        gradient = vmap(grad(loss))
        parameters = _start(skeleton, seeds)
        speeds = {name: torch.zeros_like(value) for name, value in parameters.items()}
        orders = OwnOrders(included, seeds)
        for _ in range(self.epochs):
            rows, weights = map(torch.from_numpy, orders.shuffle())
            for start in range(0, rows.shape[1], self.batch):
                part = slice(start, start + self.batch)
                own, moving = rows[:, part], weights[:, start] > 0
                found = gradient(parameters, x[own], y[own], weights[:, part])
                for name, value in parameters.items():
                    speeds[name][moving] = self.momentum * speeds[name][moving] + found[name][moving]
                    value[moving] -= self.learning_rate * speeds[name][moving]
        return parameters


def _from_bytes(module: bytes, epochs: int, batch: int, learning_rate: float, momentum: float) -> StackedModule:
    return StackedModule(pickle.loads(module), epochs, batch, learning_rate, momentum)


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


def _scores(outputs: Tensor) -> Tensor:
    """Two classes may have a single output: the logit of the second."""
    if outputs.shape[-1] > 1:
        return outputs
    return nn.functional.pad(outputs, (1, 0))
