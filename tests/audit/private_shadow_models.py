"""Many private logistic regressions at once: clipped full-batch gradients with Gaussian noise.

A stand-in for tests and benchmarks, not a release: its noise comes from a seeded generator and promises nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from audit.models.shadow_models import ShadowRecords
from audit.models.stacked import Stack, margins, with_constant
from calibrate.arrays import Booleans, Floats
from calibrate.errors import UnsupportedCombination, count, positive


@final
@dataclass(frozen=True)
class StackedPrivateLogistic:
    """What DP-SGD with full batches does to logistic regression, for shadow models of a private target.

    A record's gradient is residual * (x, 1), so its norm is |residual| |(x, 1)| and clipping is one factor per record.
    """

    steps: int
    clip: float
    noise_multiplier: float
    learning_rate: float = 1.0
    kind: ClassVar[str] = "private logistic"

    def __post_init__(self) -> None:
        count("steps", self.steps)
        for name in ("clip", "noise_multiplier", "learning_rate"):
            positive(name.replace("_", " "), getattr(self, name))

    @property
    def training(self) -> str:
        return f"{self.steps} noisy full-batch steps, noise multiplier {self.noise_multiplier:g}"

    def signals(self, records: ShadowRecords, included: Booleans, seeds: tuple[int, ...]) -> Floats:
        if records.classes != 2:
            raise UnsupportedCombination(
                f"private shadow models of {records.classes} classes",
                "they are written for one score per record",
                "use StackedPerceptron, or two classes",
            )
        features, stack = with_constant(records), Stack.of(records, included)
        norms = torch.linalg.vector_norm(features, dim=1)[:, None]
        everyone = torch.arange(len(records))
        sizes = stack.masks.sum(dim=0).clamp_min(1.0)
        weights = torch.zeros(features.shape[1], stack.columns)
        noise = self._noise(features.shape[1], seeds)
        for step in range(self.steps):
            residual = stack.residual(features @ weights, everyone)
            residual.mul_(self.clip / (residual.abs() * norms).clamp_min_(self.clip))
            total = torch.addmm(noise[step], features.T, residual)
            weights.sub_(total.div_(sizes), alpha=self.learning_rate)
        return margins(features, weights, records, len(included))

    def _noise(self, features: int, seeds: tuple[int, ...]) -> Tensor:
        """(steps, features, models); each model's own, from its own seed."""
        drawn = [torch.randn(self.steps, features, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        return torch.stack(drawn, dim=2).mul_(self.clip * self.noise_multiplier)
