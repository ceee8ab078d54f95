"""The loss threshold (Yeom et al. 2018): a record the model fits well was probably in its training data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from audit.attacks.membership.result import AttackName
from audit.attacks.membership.signals import Signals, log_probability
from calibrate.arrays import Floats


@final
@dataclass(frozen=True)
class LossThreshold:
    """The negative loss. It needs no other model, and mistakes easy records for members."""

    name: ClassVar[AttackName] = AttackName.LOSS
    least_models: ClassVar[int] = 0

    def scores(self, signals: Signals) -> Floats:
        return log_probability(signals.target)
