"""What the [training] section may say for the pay-once method; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from calibrate.errors import InvalidInput
from calibrate.validation import count, open_unit, positive
from privfair.algorithms.iterate import Iterate
from privfair.algorithms.options import at_least_zero
from privfair.fairness.independence import Independence
from privfair.fairness.penalty_kinds import FairnessPenalty


@dataclass(frozen=True)
class PayOnceOptions:
    """`fairness` is lambda, the weight of the penalty.

    After the first round nothing private is touched, so batches are a matter of speed alone: `mini_batch` makes every
    silo go through its records in shuffled batches of that size, in an order the seed decides; left out, each round
    uses all records. `memory` is how much of the running joint distribution outlives a round: 0 suits full batches,
    about 1 - batch / silo suits mini-batches, whose own rates are too noisy to square. `warm_start` is
    that of `SteffleOptions`.
    """

    notion: Independence = Independence.DEMOGRAPHIC_PARITY
    penalty: FairnessPenalty = FairnessPenalty.SQUARED_GAP
    fairness: float = 1.0
    positive_class: int = 1
    mini_batch: int | None = None
    memory: float = 0.0
    least_share: float = 0.01
    """A group's estimated share of a block is held above this before anything is divided by it."""
    learning_rate: float = 1.0
    momentum: float = 0.9
    decay: float = 1.0
    decay_every: int = 10
    iterate: Iterate = Iterate.LAST
    warm_start: int = 0

    def __post_init__(self) -> None:
        at_least_zero("fairness", self.fairness)
        count("positive-class", self.positive_class, least=0)
        if self.mini_batch is not None:
            count("mini-batch", self.mini_batch)
        count("warm-start", self.warm_start, least=0)
        open_unit("least-share", self.least_share)
        positive("learning-rate", self.learning_rate)
        positive("decay", self.decay)
        count("decay-every", self.decay_every)
        for name, value in (("momentum", self.momentum), ("memory", self.memory)):
            if not 0 <= value < 1:
                raise InvalidInput(name, value, "must lie in [0, 1)", "0 forgets at once, 0.9 averages")
