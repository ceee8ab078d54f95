"""LiRA, the likelihood-ratio attack (Carlini et al. 2022, arXiv 2112.03570).

For each record the signals of shadow models trained with it, and of those trained without it, are each fitted by a
normal law. Online, the score is the logarithm of the ratio of the two densities at the target's signal. Offline, only
models without the record are there, and the score is by how many deviations the target is above their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from audit.attacks.membership.result import AttackName
from audit.attacks.membership.signals import Signals
from calibrate.arrays import Booleans, Floats
from calibrate.errors import InvalidInput

OWN_VARIANCE_FROM = 64
"""With fewer shadow models a variance of each record's own is too noisy, and one for all records is used."""
_LEAST_DEVIATION = 1e-3


@final
@dataclass(frozen=True)
class LiraOnline:
    """Needs, for each record, shadow models with and without it."""

    name: ClassVar[AttackName] = AttackName.LIRA_ONLINE
    least_models: ClassVar[int] = 2

    def scores(self, signals: Signals) -> Floats:
        with_it = _fitted("with", signals, signals.included)
        without = _fitted("without", signals, ~signals.included)
        return _log_density(signals.target, *with_it) - _log_density(signals.target, *without)


@final
@dataclass(frozen=True)
class LiraOffline:
    """Needs, for each record, shadow models without it."""

    name: ClassVar[AttackName] = AttackName.LIRA_OFFLINE
    least_models: ClassVar[int] = 2

    def scores(self, signals: Signals) -> Floats:
        mean, deviation = _fitted("without", signals, ~signals.included)
        return (signals.target - mean) / deviation


def _fitted(which: str, signals: Signals, chosen: Booleans) -> tuple[Floats, Floats]:
    """Mean and deviation of each record's signals over the chosen models."""
    numbers = chosen.sum(axis=0)
    if not signals.models or numbers.min() < 1:
        record = int(np.argmin(numbers)) if signals.models else 0
        raise InvalidInput(
            "shadow models",
            signals.models,
            f"must include one trained {which} record {record}, and every other",
            "train more of them, on random halves of the records",
        )
    mean = np.where(chosen, signals.shadow, 0.0).sum(axis=0) / numbers
    squares = np.where(chosen, (signals.shadow - mean) ** 2, 0.0).sum(axis=0)
    if signals.models >= OWN_VARIANCE_FROM and numbers.min() >= 2:
        variance = squares / (numbers - 1)
    else:
        free = max(1, int(numbers.sum()) - signals.records)
        variance = np.full(signals.records, squares.sum() / free)
    return mean, np.maximum(np.sqrt(variance), _LEAST_DEVIATION)


def _log_density(value: Floats, mean: Floats, deviation: Floats) -> Floats:
    """Up to a constant that both densities share."""
    return -0.5 * ((value - mean) / deviation) ** 2 - np.log(deviation)
