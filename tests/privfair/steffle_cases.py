"""Small silos, models and algorithms for the tests of SteFFLe and pay-once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from calibrate.plans.steffle import StefflePlan
from privfair.algorithms.algorithm import Message, SiloTensors
from privfair.algorithms.steffle import Steffle, SteffleBounds, SteffleOptions, SteffleState
from privfair.contribution import Published
from privfair.fairness.fermi import Independence
from privfair.models.linear import LogisticRegression
from privfair.models.model import Model
from privfair.models.perceptron import Perceptron
from tests.privfair.plain_models import Plain


def silo_of(
    size: int, features: int, groups: int, classes: int, seed: int = 0, name: str = "north", scale: float = 1.0
) -> SiloTensors:
    """Random records; every group occurs in every class."""
    draw = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(size, features, generator=draw, dtype=torch.float64)
    y = torch.arange(size) % classes
    s = (torch.arange(size) // classes) % groups
    return SiloTensors(name, x, y, s)


def steffle_for(
    model: Model,
    groups: int,
    *,
    batch_size: int,
    lipschitz: float = 1e6,
    w_radius: float = 1.0,
    minority_fraction: float = 0.05,
    frequencies: tuple[float, ...] | None = None,
    weights: dict[str, float] | None = None,
    **options: object,
) -> Steffle:
    own = SteffleOptions(**options)  # type: ignore[arg-type]
    blocks = own.notion.blocks(model.classes)
    own = replace(own, group_frequencies=frequencies or (1.0 / groups,) * (groups * blocks))
    bounds = SteffleBounds.of(
        StefflePlan(max(10_000, batch_size), batch_size, 10, minority_fraction, lipschitz, w_radius)
    )
    return Steffle(model, own, bounds, weights or {"north": 1.0}, groups, rounds=10)


def some_state(algorithm: Steffle, seed: int = 0, size: float = 0.7) -> SteffleState:
    """A state somewhere on the way: random theta, W at `size` times its radius in every block."""
    draw = torch.Generator().manual_seed(seed)
    start = algorithm.start()
    theta = 0.5 * torch.randn(algorithm.model.size, generator=draw, dtype=torch.float64)
    v = torch.randn(start.deviation.shape, generator=draw, dtype=torch.float64)
    v = v / torch.linalg.vector_norm(v, dim=(1, 2), keepdim=True) * size * algorithm.bounds.w_radius
    return replace(start, descent=replace(start.descent, theta=theta), deviation=v)


def everybody(silo: SiloTensors) -> Tensor:
    return torch.arange(len(silo))


def noisy_values(message: Message) -> dict[str, np.ndarray]:
    return {contribution.name: contribution.values for contribution in message.noisy}


def without_noise(messages: Iterable[tuple[str, Message]]) -> dict[str, dict[str, Published]]:
    """What the server would receive if the gate added no noise."""
    received: dict[str, dict[str, Published]] = {}
    for party, message in messages:
        values = noisy_values(message) | dict(message.clear or {})
        values |= {name: np.asarray(codes, float) for name, codes in (message.randomized or {}).items()}
        received[party] = {name: Published(0, party, name, np.array(v)) for name, v in values.items()}
    return received


def mean_loss(model: LogisticRegression | Perceptron, theta: Tensor, silo: SiloTensors) -> Tensor:
    return Plain(model).losses(theta, silo.x, silo.y).mean()


def numeric_gradient(function, at: Tensor, step: float = 1e-5) -> np.ndarray:
    flat, result = at.flatten(), np.zeros(at.numel())
    for place in range(at.numel()):
        moved = torch.zeros_like(flat)
        moved[place] = step
        up, down = function((flat + moved).reshape(at.shape)), function((flat - moved).reshape(at.shape))
        result[place] = (float(up) - float(down)) / (2 * step)
    return result.reshape(tuple(at.shape))


def logistic(features: int, classes: int) -> LogisticRegression:
    return LogisticRegression(features, classes)


NOTIONS = tuple(Independence)
