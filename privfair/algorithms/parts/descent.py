"""The server's side of gradient descent: momentum, step decay, and which iterate becomes the model.

Everything here is computed from published values, so it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import assert_never, final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from privfair.plan.sections import BelowOne, Count, Options, Positive, Whole


class Iterate(Enum):
    """Which of theta_1 .. theta_T is the model."""

    LAST = "last"
    UNIFORM = "uniform"
    """One drawn uniformly beforehand, for which the papers prove convergence."""
    TAIL_AVERAGE = "tail-average"
    """The mean of the last quarter, over which noise averages out."""
    HALF_AVERAGE = "half-average"
    """The mean of the second half: for a constant rate."""


@final
@dataclass(frozen=True)
class DescentRule(Options):
    """v <- momentum v + gradient; theta <- theta - rate (1 - momentum) v.

    The rate is `learning_rate` times `decay` for every `decay_every` steps made. `rounds` is the planned
    number of steps; it and `seed` decide which iterate UNIFORM keeps.
    """

    learning_rate: Positive = 1.0
    momentum: BelowOne = 0.9
    decay: Positive = 1.0
    decay_every: Count = 10
    iterate: Iterate = Iterate.LAST
    rounds: Count = 1
    seed: Whole = 0
    cosine: bool = False
    """Whether the rate also falls along half a cosine, to zero after `rounds` steps."""

    def rate(self, step: int) -> float:
        annealed = (1 + math.cos(math.pi * min(1.0, step / self.rounds))) / 2 if self.cosine else 1.0
        return self.learning_rate * annealed * self.decay ** (step // self.decay_every)

    def start(self, theta: Tensor) -> Descent:
        return Descent(theta, torch.zeros_like(theta), 0, theta, 0)

    def advance(self, at: Descent, gradient: Tensor) -> Descent:
        """One step along a gradient made of published values."""
        velocity = self.momentum * at.velocity + gradient.to(at.theta.dtype)
        theta = at.theta - self.rate(at.step) * (1 - self.momentum) * velocity
        step = at.step + 1
        kept, times = self._keep(at, theta, step)
        return Descent(theta, velocity, step, kept, times)

    def model(self, at: Descent) -> Tensor:
        """The parameter vector to be used, were the run to end here."""
        return at.kept if at.kept_times > 0 else at.theta

    def _keep(self, at: Descent, theta: Tensor, step: int) -> tuple[Tensor, int]:
        match self.iterate:
            case Iterate.LAST:
                return theta, 1
            case Iterate.UNIFORM:
                return (theta, 1) if step == self._drawn() else (at.kept, at.kept_times)
            case Iterate.TAIL_AVERAGE | Iterate.HALF_AVERAGE:
                part = 4 if self.iterate is Iterate.TAIL_AVERAGE else 2
                if step <= self.rounds - max(1, self.rounds // part):
                    return at.kept, 0
                times = at.kept_times + 1
                return at.kept + (theta - at.kept) / times, times
            case _:
                assert_never(self.iterate)

    def _drawn(self) -> int:
        """The step UNIFORM keeps: in 1 .. rounds, from the seed; independent of the data."""
        return 1 + int(np.random.default_rng((self.seed, 0x51)).integers(self.rounds))


@dataclass(frozen=True, kw_only=True)
class DescentOptions(Options):
    """What [training] may say about the descent.

    `warm_start` lets the first round send, in the clear, how far each silo's own loss is from its minimum after so many
    iterations of L-BFGS, and begins at their mean; it uses no attribute. Worth it where a silo has many more
    records than the model has parameters.
    """

    learning_rate: Positive = 1.0
    momentum: BelowOne = 0.9
    decay: Positive = 1.0
    decay_every: Count = 10
    iterate: Iterate = Iterate.LAST
    warm_start: Whole = 0

    def rule(self, rounds: int, seed: int) -> DescentRule:
        """The rule for so many steps; `seed` decides which iterate UNIFORM keeps."""
        return DescentRule(self.learning_rate, self.momentum, self.decay, self.decay_every, self.iterate, rounds, seed)


@final
@dataclass(frozen=True, eq=False)
class Descent:
    """Where the descent stands. `kept` is what the iterate rule holds on to, `kept_times` from how many steps."""

    theta: Tensor
    velocity: Tensor
    step: int
    kept: Tensor
    kept_times: int


def tensor(values: Floats) -> Tensor:
    """A tensor of its own (published arrays are read-only)."""
    return torch.from_numpy(np.array(values, dtype=np.float64))
