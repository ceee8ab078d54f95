"""How a numeric column becomes a feature: by public constants, by constants that were paid for, or not at all.

The union `Scaling` is closed. Statistics of private records enter only by two doors, both with a name on
them: `PaidScaling`, built from statistics that a gate published, and `NonPrivateStandardisation`, which every run
that protects features refuses (see `derived_facts`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import numpy as np

from calibrate.arrays import AnyFloats
from calibrate.errors import InvalidInput, positive


class Transform(Enum):
    """A fixed monotone map applied before scaling."""

    IDENTITY = "identity"
    SIGNED_LOG = "signed-log"

    def apply(self, values: AnyFloats) -> AnyFloats:
        if self is Transform.IDENTITY:
            return values
        return np.sign(values) * np.log1p(np.abs(values))


@dataclass(frozen=True)
class PublicBounds:
    """Values are clipped to [low, high] and mapped linearly to [0, 1] (after the transform).

    The bounds must be known without looking at the records: from a codebook, a law, a form's limits.
    """

    low: float
    high: float
    transform: Transform = Transform.IDENTITY
    kind: Literal["public-bounds"] = "public-bounds"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InvalidInput(
                "bounds",
                (self.low, self.high),
                "must be two finite numbers, the lower first",
                "give for example 0, 100",
            )

    def apply(self, values: AnyFloats) -> AnyFloats:
        ends = self.transform.apply(np.array([self.low, self.high], dtype=np.float64))
        inside = self.transform.apply(np.clip(values, self.low, self.high))
        return np.asarray((inside - ends[0]) / (ends[1] - ends[0]))


@dataclass(frozen=True)
class PublicMeanScale:
    """(transform(value) - mean) / scale, with a mean and scale that are public knowledge.

    The result is clipped to [-reach, reach], so that one absurd cell cannot dominate a record's gradient.
    """

    mean: float
    scale: float
    transform: Transform = Transform.IDENTITY
    reach: float = 10.0
    kind: Literal["public-mean-scale"] = "public-mean-scale"

    def __post_init__(self) -> None:
        _require_mean_scale(self.mean, self.scale, self.reach)

    def apply(self, values: AnyFloats) -> AnyFloats:
        return _standardise(self, values)


@dataclass(frozen=True)
class PaidScaling:
    """Mean and scale that a gate published with noise; `receipt` names the charge in the ledger.

    Guarantee: none of its own. It is post-processing of a published value, so it is as private as the release
    that `receipt` names; a manifest must list that release.
    """

    mean: float
    scale: float
    receipt: str
    transform: Transform = Transform.IDENTITY
    reach: float = 10.0
    kind: Literal["paid"] = "paid"

    def __post_init__(self) -> None:
        _require_mean_scale(self.mean, self.scale, self.reach)
        if not self.receipt.strip():
            raise InvalidInput(
                "receipt", self.receipt, "must name the charge that paid for the statistics", "copy it from the ledger"
            )

    def apply(self, values: AnyFloats) -> AnyFloats:
        return _standardise(self, values)


@dataclass(frozen=True)
class NonPrivateStandardisation:
    """Mean 0 and variance 1 over the training records: a fact about private data, used without payment."""

    transform: Transform = Transform.IDENTITY
    kind: Literal["non-private-standardisation"] = "non-private-standardisation"

    def apply(self, values: AnyFloats) -> AnyFloats:
        return self.transform.apply(values)


@dataclass(frozen=True)
class Unscaled:
    """The value as it stands in the file."""

    kind: Literal["unscaled"] = "unscaled"

    def apply(self, values: AnyFloats) -> AnyFloats:
        return values


Scaling = PublicBounds | PublicMeanScale | PaidScaling | NonPrivateStandardisation | Unscaled


def _standardise(by: PublicMeanScale | PaidScaling, values: AnyFloats) -> AnyFloats:
    return np.asarray(np.clip((by.transform.apply(values) - by.mean) / by.scale, -by.reach, by.reach))


def _require_mean_scale(mean: float, scale: float, reach: float) -> None:
    if not math.isfinite(mean):
        raise InvalidInput("mean", mean, "must be a finite number", "give the public mean")
    positive("scale", scale)
    positive("reach", reach)
