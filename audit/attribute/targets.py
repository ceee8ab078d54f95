"""Models whose weights are at hand: torch modules, and the models of a privfair run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from audit.attribute.records import Codes
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from privfair.models.model import Model, mean_over

# What an attack may ask of a model.


class Target(Protocol):
    """A classifier that answers with probabilities: all that a black-box attack needs."""

    def probabilities(self, features: Floats) -> Floats:
        """One row per record, one column per class."""
        ...


@runtime_checkable
class WhiteBoxTarget(Target, Protocol):
    """A classifier whose weights are at hand."""

    def signals(self, features: Floats, labels: Codes) -> Floats:
        """What only the weights tell, one row per record: activations, scores, the norm of the loss gradient."""
        ...


_CHUNK = 16_384


@final
@dataclass(frozen=True, eq=False)
class RunModel:
    """The model of a run with its parameters."""

    model: Model
    theta: Tensor
    dtype: torch.dtype

    def probabilities(self, features: Floats) -> Floats:
        with torch.no_grad():
            found = self.model.probabilities(self.theta, self._tensor(features))
        return found.double().numpy()

    def signals(self, features: Floats, labels: Codes) -> Floats:
        """Scores, loss and gradient norm of every record."""
        x, y = self._tensor(features), torch.from_numpy(np.asarray(labels))
        with torch.no_grad():
            scores = self.model.logits(self.theta, x).double()
        weighed = self.model.weighted_gradient(self.theta, x, y, mean_over(max(1, len(y))))
        columns = (scores, weighed.losses.double()[:, None], weighed.norms.double()[:, None])
        return torch.cat(columns, dim=1).detach().numpy()

    def _tensor(self, features: Floats) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(features)).to(self.dtype)


@final
class ModuleWeights:
    """A torch module that ends in a linear layer: scores, and what that last layer is fed.

    The gradient of a record's loss in the last layer is (probabilities - label) x (activations, 1), so its norm is
    the product of the two norms and needs no back-propagation.
    """

    def __init__(self, module: nn.Module) -> None:
        linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
        if not linear:
            raise InvalidInput(
                "module",
                type(module).__name__,
                "must have a linear layer for the white-box attack",
                "attack its outputs instead",
            )
        self._module = module.eval()
        self._last = linear[-1]

    def probabilities(self, features: Floats) -> Floats:
        return np.concatenate([functional.softmax(scores, dim=1) for scores, _ in self._passes(features)])

    def signals(self, features: Floats, labels: Codes) -> Floats:
        """Activations before the last layer, scores, loss, and the last layer's gradient norm."""
        parts = []
        for place, (scores, fed) in enumerate(self._passes(features)):
            y = torch.from_numpy(np.asarray(labels[place * _CHUNK : place * _CHUNK + len(scores)]))
            loss = functional.cross_entropy(scores, y, reduction="none")[:, None]
            off = functional.softmax(scores, dim=1) - functional.one_hot(y, scores.shape[1])
            norm = off.norm(dim=1, keepdim=True) * (1 + fed.square().sum(dim=1, keepdim=True)).sqrt()
            parts.append(torch.cat([fed, scores, loss, norm], dim=1))
        return torch.cat(parts).numpy()

    def _passes(self, features: Floats) -> list[tuple[Tensor, Tensor]]:
        """Scores and activations, a part of the records at a time."""
        seen: list[Tensor] = []

        def note(layer: nn.Module, given: tuple[Any, ...], scores: Any) -> None:
            seen.append(given[0].detach())

        example = next(self._module.parameters())
        found = []
        hook = self._last.register_forward_hook(note)
        try:
            with torch.no_grad():
                for part in torch.split(torch.from_numpy(np.ascontiguousarray(features)), _CHUNK):
                    seen.clear()
                    scores = self._module(part.to(example.dtype))
                    found.append((scores.double(), seen[-1].double().flatten(1)))
        finally:
            hook.remove()
        return found
