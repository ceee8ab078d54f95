"""What the [training] section may say for each algorithm that is trained here, beside what all share."""

from __future__ import annotations

from dataclasses import dataclass

from calibrate.errors import InvalidInput, count, positive


def at_least_zero(argument: str, value: float) -> float:
    if not 0 <= value < float("inf"):
        raise InvalidInput(argument, value, "must be a finite number of at least 0", "give 0 or more")
    return value


@dataclass(frozen=True)
class GradientOptions:
    """Steps of `learning_rate / (1 + learning_rate_decay * step)` along the gradient; for fedsgd and gaussian."""

    learning_rate: float = 0.5
    learning_rate_decay: float = 0.0

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        at_least_zero("learning-rate-decay", self.learning_rate_decay)

    def rate(self, step: int) -> float:
        return self.learning_rate / (1 + self.learning_rate_decay * step)


@dataclass(frozen=True)
class FedAvgOptions:
    """Each silo makes `local_epochs` passes over its batch in mini-batches of `local_batch` (all of it at once if
    left out)."""

    learning_rate: float = 0.5
    local_epochs: int = 1
    local_batch: int | None = None

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        count("local-epochs", self.local_epochs)
        if self.local_batch is not None:
            count("local-batch", self.local_batch)


@dataclass(frozen=True)
class CentralErmOptions:
    """The minimiser of the mean loss plus l2/2 |theta|^2, up to `iterations` of L-BFGS."""

    l2: float = 0.0
    iterations: int = 500

    def __post_init__(self) -> None:
        at_least_zero("l2", self.l2)
        count("iterations", self.iterations)
