"""What the [training] section may say for the papers' baselines; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from calibrate.validation import count, positive
from privfair.algorithms.options import at_least_zero


@dataclass(frozen=True)
class FedProxOptions:
    """`proximal` is mu of the term mu/2 |w - w_global|^2."""

    learning_rate: float = 0.5
    local_steps: int = 1
    proximal: float = 0.1

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        count("local-steps", self.local_steps)
        at_least_zero("proximal", self.proximal)


@dataclass(frozen=True)
class ScaffoldOptions:
    learning_rate: float = 0.5
    local_steps: int = 5
    server_rate: float = 1.0

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        count("local-steps", self.local_steps)
        positive("server-rate", self.server_rate)


@dataclass(frozen=True)
class FedDynOptions:
    """`regularisation` is alpha of the dynamic regulariser."""

    learning_rate: float = 0.5
    local_steps: int = 5
    regularisation: float = 0.1

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        count("local-steps", self.local_steps)
        positive("regularisation", self.regularisation)


@dataclass(frozen=True)
class QFflOptions:
    """`exponent` is q; 0 is FedAvg."""

    learning_rate: float = 0.5
    local_steps: int = 1
    exponent: float = 1.0
    loss_floor: float = 1e-3
    """A published loss is held above this before it is raised to a power."""

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        count("local-steps", self.local_steps)
        at_least_zero("exponent", self.exponent)
        positive("loss-floor", self.loss_floor)


@dataclass(frozen=True)
class AgnosticOptions:
    learning_rate: float = 0.5
    weight_rate: float = 0.1

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        at_least_zero("weight-rate", self.weight_rate)
