"""Clipping, weighing and averaging that bound less than they seem to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from calibrate.plans.fair_plugin import FLIPS, RATES
from calibrate.plans.plan import SCALES
from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.algorithms.fair_plugin import FairPlugin
from privfair.algorithms.fedfdp import FedFdp
from privfair.algorithms.parts.paid_scales import PaidScales
from privfair.models.model import Features, tensor_of
from privfair.models.scaled import Scales
from privfair.plan.model import build_model
from tests.planted_bugs.bug import Bug, Caught, sending, together, with_values
from tests.planted_bugs.workshop import Engine

_MICRO_BATCH = 8
_RATE = 0.2


def _plain_sum(algorithm: DpFedSgd, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    if len(y) == 0:
        return torch.zeros(algorithm.model.size, dtype=torch.float64)
    return algorithm.model.weighted_gradient(theta, x, y, lambda norms, losses: torch.ones_like(norms)).total


def _cut(vector: Tensor, clip: float) -> Tensor:
    return vector * min(1.0, clip / max(float(vector.norm()), 1e-300))


def _batch_mean() -> AbstractContextManager[Any]:
    """The mean of the batch is clipped, not each record."""

    def wrong(right: Any, self: Any, state: Any, round: int, silo: Any, batch: Tensor) -> Any:
        total = _plain_sum(self, state.theta, silo.x[batch], silo.y[batch]) / max(1, len(batch))
        message = right(self, state, round, silo, batch)
        return with_values(message, lambda name, values: _cut(total, self.clip).numpy())

    return sending(DpFedSgd, wrong)


def _micro_batches() -> AbstractContextManager[Any]:
    """Eight records share one clip."""

    def wrong(right: Any, self: Any, state: Any, round: int, silo: Any, batch: Tensor) -> Any:
        parts = [
            _cut(_plain_sum(self, state.theta, silo.x[part], silo.y[part]), self.clip)
            for part in batch.split(_MICRO_BATCH)
            if len(part)
        ]
        total = torch.stack(parts).sum(dim=0) if parts else torch.zeros(self.model.size, dtype=torch.float64)
        message = right(self, state, round, silo, batch)
        return with_values(message, lambda name, values: total.numpy())

    return sending(DpFedSgd, wrong)


def _realised_size() -> AbstractContextManager[Any]:
    """The sum over the realised batch size, brought back to the expected one."""

    def wrong(right: Any, self: Any, state: Any, round: int, silo: Any, batch: Tensor) -> Any:
        expected = _RATE * len(silo)
        message = right(self, state, round, silo, batch)
        return with_values(message, lambda name, values: values * expected / max(1, len(batch)))

    return sending(DpFedSgd, wrong)


def _each_layer() -> AbstractContextManager[Any]:
    """Every layer's gradient is clipped to the norm that was signed for all of them together."""

    def wrong(right: Any, self: Any, state: Any, round: int, silo: Any, batch: Tensor) -> Any:
        x, y = silo.x[batch], silo.y[batch]
        in_scores = self.model.probabilities(state.theta, x) - nn.functional.one_hot(y, self.model.classes)
        gradients = self.model.score_gradients(state.theta, x, in_scores)
        sizes = [value.numel() for value in self.model.named_parameters(state.theta).values()]
        layers = []
        for layer in gradients.split(sizes, dim=1):
            norms = layer.norm(dim=1, keepdim=True)
            layers.append(layer * (self.clip / norms.clamp_min(self.clip)))
        total = torch.cat(layers, dim=1).sum(dim=0)
        message = right(self, state, round, silo, batch)
        return with_values(message, lambda name, values: total.numpy())

    return sending(DpFedSgd, wrong)


def _private_statistics() -> AbstractContextManager[Any]:
    """Features are standardised by the silo's own mean and deviation."""

    def wrong(right: Any, self: Any, state: Any, round: int, silo: Any, batch: Tensor) -> Any:
        spread = silo.x.std(dim=0, correction=0).clamp_min(1e-6)
        return right(self, state, round, replace(silo, x=(silo.x - silo.x.mean(dim=0)) / spread), batch)

    return sending(DpFedSgd, wrong)


