"""What the [training] section may say for SteFFLe; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from calibrate.errors import InvalidInput
from calibrate.validation import count, open_unit, positive
from privfair.algorithms.iterate import Iterate
from privfair.algorithms.options import at_least_zero
from privfair.fairness.independence import Independence


class WCenter(Enum):
    """Around which point W is kept in its Frobenius ball."""

    INDEPENDENCE = "independence"
    """Around sqrt(P), the W of perfectly fair predictions: a small ball is then enough, and less noise."""
    ORIGIN = "origin"
    """Around zero, as printed."""


@dataclass(frozen=True)
class SteffleOptions:
    """`fairness` is the paper's lambda; `w_step` its eta_w, here not multiplied by lambda.

    `group_frequencies` are public group shares, block by block: groups entries for demographic parity and equal
    opportunity (there: among records of the positive class), classes x groups for equalised odds. Leave them out if
    the plan pays for a noisy histogram.

    `warm_start` lets the first round send, in the clear, how far each silo's own loss is from its minimum after so many
    iterations of L-BFGS, and begins at their mean; it uses no attribute. Worth it where a silo has many more
    records than the model has parameters.
    """

    notion: Independence = Independence.DEMOGRAPHIC_PARITY
    fairness: float = 1.0
    group_frequencies: tuple[float, ...] | None = None
    positive_class: int = 1
    learning_rate: float = 1.0
    momentum: float = 0.9
    decay: float = 1.0
    decay_every: int = 10
    w_step: float = 1.0
    w_center: WCenter = WCenter.INDEPENDENCE
    iterate: Iterate = Iterate.LAST
    warm_start: int = 0

    def __post_init__(self) -> None:
        at_least_zero("fairness", self.fairness)
        count("positive-class", self.positive_class, least=0)
        positive("learning-rate", self.learning_rate)
        positive("decay", self.decay)
        count("decay-every", self.decay_every)
        at_least_zero("w-step", self.w_step)
        count("warm-start", self.warm_start, least=0)
        if not 0 <= self.momentum < 1:
            raise InvalidInput("momentum", self.momentum, "must lie in [0, 1)", "0.9 is usual")
        for share in self.group_frequencies or ():
            open_unit("group-frequencies", share)
