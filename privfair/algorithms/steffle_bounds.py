"""What was signed for a SteFFLe run, and how the server weighs silos; importable without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import assert_never, final

from calibrate.validation import count, open_unit, positive


@final
@dataclass(frozen=True)
class SteffleBounds:
    """What was signed: the divisor, the floor of the group frequencies, and the two factors of theta's bound."""

    batch_size: int
    minority_fraction: float
    lipschitz: float
    w_radius: float

    def __post_init__(self) -> None:
        count("batch-size", self.batch_size)
        open_unit("minority-fraction", self.minority_fraction)
        positive("lipschitz", self.lipschitz)
        positive("w-radius", self.w_radius)

    @property
    def h_w(self) -> float:
        """2 sqrt(2) / (m sqrt(rho)): how far one record's attribute moves h_W at most."""
        return 2.0 * math.sqrt(2.0) / (self.batch_size * math.sqrt(self.minority_fraction))

    @property
    def h_theta(self) -> float:
        """2 sqrt(2) D L / (m sqrt(rho)), which per-record clipping enforces."""
        return self.h_w * self.lipschitz * self.w_radius


class BatchLaw(Enum):
    """What is the same in all silos when batches are drawn."""

    SAME_RATE = "same-rate"
    """Full and Poisson batches: every record takes part equally often, whatever its silo's size."""
    SAME_SIZE = "same-size"
    """Shuffled, fixed-size and with-replacement batches: a larger silo's records take part less often."""


def silo_weights(sizes: Mapping[str, int], silo_size: int, law: BatchLaw) -> dict[str, float]:
    """The weights with which the silos' sums over m become, on average, the mean over all records.

    `silo_size` is the one the plan is priced for, the smallest. In expectation a silo of n records sends n / silo_size
    times its mean if its records are drawn at the rate m / silo_size, and its mean if its batches have size m.
    """
    total = sum(sizes.values())
    match law:
        case BatchLaw.SAME_RATE:
            return dict.fromkeys(sizes, silo_size / total)
        case BatchLaw.SAME_SIZE:
            return {name: size / total for name, size in sizes.items()}
        case _:
            assert_never(law)