class _BatchNormed:
    """A model behind a real batch normalisation, where the engine would have refused it."""

    def __init__(self, inner: Any, features: int) -> None:
        self._inner = inner
        self._norm = nn.BatchNorm1d(features, affine=False, track_running_stats=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def weighted_gradient(self, theta: Tensor, x: Features, y: Tensor, weigh: Any) -> Any:
        return self._inner.weighted_gradient(theta, self._norm(tensor_of(x)) if len(x) > 1 else x, y, weigh)


def _batch_norm() -> AbstractContextManager[Any]:
    def build(plan: Any, shape: tuple[int, ...], classes: int) -> Any:
        return _BatchNormed(build_model(plan, shape, classes), shape[0])

    return patch("privfair.plan.training.build_model", build)


def weights_after_clipping(fairness: float, mean: float, clip: float) -> Any:
    """FedFDP's factor multiplies what was already clipped."""
    return lambda norms, losses: (1 + fairness * (losses - mean)) * clip / norms.clamp_min(clip)


def _weights_after_clipping() -> AbstractContextManager[Any]:
    patched = patch("privfair.algorithms.fedfdp.fair_clipping", weights_after_clipping)
    return together(patched, _blind_fedfdp())


def _equation_13() -> AbstractContextManager[Any]:
    """min(factor, C / norm) as printed: a negative factor is not clipped at all."""

    def weigh(fairness: float, mean: float, clip: float) -> Any:
        return lambda norms, losses: torch.minimum(1 + fairness * (losses - mean), clip / norms.clamp_min(1e-12))

    return together(patch("privfair.algorithms.fedfdp.fair_clipping", weigh), _blind_fedfdp())


def _blind_fedfdp() -> AbstractContextManager[Any]:
    return sending(FedFdp, lambda right, self, *arguments: right(self, *arguments))


def _never_cleared() -> AbstractContextManager[Any]:
    """Each round sends the sum of all rounds so far."""
    sums: dict[tuple[int, str, str], np.ndarray] = {}

    def wrong(right: Any, self: Any, state: Any, round: int, silo: Any, batch: Tensor) -> Any:
        def added(name: str, values: np.ndarray) -> np.ndarray:
            key = (id(self), silo.name, name)
            sums[key] = sums.get(key, 0.0) + values
            return sums[key].copy()

        return with_values(right(self, state, round, silo, batch), added)

    return sending(FedFdp, wrong)


def _cumulated(which: str) -> Callable[[], AbstractContextManager[Any]]:
    """Each record is counted in every cell above its own too, where one cell was signed."""

    def wrong(right: Any, self: Any, state: Any, round: int, silo: Any, batch: Tensor) -> Any:
        message = right(self, state, round, silo, batch)
        return with_values(message, lambda name, values: np.cumsum(values, axis=1) if name == which else values)

    return lambda: sending(FairPlugin, wrong)


def _in_two_cells() -> AbstractContextManager[Any]:
    """A record is counted in the cell next to its own as well, say to smooth the histogram."""

    def wrong(right: Any, self: Any, state: Any, round: int, silo: Any, batch: Tensor) -> Any:
        message = right(self, state, round, silo, batch)
        return with_values(message, lambda name, values: values + np.roll(values, 1) if name == SCALES else values)

    return sending(PaidScales, wrong)


def _own_scales() -> AbstractContextManager[Any]:
    """Each silo centres by the exact means of its own records instead of by the published centres."""

    def wrong(self: Any, state: Any, silo: Any) -> Any:
        centre = silo.x.mean(dim=0) if len(silo) else state.scales.centre
        return replace(silo, x=Scales(centre, state.scales.width).apply(silo.x))

    return patch.object(PaidScales, "scaled", wrong)


def _last_chunk_alone() -> AbstractContextManager[Any]:
    """Records are worked on in chunks of 64, and the clip is applied to the last chunk."""

    def wrong(right: Any, self: Any, state: Any, round: int, silo: Any, batch: Tensor) -> Any:
        start = (len(batch) - 1) // 64 * 64 if len(batch) else 0
        before = _plain_sum(self, state.theta, silo.x[batch[:start]], silo.y[batch[:start]]).numpy()
        message = right(self, state, round, silo, batch[start:])
        return with_values(message, lambda name, values: values + before.reshape(values.shape))

    return sending(DpFedSgd, wrong)


def _every_fifth_round() -> AbstractContextManager[Any]:
    """Now and then a round sends the sum as it is, say for a plot."""

    def wrong(right: Any, self: Any, state: Any, round: int, silo: Any, batch: Tensor) -> Any:
        message = right(self, state, round, silo, batch)
        if round % 5 != 3:
            return message
        total = _plain_sum(self, state.theta, silo.x[batch], silo.y[batch]).numpy()
        return with_values(message, lambda name, values: total.reshape(values.shape))

    return sending(DpFedSgd, wrong)


_SECRET = Engine.SECRET_BATCHES
_BOTH = (Caught.SEARCH, Caught.PROBE)
_GRADIENT, _FEDFDP_GRADIENT = "engine.gaussian.value_1", "engine.fedfdp.gradient"

CLIPPING_BUGS = (
    Bug("the batch's mean is clipped", _SECRET, _batch_mean, _BOTH, _GRADIENT),
    Bug("micro-batches are clipped", _SECRET, _micro_batches, _BOTH, _GRADIENT),
    Bug("division by the realised batch size", _SECRET, _realised_size, (Caught.PROBE,), _GRADIENT, attacked=True),
    Bug("per-layer clip accounted as one", Engine.FULL_BATCHES, _each_layer, (Caught.PROBE,)),
    Bug("weights after clipping", Engine.FEDFDP, _weights_after_clipping, _BOTH, _FEDFDP_GRADIENT),
    Bug("negative weights unclipped", Engine.FEDFDP, _equation_13, _BOTH, _FEDFDP_GRADIENT),
    Bug("gradient never cleared", Engine.FEDFDP, _never_cleared, _BOTH, _FEDFDP_GRADIENT),
    Bug("cumulated histogram", Engine.FAIR_PLUGIN, _cumulated(FLIPS), _BOTH, "engine.fair-plugin.flip_counts"),
    Bug("cumulated rates in the last round but one", Engine.FAIR_PLUGIN, _cumulated(RATES), (Caught.PROBE,)),
    Bug("a record in two cells", Engine.SCALES, _in_two_cells, (Caught.PROBE,)),
    Bug("scales of the silo's own records", Engine.SCALES, _own_scales, (Caught.PROBE,)),
    Bug("only the last chunk is clipped", Engine.FULL_BATCHES, _last_chunk_alone, (Caught.PROBE,)),
    Bug("every fifth round is not clipped", Engine.FULL_BATCHES, _every_fifth_round, (Caught.PROBE,)),
    Bug("normalisation by private statistics", _SECRET, _private_statistics, _BOTH, _GRADIENT),
    Bug("BatchNorm", _SECRET, _batch_norm, (Caught.PROBE,)),
)
