"""How a numeric column becomes a feature: by public constants, by constants that were paid for, or not at all.

The union `Scaling` is closed. Statistics of private records enter only by two doors, both with a name on
them: `PaidScaling`, built from statistics that a gate published, and `NonPrivateStandardisation`, which every run
that protects features refuses (see `derived_facts`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

import numpy as np

from calibrate.arrays import AnyFloats
from calibrate.errors import InvalidInput, positive
from privfair.data.facts import Json


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

    def __post_init__(self) -> None:
        _require_interval(self.low, self.high)

    def apply(self, values: AnyFloats) -> AnyFloats:
        ends = self.transform.apply(np.array([self.low, self.high], dtype=np.float64))
        inside = self.transform.apply(np.clip(values, self.low, self.high))
        return (inside - ends[0]) / (ends[1] - ends[0])


@dataclass(frozen=True)
class PublicMeanScale:
    """(transform(value) - mean) / scale, with a mean and scale that are public knowledge.

    The result is clipped to [-reach, reach], so that one absurd cell cannot dominate a record's gradient.
    """

    mean: float
    scale: float
    transform: Transform = Transform.IDENTITY
    reach: float = 10.0

    def __post_init__(self) -> None:
        _require_mean_scale(self.mean, self.scale, self.reach)

    def apply(self, values: AnyFloats) -> AnyFloats:
        return np.clip((self.transform.apply(values) - self.mean) / self.scale, -self.reach, self.reach)


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

    def __post_init__(self) -> None:
        _require_mean_scale(self.mean, self.scale, self.reach)
        if not self.receipt.strip():
            raise InvalidInput(
                "receipt", self.receipt, "must name the charge that paid for the statistics", "copy it from the ledger"
            )

    def apply(self, values: AnyFloats) -> AnyFloats:
        return np.clip((self.transform.apply(values) - self.mean) / self.scale, -self.reach, self.reach)


@dataclass(frozen=True)
class NonPrivateStandardisation:
    """Mean 0 and variance 1 over the training records: a fact about private data, used without payment."""

    transform: Transform = Transform.IDENTITY

    def apply(self, values: AnyFloats) -> AnyFloats:
        return self.transform.apply(values)


@dataclass(frozen=True)
class Unscaled:
    """The value as it stands in the file."""

    def apply(self, values: AnyFloats) -> AnyFloats:
        return values


Scaling = PublicBounds | PublicMeanScale | PaidScaling | NonPrivateStandardisation | Unscaled


def paid_scaling(
    noisy_count: float,
    noisy_sum: float,
    noisy_sum_of_squares: float,
    bounds: tuple[float, float],
    receipt: str,
    transform: Transform = Transform.IDENTITY,
) -> PaidScaling:
    """Mean and scale from published noisy moments of values that were clipped to public `bounds`.

    The moments speak of transformed values, and `bounds` of values before the transform. Noise can make the
    moments absurd (a count below one, a negative variance): the mean is pulled into the bounds and the scale
    between one thousandth of their width and the width, so that no noise draw divides by almost nothing.
    """
    low, high = bounds
    _require_interval(low, high)
    ends = transform.apply(np.array([low, high], dtype=np.float64))
    width = float(ends[1] - ends[0])
    count = max(float(noisy_count), 1.0)
    mean = min(max(float(noisy_sum) / count, float(ends[0])), float(ends[1]))
    variance = float(noisy_sum_of_squares) / count - mean**2
    scale = min(max(math.sqrt(max(variance, 0.0)), width / 1000), width)
    return PaidScaling(mean, scale, receipt, transform)


def scaling_as_json(scaling: Scaling) -> dict[str, Json]:
    """The part of a schema's digest that says how a column was scaled."""
    match scaling:
        case PublicBounds(low, high, transform):
            return {"kind": "public-bounds", "low": float(low), "high": float(high), "transform": transform.value}
        case PublicMeanScale(mean, scale, transform, reach):
            return {"kind": "public-mean-scale"} | _moments_as_json(mean, scale, reach, transform)
        case PaidScaling(mean, scale, receipt, transform, reach):
            return {"kind": "paid", "receipt": receipt} | _moments_as_json(mean, scale, reach, transform)
        case NonPrivateStandardisation(transform):
            return {"kind": "non-private-standardisation", "transform": transform.value}
        case Unscaled():
            return {"kind": "unscaled"}
        case _:
            assert_never(scaling)


def _moments_as_json(mean: float, scale: float, reach: float, transform: Transform) -> dict[str, Json]:
    return {"mean": float(mean), "scale": float(scale), "reach": float(reach), "transform": transform.value}


def _require_interval(low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidInput(
            "bounds", (low, high), "must be two finite numbers, the lower first", "give for example 0, 100"
        )


def _require_mean_scale(mean: float, scale: float, reach: float) -> None:
    if not math.isfinite(mean):
        raise InvalidInput("mean", mean, "must be a finite number", "give the public mean")
    positive("scale", scale)
    positive("reach", reach)
